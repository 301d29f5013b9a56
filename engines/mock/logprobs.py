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


def completion_logprobs(token_ids: Sequence[int], top: int, offset: int) -> dict[str, object]:
    """Return the `logprobs` object of a completion choice; `offset` is where its text begins (characters)."""
    tokens = [decode([token]) for token in token_ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "text_offset": offsets,
        "token_logprobs": [logprob(token) for token in token_ids],
        "tokens": tokens,
        "top_logprobs": [
            {str(entry["token"]): entry["logprob"] for entry in _top(token, max(top, 1))}
            for token in token_ids
        ],
    }


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
