"""Bytes of vLLM's completions: one SSE event per piece, or one JSON body.

Separate from chat because the keys, the place of token ids and the missing role event differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from engines.mock.ask import Answer, Ask, Extras, Piece
from engines.mock.chat import DONE
from engines.mock.logprobs import completion_logprobs, prompt_logprobs
from engines.mock.usage import continuous_usage, final_usage, stream_usage
from engines.model.text import decode

_encode = msgspec.json.encode


class CompletionStream:
    """Encodes one completions stream; events of plain text come from a template."""

    def __init__(self, ask: Ask, created: int, fingerprint: str, *, details: bool = True) -> None:
        self._ask = ask
        self._details = details
        self._fingerprint = fingerprint
        self._counts: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        fields = {
            "id": ask.request_id,
            "object": "text_completion",
            "created": created,
            "model": ask.model,
        }
        self._head = b"data: " + _encode(fields)[:-1] + b',"choices":['
        self._simple = (
            ask.sampling.logprobs is None
            and not ask.streaming.continuous_usage
            and not ask.return_token_ids
            and not ask.echo_prompt
        )
        self._before = [
            self._head + b'{"index":%d,"text":' % index for index in range(len(ask.prompts) * ask.n)
        ]
        self._after = (
            b',"logprobs":null,"finish_reason":null,"stop_reason":null,'
            b'"prompt_token_ids":null,"token_ids":null}]}\n\n'
        )

    def opening(self) -> Iterator[bytes]:
        """Yield nothing: completions have no role event."""
        return iter(())

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
                usage["prompt_tokens_details"] = {"cached_tokens": extras.cached_tokens}
            yield self._head + b'],"usage":' + _encode(usage) + self._print() + b"}\n\n"
        yield DONE

    def _full(self, piece: Piece) -> bytes:
        ask = self._ask
        index = piece.index
        prompt = ask.prompts[index // ask.n]
        first = index not in self._counts
        count = self._counts.get(index, 0) + len(piece.token_ids)
        self._counts[index] = count
        echoed = prompt if ask.echo_prompt and first else ()
        text, token_ids = _echo(ask, echoed, piece.text, piece.token_ids)
        choice: dict[str, object] = {"index": index, "text": text}
        choice["logprobs"] = self._logprobs(index, text, token_ids, echoed=bool(echoed))
        choice["finish_reason"] = piece.finish_reason
        choice["stop_reason"] = piece.stop_reason
        shown = first and (ask.return_token_ids or ask.echo_prompt)
        choice["prompt_token_ids"] = prompt if shown else None
        choice["token_ids"] = token_ids if ask.return_token_ids else None
        usage = b""
        if ask.streaming.continuous_usage:
            usage = b',"usage":' + _encode(continuous_usage(len(prompt), count))
        last = piece.finish_reason is not None and not ask.streaming.include_usage
        return self._head + _encode(choice) + b"]" + usage + (self._print() if last else b"") + b"}\n\n"

    def _logprobs(
        self, index: int, text: str, token_ids: Sequence[int], *, echoed: bool
    ) -> dict[str, object] | None:
        top = self._ask.sampling.logprobs
        if top is None:
            return None
        offset = self._lengths.get(index, 0)
        self._lengths[index] = offset + len(text)
        return completion_logprobs(token_ids, top, offset, echoed=echoed)

    def _print(self) -> bytes:
        return b',"system_fingerprint":' + _encode(self._fingerprint)


def completion_body(
    ask: Ask, answers: Sequence[Answer], created: int, fingerprint: str, extras: Extras
) -> bytes:
    """Return the body of a completion that is not streamed."""
    completion_tokens = sum(len(answer.token_ids) for answer in answers)
    body = {
        "id": ask.request_id,
        "object": "text_completion",
        "created": created,
        "model": ask.model,
        "choices": [_choice(ask, answer) for answer in answers],
        "service_tier": None,
        "system_fingerprint": fingerprint,
        "usage": final_usage(ask.prompt_tokens, completion_tokens, extras.cached_tokens),
        "kv_transfer_params": extras.kv_transfer_params,
        "ec_transfer_params": None,
        "metrics": None,
    }
    return _encode(body)


def _choice(ask: Ask, answer: Answer) -> dict[str, object]:
    top = ask.sampling.logprobs
    prompt = ask.prompts[answer.index // ask.n]
    echoed = prompt if ask.echo_prompt else ()
    text, token_ids = _echo(ask, echoed, answer.text, answer.token_ids)
    logprobs = None if top is None else completion_logprobs(token_ids, top, 0, echoed=bool(echoed))
    return {
        "index": answer.index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "token_ids": token_ids if ask.return_token_ids else None,
        "prompt_logprobs": None
        if ask.prompt_logprobs is None
        else prompt_logprobs(prompt, ask.prompt_logprobs),
        "prompt_token_ids": prompt if ask.return_token_ids else None,
        "routed_experts": None,
    }


def _echo(ask: Ask, prompt: Sequence[int], text: str, token_ids: Sequence[int]) -> tuple[str, list[int]]:
    """Text and tokens behind the prompt, empty where it is not echoed. The text of a prompt is left out where
    its ids are returned, as in vLLM."""
    before = "" if ask.return_token_ids else decode(prompt)
    return before + text, [*prompt, *token_ids]
