"""Who may reach what a configuration opens: said by `check`, and at every start.

Separate from `check`, which also knows the studies that the live router must not load.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from router.settings import Settings


def open_doors(settings: Settings) -> Iterator[str]:
    """What anybody who reaches this machine may do; said at every start, too."""
    server, auth = settings.server, settings.auth
    if not loopback(server.host) and not auth.asks_clients:
        yield f"server.host {server.host} is open to the network, but clients need no key"
    if server.admin_port and not loopback(server.admin_host) and auth.admin_api_key is None:
        yield f"server.admin_host {server.admin_host} is open to the network, but administrators need no key"
    if auth.asks_clients and auth.api_key is None:
        yield "clients' keys are taken off, and without auth.api_key workers get no key but their own"


def loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
