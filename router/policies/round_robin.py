"""Workers take turns; one of capacity 2 has two turns where the others have one.

**Source.** Folklore for equal workers. The weighted form is start-time fair queueing (Goyal, Vin and Cheng,
1996) with workers in the place of flows: the turns of a worker lie warmup / capacity apart on a virtual
clock that stands at the turn served last.

**Inputs.** `capacity` and `warmup` of each worker, and the turns already given; no load at all.

**Formula.** turn(w) = max(clock, last turn of w + warmup / capacity), in turns; the smallest is next. A tie
goes to whoever was served longest ago, then to the lowest hash of (seed, name): equal workers follow each
other in a fixed order, and the order depends on the seed, not on names.

- A worker that was away or is new stands at the clock: it gets its turn at once, and never a burst to catch
  up with what it missed. Others keep their turns.
- Turns move when a request is charged, and not for a retry. A retry is placed by a hash of its sequence
  number instead: were it given the next turn, one failing worker would send all its requests to its
  successor, and were it to take that turn, the rotation would lock in phase with the failures.
- A request that only one worker may take changes no turn.

**Parameters.** None.

**Use it when** requests are alike and workers keep pace, or as a baseline.

**Not when** sizes are heavy-tailed: it evens arrivals, not work, and is then hardly better than `random`.

**Absent data.** It needs none. It remembers the last turn of 4,096 names; a forgotten one counts as new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.core.explain import Row, Table
from router.core.policy import Choice, name_key
from router.core.request import Request
from router.core.worker import Role, WorkerView
from router.policies.load import drawn
from router.policies.spec import NoParameters, PolicySpec
from router.policies.table import drawn_table

_REMEMBERED_NAMES = 4096


@dataclass(slots=True)
class RoundRobin:
    """See the docstring of this file. `clock` is in turns, `served` counts requests."""

    params: NoParameters
    seed: int
    clock: float = 0.0
    served: int = 0
    last: dict[str, tuple[float, int]] = field(default_factory=dict, repr=False)
    """Name to (last turn, value of `served` then); served longest ago first."""

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        if len(workers) == 1:
            return Choice(request.id, workers[0].name, cost=self.clock, reason="only")
        if request.attempt or request.avoid:
            worker = workers[drawn(workers, request, self.seed)]
            return Choice(request.id, worker.name, cost=self.clock, reason="retry")
        turn, _, _, name = min([self._turn(w) for w in workers])
        return Choice(request.id, name, cost=turn, reason="turn")

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        turns = [self._turn(w) for w in workers]
        first = self.pick(request, workers, now)
        in_turn = first.reason == "turn"
        order = sorted(turns)
        rows = [
            Row(
                worker=w.name,
                total=turn[0] if in_turn else self.clock,
                terms={"turn": turn[0], "clock_turns": self.clock},
                reason=first.reason,
                order=float(order.index(turn)) if in_turn else float(w.name != first.worker),
            )
            for w, turn in zip(workers, turns, strict=True)
        ]
        return drawn_table(SPEC.cost_unit, self.seed, request, rows)

    def _turn(self, worker: WorkerView) -> tuple[float, int, int, str]:
        name = worker.name
        last = self.last.get(name)
        if last is None:
            return (self.clock, -1, name_key(self.seed, name), name)
        return (max(self.clock, last[0] + worker.warmup / worker.capacity), last[1], 0, name)

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        if retry or choice.reason != "turn":
            return
        self.clock = max(self.clock, choice.cost)
        self.served += 1
        # Removed and put back, so that the oldest entry is the first.
        self.last.pop(choice.worker, None)
        self.last[choice.worker] = (self.clock, self.served)
        if len(self.last) > _REMEMBERED_NAMES:
            del self.last[next(iter(self.last))]


SPEC = PolicySpec(
    name="round_robin",
    factory=RoundRobin,
    roles=frozenset(Role),
    cost_unit="turns on the virtual clock",
    page=__doc__,
)
