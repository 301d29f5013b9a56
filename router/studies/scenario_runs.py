"""The runs of a scenario: one for each policy, rate and seed, on as many cores as there are.

Separate from the comparison, whose runs are known by names alone: these carry their fleet with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from router.studies.compare import Cell, Task, cells, judged
from router.studies.scenario import Scenario
from router.studies.setups import Choosing
from router.studies.simulation.run import Simulation


def scenario_tasks(
    scenario: Scenario,
    policies: Sequence[Choosing],
    rates: Sequence[float | None],
    seeds: int,
    judge: str | None = None,
) -> list[Task]:
    """Every run, in the order of the results."""
    return [
        Task(
            workload=scenario.load.workload,
            setup=scenario.name,
            policy=choosing.policy,
            params=dict(choosing.params),
            rate=rate,
            calls=scenario.load.requests,
            seed=seed,
            judge=judge,
        )
        for rate in rates
        for seed in range(1, seeds + 1)
        for choosing in policies
    ]


def scenario_cells(
    scenario: Scenario, tasks: Sequence[Task], jobs: int = 1, told: Callable[[Cell], None] | None = None
) -> list[Cell]:
    """All runs, in the order of the tasks. Raises ScenarioError for a policy that fits no pool."""
    for task in tasks:
        scenario.under(_choosing(task))
    return cells(tasks, jobs, told, partial(scenario_cell, scenario))


def scenario_cell(scenario: Scenario, task: Task) -> Cell:
    """One run and its figures."""
    calls = scenario.calls(task.calls, task.rate, task.seed)
    fleet = scenario.under(_choosing(task))
    result = Simulation(fleet, calls, task.seed, judge=task.judge).run()
    return judged(task, result, scenario.targets, in_parts=True)


def _choosing(task: Task) -> Choosing:
    return Choosing(policy=task.policy, params=task.params)
