"""One run: a fleet, the calls that come to it, a seed, and what became of them.

The same pools and policies as the live router's, over the same engine model as the mock's, on one timeline.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from router.core.answer import Usage
from router.core.body_text import PromptSize
from router.core.budget import Budget
from router.core.health import State
from router.core.pool import PoolBudgets
from router.core.prompt_key import PromptKey
from router.core.request import Api, Request
from router.core.roster import Change
from router.core.token_book import TokenBook
from router.core.worker import Role
from router.studies.simulation.barrier_watch import Sample
from router.studies.simulation.call import BYTES_PER_TOKEN, Call, Texts
from router.studies.simulation.copies import QUARTERS, Copies
from router.studies.simulation.courses import Courses
from router.studies.simulation.fleet import FleetPlan, PoolPlan, Trouble
from router.studies.simulation.hall import Hall
from router.studies.simulation.judging import Judges
from router.studies.simulation.life import Life
from router.studies.simulation.making import pair_of, pool_of
from router.studies.simulation.record import BarrierRecord, CallRecord, EngineRecord, RegretRecord
from router.studies.simulation.rounds import Rounds
from router.studies.simulation.timeline import Timeline
from router.studies.simulation.token_gaps import TokenGaps
from router.studies.simulation.trying import Trying
from router.studies.simulation.watch import Watch
from router.studies.simulation.wires import Wires


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What became of the calls.

    Attributes:
        calls: in order of number; those without an outcome were under way when the run was ended.
        barriers: figures of each barrier group, by the name of its first worker.
        loads: of each barrier group over time.
        ended_s: virtual time of the end.
        copies: workers that hold a cached block, on average, of those that prefill; None without caches.
        gaps: time between tokens; None where engines write none.
        regrets: by pool, what the judge of the plan says of its decisions.
    """

    calls: list[CallRecord]
    engines: dict[str, EngineRecord]
    barriers: dict[str, BarrierRecord]
    loads: dict[str, list[Sample]]
    ended_s: float
    copies: float | None = None
    gaps: TokenGaps | None = None
    regrets: dict[str, RegretRecord] = field(default_factory=dict)


