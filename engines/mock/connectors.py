"""The KV connectors that a mock engine can have, by name.

Separate as the one place that knows all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engines.mock.connector import Connector, Mount
from engines.mock.mooncake import MooncakeConnector
from engines.mock.nixl import NixlConnector
from engines.mock.nixl_wire import addressee
from engines.mock.sglang_rooms import RoomsConnector

CONNECTORS: Mapping[str, Callable[[Mount], Connector]] = {
    "nixl": NixlConnector,
    "mooncake": MooncakeConnector,
    "sglang": RoomsConnector,
}
"""Makes the connector of one incarnation. `none` has none."""

ADDRESSEES: Mapping[str, Callable[[bytes], str]] = {"nixl": addressee}
"""Reads the id of the engine that a message is for. Only these connectors have data-parallel ranks."""


def connector_of(mount: Mount) -> Connector | None:
    """Return the connector that the settings ask for."""
    make = CONNECTORS.get(mount.settings.connector)
    return None if make is None else make(mount)
