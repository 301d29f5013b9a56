"""Lengths that are estimated until the engine says them: prompts, output so far, output to come.

Separate because three accounts rest on them (prompt tokens charged, tokens generated, tokens remaining) and
all learn alike: from the engines' own usage, forgetting slowly, hardly moved by outliers, in bounded memory.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from router.core.body_text import PromptSize

BYTES_PER_TOKEN = 4.0
"""Prior: English text in the tokenizers of today's models."""

MEDIA_PART_TOKENS = 576.0
"""Prior for an image: the 24 × 24 patches of a 336-pixel CLIP encoder, as in LLaVA 1.5."""

OUTPUT_TOKENS = 211.0
"""Prior: mean output of the conversations in the Azure LLM inference trace of 2023."""

MAX_MODELS = 1_024
MAX_STREAM_SOURCES = 8_192

_MEMORY = 20.0  # samples: the weight of a new one sinks to 1/20 and stays there
_FULL_WEIGHT_TOKENS = 512  # a shorter prompt says less about bytes per token, its template weighs more

K = TypeVar("K", str, tuple[str, str])


@dataclass(slots=True)
class _Mean:
    value: float
    weight: float = 1.0  # of the prior and of what was learned, up to _MEMORY


class MeanTable(Generic[K]):
    """Robust running means by key; the key used longest ago is dropped when there are too many.

    A sample counts as if it were within a factor `outlier` of the mean: one absurd usage does little, and a
    real change still arrives after a few samples.

    Args:
        prior: the mean of a key that has learned nothing.
        outlier: above 1.
    """

    __slots__ = ("_capacity", "_means", "_outlier", "_prior")

    def __init__(self, prior: float, *, outlier: float, capacity: int) -> None:
        self._prior = prior
        self._outlier = outlier
        self._capacity = capacity
        self._means: OrderedDict[K, _Mean] = OrderedDict()

    def mean(self, key: K) -> float:
        """The mean of `key`, the prior when it has learned nothing. Changes nothing."""
        known = self._means.get(key)
        return self._prior if known is None else known.value

    def learn(self, key: K, sample: float, weight: float = 1.0) -> None:
        """Moves the mean of `key` towards a positive finite sample of weight 0 to 1; ignores any other."""
        if not (0.0 < sample < math.inf):
            return
        mean = self._means.get(key)
        if mean is None:
            mean = self._means[key] = _Mean(self._prior)
            if len(self._means) > self._capacity:
                self._means.popitem(last=False)
        self._means.move_to_end(key)
        weight = min(max(weight, 0.0), 1.0)
        bounded = min(max(sample, mean.value / self._outlier), mean.value * self._outlier)
        mean.weight = min(mean.weight + weight, _MEMORY)
        mean.value += (bounded - mean.value) * weight / mean.weight

    def presume(self, key: K, value: float) -> None:
        """Takes a positive finite value that was measured before; samples move it as if it had half its
        weight already. What was learned meanwhile stays."""
        if key not in self._means and len(self._means) < self._capacity:
            self._means[key] = _Mean(value, _MEMORY / 2)

    def forget(self, matches: Callable[[K], bool]) -> None:
        """Drops the keys that match."""
        for key in [key for key in self._means if matches(key)]:
            del self._means[key]

    def __len__(self) -> int:
        return len(self._means)

    def __repr__(self) -> str:
        return f"<MeanTable [{len(self._means)} of {self._capacity} keys | prior {self._prior:g}]>"


