"""One call of a client, as the shell sees it: what came over HTTP, before anything was decided."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from router.api.headers import Header
from router.api.intake import Receive
from router.api.keys import Client
from router.api.routes import Route


class Call(msgspec.Struct, eq=False):
    """Attributes:
    id: the request id, given by the client or made here; safe to print.
    target: path and query as the engine should get them.
    by_name: the last value of each header, names in lower case.
    arrived: when its head was read (s, the router's clock).
    received: when the last byte of its body was; until then, `arrived`.
    """

    id: str
    route: Route
    method: bytes
    target: bytes
    headers: list[Header]
    by_name: Mapping[bytes, bytes]
    client: Client
    receive: Receive
    arrived: float
    received: float = 0.0

    def __post_init__(self) -> None:
        self.received = self.arrived
