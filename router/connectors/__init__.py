"""The connectors by name: the one place that knows them all."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from router.connectors.connector import (
    BOOTSTRAP_PORT,
    Connector,
    ConnectorError,
    Handle,
    LegBody,
    Pairing,
    Peer,
)
from router.connectors.mooncake import BOOTSTRAP_TARGET, MooncakeConnector, read_bootstrap
from router.connectors.nixl import NixlConnector
from router.connectors.none import NoConnector
from router.connectors.sglang import SglangConnector, room_for

__all__ = [
    "BOOTSTRAP_PORT",
    "BOOTSTRAP_TARGET",
    "CONNECTORS",
    "Connector",
    "ConnectorError",
    "Handle",
    "LegBody",
    "Pairing",
    "Peer",
    "build_connector",
    "read_bootstrap",
    "room_for",
]

Kind = type[NixlConnector] | type[MooncakeConnector] | type[SglangConnector] | type[NoConnector]

_KINDS: tuple[Kind, ...] = (NixlConnector, MooncakeConnector, SglangConnector, NoConnector)

CONNECTORS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}


def build_connector(name: str, **options: Any) -> Connector:
    """A connector with its options; those not given have the engines' defaults.

    Raises:
        ConnectorError: the name or an option is not known.
    """
    if name not in CONNECTORS:
        raise ConnectorError(f"connector {name!r} is unknown; allowed: {', '.join(CONNECTORS)}")
    kind = CONNECTORS[name]
    known = [option.name for option in fields(kind)]
    for option in options:
        if option not in known:
            raise ConnectorError(
                f"connector {name!r} has no option {option!r}; it has: {', '.join(known) or 'none'}"
            )
    return kind(**options)
