"""As `balance_route_0`, but over the steps ahead: it counts who will have finished soon, and where.

**Source.** BR-H of BalanceRoute, arXiv 2605.06113: the score over a horizon, Survival, ExactMatch, the
incremental envelope. The paper gives no projection, no refresh period and no template; those, and when to
fall back, are ours.

**Inputs.** Those of `balance_route_0`, and of each resident its prompt and what it has written. The pool's
predictor learns from finished requests: by the hash of the prompt, else of its template, else by model, else
the mean of tenant and model. `max_tokens`, `min_tokens` and `ignore_eos` of the client bound what it says.

**Formula.** In KV tokens of the worker at hand, over the steps h = 0 … H:

- steps left of a resident that has written a tokens: c = (1 − p) H + p μ, in [0, H], where p is the share of
  the lengths above a that lie within H of it, and μ the mean rest of those. Lengths that were cut count as
  longer ones (Kaplan–Meier). What is older than anything seen, or not known, stays. Tables hold c for every
  16 tokens; each settled request renews 4 of them.
- L(h) = Σ (prompt + a + h) over the residents with h < c; c ≥ H is there at every h. E(h) = max L(h) over the
  group; margin m(h) = E(h) − L(h). Units, warmup and groups as in `balance_route_0`.
- F(z) = α z Σ γ^h − β Σ γ^h (z − m(h))⁺; the last steps that together weigh less than a hundredth are one
  with the step before them. With H = 0, α = 1 and β = G this is the F of `balance_route_0`.
  Margins are sorted once for a worker, so a value costs one binary search. An admitted request counts as z at
  every h: it neither grows nor ends within the horizon. L and E are kept up as a round admits.
- Both stages, guard, KV, ageing, bypass, ties and reasons as in `balance_route_0`.
- A round is decided by `balance_route_0`, with reason `fallback:…`, while less than `min_slot_use` of the
  slots are in use (`low_use`), while nothing is known of most residents (`unknown`), or when predictions have
  become 2.5 times as wrong as over the last hours (`drifted`). At 1.5 times γ is halved. A better verdict
  waits for 30 s.

**Parameters.** `candidates` to `max_overtaken` are those of `balance_route_0`.

- `candidates` (default 4; allowed: a whole number from 1 to 64): R_max.
- `greedy_candidates` (default 16; allowed: a whole number from 1 to 256): window of stage 1.
- `greedy_slots_per_worker` (default 1.0; allowed: a number from 0 to 10,000): S_greedy over G.
- `kv_reserve` (default 0.05; allowed: a number from 0 to 0.9): share of KV left to the residents.
- `age_s` (default 2.0; allowed: a number from 0 to 3,600): time after which the overtaken go first.
- `max_overtaken` (default 16; allowed: a whole number from 1 to 256): younger requests that may pass one.
- `horizon_steps` (default 80; allowed: a whole number from 1 to 250): H, about 5 s at 60 ms a step. Choose it
  by how far a departure still changes who enters, not by how far one can see.
- `discount` (default 0.86; allowed: a number from 0.01 to 1): γ, trust in the far end. 0.86 looks about 7
  steps ahead.
- `overflow_weight` (default 43.0; allowed: a number from 0 to 100,000): β. 43 with 0.86 is what the paper
  deployed on its hardware; with a good predictor 16 with 0.97 and 8 candidates was better in simulation.
- `fill_weight` (default 1.0; allowed: a number from 0 to 100,000): α.
- `min_slot_use` (default 0.8; allowed: a number from 0 to 1): below it the horizon gains nothing.
- `predictor` (default exact_match; allowed: exact_match or survival): `survival` looks at no prompt.

**Use it when** `balance_route_0` is right, slots are nearly full, and lengths are predictable: prompts or
templates repeat, or clients dictate the length. The paper has 3 to 6 % over BR-0 with ExactMatch; in our
simulation it is 1 % or less, so measure first.

**Not when** output lengths shift within the hour, or where `balance_route_0` is not right either.

**Absent data.** As `balance_route_0`. A worker whose residents are not named is taken to keep them. A group
without known slots is never `low_use`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from router.core.explain import Table
from router.core.forecasts import Forecasts
from router.core.lease import Lease, Outcome
from router.core.policy import Choice
from router.core.predict import Grouping, LengthPredictor
from router.core.predict_error import Trust
from router.core.predict_survival import MAX_HORIZON
from router.core.request import Request
from router.core.rounds import RoundMemory
from router.core.worker import Role, WorkerView
from router.policies import balance_route_0
from router.policies.balance_alone import Alone
from router.policies.balance_round import new_round
from router.policies.balance_route_0 import BalanceRoute0
from router.policies.barrier import Group, groups_of
from router.policies.envelope import Envelope, Horizon, Present, Weights, discounts
from router.policies.projection import project
from router.policies.round_watch import RoundResult, RoundWatch
from router.policies.spec import PolicySpec, Shape, number, whole, word


@dataclass(frozen=True, slots=True)
class Parameters(balance_route_0.Parameters):
    horizon_steps: int = whole(80, 1, MAX_HORIZON)
    discount: float = number(0.86, 0.01, 1)
    overflow_weight: float = number(43.0, 0, 100_000)
    fill_weight: float = number(1.0, 0, 100_000)
    min_slot_use: float = number(0.8, 0, 1)
    predictor: str = word("exact_match", "survival")


@dataclass(slots=True)
class BalanceRouteH:
    """See the docstring of this file."""

    params: Parameters
    seed: int
    present: BalanceRoute0 = field(init=False, repr=False)
    """Decides when the horizon is of no use, and remembers who was overtaken."""
    forecasts: Forecasts = field(init=False, compare=False)
    """Of its pool, which feeds them; its own as long as nobody gave it any."""
    feeds: bool = field(init=False, default=True, repr=False, compare=False)
    """Whether they are its own, so that it has to feed them."""
    recalled: RoundMemory | None = field(init=False, default=None, repr=False)
    """What it goes by in place of all forecasts, when a round is made again."""

    def __post_init__(self) -> None:
        params = self.params
        self.present = BalanceRoute0(params, self.seed)
        self.forecasts = Forecasts(_no_mean, salt=b"%d" % self.seed)
        self.forecasts.look_ahead(params.horizon_steps, Grouping(params.predictor))

    def foresee(self, forecasts: Forecasts) -> None:
        """Goes by these from now on, which somebody else feeds."""
        self.forecasts, self.feeds = forecasts, False
        forecasts.look_ahead(self.params.horizon_steps, Grouping(self.params.predictor))

    @property
    def predictor(self) -> LengthPredictor:
        """What is known of lengths."""
        return self.forecasts.predictor

    @property
    def watch(self) -> RoundWatch:
        """Told of its rounds."""
        return self.present.watch

    @watch.setter
    def watch(self, watch: RoundWatch) -> None:
        self.present.watch = watch

    # --- decisions --------------------------------------------------------------------------------------

    def admit(
        self, waiting: Sequence[Request], workers: Sequence[WorkerView], now: float
    ) -> Sequence[Choice]:
        """A round over all that wait, oldest first."""
        if not waiting or not workers:
            return ()
        self.watch.began()
        groups = groups_of(workers)
        why = self._useless([member for group in groups for member in group.members])
        if why is not None:
            return list(_fallen_back(self.present.decide(waiting, workers, now, why), why))
        ahead = [(group, self._ahead(group)) for group in groups]
        made = new_round(self.present.rules(), ahead, waiting, workers, self.seed)
        choices = made.run(self.present.overtakings, now)
        self.watch.ended(RoundResult(len(waiting), choices, made.gained, made.lost))
        return choices

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice | None:
        """The bypass: one request that comes while nobody waits. None when no worker has room for it."""
        return self._alone(request, workers).pick(self.seed)

    def explain(self, request: Request, workers: Sequence[WorkerView], now: float) -> Table:
        return self._alone(request, workers).explain(SPEC.cost_unit, self.seed)

    def _alone(self, request: Request, workers: Sequence[WorkerView]) -> Alone:
        groups = groups_of(workers)
        why = self._useless([member for group in groups for member in group.members])
        ahead = [(group, Present(group) if why is not None else self._ahead(group)) for group in groups]
        reason = "bypass" if why is None else f"fallback:{why}"
        return Alone(request, ahead, workers, self.params.kv_reserve, reason)

    def _useless(self, members: Sequence[WorkerView]) -> str | None:
        """Why the horizon is of no use now."""
        if self.recalled is not None:
            return self.recalled.fallback
        if self.predictor.trust is Trust.LOST:
            return "drifted"
        free = [member.free_slots for member in members]
        slots = [known for known in free if known is not None]
        used = sum([member.sequences for member in members])
        if len(slots) == len(free) and used < self.params.min_slot_use * (used + sum(slots)):
            return "low_use"
        if 2 * self.forecasts.known < sum([member.in_flight for member in members]):
            return "unknown"
        return None

    def _ahead(self, group: Group) -> Envelope:
        params = self.params
        weights = Weights(
            discounts(self._discount, params.horizon_steps), params.fill_weight, params.overflow_weight
        )
        loads = self._loads(group, len(weights.discounts))
        return Horizon(loads, [member.warmup for member in group.members], weights)

    @property
    def _discount(self) -> float:
        """γ; a half of it while the forecasts are not trusted much."""
        if self.recalled is not None and self.recalled.discount is not None:
            return self.recalled.discount
        return self.params.discount / 2 if self.predictor.trust is Trust.LOW else self.params.discount

    def _loads(self, group: Group, count: int) -> list[list[float]]:
        if self.recalled is not None:
            return [self.recalled.loads_ahead[member.name] for member in group.members]
        return [
            project(member, self.forecasts.tables, count, unit)
            for member, unit in zip(group.members, group.units, strict=True)
        ]

    # --- a round that is made again ---------------------------------------------------------------------

    def memory(self, workers: Sequence[WorkerView]) -> RoundMemory:
        groups = groups_of(workers)
        why = self._useless([member for group in groups for member in group.members])
        remembered = self.present.memory(workers)
        if why is not None:
            return structs.replace(remembered, fallback=why)
        count = len(discounts(self._discount, self.params.horizon_steps))
        ahead = {
            member.name: loads
            for group in groups
            for member, loads in zip(group.members, self._loads(group, count), strict=True)
        }
        return structs.replace(remembered, discount=self._discount, loads_ahead=ahead)

    def recall(self, memory: RoundMemory) -> None:
        self.present.recall(memory)
        self.recalled = memory

    # --- what it learns ---------------------------------------------------------------------------------

    def committed(self, request: Request, choice: Choice, now: float, *, retry: bool) -> None:
        self.present.committed(request, choice, now, retry=retry)
        if self.feeds:
            self.forecasts.placed(request, now)

    def settled(self, lease: Lease, outcome: Outcome, now: float) -> None:
        if self.feeds:
            self.forecasts.settled(lease, outcome, now)


def _no_mean(request: Request) -> int:
    """What a request costs is its pool's business."""
    return 1


def _fallen_back(choices: Sequence[Choice], why: str) -> Iterator[Choice]:
    """Names the reason where a stage decided; a guard is a guard whatever the envelope."""
    for choice in choices:
        stage = choice.reason in ("greedy", "subset")
        yield structs.replace(choice, reason=f"fallback:{why}") if stage else choice


SPEC = PolicySpec(
    name="balance_route_h",
    factory=BalanceRouteH,
    parameters=Parameters,
    roles=frozenset({Role.DECODE, Role.BOTH}),
    cost_unit="discounted idle KV tokens added over the horizon, at capacity 1 (seconds where calibrated)",
    page=__doc__,
    shape=Shape.BATCH,
)
