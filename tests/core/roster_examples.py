"""A roster, and what tests ask of it."""

from __future__ import annotations

from router.core.health import Sign, State
from router.core.roster import Roster
from router.core.worker import Worker
from tests.core.fleet_examples import MODEL


def roster(*names: str, models: frozenset[str] = frozenset({MODEL}), ready: bool = True) -> Roster:
    made = Roster()
    join(made, *names, models=models, ready=ready)
    return made


def join(made: Roster, *names: str, models: frozenset[str] = frozenset({MODEL}), ready: bool = True) -> None:
    for name in names:
        made.add(Worker(name=name, models=models), 0.0)
        if ready:
            made.sign(name, Sign.GOOD, 0.0)


def names(made: Roster, model: str = MODEL) -> list[str]:
    return [worker.name for worker in made.ready(model)]


def states(made: Roster) -> list[State]:
    return [worker.state for worker in made]
