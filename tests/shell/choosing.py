"""A live router whose policies are changed, and asked why."""

from __future__ import annotations

from typing import Any

from tests.shell.live import ADMIN, Live
from tests.shell.puppet import WHOLE, answering

SERVE = answering(200, WHOLE)
TWO: dict[str, Any] = {"a": SERVE, "b": SERVE}


async def switch(act: Live, body: object, method: str = "PUT") -> Any:
    return await act.ask("/policies", body, method=method, origin=ADMIN)