class Simulation:
    """Calls on their way through pools to engines. Made for one run.

    Args:
        seed: of the policies; calls bring their own chance with them.
        judge: a policy that judges all decisions and makes none; None: none does.
    """

    def __init__(
        self, plan: FleetPlan, calls: Iterable[Call], seed: int, *, judge: str | None = None
    ) -> None:
        self.timeline = Timeline()
        self._plan = plan
        self._texts = Texts()
        self.tokens = TokenBook()
        self.records: dict[int, CallRecord] = {}
        in_flight = Budget("in flight", plan.in_flight)
        self.trying = Trying(plan.patience, in_flight)
        self.courses = Courses(self.timeline, plan, self.trying, self._learn, self._ended)
        self.hall = Hall(self.timeline, plan, self.courses.reports)
        budgets = PoolBudgets(in_flight, Budget("queued bytes", plan.queued_bytes))
        self.rounds = [
            self._make_rounds(pool, budgets, seed + index) for index, pool in enumerate(plan.pools)
        ]
        self.courses.open(self.hall, self.rounds, pair_of(plan, self.rounds))
        self._connect()
        pools = [rounds.pool for rounds in self.rounds]
        self._judges = None if judge is None else Judges(judge, pools, seed)
        self._followers: dict[int, list[Call]] = {}
        self._to_come = 0
        self._copies = Copies()
        for call in calls:
            self._to_come += 1
            if call.after is None:
                self.timeline.at(call.at, partial(self._arrive, call))
            else:
                self._followers.setdefault(call.after, []).append(call)
        self._quarters = {self._to_come * part // QUARTERS for part in range(QUARTERS)}
        for trouble in plan.troubles:
            self.timeline.at(trouble.at, partial(self._trouble, trouble))

    # --- building --------------------------------------------------------------------------------------

    def _make_rounds(self, plan: PoolPlan, budgets: PoolBudgets, seed: int) -> Rounds:
        expect, changed = self.tokens.expected, self._changed
        pool = pool_of(self._plan, plan, budgets, expect, seed=seed, on_change=changed)
        return Rounds(
            self.timeline,
            pool,
            self.courses.placed,
            self.courses.refused,
            self._plan.delays.round_s,
        )

    def _connect(self) -> None:
        """Lets engines hand KV to each other, and the router watch them."""
        delays, split, reports = self._plan.delays, self._plan.split, self.courses.reports
        if split is not None:
            lost = self.courses.setbacks.kv_lost
            reports.wires = Wires(self.timeline, self.hall, split.link, reports.is_wanted, lost)
        tell = reports.tell if delays.lags else None
        Watch(self.timeline, self.hall, delays, tell).begin(self.rounds)

    def _changed(self, change: Change) -> None:
        """A worker that is back may take what waits."""
        if change.after is State.READY:
            self.courses.wake()

    # --- running ---------------------------------------------------------------------------------------

    def run(self, limit_s: float = float("inf")) -> RunResult:
        """Lets time pass until every call has come to its end, or the limit is reached."""
        self.timeline.after(self._plan.delays.sweep_s, self._sweep)
        while self._to_come and self.timeline.now < limit_s:
            if not self.timeline.step():
                break
        return RunResult(
            calls=[self.records[number] for number in sorted(self.records)],
            engines=self.hall.records(),
            barriers=self.hall.barriers(),
            loads=self.hall.loads(),
            ended_s=self.timeline.now,
            copies=self._copies.mean,
            gaps=self.hall.gaps,
            regrets={} if self._judges is None else self._judges.regrets(),
        )

    def _sweep(self) -> None:
        for rounds in self.rounds:
            rounds.sweep()
        self.timeline.after(self._plan.delays.sweep_s, self._sweep)

    def _arrive(self, call: Call) -> None:
        record = CallRecord(
            number=call.number,
            arrived=self.timeline.now,
            prompt_tokens=call.prompt_tokens,
            family=call.family,
            tenant=call.tenant,
            slo=call.slo,
            session=call.session,
        )
        self.records[call.number] = record
        self.courses.begin(Life(call, self._request(call), record))

    def _request(self, call: Call) -> Request:
        model = self._plan.model
        return Request(
            id=str(call.number),
            sequence=call.number + 1,  # as the live router counts its requests
            model=model,
            arrived=self.timeline.now,
            api=Api.CHAT,
            stream=True,
            prompt_tokens=call.prompt_tokens,
            prompt_tokens_exact=True,
            max_tokens=call.max_tokens,
            ignore_eos=call.ignore_eos,
            sequences=call.sequences,
            body_bytes=call.prompt_tokens * BYTES_PER_TOKEN,
            affinity=call.session,
            tenant=call.tenant,
            slo=call.slo,
            key=PromptKey.of_canonical(model, lambda: self._texts.of(call.parts)),
        )

    def _learn(self, request: Request, usage: Usage) -> None:
        self.tokens.learn(request, PromptSize(request.prompt_tokens * BYTES_PER_TOKEN, 0), usage)

    def _ended(self, life: Life) -> None:
        self._to_come -= 1
        if self._to_come in self._quarters:
            self._copies.look(self._caches())
        for call in self._followers.pop(life.call.number, ()):
            self.timeline.after(call.at, partial(self._arrive, call))

    def _caches(self) -> Iterator[Collection[Hashable]]:
        """Of the workers that prefill and are up."""
        for plan in self._plan.pools:
            if plan.role is not Role.DECODE:
                for worker in plan.workers:
                    if self.hall.is_up(worker.name):
                        yield self.hall.rank(worker.name).engine.cached_hashes

    # --- troubles --------------------------------------------------------------------------------------

    def _trouble(self, trouble: Trouble) -> None:
        name = trouble.worker
        match trouble.what:
            case "crash":
                self._crash(name)
            case "restart":
                self._crash(name)
                self.hall.restart(name)
            case "freeze":
                self._freeze(name)
            case "thaw":
                self.hall.thaw(name)
            case "slow":
                self.hall.slow_down(name, trouble.factor)
            case other:
                raise ValueError(f"trouble {other!r} is unknown")

    def _crash(self, name: str) -> None:
        if self.hall.is_up(name):
            self.hall.crash(name)
            for rank in self.hall.stepper(name).ranks:
                self.courses.setbacks.lost(rank.name)

    def _freeze(self, name: str) -> None:
        stepper, idle_s = self.hall.stepper(name), self._plan.patience.idle_s
        if self.hall.is_up(name) and stepper.stopped is None:
            stepper.stop()
            if idle_s < math.inf:
                for rank in stepper.ranks:
                    self.courses.setbacks.silent(rank.name, self.timeline.now, idle_s)

    def __repr__(self) -> str:
        return f"<Simulation {self.timeline!r} [{self._to_come} calls to come]>"


def simulate(plan: FleetPlan, calls: Iterable[Call], seed: int = 0, *, judge: str | None = None) -> RunResult:
    """One run from its begin to its end."""
    return Simulation(plan, calls, seed, judge=judge).run()
