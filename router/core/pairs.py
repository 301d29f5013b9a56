"""Which prefill and decode workers cannot hand KV to each other now, and whose fault a failed transfer is.

A transfer has two ends and a network between them, so a failure of one pair says nothing certain about either
worker: the pair alone is set aside for a while. Separate from health, which is about one worker, and from the
pools, which know one side each.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

End: TypeAlias = tuple[str, int]
"""(worker, incarnation): a worker that restarted is another end."""


class Blame(enum.Enum):
    """Whose breaker a failed transfer counts for."""

    NOBODY = "nobody"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How long a pair is set aside, and when its failures tell more than that.

    Attributes:
        first_s, longest_s: time aside after the first failure, doubled by each further one up to the longest.
        window_s: how old a failure or a success may be to count for blame.
        partners: distinct workers that somebody must have failed with.
        max_pairs: failed pairs that are remembered, and workers that did well.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    window_s: float = 30.0
    partners: int = 2
    max_pairs: int = 1024


@dataclass(slots=True)
class _Trouble:
    """Of one pair since its last success."""

    failed: float
    until: float
    aside_s: float


class Pairs:
    """Failed pairs and when they may be tried again.

    State: `_troubles`, at most a bounded number of pairs, the longest untouched forgotten first;
    `_succeeded`, the last success of each worker that took part in one while some pair was in trouble.
    """

    def __init__(self, settings: PairSettings | None = None) -> None:
        self._settings = settings or PairSettings()
        self._troubles: OrderedDict[tuple[End, End], _Trouble] = OrderedDict()
        self._succeeded: OrderedDict[End, float] = OrderedDict()

    def allowed(self, prefill: End, decode: End, now: float) -> bool:
        """Whether this pair may be tried. It may be again once its time aside is over; changes nothing."""
        if not self._troubles:
            return True
        trouble = self._troubles.get((prefill, decode))
        return trouble is None or now >= trouble.until

    def failed(self, prefill: End, decode: End, now: float) -> Blame:
        """A transfer of this pair failed before the decode worker's first event.

        Requests that were under way when the pair was set aside fail with it: they do not double its time,
        and are held against nobody once more.

        Returns whose fault that is, as far as the failures of the last `window_s` tell.
        """
        settings = self._settings
        trouble = self._troubles.get((prefill, decode))
        under_way = trouble is not None and now < trouble.until
        if trouble is None:
            trouble = _Trouble(now, now + settings.first_s, settings.first_s)
            self._troubles[prefill, decode] = trouble
        else:
            trouble.failed = now
            if now >= trouble.until:
                trouble.aside_s = min(2 * trouble.aside_s, settings.longest_s)
                trouble.until = now + trouble.aside_s
        self._troubles.move_to_end((prefill, decode))
        if len(self._troubles) > settings.max_pairs:
            self._troubles.popitem(last=False)
        return Blame.NOBODY if under_way else self._blame(prefill, decode, now)

    def succeeded(self, prefill: End, decode: End, now: float) -> None:
        """A first event came: the KV went over, and the pair is as good as new."""
        if not self._troubles:
            return  # while nothing fails, nobody asks who does well
        self._troubles.pop((prefill, decode), None)
        for end in (prefill, decode):
            self._succeeded[end] = now
            self._succeeded.move_to_end(end)
        if len(self._succeeded) > self._settings.max_pairs:
            self._succeeded.popitem(last=False)

    def forget(self, worker: str) -> None:
        """Drops what is known of a worker in any of its incarnations: it was removed, or was born anew."""
        for pair in [pair for pair in self._troubles if worker in (pair[0][0], pair[1][0])]:
            del self._troubles[pair]
        for end in [end for end in self._succeeded if end[0] == worker]:
            del self._succeeded[end]

    def __len__(self) -> int:
        """Pairs that have failed since their last success, whether they are still aside or not."""
        return len(self._troubles)

    def set_aside(self, now: float) -> Iterator[tuple[str, str]]:
        """(prefill worker, decode worker) of every pair that may not be tried now."""
        return ((p[0], d[0]) for (p, d), trouble in self._troubles.items() if now < trouble.until)

    # --- blame -----------------------------------------------------------------------------------------

    def _blame(self, prefill: End, decode: End, now: float) -> Blame:
        """The end that failed with several others of which each does well without it.

        Neither end when both or none can be told apart so: a network that fails everywhere is nobody's fault.
        """
        partners_of, prefills_of = self._recent(now)
        by_prefill = sum(
            self._well(decoder, prefills_of[decoder], now) for decoder in partners_of.get(prefill, ())
        )
        by_decode = sum(
            self._well(prefiller, partners_of[prefiller], now) for prefiller in prefills_of.get(decode, ())
        )
        enough = self._settings.partners
        if by_prefill >= enough and by_prefill > by_decode:
            return Blame.PREFILL
        if by_decode >= enough and by_decode > by_prefill:
            return Blame.DECODE
        return Blame.NOBODY

    def _recent(self, now: float) -> tuple[dict[End, set[End]], dict[End, set[End]]]:
        """Who failed with whom within the window: by prefill worker, and by decode worker."""
        by_prefill: dict[End, set[End]] = {}
        by_decode: dict[End, set[End]] = {}
        for (prefill, decode), trouble in self._troubles.items():
            if now - trouble.failed <= self._settings.window_s:
                by_prefill.setdefault(prefill, set()).add(decode)
                by_decode.setdefault(decode, set()).add(prefill)
        return by_prefill, by_decode

    def _well(self, end: End, failed_with: set[End], now: float) -> bool:
        """Whether somebody fails with one partner only, or has succeeded lately."""
        if len(failed_with) == 1:
            return True
        since = self._succeeded.get(end)
        return since is not None and now - since <= self._settings.window_s

    def __repr__(self) -> str:
        return f"<Pairs [{len(self._troubles)} in trouble]>"
