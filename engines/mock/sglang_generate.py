"""SGLang's native `/generate`: text or token ids in, cumulative text out.

Separate because neither its fields nor its events are OpenAI's: each event repeats the whole text so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from engines.mock.ask import Answer, Ask, Extras, Piece
from engines.mock.chat import DONE
from engines.mock.errors import bad_request
from engines.mock.fields import Fields, is_token_ids
from engines.mock.openai_ask import Context, prompts_of
from engines.mock.sampling import check_prompt_length, max_tokens, sampling, streaming

DEFAULT_NEW_TOKENS = 128
"""`max_new_tokens` of a request that names none."""

_encode = msgspec.json.encode


def generate_ask(fields: Fields, context: Context) -> Ask:
    """Read a `/generate` body.

    Raises:
        Refusal: 400.
    """
    name = "input_ids" if fields.has("input_ids") else "text"
    prompts = prompts_of(fields, name)
    limits = replace(context.limits, default_max_tokens=DEFAULT_NEW_TOKENS)
    check_prompt_length(prompts, limits)
    params = fields.object("sampling_params") or Fields({})
    limit = max_tokens(params.integer("max_new_tokens"), prompts, limits)
    n = params.integer("n") or 1
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}.", "n")
    renamed = {
        "min_tokens": params.raw("min_new_tokens"),
        "ignore_eos": params.raw("ignore_eos"),
        "seed": params.raw("sampling_seed"),
        "stop": params.raw("stop"),
        "temperature": params.raw("temperature"),
        "top_p": params.raw("top_p"),
    }
    batch = len(prompts) > 1 or _is_batch(fields.raw(name))
    return Ask(
        request_id=fields.text("rid") or context.request_id,
        model=context.model,
        prompts=prompts,
        sampling=sampling(Fields(renamed, "body.sampling_params"), limit, None),
        streaming=streaming(fields),
        n=n,
        priority=fields.integer("priority") or 0,
        return_token_ids=True,
        echo={"batch": batch or n > 1},
    )


def _is_batch(value: object) -> bool:
    return isinstance(value, list) and not is_token_ids(value)


class GenerateStream:
    """Encodes one `/generate` stream."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._answers: dict[int, Answer] = {}

    def opening(self) -> Iterator[bytes]:
        """Yield nothing."""
        return iter(())

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Yield the answer so far; of a batch, with its index."""
        answer = self._answers.setdefault(piece.index, Answer(piece.index, "", [], "", None))
        answer.text += piece.text
        answer.token_ids += piece.token_ids
        answer.finish_reason = piece.finish_reason or ""
        answer.stop_reason = piece.stop_reason
        shown = _shown(self._ask, answer, 0)
        if self._ask.echo["batch"]:
            shown["index"] = piece.index
        yield b"data: " + _encode(shown) + b"\n\n"

    def closing(self, extras: Extras, completion_tokens: int) -> Iterator[bytes]:
        """Yield `[DONE]`."""
        yield DONE


def generate_body(ask: Ask, answers: Sequence[Answer], cached_tokens: int) -> bytes:
    """Return the body of an answer that is not streamed: one object, or a list for a batch."""
    shown = [_shown(ask, answer, cached_tokens) for answer in answers]
    return _encode(shown if ask.echo["batch"] else shown[0])


def _shown(ask: Ask, answer: Answer, cached_tokens: int) -> dict[str, object]:
    return {
        "text": answer.text,
        "output_ids": answer.token_ids,
        "meta_info": {
            "id": ask.request_id,
            "finish_reason": _finish(answer),
            "prompt_tokens": len(ask.prompts[answer.index // ask.n]),
            "weight_version": "default",
            "completion_tokens": len(answer.token_ids),
            "cached_tokens": cached_tokens,
        },
    }


def _finish(answer: Answer) -> dict[str, object] | None:
    if not answer.finish_reason:
        return None
    if answer.finish_reason == "length":
        return {"type": "length", "length": len(answer.token_ids)}
    if answer.finish_reason == "abort":
        return {"type": "abort", "message": "The request was aborted."}
    return {"type": "stop", "matched": answer.stop_reason}
