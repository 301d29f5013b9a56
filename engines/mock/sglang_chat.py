"""Bytes of SGLang's chat and text completions.

Separate from vLLM's: the finish comes as an event of its own in chat, `matched_stop` stands for
`stop_reason`, and every event carries a usage that is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from engines.mock.ask import Answer, Ask, Extras, Piece
from engines.mock.chat import DONE, finish_reason, tool_call_id
from engines.mock.logprobs import chat_logprobs, completion_logprobs

_encode = msgspec.json.encode


class SglangChatStream:
    """Encodes one chat stream."""

    def __init__(self, ask: Ask, created: int) -> None:
        self._ask = ask
        self._counts: dict[int, int] = {}
        fields = {
            "id": ask.request_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": ask.model,
        }
        self._head = b"data: " + _encode(fields)[:-1] + b',"choices":['
        self._finished: list[Piece] = []

    def opening(self) -> Iterator[bytes]:
        """Yield one role event per answer."""
        for index in range(self._ask.n):
            yield self._event(index, _delta("assistant", ""))

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Yield the event of one piece; its end is kept for an event of its own."""
        first = piece.index not in self._counts
        self._counts[piece.index] = self._counts.get(piece.index, 0) + len(piece.token_ids)
        if piece.text or piece.token_ids:
            yield self._event(piece.index, self._text_delta(piece, first=first), piece)
        if piece.finish_reason is not None:
            self._finished.append(piece)

    def closing(self, extras: Extras, completion_tokens: int) -> Iterator[bytes]:
        """Yield one finish event per answer, the usage event, if asked, and `[DONE]`."""
        for piece in sorted(self._finished, key=lambda piece: piece.index):
            choice = {
                "index": piece.index,
                "delta": _delta(None, None),
                "logprobs": None,
                "finish_reason": finish_reason(self._ask, piece.finish_reason),
                "matched_stop": piece.stop_reason,
            }
            yield self._head + _encode(choice) + b'],"usage":null}\n\n'
        if self._ask.streaming.include_usage:
            usage = sglang_usage(self._ask.prompt_tokens, completion_tokens, extras.cached_tokens)
            yield self._head + b'],"usage":' + _encode(usage) + b"}\n\n"
        yield DONE

    def _text_delta(self, piece: Piece, *, first: bool) -> dict[str, object]:
        if self._ask.tool is None:
            return _delta(None, piece.text)
        return {
            **_delta(None, None),
            "tool_calls": [
                {
                    "id": tool_call_id(self._ask, piece.index) if first else None,
                    "index": 0,
                    "type": "function",
                    "function": {"name": self._ask.tool.name if first else None, "arguments": piece.text},
                }
            ],
        }

    def _event(self, index: int, delta: dict[str, object], piece: Piece | None = None) -> bytes:
        top = self._ask.sampling.logprobs
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": None if top is None or piece is None else chat_logprobs(piece.token_ids, top),
            "finish_reason": None,
            "matched_stop": None,
        }
        usage = b"null"
        if self._ask.streaming.continuous_usage:
            usage = _encode(sglang_usage(self._ask.prompt_tokens, self._counts.get(index, 0), None))
        return self._head + _encode(choice) + b'],"usage":' + usage + b"}\n\n"


class SglangCompletionStream:
    """Encodes one text completions stream."""

    def __init__(self, ask: Ask, created: int) -> None:
        self._ask = ask
        self._counts: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        fields = {
            "id": ask.request_id,
            "object": "text_completion",
            "created": created,
            "model": ask.model,
        }
        self._head = b"data: " + _encode(fields)[:-1] + b',"choices":['

    def opening(self) -> Iterator[bytes]:
        """Yield nothing: there is no role event."""
        return iter(())

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Yield the event of one piece."""
        index, top = piece.index, self._ask.sampling.logprobs
        self._counts[index] = self._counts.get(index, 0) + len(piece.token_ids)
        offset = self._lengths.get(index, 0)
        self._lengths[index] = offset + len(piece.text)
        choice = {
            "index": index,
            "text": piece.text,
            "logprobs": None if top is None else completion_logprobs(piece.token_ids, top, offset),
            "finish_reason": piece.finish_reason,
            "matched_stop": piece.stop_reason,
        }
        usage = b"null"
        if self._ask.streaming.continuous_usage:
            prompt = self._ask.prompts[index // self._ask.n]
            usage = _encode(sglang_usage(len(prompt), self._counts[index], None))
        yield self._head + _encode(choice) + b'],"usage":' + usage + b"}\n\n"

    def closing(self, extras: Extras, completion_tokens: int) -> Iterator[bytes]:
        """Yield the usage event, if asked, and `[DONE]`."""
        if self._ask.streaming.include_usage:
            usage = sglang_usage(self._ask.prompt_tokens, completion_tokens, extras.cached_tokens)
            yield self._head + b'],"usage":' + _encode(usage) + b"}\n\n"
        yield DONE


def sglang_chat_body(ask: Ask, answers: Sequence[Answer], created: int, cached_tokens: int | None) -> bytes:
    """Return the body of a chat answer that is not streamed."""
    return _body(ask, answers, created, cached_tokens, "chat.completion")


def sglang_completion_body(
    ask: Ask, answers: Sequence[Answer], created: int, cached_tokens: int | None
) -> bytes:
    """Return the body of a text completion that is not streamed."""
    return _body(ask, answers, created, cached_tokens, "text_completion")


def sglang_usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> dict[str, object]:
    """Return SGLang's usage object; no details where `cached_tokens` is None."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None if cached_tokens is None else {"cached_tokens": cached_tokens},
        "reasoning_tokens": 0,
    }


def _body(ask: Ask, answers: Sequence[Answer], created: int, cached_tokens: int | None, kind: str) -> bytes:
    choice = _chat_choice if kind == "chat.completion" else _text_choice
    completion_tokens = sum(len(answer.token_ids) for answer in answers)
    body = {
        "id": ask.request_id,
        "object": kind,
        "created": created,
        "model": ask.model,
        "choices": [choice(ask, answer) for answer in answers],
        "usage": sglang_usage(ask.prompt_tokens, completion_tokens, cached_tokens),
        "metadata": {"weight_version": "default"},
    }
    return _encode(body)


def _chat_choice(ask: Ask, answer: Answer) -> dict[str, object]:
    calls = None
    if ask.tool is not None:
        function = {"name": ask.tool.name, "arguments": answer.text}
        calls = [
            {"id": tool_call_id(ask, answer.index), "index": 0, "type": "function", "function": function}
        ]
    top = ask.sampling.logprobs
    return {
        "index": answer.index,
        "message": {
            "role": "assistant",
            "content": answer.text if ask.tool is None else None,
            "reasoning_content": None,
            "tool_calls": calls,
        },
        "logprobs": None if top is None else chat_logprobs(answer.token_ids, top),
        "finish_reason": finish_reason(ask, answer.finish_reason),
        "matched_stop": answer.stop_reason,
    }


def _text_choice(ask: Ask, answer: Answer) -> dict[str, object]:
    top = ask.sampling.logprobs
    return {
        "index": answer.index,
        "text": answer.text,
        "logprobs": None if top is None else completion_logprobs(answer.token_ids, top, 0),
        "finish_reason": answer.finish_reason,
        "matched_stop": answer.stop_reason,
    }


def _delta(role: str | None, content: str | None) -> dict[str, object]:
    return {"role": role, "content": content, "reasoning_content": None, "tool_calls": None}
