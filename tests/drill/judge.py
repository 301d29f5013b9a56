"""What a client may get, whatever has happened: the right answer, the beginning of it with a clear end, or an
error that it can understand. Never another text."""

from __future__ import annotations

import json
from typing import Any

from tests.drill.plan import Wish
from tests.shell.visitors import Reply

_UNDERSTOOD = frozenset({429, 500, 502, 503, 504})
"""Status codes of an answer to a request that nothing is wrong with."""


class Wrong(AssertionError):
    """A client got what it must not get."""


def judge(wish: Wish, reply: Reply, reference: Reply) -> str:
    """One word for what the client got. Raises Wrong."""
    if reply.status != 200:
        return _refused(wish, reply)
    if not wish.body["stream"]:
        return _whole(wish, reply, reference)
    return _streamed(wish, reply, reference)


def _refused(wish: Wish, reply: Reply) -> str:
    if reply.status not in _UNDERSTOOD:
        raise Wrong(f"{wish}: status {reply.status}: {reply.body[:300]!r}")
    told = reply.json()
    error = told.get("error", told)  # SGLang's own errors are flat
    if not isinstance(error, dict) or not error.get("message"):
        raise Wrong(f"{wish}: an error without words: {reply.body[:300]!r}")
    return "refused"


def _whole(wish: Wish, reply: Reply, reference: Reply) -> str:
    if reply.broken:
        return "broken"
    got, expected = _essence(reply.json()), _essence(reference.json())
    if got != expected:
        raise Wrong(f"{wish}: {got} instead of {expected}")
    return "answered"


def _essence(answer: dict[str, Any]) -> Any:
    """Of an answer what must be equal wherever it was made."""
    usage = answer["usage"]
    return [
        [
            choice["index"],
            choice["finish_reason"],
            choice.get("text") or choice.get("message", {}).get("content"),
        ]
        for choice in answer["choices"]
    ], (usage["prompt_tokens"], usage["completion_tokens"])


def _streamed(wish: Wish, reply: Reply, reference: Reply) -> str:
    got, expected = texts(reply), texts(reference)
    for index, text in got.items():
        if not expected.get(index, "").startswith(text):
            raise Wrong(f"{wish}: choice {index} says {text!r} instead of {expected.get(index)!r}")
    done = b"data: [DONE]" in reply.body
    failed = b'"error"' in reply.body
    if done and failed:
        raise Wrong(f"{wish}: an error and [DONE] in one stream")
    if done:
        if got != expected or finishes(reply) != finishes(reference):
            raise Wrong(f"{wish}: a stream that is complete and says {got} instead of {expected}")
        return "answered"
    if not failed and not reply.broken:
        raise Wrong(f"{wish}: a stream that was cut in silence: {reply.body[-300:]!r}")
    return "broken"


def _events(reply: Reply) -> list[dict[str, Any]]:
    lines = [line for line in reply.body.split(b"\n") if line.startswith(b"data: {")]
    found = []
    for line in lines:
        try:
            found.append(json.loads(line[6:]))
        except ValueError:  # the last event of a stream that broke
            continue
    return found


def texts(reply: Reply) -> dict[int, str]:
    """The text of each choice of a stream so far; none for a choice that has said nothing."""
    said: dict[int, str] = {}
    for event in _events(reply):
        for choice in event.get("choices", ()):
            piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
            if piece:
                said[choice["index"]] = said.get(choice["index"], "") + piece
    return said


def finishes(reply: Reply) -> dict[int, str]:
    return {
        choice["index"]: choice["finish_reason"]
        for event in _events(reply)
        for choice in event.get("choices", ())
        if choice.get("finish_reason")
    }
