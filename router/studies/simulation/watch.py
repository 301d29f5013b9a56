"""When engines are asked how they are: the twin of `router.poller` on the timeline.

Separate from the run, which only begins it. What an answer means is decided in the core, as live; periods
have no jitter here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from router.core.health import Sign, State
from router.core.worker import Role, Worker
from router.studies.simulation.fleet import Delays
from router.studies.simulation.hall import Hall
from router.studies.simulation.rounds import Rounds
from router.studies.simulation.timeline import Timeline


@dataclass(slots=True, eq=False)
class _Engine:
    """What listens at one address: its ranks, or one worker; when it was last probed."""

    rounds: Rounds
    workers: list[Worker]
    probed: float = 0.0

    @property
    def unproven(self) -> bool:
        """Whether nothing has come from it since the last probe, or it is out of rotation."""
        ready = all(worker.state is State.READY for worker in self.workers)
        return not ready or max(worker.last_sign for worker in self.workers) <= self.probed


class Watch:
    """Probes and scrapes.

    Args:
        tell: brings the account of a worker up to date, before it is compared with what the engine says; None
            where it always is.
    """

    def __init__(
        self, timeline: Timeline, hall: Hall, delays: Delays, tell: Callable[[str], None] | None
    ) -> None:
        self._timeline = timeline
        self._hall = hall
        self._delays = delays
        self._tell = tell
        self._engines: list[_Engine] = []

    def begin(self, pools: Iterable[Rounds]) -> None:
        """Asks all engines for the first time; once, when their workers have joined."""
        engines: dict[str, _Engine] = {}
        for rounds in pools:
            for worker in rounds.pool.roster:
                name = worker.name if worker.process is None else worker.process
                engines.setdefault(name, _Engine(rounds, [])).workers.append(worker)
        self._engines = list(engines.values())
        for engine in self._engines:
            self._probe(engine)
            self._observe(engine)
        self._timeline.after(self._delays.probe_s, self._probe_all)
        prefills = [each for each in self._engines if each.rounds.pool.rules.role is Role.PREFILL]
        others = [each for each in self._engines if each not in prefills]
        self._timeline.after(self._delays.scrape_s, partial(self._scrape_all, others))
        for each in prefills:
            self._timeline.after(self._period_s(each), partial(self._scrape, each))

    # --- probes --------------------------------------------------------------------------------------------

    def _probe_all(self) -> None:
        for engine in self._engines:
            if engine.unproven:
                self._probe(engine)
            else:
                engine.probed = self._timeline.now
        self._timeline.after(self._delays.probe_s, self._probe_all)

    def _probe(self, engine: _Engine) -> None:
        now, roster = self._timeline.now, engine.rounds.pool.roster
        engine.probed = now
        for worker in engine.workers:
            if self._hall.is_up(worker.name):
                roster.probed(worker.name, now)
                engine.rounds.wake()
            else:
                roster.sign(worker.name, Sign.REFUSED, now, "refused a probe")

    # --- scrapes -------------------------------------------------------------------------------------------

    def _scrape_all(self, engines: list[_Engine]) -> None:
        for engine in engines:
            self._observe(engine)
        self._timeline.after(self._delays.scrape_s, partial(self._scrape_all, engines))

    def _scrape(self, engine: _Engine) -> None:
        self._observe(engine)
        self._timeline.after(self._period_s(engine), partial(self._scrape, engine))

    def _period_s(self, engine: _Engine) -> float:
        """One that prefills and holds something is asked more often: its usage decides who gets more."""
        busy = any(worker.role is Role.PREFILL and not worker.mirror.idle for worker in engine.workers)
        delays = self._delays
        return min(delays.prefill_scrape_s, delays.scrape_s) if busy else delays.scrape_s

    def _observe(self, engine: _Engine) -> None:
        now, pool = self._timeline.now, engine.rounds.pool
        first = engine.workers[0]
        if not self._hall.is_up(first.name):
            return
        if first.process is not None:
            pool.roster.see(first.name, self._hall.scrape_process(w.name for w in engine.workers), now)
        for worker in engine.workers:
            if self._tell is not None:
                self._tell(worker.name)
            pool.observe(worker.name, self._hall.scrape(worker.name), now)

    def __repr__(self) -> str:
        return f"<Watch of {len(self._engines)} engines>"
