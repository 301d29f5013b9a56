"""Log-probabilities that look like a model's: negative, ordered, a pure function of the token ids.

Separate because two APIs render the same numbers in two shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.model.text import VOCABULARY_SIZE, decode

_MULTIPLIER = 2654435761  # Knuth's multiplicative hash: spreads neighbouring ids over the range
_SPAN = 1 << 32


def logprob(token_id: int) -> float:
    """Return the mock's log-probability of a sampled token, in (-3, 0)."""
    return -3.0 * ((token_id * _MULTIPLIER) % _SPAN + 1) / (_SPAN + 2)


def chat_logprobs(token_ids: Sequence[int], top: int) -> dict[str, object]:
    """Return the `logprobs` object of a chat choice."""
    return {"content": [{**_entry(token), "top_logprobs": _top(token, top)} for token in token_ids]}


def completion_logprobs(
    token_ids: Sequence[int], top: int, offset: int, *, echoed: bool = False
) -> dict[str, object]:
    """Return the `logprobs` object of a completion choice.

    Args:
        offset: where its text begins (characters).
        echoed: it begins with the prompt, of which nothing predicts the first token.
    """
    tokens = [decode([token]) for token in token_ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    logprobs: list[float | None] = [logprob(token) for token in token_ids]
    tops: list[dict[str, object] | None] = [
        {str(entry["token"]): entry["logprob"] for entry in _top(token, max(top, 1))} for token in token_ids
    ]
    if echoed:
        logprobs[0] = tops[0] = None
    return {"text_offset": offsets, "token_logprobs": logprobs, "tokens": tokens, "top_logprobs": tops}


def prompt_logprobs(token_ids: Sequence[int], top: int) -> list[dict[str, object] | None]:
    """Return `prompt_logprobs`: by token id, None for the first token."""
    found: list[dict[str, object] | None] = [None]
    for token_id in token_ids[1:]:
        entries = _top(token_id, max(top, 1))
        found.append(
            {
                str((token_id + rank) % VOCABULARY_SIZE): {
                    "logprob": entry["logprob"],
                    "rank": rank + 1,
                    "decoded_token": entry["token"],
                }
                for rank, entry in enumerate(entries)
            }
        )
    return found


def _entry(token_id: int) -> dict[str, object]:
    text = decode([token_id])
    return {"token": text, "logprob": logprob(token_id), "bytes": list(text.encode())}


def _top(token_id: int, count: int) -> list[dict[str, object]]:
    """The sampled token first, then invented neighbours, each less likely."""
    entries = []
    for rank in range(count):
        entry = _entry((token_id + rank) % VOCABULARY_SIZE)
        entry["logprob"] = logprob(token_id) - rank
        entries.append(entry)
    return entries
