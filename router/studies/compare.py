"""Many policies on the same calls, over several seeds, on as many cores as there are.

Separate from the command, which reads flags and prints: a comparison is a function of its plan, and equal
plans give equal results to the last bit, whatever the number of processes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from router.studies.breakdown import Breakdown, breakdown
from router.studies.curves import Curves, Loads, curves, loads
from router.studies.metrics import RunFigures, Slo, figures
from router.studies.processes import in_processes
from router.studies.queueing import QueuePlan, serve
from router.studies.resized import natural_size, resized
from router.studies.setups import SETUPS, Choosing
from router.studies.simulation.call import Call
from router.studies.simulation.run import RunResult, Simulation
from router.studies.workloads import workload_named
from router.studies.workloads.arrivals import all_at_once, check_length

SATURATED = "saturated"
_WARM_UP_SHARE = 0.1


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a comparison, by names, so that any process can do it.

    Attributes:
        setup: name of a fleet; in a scenario, of its file.
        rate: calls per second; None: all at once.
        workers: that answer, where the fleet is to have another size than its own.
        judge: a policy that judges every decision, for regrets; None: none does.
    """

    workload: str
    setup: str
    policy: str
    params: dict[str, object]
    rate: float | None
    calls: int
    seed: int
    workers: int | None = None
    judge: str | None = None


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One run and its figures.

    Attributes:
        loads: KV loads of each barrier group over time, of the first seed alone: they are many numbers.
        breakdown: where it was asked for.
    """

    task: Task
    figures: RunFigures
    curves: Curves
    loads: dict[str, Loads] = {}
    breakdown: Breakdown | None = None

    @property
    def policy(self) -> str:
        """The policy with what of it is not the default."""
        return Choosing(policy=self.task.policy, params=self.task.params).name


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared.

    Attributes:
        rates: calls per second by workload; those not named run at the rate of their setup.
        levels: rates that every workload is run at, in place of those.
        setup: of all workloads; None: of each its own.
        workers: sizes that each fleet is run in; none: its own. The rate of a setup grows with its fleet.
        calls: of each run; None: as many as were published.
        judge: of all decisions, see `Task`.
    """

    policies: list[tuple[str, dict[str, object]]]
    workloads: list[str]
    seeds: int = 3
    calls: int | None = 2_000
    rates: dict[str, float | None] = {}
    levels: list[float] = []
    setup: str | None = None
    workers: list[int] = []
    judge: str | None = None

    def tasks(self) -> list[Task]:
        """Every run, in the order of the results. Raises ValueError for a rate that is unknown or too
        low, and for a workload that its fleet cannot serve."""
        tasks = [
            Task(
                workload=name,
                setup=self._setup(name),
                policy=policy,
                params=params,
                rate=rate,
                calls=self.calls or workload_named(name).published_size,
                seed=seed,
                workers=workers,
                judge=self.judge,
            )
            for name in self.workloads
            for workers in self._sizes()
            for rate in self._rates(name, workers)
            for seed in range(1, self.seeds + 1)
            for policy, params in self.policies
        ]
        for task in tasks:
            check_length(task.calls, task.rate)
        return tasks

    def _setup(self, workload: str) -> str:
        own = workload_named(workload).setup
        setup = self.setup or own
        if SETUPS[setup].plain is not SETUPS[own].plain:
            words = (
                "no tokens, and engines count them"
                if SETUPS[own].plain
                else "tokens, which plain servers ignore"
            )
            raise ValueError(f"{workload} cannot run on {setup}: its calls have {words}")
        return setup

    def _sizes(self) -> Sequence[int | None]:
        return self.workers or [None]

    def _rates(self, workload: str, workers: int | None) -> Sequence[float | None]:
        return self.levels or [self._rate(workload, workers)]

    def _rate(self, workload: str, workers: int | None) -> float | None:
        if workload in self.rates:
            return self.rates[workload]
        made, setup = workload_named(workload), SETUPS[self._setup(workload)]
        if made.natural_rate is not None:
            return made.natural_rate
        rate = setup.rates.get(workload)
        if rate is None:
            raise ValueError(f"no rate is known for {workload} on {setup.name}: say one")
        return rate if workers is None else rate * workers / natural_size(setup)


def calls_of(task: Task) -> list[Call]:
    """The calls of a run: the same for all policies."""
    arrivals = all_at_once if task.rate is None else None
    return workload_named(task.workload).calls(task.calls, task.rate or 1.0, task.seed, arrivals)


def run(task: Task) -> RunResult:
    """One run."""
    setup, calls = SETUPS[task.setup], calls_of(task)
    choosing = Choosing(policy=task.policy, params=task.params)
    if setup.plain:
        warm_up = int(task.calls * _WARM_UP_SHARE)
        servers = task.workers or natural_size(setup)
        plan = QueuePlan(policy=task.policy, params=task.params, servers=servers, warm_up=warm_up)
        return serve(plan, calls, task.seed)
    fleet = setup.plan(choosing) if task.workers is None else resized(setup.plan(choosing), task.workers)
    return Simulation(fleet, calls, task.seed, judge=task.judge).run()


def cell(task: Task) -> Cell:
    """One run and its figures."""
    return judged(task, run(task), SETUPS[task.setup].targets)


def judged(task: Task, result: RunResult, targets: Mapping[str, Slo], *, in_parts: bool = False) -> Cell:
    """What of a run is kept.

    Args:
        in_parts: also by class, family and worker.
    """
    return Cell(
        task=task,
        figures=figures(result, targets),
        curves=curves(result.calls, result.gaps),
        loads=loads(result.loads) if task.seed == 1 else {},
        breakdown=breakdown(result, targets) if in_parts else None,
    )


def cells(
    tasks: Sequence[Task],
    jobs: int = 1,
    told: Callable[[Cell], None] | None = None,
    make: Callable[[Task], Cell] = cell,
) -> list[Cell]:
    """All runs, in the order of the tasks.

    Args:
        jobs: processes.
        told: of each cell as it comes.
        make: one run; other processes must be able to import it.

    Raises:
        LostProcess: one of the processes ended before its run did.
    """
    done: list[Cell] = []
    for made in in_processes(tasks, jobs, partial(_alone, make)):
        done.append(made)
        if told is not None:
            told(made)
    return done


def _alone(make: Callable[[Task], Cell], task: Task) -> Cell:
    """A run that leaves nothing behind: its parts know each other, and so few of them hold so much that the
    collector would let a dozen runs pile up before it looked."""
    made = make(task)
    gc.collect()
    return made
