"""Telling a restarted engine from one that lives on, by what its scrapes say.

An engine that restarted has lost its KV, so its worker becomes a new incarnation. A URL behind which several
processes take turns looks like an engine that restarts at every scrape; it is noticed, and then its metrics
say nothing certain about any one process.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from router.core.engine_stats import EngineStats

_REMEMBERED_STARTS = 8
_REGRESSIONS_OF_A_SHARED_ADDRESS = 3
_REGRESSION_WINDOW = 20


class Verdict(enum.Enum):
    SAME = "same"
    RESTARTED = "restarted"
    SHARED = "shared"


@dataclass(slots=True)
class Lives:
    """What one worker's scrapes said of its process."""

    start: float | None = None
    tokens: float | None = None
    past_starts: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_STARTS))
    regressions: deque[bool] = field(default_factory=lambda: deque(maxlen=_REGRESSION_WINDOW))

    def see(self, stats: EngineStats) -> Verdict:
        """Compares a scrape with the ones before it.

        The start time of the process decides when the engine exports it; a token counter that fell decides
        otherwise. A start time that was seen before, or counters that fall again and again, mean that several
        processes answer.
        """
        if stats.process_start is not None:
            verdict = self._by_start(stats.process_start)
        else:
            verdict = self._by_counter(stats.generation_tokens)
        if stats.generation_tokens is not None:
            self.tokens = stats.generation_tokens
        return verdict

    def _by_start(self, start: float) -> Verdict:
        before, self.start = self.start, start
        if before is None or before == start:
            return Verdict.SAME
        if start in self.past_starts:
            return Verdict.SHARED
        self.past_starts.append(before)
        return Verdict.RESTARTED

    def _by_counter(self, tokens: float | None) -> Verdict:
        if tokens is None or self.tokens is None:
            return Verdict.SAME
        fell = tokens < self.tokens
        self.regressions.append(fell)
        if not fell:
            return Verdict.SAME
        shared = sum(self.regressions) >= _REGRESSIONS_OF_A_SHARED_ADDRESS
        return Verdict.SHARED if shared else Verdict.RESTARTED
