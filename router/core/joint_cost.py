"""What a placement costs those who are not there yet, or not at that worker: four terms in seconds.

Separate from `cost.py`, whose terms look at one worker alone: these need its barrier group, the caches of
the pool, or what is still to come. Each is 0 where nobody is held up. Source of the overflow: the F-score of
BalanceRoute (arXiv 2605.06113), here in time; the other three are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from router.core.step_model import StepModel

_ROOT_TWO = math.sqrt(2.0)
_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)


class Pace(NamedTuple):
    """How a barrier group steps now.

    Attributes:
        step_s: of the slowest member, which is everybody's.
        sequences: of all members; each of them waits for it.
    """

    step_s: float
    sequences: int

    @classmethod
    def of(cls, steps: Sequence[StepModel], sequences: Sequence[int], kv_tokens: Sequence[int]) -> Pace:
        """From the coefficients and loads of all members, at least one; in the same order."""
        lengths = [
            step.step_s(count, tokens)
            for step, count, tokens in zip(steps, sequences, kv_tokens, strict=True)
        ]
        return cls(max(lengths), sum(sequences))


def overflow_s(pace: Pace, step_s: float, steps: float) -> float:
    """Seconds that a barrier group waits in all when one member's step grows to `step_s` for `steps` steps.

    Up to the slowest step the growth fills a gap and costs nothing; beyond it every sequence of the group
    waits for it at every step.
    """
    return pace.sequences * max(step_s - pace.step_s, 0.0) * steps


def crowding_wait_s(share: float, rest_steps: float, step_s: float) -> float:
    """Seconds until a `share` (0 to 1) of what the residents hold is free, from sums alone.

    They are taken to end evenly over twice their mean rest, as those do that began one after the other.
    """
    return min(share, 1.0) * 2.0 * rest_steps * step_s


def overrun_share(kv_tokens: int, sequences: int, own_tokens: float, capacity_tokens: int) -> float:
    """Share of the residents' KV that has to go, on average, before `own_tokens` more fit.

    Residents come and go independently, so their KV varies: by the square root of their number, times what
    one of them holds. The expected excess of a normal variable of this spread over what is left. Far below
    the capacity it is 0; above it is the excess itself.
    """
    spread = math.sqrt(sequences) * (kv_tokens / sequences)
    over = kv_tokens + own_tokens - capacity_tokens
    z = over / spread
    return spread * (_density(z) + z * _below(z)) / kv_tokens


def _density(z: float) -> float:
    return math.exp(-z * z / 2.0) / _ROOT_TWO_PI


def _below(z: float) -> float:
    return math.erfc(-z / _ROOT_TWO) / 2.0


def eviction_s(step: StepModel, evicted_tokens: float, reuse: float) -> float:
    """Seconds of prefill that evicting so many cached tokens brings back.

    Args:
        reuse: share of them that would have been asked for again, 0 to 1.
    """
    return reuse * step.prefill_per_token_s * max(evicted_tokens, 0.0)


def postponed_copy_s(rate_per_s: float, lasts_s: float, excess_s: float) -> float:
    """Seconds that requests still to come will lose because a prefix is not copied now.

    For as long as the request at hand lasts, more of them come for the same prefix. Each of them loses what
    its only holder costs more than another worker would, and that shrinks to nothing meanwhile: half of it.
    """
    return rate_per_s * lasts_s * max(excess_s, 0.0) / 2.0
