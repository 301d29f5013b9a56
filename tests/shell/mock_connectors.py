"""What a scene does with the KV connectors of mock engines: looks what they hold, breaks their hand-overs."""

from __future__ import annotations

from typing import Any

from engines.mock.faults import Fault
from tests.shell.live import Live


def switch_on(act: Live, name: str, **fields: Any) -> None:
    act.mocks[name].front.faults.add(Fault(**fields))


def held(act: Live, name: str) -> dict[str, Any]:
    """What the connector of an engine holds."""
    connector = act.mocks[name].process.connector
    assert connector is not None
    return dict(connector.state())


def assert_nothing_held(act: Live, *names: str) -> None:
    """Nobody waits for KV, and nothing is kept for anybody."""
    for name in names:
        state = held(act, name)
        assert [state[key] for key in ("kept", "offers", "pulls", "errands")] == [0, 0, 0, 0], (name, state)
