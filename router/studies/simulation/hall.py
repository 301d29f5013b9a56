"""The engines of a fleet, found by the name of their worker; what troubles them; what a scrape reads.

Separate from the router's side, which knows workers only by what they say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from engines.model.engine import Engine
from router.core.engine_stats import EngineStats
from router.studies.simulation.barrier_watch import Sample
from router.studies.simulation.fleet import FleetPlan, WorkerPlan
from router.studies.simulation.record import BarrierRecord, EngineRecord
from router.studies.simulation.stepper import Listener, Rank, Stepper
from router.studies.simulation.timeline import Timeline
from router.studies.simulation.token_gaps import TokenGaps


class Hall:
    """Engines by name. Those of one barrier group step together, all others alone.

    Attributes:
        gaps: time between tokens, at all engines.
    """

    def __init__(self, timeline: Timeline, plan: FleetPlan, listener: Listener) -> None:
        self._timeline = timeline
        self._listener = listener
        self._stretch_s = plan.delays.stretch_s
        self._plans = {worker.name: worker for pool in plan.pools for worker in pool.workers}
        self._ranks: dict[str, Rank] = {}
        self._steppers: dict[str, Stepper] = {}
        self._down: set[str] = set()
        self._unheard: dict[str, list[str]] = {}
        self.gaps = TokenGaps()
        self._births = dict.fromkeys(self._plans, 0.0)
        groups: dict[str, list[Rank]] = {}
        for name, worker in self._plans.items():
            rank = self._ranks[name] = _rank(worker)
            groups.setdefault(worker.barrier_group or f"alone {name}", []).append(rank)
        for ranks in groups.values():
            self._steps_of(ranks)

    def _steps_of(self, ranks: list[Rank]) -> None:
        stepper = Stepper(self._timeline, ranks, self._listener, stretch_s=self._stretch_s, gaps=self.gaps)
        for rank in ranks:
            self._steppers[rank.name] = stepper

    def rank(self, name: str) -> Rank:
        """The engine of a worker."""
        return self._ranks[name]

    def stepper(self, name: str) -> Stepper:
        """What drives it."""
        return self._steppers[name]

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._ranks.values())

    @property
    def steppers(self) -> list[Stepper]:
        """Each once."""
        return list(dict.fromkeys(self._steppers.values()))

    def is_up(self, name: str) -> bool:
        """Whether its port takes connections."""
        return name not in self._down

    # --- troubles ------------------------------------------------------------------------------------

    def crash(self, name: str) -> None:
        """The process of a worker is gone, with all ranks of its group."""
        stepper = self._steppers[name]
        stepper.stop()
        for rank in stepper.ranks:
            self._unheard.pop(rank.name, None)
        self._down.update(rank.name for rank in stepper.ranks)

    def restart(self, name: str) -> list[str]:
        """It is back, empty; returns the names of all that are."""
        names = [rank.name for rank in self._steppers[name].ranks]
        self._down.difference_update(names)
        for each in names:
            self._births[each] = self._timeline.now
            self._ranks[each] = _rank(self._plans[each])
        self._steps_of([self._ranks[each] for each in names])
        return names

    def thaw(self, name: str) -> None:
        """An engine that hung goes on, and hears of the clients that left meanwhile."""
        stepper = self._steppers[name]
        if self.is_up(name):
            stepper.go_on()
            for rank in stepper.ranks:
                for job_id in self._unheard.pop(rank.name, ()):
                    stepper.abort(rank, job_id)

    def abort(self, rank: Rank, job_id: str) -> None:
        """A client left; an engine that hangs hears of it when it goes on, one that is gone never."""
        name = rank.name
        if not self.is_up(name) or self._ranks[name] is not rank:
            return
        if self._steppers[name].stopped is None:
            self._steppers[name].abort(rank, job_id)
        else:
            self._unheard.setdefault(name, []).append(job_id)

    def slow_down(self, name: str, factor: float) -> None:
        """Its steps last so many times longer from the next one on; 1.0 is normal."""
        rank = self._ranks[name]
        rank.slow = factor * self._plans[name].slow
        self._steppers[name].look(rank)

    # --- what it says of itself ------------------------------------------------------------------------

    def scrape(self, name: str) -> EngineStats:
        """What the metrics of an engine say now."""
        engine = self._ranks[name].engine
        counters = engine.counters
        return EngineStats(
            taken=self._timeline.now,
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=engine.kv_usage,
            kv_capacity_tokens=engine.kv_capacity_tokens,
            block_size=engine.config.block_size,
            prompt_tokens=float(counters.prompt_tokens),
            generation_tokens=float(counters.generation_tokens),
            prefix_queries=float(counters.prefix_queries_tokens),
            prefix_hits=float(counters.prefix_hits_tokens),
            preemptions=float(counters.preemptions),
            process_start=self._births[name],
        )

    def scrape_process(self, names: Iterable[str]) -> EngineStats:
        """What the metrics of an engine with these ranks say of all of them."""
        each = [self.scrape(name) for name in names]
        tokens = [stats.generation_tokens for stats in each if stats.generation_tokens is not None]
        return replace(each[0], generation_tokens=math.fsum(tokens))

    def records(self) -> dict[str, EngineRecord]:
        """The counters of every engine."""
        return {name: _record(rank.engine) for name, rank in self._ranks.items()}

    def barriers(self) -> dict[str, BarrierRecord]:
        """The figures of every barrier group, by the name of its first worker."""
        return {
            stepper.ranks[0].name: BarrierRecord(
                gap_tokens=stepper.watch.gap_tokens,
                imbalance_tokens=stepper.watch.imbalance_tokens,
                idle_share=stepper.watch.idle_share(len(stepper.ranks)),
                tokens_per_s=stepper.watch.tokens / stepper.watch.busy_s if stepper.watch.busy_s else 0.0,
            )
            for stepper in self.steppers
            if stepper.watch is not None
        }

    def loads(self) -> dict[str, list[Sample]]:
        """KV loads of every barrier group over time, by the name of its first worker."""
        return {
            stepper.ranks[0].name: stepper.watch.samples
            for stepper in self.steppers
            if stepper.watch is not None
        }

    def __repr__(self) -> str:
        return f"<Hall of {len(self._ranks)} engines [{len(self._down)} down]>"


def _rank(worker: WorkerPlan) -> Rank:
    return Rank(worker.name, Engine(worker.engine, worker.clock), worker.clock, worker.slow)


def _record(engine: Engine) -> EngineRecord:
    counters = engine.counters
    return EngineRecord(
        steps=counters.steps,
        prompt_tokens=counters.prompt_tokens,
        cached_tokens=counters.prompt_tokens_cached,
        generation_tokens=counters.generation_tokens,
        preemptions=counters.preemptions,
    )
