"""When a cost is not to be trusted, and what decides in its place.

Separate from the cost because it asks other questions: not what a placement costs, but whether the pool, the
traffic and the recent past are such that the cheapest is the best. State moves in `committed` alone, so that
a pick stays free of side effects.

Source: the failure regimes of arXiv 2609.16206 (sections V and VI): no gain in narrow pools and for
homogeneous traffic, a loss under extreme scarcity and with constants that do not fit. The detectors and their
numbers are ours.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from router.core.policy import Choice
from router.core.request import Request
from router.core.worker import WorkerView
from router.policies.load import hash_bits

_WINDOW_S = 300.0
_MAX_SIZES = 1_024
_FEWEST_SIZES = 30
_PICKS = 64
_FEWEST_ON_ONE = 8  # fewer are chance, in a pool of many workers
_SUMMED_EVERY = 32


class Rung(Enum):
    """Why the cheapest is not simply taken; the value is the reason of the choice."""

    __hash__ = object.__hash__

    UNCALIBRATED = "fallback:uncalibrated"
    """Some candidate has no coefficients: the fewest requests."""
    WRONG_CONSTANTS = "fallback:wrong_constants"
    """Some candidate's coefficients were given up: the fewest requests, until they are fitted anew."""
    NARROW_POOL = "fallback:narrow_pool"
    """The queue says nearly all that there is to say: the fewest requests, prefills by their size."""
    HOMOGENEOUS = "fallback:homogeneous"
    """Requests are alike: as above."""
    SCARCITY = "fallback:scarcity"
    """Nobody has room: whoever looks cheapest would get everything. The less loaded of two drawn."""
    SCARCITY_LATELY = "fallback:scarcity_lately"
    """It is not long since: as above."""
    CONCENTRATION = "fallback:concentration"
    """The cheapest has had too many of the last picks: the cheaper of two drawn."""


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """When each rung is stepped on.

    Attributes:
        narrow_workers: pools of at most so many.
        homogeneous_cv: coefficient of variation of prompts and of outputs over 5 minutes, below which both
            are alike.
        scarcity_hold_s: time without scarcity after which costs decide again.
        concentration: share of the last 64 picks that one worker may have, times the number of workers.
    """

    narrow_workers: int = 3
    homogeneous_cv: float = 0.3
    scarcity_hold_s: float = 30.0
    concentration: float = 2.0


@dataclass(slots=True)
class _Spread:
    """Sums of what is within the window."""

    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float, sign: int = 1) -> None:
        self.total += sign * value
        self.squares += sign * value * value

    def variation(self, count: int) -> float:
        """Standard deviation over mean; 0 for nothing but zeros."""
        mean = self.total / count
        return max(self.squares / count - mean * mean, 0.0) ** 0.5 / mean if mean > 0 else 0.0


@dataclass(slots=True)
class Ladder:
    """The recent past of one policy.

    State: `_sizes` of the last 5 minutes (time, prompt tokens, output tokens) with their sums, the workers of
    the last 64 picks, and until when scarcity is remembered.

    Attributes:
        median_tokens, long_tokens: prompts of the window at the middle and at nine tenths, renewed now and
            then; None before.
    """

    settings: LadderSettings
    median_tokens: int | None = None
    long_tokens: int | None = None
    _sizes: deque[tuple[float, int, float]] = field(default_factory=deque, repr=False)
    _prompts: _Spread = field(default_factory=_Spread, repr=False)
    _outputs: _Spread = field(default_factory=_Spread, repr=False)
    _unsummed: int = field(default=0, repr=False)
    _picks: deque[str] = field(default_factory=deque, repr=False)
    _counts: Counter[str] = field(default_factory=Counter, repr=False)
    _scarce_until: float | None = field(default=None, repr=False)

    # --- questions, which change nothing -------------------------------------------------------------------

    def by_counts(self, workers: int, now: float) -> Rung | None:
        """Whether counting is as good as costs."""
        if workers <= self.settings.narrow_workers:
            return Rung.NARROW_POOL
        return Rung.HOMOGENEOUS if self.homogeneous(now) else None

    def homogeneous(self, now: float) -> bool:
        """Whether prompts and outputs are alike. Unknown, for too few, is no."""
        sizes, most = self._sizes, self.settings.homogeneous_cv
        count = len(sizes)
        if count < _FEWEST_SIZES or now - sizes[-1][0] > _WINDOW_S:
            return False
        return self._prompts.variation(count) < most and self._outputs.variation(count) < most

    def scarce_lately(self, now: float) -> bool:
        return self._scarce_until is not None and now < self._scarce_until

    def concentrated(self, worker: str, workers: int) -> bool:
        """Whether a worker has had more of the last picks than it should."""
        count = self._counts[worker]
        return count >= _FEWEST_ON_ONE and count * workers > self.settings.concentration * _PICKS

    # --- what moves it -------------------------------------------------------------------------------------

    def committed(self, request: Request, output_tokens: float, choice: Choice, now: float) -> None:
        """A choice was charged, for the first time."""
        if choice.reason == Rung.SCARCITY.value:
            self._scarce_until = now + self.settings.scarcity_hold_s
        self._picks.append(choice.worker)
        self._counts[choice.worker] += 1
        if len(self._picks) > _PICKS:
            first = self._picks.popleft()
            self._counts[first] -= 1
            if not self._counts[first]:
                del self._counts[first]
        self._add(now, request.prompt_tokens, output_tokens)

    def _add(self, now: float, prompt_tokens: int, output_tokens: float) -> None:
        sizes = self._sizes
        sizes.append((now, prompt_tokens, output_tokens))
        self._prompts.add(prompt_tokens)
        self._outputs.add(output_tokens)
        while sizes[0][0] < now - _WINDOW_S or len(sizes) > _MAX_SIZES:
            _, prompt, output = sizes.popleft()
            self._prompts.add(prompt, -1)
            self._outputs.add(output, -1)
        self._unsummed += 1
        if self._unsummed >= _SUMMED_EVERY:
            self._sum_up()

    def _sum_up(self) -> None:
        """Renews the quantiles, and the sums, which gather rounding errors."""
        self._unsummed = 0
        prompts = sorted([prompt for _, prompt, _ in self._sizes])
        self.median_tokens = prompts[len(prompts) // 2]
        self.long_tokens = prompts[len(prompts) * 9 // 10]
        self._prompts, self._outputs = _Spread(), _Spread()
        for _, prompt, output in self._sizes:
            self._prompts.add(prompt)
            self._outputs.add(output)


def two_of(workers: Sequence[WorkerView], request: Request, seed: int) -> tuple[int, int]:
    """Indices of two different workers, each pair equally likely, by hash; of one worker twice the same."""
    count = len(workers)
    if count == 1:
        return (0, 0)
    pair = hash_bits(workers, request, seed) * (count * (count - 1)) >> 64
    first, step = divmod(pair, count - 1)
    return first, (first + 1 + step) % count
