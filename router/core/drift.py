"""How far the ledger of a worker and the KV that its engine says it uses are apart.

The ledger is true at once and knows only what passed through this router; the scrape knows everything and
is late. Separate from the mirror, which is the ledger: here the two are only compared, so that the difference
can be seen, and foreign load be counted.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from router.core.engine_stats import EngineStats

_PERSISTENT_SCRAPES = 3
_BLOCK_TOKENS = 16  # vLLM's default block; engines that tell their own are believed


@dataclass(frozen=True, slots=True)
class Balance:
    """What the ledger of one worker said at the moment of a scrape.

    Attributes:
        leased_tokens: KV tokens of the leases held there, those that wait for a hand-over included.
        stranded_tokens: held for hand-overs that nobody will fetch.
        sequences: output sequences of those leases.
        capacity_tokens: of the engine's KV, None when nobody said.
    """

    leased_tokens: int
    stranded_tokens: int = 0
    sequences: int = 0
    capacity_tokens: int | None = None

    @property
    def tokens(self) -> int:
        return self.leased_tokens + self.stranded_tokens


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """What is compared.

    Attributes:
        smoothing_s: time constant of the smoothed drift.
        large_share: of the capacity; when the ledger moved by more between two scrapes, the later one may not
            have seen it and is left out.
        stale_s: age of the last scrape from which on the ledger alone counts. Longer than three periods of
            any scrape that is worth comparing.
    """

    smoothing_s: float = 10.0
    large_share: float = 0.05
    stale_s: float = 15.0


class Drift:
    """Of one incarnation of a worker.

    State: the last scrape and the ledger then; the drift (engine minus ledger, tokens), last and smoothed;
    the last excesses over what the ledger explains.

    Attributes:
        last_tokens, smoothed_tokens: positive when the engine holds more than the ledger; None before two
            scrapes could be compared. Engines share blocks of common prefixes, so below zero is usual.
        compared: when the last scrape that counted was taken (s).
        unexplained_tokens: what the engine holds beyond the ledger, and beyond a block per sequence that is
            not yet full, in each of the last three scrapes that counted: somebody else's load.
    """

    __slots__ = (
        "_before",
        "_excesses",
        "_settings",
        "_taken",
        "compared",
        "last_tokens",
        "smoothed_tokens",
        "unexplained_tokens",
    )

    def __init__(self, settings: DriftSettings | None = None) -> None:
        self._settings = settings or DriftSettings()
        self._taken = -math.inf
        self._before: int | None = None
        self._excesses: deque[int] = deque(maxlen=_PERSISTENT_SCRAPES)
        self.last_tokens: int | None = None
        self.smoothed_tokens: float | None = None
        self.compared: float | None = None
        self.unexplained_tokens = 0  # kept rather than computed: policies read it at every pick

    def observe(self, stats: EngineStats, balance: Balance) -> bool:
        """Compares a scrape with the ledger as it was when the scrape was answered.

        Returns whether it counted. A scrape does not count when it is no newer than the last one, says
        nothing of KV, or comes with a ledger that has moved a lot since the scrape before: the engine may not
        know of it yet. That both hold nothing cannot be out of date.
        """
        capacity = balance.capacity_tokens
        if stats.kv_usage is None or not capacity or stats.taken <= self._taken:
            return False
        self._taken = stats.taken
        before, self._before = self._before, balance.tokens
        used = round(stats.kv_usage * capacity)
        if not used and not balance.tokens:
            self._idle(stats.taken)
            return True
        if before is None or abs(balance.tokens - before) > self._settings.large_share * capacity:
            return False
        self._compare(used - balance.tokens, stats.taken)
        block_tokens = stats.block_size or _BLOCK_TOKENS
        self._excesses.append(used - balance.tokens - block_tokens * balance.sequences)
        if len(self._excesses) == _PERSISTENT_SCRAPES:
            self.unexplained_tokens = max(min(self._excesses), 0)
        return True

    def lapse(self, now: float) -> None:
        """Forgets somebody else's load when nobody has said anything of it lately."""
        if self.unexplained_tokens and now - self._taken > self._settings.stale_s:
            self._forget()

    def _idle(self, taken: float) -> None:
        self.last_tokens, self.smoothed_tokens, self.compared = 0, 0.0, taken
        self._forget()

    def _forget(self) -> None:
        self._excesses.clear()
        self.unexplained_tokens = 0

    def _compare(self, drift_tokens: int, taken: float) -> None:
        """Smooths over time rather than scrapes, whose period differs by role."""
        if self.smoothed_tokens is None or self.compared is None:
            self.smoothed_tokens = float(drift_tokens)
        else:
            weight = -math.expm1(-(taken - self.compared) / self._settings.smoothing_s)
            self.smoothed_tokens += weight * (drift_tokens - self.smoothed_tokens)
        self.last_tokens, self.compared = drift_tokens, taken

    def __repr__(self) -> str:
        if self.last_tokens is None or self.smoothed_tokens is None:
            return "<Drift [not compared yet]>"
        return (
            f"<Drift [{self.last_tokens:+d} tokens | {self.smoothed_tokens:+.0f} smoothed | "
            f"{self.unexplained_tokens} unexplained]>"
        )
