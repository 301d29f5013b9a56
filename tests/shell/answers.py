"""What an answer says, whoever gave it: without the names that differ from engine to engine."""

from __future__ import annotations

import json
from typing import Any

from tests.shell.visitors import Reply

_NAMES = frozenset({"id", "created", "system_fingerprint"})
"""What two engines, or two requests to one, call differently."""


def essence(value: Any, without: frozenset[str] = frozenset()) -> Any:
    """A JSON value without the names of things, and without these keys."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in _NAMES and key not in without}
        return {key: essence(item, without) for key, item in kept.items()}
    return [essence(item, without) for item in value] if isinstance(value, list) else value


def told(reply: Reply, without: frozenset[str] = frozenset()) -> Any:
    """Status and content of an answer, streamed or not."""
    assert reply.broken is None, reply.broken
    if not (reply.header("content-type") or "").startswith("text/event-stream"):
        return reply.status, essence(reply.json(), without)
    lines = [line.removeprefix(b"data: ") for line in reply.body.split(b"\n") if line]
    return reply.status, [
        essence(json.loads(line), without) if line.startswith(b"{") else line for line in lines
    ]
