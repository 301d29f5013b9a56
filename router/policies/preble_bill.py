"""The cost of one request at each worker, in seconds of GPU time: L + M + P of `preble`.

Separate from the policy, which only compares. M is not below 0, so a minimum is found without the M of
workers whose L + P is above it already.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain

from router.core.request import Request
from router.core.worker import StepModel, WorkerView
from router.policies.least_work import PRIOR, steps_of
from router.policies.load import least
from router.policies.preble_window import NOTHING, Sums, Window


@dataclass(frozen=True, slots=True)
class Charge:
    """How what was sent is charged.

    Attributes:
        sharers: sequences that the base of a decode step is divided by; 1 charges each output token as if
            it were generated alone.
        unknown_tokens: output per sequence until the window knows a mean.
    """

    sharers: int
    unknown_tokens: int

    def prefill_s(self, step: StepModel, sums: Sums) -> float:
        return step.prefill_base_s * sums.requests + step.prefill_per_token_s * sums.missed_tokens

    def decode_s(self, step: StepModel, sums: Sums, mean_tokens: float) -> float:
        """With sequences of which nothing is known taken to be `mean_tokens` long."""
        sequences = sums.open_sequences
        return (step.step_base_s / self.sharers + step.step_per_sequence_s) * (
            sums.output_tokens + mean_tokens * sequences
        ) + step.step_per_kv_token_s * (
            sums.kv_reads + mean_tokens * (sums.open_context_tokens + mean_tokens * sequences / 2)
        )


class Bill:
    """One decision's costs.

    Attributes:
        loads: L of each worker.
    """

    __slots__ = (
        "_charge", "_key", "_mean_tokens", "_missed", "_scales", "_steps", "_sums", "_window", "_workers",
        "loads",
    )  # fmt: skip

    def __init__(
        self, window: Window, charge: Charge, workers: Sequence[WorkerView], missed: Sequence[int], now: float
    ) -> None:
        steps = steps_of(workers)
        self._window, self._charge = window, charge
        self._workers, self._missed = workers, missed
        self._key: int | None = None
        self._steps: Sequence[StepModel] = [PRIOR] * len(workers) if steps is None else steps
        # Measured coefficients hold the worker's own speed already.
        self._scales = [w.warmup / w.capacity if steps is None else w.warmup for w in workers]
        self._sums = _sums_of(window, workers, now)
        known = window.mean_tokens
        self._mean_tokens = mean_tokens = charge.unknown_tokens if known is None else known
        prefill_s, decode_s = charge.prefill_s, charge.decode_s
        self.loads = [
            0.0 if sums is NOTHING else (prefill_s(step, sums) + decode_s(step, sums, mean_tokens)) * scale
            for step, sums, scale in zip(self._steps, self._sums, self._scales, strict=True)
        ]

    def keep(self, key: int | None) -> None:
        """The request's own key portion is not evicted for it."""
        self._key = key

    def prefill_s(self, index: int, tokens: int) -> float:
        """T_pre of so many tokens at one worker."""
        return self._steps[index].prefill_s(tokens) * self._scales[index]

    def cost(self, index: int) -> float:
        """L + M + P of one worker."""
        return self.loads[index] + self.prefill_s(index, self._missed[index]) + self._evictions_s(index)

    def terms(self, index: int) -> dict[str, float]:
        """L, M and P of one worker, by name."""
        return {
            "load_s": self.loads[index],
            "eviction_s": self._evictions_s(index),
            "prefill_s": self.prefill_s(index, self._missed[index]),
            "decode_share": self.decode_share(index),
        }

    def cheapest(self, indices: Sequence[int], request: Request, seed: int) -> tuple[int, float]:
        """The worker of the lowest cost among `indices`, which is not empty, and that cost; ties by hash."""
        loads, steps, missed, scales = self.loads, self._steps, self._missed, self._scales
        rising = [(loads[n] + steps[n].prefill_s(missed[n]) * scales[n], n) for n in indices]
        rising.sort()
        lowest, tied = float("inf"), []
        for base, index in rising:
            if base > lowest:
                break
            cost = base + self._evictions_s(index)
            if cost < lowest:
                lowest, tied = cost, [index]
            elif cost == lowest:
                tied.append(index)
        tied.sort()
        views = [self._workers[index] for index in tied]
        return tied[least([lowest] * len(tied), views, request, seed)], lowest

    def decode_share(self, index: int) -> float:
        """Decode seconds of the window over all of its seconds; 0 for an empty one."""
        step, sums = self._steps[index], self._sums[index]
        decode_s = self._charge.decode_s(step, sums, self._mean_tokens)
        whole_s = decode_s + self._charge.prefill_s(step, sums)
        return decode_s / whole_s if whole_s else 0.0

    def _evictions_s(self, index: int) -> float:
        """M: the key portions of the window that would have to go, each by the share of the worker's requests
        that it is hit by. What was not asked for within the window costs nothing."""
        window = self._window
        if not window.uses:
            return 0.0
        worker = self._workers[index]
        uses, capacity = window.uses.get(worker.name), worker.kv_capacity_tokens
        if capacity is None or not uses:
            return 0.0
        needed = window.used_tokens[worker.name] + self._missed[index] - capacity
        if needed <= 0:
            return 0.0
        per_token_s, requests = self._steps[index].prefill_per_token_s, window.sums[worker.name].requests
        lost = 0.0
        idle = ((key, use) for key, use in uses.items() if not use.running)
        busy = ((key, use) for key, use in uses.items() if use.running)
        for key, use in chain(idle, busy):
            if key != self._key:
                lost += use.tokens * use.requests / requests
                needed -= use.tokens
                if needed <= 0:
                    break
        return lost * per_token_s * self._scales[index]


def _sums_of(window: Window, workers: Sequence[WorkerView], now: float) -> list[Sums]:
    """Of each worker, without what is too old by now."""
    sums = [window.sums.get(w.name, NOTHING) for w in workers]
    lapsed = window.lapsed(now)
    if not lapsed:
        return sums
    return [_less(s, lapsed.get(w.name)) for s, w in zip(sums, workers, strict=True)]


def _less(sums: Sums, lapsed: Sums | None) -> Sums:
    if lapsed is None:
        return sums
    left = copy(sums)
    left.add(lapsed, -1)
    return left
