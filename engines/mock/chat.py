"""Bytes of vLLM's chat.completions: one SSE event per piece, or one JSON body.

Separate because the byte shape (keys, their order, what is null and what is absent) was recorded
from a real engine and is held by tests of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from engines.mock.ask import Answer, Ask, Extras, Piece
from engines.mock.logprobs import chat_logprobs, prompt_logprobs
from engines.mock.usage import continuous_usage, final_usage, stream_usage

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.encode


class ChatStream:
    """Encodes one chat stream. Events of plain text are cut from a template made once per answer."""

    def __init__(self, ask: Ask, created: int, fingerprint: str, *, details: bool = True) -> None:
        self._ask = ask
        self._details = details
        self._fingerprint = fingerprint
        self._counts: dict[int, int] = {}
        fields = {
            "id": ask.request_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": ask.model,
        }
        self._head = b"data: " + _encode(fields)[:-1] + b',"choices":['
        self._simple = (
            ask.sampling.logprobs is None
            and ask.tool is None
            and not ask.streaming.continuous_usage
            and not ask.return_token_ids
        )
        self._before = [self._head + b'{"index":%d,"delta":{"content":' % index for index in range(ask.n)]
        self._after = b'},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'

    def opening(self) -> Iterator[bytes]:
        """Yield one role event per answer; sent with the first engine output, not before."""
        ask = self._ask
        ids = _encode(ask.prompts[0]) if ask.return_token_ids else b"null"
        tail = b"]" + self._running_usage(0) + b',"prompt_token_ids":' + ids + b',"prompt_text":null}\n\n'
        for index in range(len(self._before)):
            yield (
                self._head + b'{"index":%d,"delta":{"role":"assistant","content":""},'
                b'"logprobs":null,"finish_reason":null}' % index + tail
            )

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Yield the event of one piece."""
        if self._simple and piece.finish_reason is None:
            yield self._before[piece.index] + _encode(piece.text) + self._after
        else:
            yield self._full(piece)

    def closing(self, extras: Extras, completion_tokens: int) -> Iterator[bytes]:
        """Yield the usage event, if asked, and `[DONE]`."""
        if self._ask.streaming.include_usage:
            usage = stream_usage(self._ask.prompt_tokens, completion_tokens)
            if self._details:
                usage["prompt_tokens_details"] = {
                    "cached_tokens": extras.cached_tokens,
                    "created_cache_tokens": extras.created_cache_tokens,
                }
            yield self._head + b'],"usage":' + _encode(usage) + self._print() + b"}\n\n"
        yield DONE

    def _full(self, piece: Piece) -> bytes:
        ask = self._ask
        first = piece.index not in self._counts
        count = self._counts.get(piece.index, 0) + len(piece.token_ids)
        self._counts[piece.index] = count
        choice: dict[str, object] = {"index": piece.index, "delta": self._delta(piece, first=first)}
        top = ask.sampling.logprobs
        choice["logprobs"] = None if top is None else chat_logprobs(piece.token_ids, top)
        choice["finish_reason"] = finish_reason(ask, piece.finish_reason)
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        choice["token_ids"] = piece.token_ids if ask.return_token_ids else None
        last = piece.finish_reason is not None and not ask.streaming.include_usage
        return (
            self._head
            + _encode(choice)
            + b"]"
            + self._running_usage(count)
            + (self._print() if last else b"")
            + b"}\n\n"
        )

    def _delta(self, piece: Piece, *, first: bool) -> dict[str, object]:
        tool = self._ask.tool
        if tool is None:
            return {"content": piece.text}
        if not first:
            return {"tool_calls": [{"index": 0, "function": {"arguments": piece.text}}]}
        call = {
            "id": tool_call_id(self._ask, piece.index),
            "type": "function",
            "index": 0,
            "function": {"name": tool.name, "arguments": piece.text},
        }
        return {"tool_calls": [call]}

    def _running_usage(self, completion_tokens: int) -> bytes:
        if not self._ask.streaming.continuous_usage:
            return b""
        return b',"usage":' + _encode(continuous_usage(self._ask.prompt_tokens, completion_tokens))

    def _print(self) -> bytes:
        return b',"system_fingerprint":' + _encode(self._fingerprint)


def tool_call_id(ask: Ask, index: int) -> str:
    """Return the id of a tool call: unique in the answer and a function of the request id."""
    return f"chatcmpl-tool-{ask.request_id.removeprefix('chatcmpl-')}-{index}"


def finish_reason(ask: Ask, engine_reason: str | None) -> str | None:
    """Return the finish reason of a chat choice: a required call ends with `tool_calls`, a named one not."""
    if engine_reason == "stop" and ask.tool is not None and not ask.tool.named:
        return "tool_calls"
    return engine_reason


def chat_body(ask: Ask, answers: Sequence[Answer], created: int, fingerprint: str, extras: Extras) -> bytes:
    """Return the body of a chat answer that is not streamed."""
    completion_tokens = sum(len(answer.token_ids) for answer in answers)
    body = {
        "id": ask.request_id,
        "object": "chat.completion",
        "created": created,
        "model": ask.model,
        "choices": [_choice(ask, answer) for answer in answers],
        "service_tier": None,
        "system_fingerprint": fingerprint,
        "usage": final_usage(
            ask.prompt_tokens,
            completion_tokens,
            extras.cached_tokens,
            created_cache_tokens=extras.created_cache_tokens,
        ),
        "prompt_logprobs": None
        if ask.prompt_logprobs is None
        else prompt_logprobs(ask.prompts[0], ask.prompt_logprobs),
        "prompt_token_ids": ask.prompts[0] if ask.return_token_ids else None,
        "prompt_text": None,
        "kv_transfer_params": extras.kv_transfer_params,
        "ec_transfer_params": None,
        "metrics": None,
    }
    return _encode(body)


def _choice(ask: Ask, answer: Answer) -> dict[str, object]:
    top = ask.sampling.logprobs
    return {
        "index": answer.index,
        "message": _message(ask, answer),
        "logprobs": None if top is None else chat_logprobs(answer.token_ids, top),
        "finish_reason": finish_reason(ask, answer.finish_reason),
        "stop_reason": answer.stop_reason,
        "token_ids": answer.token_ids if ask.return_token_ids else None,
        "routed_experts": None,
    }


def _message(ask: Ask, answer: Answer) -> dict[str, object]:
    message: dict[str, object] = {
        "role": "assistant",
        "content": answer.text if ask.tool is None else None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if ask.tool is not None:
        function = {"name": ask.tool.name, "arguments": answer.text}
        call = {"id": tool_call_id(ask, answer.index), "type": "function", "function": function}
        message["tool_calls"] = [call]
    message["reasoning"] = None
    return message
