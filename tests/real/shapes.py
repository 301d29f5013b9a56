"""What two answers have in common when their texts differ: keys in their order, types, kinds of events."""

from __future__ import annotations

import json
from typing import Any

from tests.real.wire import Answer

_PER_ANSWER = frozenset({"date", "server", "content-length", "x-request-id"})


def shape(value: Any) -> Any:
    """Keys in order, types of leaves, and of a list the different shapes in it."""
    if isinstance(value, dict):
        return {key: _of_key(key, inner) for key, inner in value.items()}
    if isinstance(value, list):
        kinds: list[Any] = []
        for inner in value:
            kind = shape(inner)
            if kind not in kinds:
                kinds.append(kind)
        return kinds
    if isinstance(value, bool) or value is None:
        return repr(value)
    return "number" if isinstance(value, int | float) else "text"


def _of_key(key: str, value: Any) -> Any:
    """The keys of some values are data: the tokens that were likely."""
    if key == "prompt_logprobs" and isinstance(value, list):
        return [shape(list(one.values())) if one else None for one in value[:2]]
    if key == "top_logprobs" and isinstance(value, list) and not any("token" in one for one in value if one):
        return sorted({"nothing" if one is None else "numbers by token" for one in value})
    return shape(value)


def keys(value: Any) -> str:
    """A shape as text: two dictionaries of another key order are not alike."""
    return json.dumps(shape(value))


def stream_shape(body: bytes) -> list[str]:
    """Kinds of events in the order in which they first came."""
    kinds: list[str] = []
    for block in body.decode().split("\n\n"):
        lines = []
        for line in block.splitlines():
            data = line.removeprefix("data: ")
            lines.append(keys(json.loads(data)) if data.startswith("{") else line)
        kind = "\n".join(lines)
        if kind not in kinds:
            kinds.append(kind)
    return kinds


def answer_shape(answer: Answer) -> tuple[int, list[str], list[str]]:
    """Status, header names with the content type, and the shape of the body."""
    headers = [
        f"{name}: {value}" if name == "content-type" else name
        for name, value in answer.headers.items()
        if name not in _PER_ANSWER
    ]
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return answer.status, sorted(headers), stream_shape(answer.body)
    return answer.status, sorted(headers), [keys(answer.json()) if "json" in kind else answer.body.decode()]