class PromptTokens:
    """Tokens of a prompt from its size, learned per model.

    The template's tokens per message are part of the learned ratio, since the size counts the JSON around the
    text as well.
    """

    __slots__ = ("_bytes_per_token", "_media_part_tokens")

    def __init__(self, capacity: int = MAX_MODELS) -> None:
        self._bytes_per_token: MeanTable[str] = MeanTable(BYTES_PER_TOKEN, outlier=2.0, capacity=capacity)
        self._media_part_tokens: MeanTable[str] = MeanTable(MEDIA_PART_TOKENS, outlier=4.0, capacity=capacity)

    def estimate(self, model: str, size: PromptSize) -> int:
        """Tokens of all prompts of a call together, at least 1; exact when they came as token ids."""
        if size.tokens is not None:
            return max(size.tokens, 1)
        tokens = size.text_bytes / self._bytes_per_token.mean(model)
        if size.media_parts:
            tokens += size.media_parts * self._media_part_tokens.mean(model)
        return max(math.ceil(tokens), 1)

    def bytes_per_token(self, model: str) -> float:
        return self._bytes_per_token.mean(model)

    def presume(self, model: str, bytes_per_token: float) -> None:
        """Begins from a ratio that was measured before, unless calls have taught one."""
        self._bytes_per_token.presume(model, bytes_per_token)

    def learn(self, model: str, size: PromptSize, prompt_tokens: int) -> None:
        """Takes the true length that an engine reported for a call of this size."""
        if prompt_tokens <= 0 or size.tokens is not None or size.text_bytes <= 0:
            return
        if size.media_parts:
            text_tokens = size.text_bytes / self._bytes_per_token.mean(model)
            self._media_part_tokens.learn(model, (prompt_tokens - text_tokens) / size.media_parts)
            return
        weight = prompt_tokens / _FULL_WEIGHT_TOKENS
        self._bytes_per_token.learn(model, size.text_bytes / prompt_tokens, weight)

    def __repr__(self) -> str:
        return f"<PromptTokens [{len(self._bytes_per_token)} models]>"


class StreamTokens:
    """Output tokens of a running stream from its content events, learned per model and worker.

    Events are not tokens: speculative decoding, stream intervals and slow readers put several into one. The
    ratio belongs to the worker as much as to the model.
    """

    __slots__ = ("_tokens_per_event",)

    def __init__(self, capacity: int = MAX_STREAM_SOURCES) -> None:
        self._tokens_per_event: MeanTable[tuple[str, str]] = MeanTable(1.0, outlier=4.0, capacity=capacity)

    def estimate(self, model: str, worker: str, content_events: int) -> int:
        """Tokens that `content_events` events stand for."""
        return round(content_events * self._tokens_per_event.mean((model, worker)))

    def ratio(self, model: str, worker: str) -> float:
        """Tokens per content event."""
        return self._tokens_per_event.mean((model, worker))

    def learn(self, model: str, worker: str, content_events: int, tokens: int) -> None:
        """Takes the true count of a stream that has ended."""
        if content_events > 0 and tokens > 0:
            # a long stream says more, and its first and last events weigh less
            weight = content_events / 64
            self._tokens_per_event.learn((model, worker), tokens / content_events, weight)

    def forget(self, worker: str) -> None:
        """Drops what was learned about a worker that is gone or was restarted."""
        self._tokens_per_event.forget(lambda key: key[1] == worker)

    def __repr__(self) -> str:
        return f"<StreamTokens [{len(self._tokens_per_event)} sources]>"


class OutputTokens:
    """Expected output length of one sequence, learned per model from finished ones."""

    __slots__ = ("_tokens",)

    def __init__(self, capacity: int = MAX_MODELS) -> None:
        self._tokens: MeanTable[str] = MeanTable(OUTPUT_TOKENS, outlier=8.0, capacity=capacity)

    def expected(
        self, model: str, *, max_tokens: int | None, min_tokens: int | None = None, ignore_eos: bool = False
    ) -> int:
        """Output tokens of one sequence, at least 1 and at most `max_tokens`.

        With `ignore_eos` and a bound the length is known: the bound.
        """
        if ignore_eos and max_tokens is not None:
            return max(max_tokens, 1)
        tokens = max(round(self._tokens.mean(model)), min_tokens or 1, 1)
        return tokens if max_tokens is None else max(min(tokens, max_tokens), 1)

    def learn(self, model: str, tokens: int) -> None:
        """Takes the output length of one finished sequence."""
        self._tokens.learn(model, float(tokens))

    def __repr__(self) -> str:
        return f"<OutputTokens [{len(self._tokens)} models]>"
