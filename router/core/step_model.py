"""How long an engine takes: the coefficients that calibration measures, and what they predict.

Separate from the worker because files, fits and policies know coefficients without knowing a worker.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepModel:
    """Calibrated coefficients of one worker (T_step = base + per sequence · n + per KV token · KV).

    Attributes:
        prefill_base_s, prefill_per_token_s, prefill_per_token_squared_s: time of a prefill of p tokens on an
            idle worker with an empty cache, base + per token · p + per token squared · p².
        step_base_s, step_per_sequence_s, step_per_kv_token_s: time of one decode step.
        tokens_per_step: output tokens that a step gives each sequence; above 1 with speculative decoding.
    """

    prefill_base_s: float
    prefill_per_token_s: float
    step_base_s: float
    step_per_sequence_s: float
    step_per_kv_token_s: float
    prefill_per_token_squared_s: float = 0.0
    tokens_per_step: float = 1.0

    def prefill_s(self, tokens: int, cached_tokens: int = 0) -> float:
        """Seconds to prefill `tokens` uncached tokens behind `cached_tokens` on an idle worker.

        Attention is causal: n tokens behind c attend to n · c + n² / 2 positions, so the squared term of an
        empty cache, n² / 2, becomes n · (n + 2 c) of the same coefficient.
        """
        attended = tokens * (tokens + 2 * cached_tokens)
        return (
            self.prefill_base_s
            + self.prefill_per_token_s * tokens
            + self.prefill_per_token_squared_s * attended
        )

    def step_s(self, sequences: int, kv_tokens: int) -> float:
        """Seconds of one decode step with `sequences` running over `kv_tokens` of context."""
        return self.step_base_s + self.step_per_sequence_s * sequences + self.step_per_kv_token_s * kv_tokens

    def steps(self, tokens: float) -> float:
        """Steps in which a sequence writes so many tokens."""
        return tokens / self.tokens_per_step


@dataclass(frozen=True, slots=True)
class TransferModel:
    """Time to move KV from one worker to another: base + per token · tokens (s)."""

    base_s: float
    per_token_s: float

    def transfer_s(self, tokens: int) -> float:
        """Seconds until the KV of so many tokens is there."""
        return self.base_s + self.per_token_s * tokens


PRIOR = StepModel(
    prefill_base_s=4e-3,
    prefill_per_token_s=60e-6,
    step_base_s=15.5e-3,
    step_per_sequence_s=0.12e-3,
    step_per_kv_token_s=0.12e-6,
)
"""An estimate for Qwen2.5-3B on an A40 under vLLM; stands in until a worker is calibrated."""
