"""What engines say of the jobs they run, and when the router hears of it.

Separate from the courses of calls, which are about requests: here is who runs where, and how far it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from engines.model.engine import Fetch, Output
from router.core.lease import Lease
from router.studies.simulation.fleet import Delays
from router.studies.simulation.life import Leg
from router.studies.simulation.rounds import Rounds
from router.studies.simulation.stepper import Rank
from router.studies.simulation.timeline import Timeline
from router.studies.simulation.wires import Wires

Heard = Callable[[Leg, int, bool], None]
"""Told of a leg that has begun or ended: its tokens so far, and whether it is over."""


class Reports:
    """Listens to every engine.

    State: `_legs` by job id per worker, `_running` those that have begun, `_told` a time since which all of
    these were heard of.
    """

    def __init__(self, timeline: Timeline, delays: Delays, heard: Heard) -> None:
        self._timeline = timeline
        self._delays = delays
        self._heard = heard
        self._legs: dict[str, dict[str, Leg]] = {}
        self._running: dict[str, dict[Leg, None]] = {}
        self._told: dict[str, float] = {}
        self._by_worker: dict[str, Rounds] = {}
        self.wires: Wires | None = None
        """Between the engines of a pair."""

    def follow(self, pools: Iterable[Rounds]) -> None:
        """Says whose engines these are; once, before the first of them runs."""
        for rounds in pools:
            for worker in rounds.pool.roster:
                self._by_worker[worker.name] = rounds
                self._legs[worker.name] = {}
                self._running[worker.name] = {}
                self._told[worker.name] = 0.0

    # --- legs ------------------------------------------------------------------------------------------

    def sent(self, leg: Leg, job_ids: Iterable[str]) -> None:
        """Jobs of a leg are on their way to its engine."""
        legs = self._legs[leg.lease.worker]
        for job_id in job_ids:
            leg.open.add(job_id)
            legs[job_id] = leg

    def drop(self, leg: Leg) -> list[str]:
        """Nobody wants to hear of a leg any more. Returns its jobs that have not ended."""
        name = leg.lease.worker
        left = [job_id for job_id in leg.open if self._legs[name].pop(job_id, None) is not None]
        leg.open.clear()
        self._running[name].pop(leg, None)
        return left

    def at(self, name: str) -> list[Leg]:
        """The legs of a worker, in the order in which they came."""
        return list(dict.fromkeys(self._legs[name].values()))

    def is_wanted(self, name: str, job_id: str) -> bool:
        """Whether anybody wants to hear of a job."""
        return job_id in self._legs[name]

    def leg_of(self, name: str, job_id: str) -> Leg | None:
        """Whose job it is; None once nobody wants to hear of it."""
        return self._legs[name].get(job_id)

    # --- what engines do -------------------------------------------------------------------------------

    def put_out(self, rank: Rank, outputs: Sequence[Output]) -> None:
        """Jobs wrote their first token, or ended; others may be among them."""
        legs = self._legs[rank.name]
        for output in outputs:
            first = output.since_last_s is None
            if not first and output.finish_reason is None:
                continue
            leg = legs[output.job_id]
            leg.timings[output.job_id] = output.timing
            if first:
                self._running[rank.name].setdefault(leg)
                leg.told = self._timeline.now
            if output.finish_reason is not None:
                leg.open.discard(output.job_id)
                del legs[output.job_id]
                if not leg.open:
                    del self._running[rank.name][leg]
                if output.kept is not None and self.wires is not None:
                    self.wires.kept(rank, output.job_id)
            self.later(partial(self._heard, leg, leg.written(), not leg.open))
        self.moved_on(rank)

    def moved_on(self, rank: Rank) -> None:
        """Time passed in which jobs wrote tokens."""
        told = self._counts(rank.name, self._timeline.now - self._delays.progress_s)
        if told:
            self.later(partial(self._progress, rank.name, told))

    def fetches(self, rank: Rank, wanted: Sequence[Fetch]) -> None:
        """Jobs want their KV from another engine, or need it no more."""
        if self.wires is not None:
            for fetch in wanted:
                self.wires.fetches(rank, fetch)

    def tell(self, name: str) -> None:
        """How far the jobs of a worker are, without delay: before its KV is compared with the account."""
        self._progress(name, self._counts(name, self._timeline.now))

    def _counts(self, name: str, last: float) -> list[tuple[Lease, int]]:
        """Tokens of the legs of which nothing was heard since then."""
        counts: list[tuple[Lease, int]] = []
        if self._told[name] > last:
            return counts
        now = oldest = self._timeline.now
        for leg in self._running[name]:
            if leg.told <= last:
                leg.told = now
                counts.append((leg.lease, leg.written()))
            elif leg.told < oldest:
                oldest = leg.told
        self._told[name] = oldest
        return counts

    def later(self, call: Callable[[], None]) -> None:
        """The router hears of it as late as events take to come."""
        if self._delays.event_s > 0:
            self._timeline.after(self._delays.event_s, call)
        else:
            call()

    def _progress(self, name: str, told: Sequence[tuple[Lease, int]]) -> None:
        self._by_worker[name].pool.ledger.progress_all(name, told, self._timeline.now)

    def __repr__(self) -> str:
        return f"<Reports of {sum(map(len, self._legs.values()))} jobs at {len(self._legs)} workers>"
