"""The opt-in decision log: every choice with the best others, and on a sample all that was compared.

Separate from the request log, which is written when a request is over and knows nothing of tables. Also what
fills the best others of the request log, whether there is a decision log or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, is_dataclass
from hashlib import blake2b
from itertools import chain
from math import isfinite
from typing import Any

import msgspec

from router.core.explain import Row, Table, best_others, picks
from router.core.policy import AnyPolicy, Choice, tie_break
from router.core.recording import Decision
from router.core.request import Request
from router.core.rounds import MadeRound, Remembers
from router.core.seat import Seat
from router.core.worker import WorkerView
from router.policies.ageing import waits_since
from router.policies.barrier import groups_of
from router.telemetry.decision import (
    DecisionRecord,
    Header,
    MadeRecord,
    MemberRecord,
    Other,
    RoundRecord,
    WaitingRecord,
)
from router.telemetry.line_log import LineLog, LineLogSettings, Offload

OTHERS = 3
_MAX_SEATS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLogSettings(LineLogSettings):
    """Knobs of the decision log. `sample`: share of the decisions, and of the rounds, that are kept whole."""

    sample: float = 0.01


class DecisionLog(LineLog):
    """Takes decisions without ever waiting, and writes them.

    State: how many rounds there were, which requests the last one of each pool has placed, and the ids of
    parameters by seat.
    """

    def __init__(
        self,
        settings: DecisionLogSettings,
        wall: Callable[[], float],
        *,
        on_drop: Callable[[int], None] = lambda lines: None,
        offload: Offload = asyncio.to_thread,
    ) -> None:
        """`wall`: Unix time. Raises OSError when the file cannot be written."""
        self._encode = msgspec.json.Encoder().encode
        super().__init__("decision log", settings, self._encode(Header()), on_drop=on_drop, offload=offload)
        self._sample = settings.sample
        self._wall = wall
        self._rounds = 0
        self._in_round: dict[str, tuple[int, frozenset[str]]] = {}
        self._ids: dict[Seat, str] = {}

    def decided(self, decision: Decision) -> tuple[tuple[str, float], ...]:
        """Writes a decision; returns the best others for whoever else tells them."""
        rows = others_of(decision.table, decision.placed.choice)
        self.add(self._encode(self._record(decision, rows)))
        return named(rows)

    def round(self, made: MadeRound) -> None:
        """Writes a round, if it is of the sample."""
        self._rounds += 1
        number = self._rounds
        self._in_round.pop(made.pool, None)
        policy = made.seat.policy
        if not self._chosen(number, "round") or not isinstance(policy, Remembers) or not made.choices:
            return
        self._in_round[made.pool] = number, frozenset(choice.request_id for choice in made.choices)
        self.add(self._encode(self._round_record(made, policy, number)))

    def _chosen(self, number: int, what: str) -> bool:
        """Whether something is of the sample; by hash, so that the same run has the same sample."""
        return tie_break(0, number, what) < self._sample * 2.0**64

    # --- records ---------------------------------------------------------------------------------------

    def _record(self, decision: Decision, others: list[Row]) -> DecisionRecord:
        request, choice = decision.placed.request, decision.placed.choice
        number, ids = self._in_round.get(decision.pool, (None, frozenset()))
        table, policy = decision.table, decision.seat.policy
        whole = self._chosen(request.sequence, "decision") and table is not None and _keeps(table, choice)
        return DecisionRecord(
            at=self._wall(),
            id=request.id,
            pool=decision.pool,
            policy=decision.seat.name,
            params_id=self._params_id(decision.seat),
            seed=getattr(policy, "seed", None),
            sequence=request.sequence,
            attempt=request.attempt,
            worker=choice.worker,
            prefill_worker=choice.prefill_worker,
            reason=choice.reason,
            cost=choice.cost,
            unit="" if table is None else table.unit,
            others=tuple(
                Other(worker=row.worker, cost=row.total, prefill_worker=row.prefill_worker) for row in others
            ),
            round=number if request.id in ids else None,
            params=params_of(policy) if whole else None,
            table=table if whole and request.id not in ids else None,
        )

    def _params_id(self, seat: Seat) -> str:
        found = self._ids.get(seat)
        if found is None:
            if len(self._ids) >= _MAX_SEATS:
                self._ids.clear()
            data = self._encode(params_of(seat.policy))
            found = self._ids[seat] = blake2b(data, digest_size=4).hexdigest()
        return found

    def _round_record(self, made: MadeRound, policy: Remembers, number: int) -> RoundRecord:
        return RoundRecord(
            at=self._wall(),
            number=number,
            pool=made.pool,
            policy=made.seat.name,
            params=params_of(made.seat.policy),
            seed=getattr(made.seat.policy, "seed", 0),
            now=made.now,
            waiting=tuple(_waiting(request) for request in made.waiting),
            members=tuple(_members(made)),
            memory=policy.memory(made.workers),
            choices=tuple(
                MadeRecord(id=c.request_id, worker=c.worker, cost=c.cost, reason=c.reason)
                for c in made.choices
            ),
        )


class OthersOnly:
    """Finds the best others for the request log, where there is no decision log."""

    def decided(self, decision: Decision) -> tuple[tuple[str, float], ...]:
        return named(others_of(decision.table, decision.placed.choice))

    def round(self, made: MadeRound) -> None:
        """Of no use to the request log."""


def others_of(table: Table | None, choice: Choice) -> list[Row]:
    """The best that were not chosen, cheapest first."""
    if table is None:
        return []
    taken = (choice.worker, choice.prefill_worker)
    chosen = next((row for row in table.rows if (row.worker, row.prefill_worker) == taken), None)
    return best_others(table, chosen, OTHERS)


def _keeps(table: Table, choice: Choice) -> bool:
    """Whether a table can be written down, and leads to the choice when it is read."""
    numbers = chain.from_iterable((row.total, row.order, *row.terms.values()) for row in table.rows)
    return picks(table, choice) and all(map(isfinite, numbers))


def named(rows: list[Row]) -> tuple[tuple[str, float], ...]:
    return tuple((row.worker, row.total) for row in rows)


def params_of(policy: AnyPolicy) -> dict[str, Any]:
    """The parameters of a policy by name."""
    params = getattr(policy, "params", None)
    return asdict(params) if is_dataclass(params) and not isinstance(params, type) else {}


def _waiting(request: Request) -> WaitingRecord:
    return WaitingRecord(
        id=request.id,
        sequence=request.sequence,
        came=waits_since(request),
        prompt_tokens=request.prompt_tokens,
        sequences=request.sequences,
        max_tokens=request.max_tokens,
        attempt=request.attempt,
    )


def _members(made: MadeRound) -> Iterator[MemberRecord]:
    offered = {worker.name for worker in made.workers}
    for number, group in enumerate(groups_of(made.workers)):
        for member in group.members:
            yield _member(member, number, offered=member.name in offered)


def _member(worker: WorkerView, group: int, *, offered: bool) -> MemberRecord:
    return MemberRecord(
        name=worker.name,
        group=group,
        barrier_group=worker.barrier_group,
        offered=offered,
        in_flight=worker.in_flight,
        sequences=worker.sequences,
        queued_tokens=worker.queued_tokens,
        kv_tokens=worker.kv_tokens,
        remaining_tokens=worker.remaining_tokens,
        kv_capacity_tokens=worker.kv_capacity_tokens,
        free_slots=worker.free_slots,
        capacity=worker.capacity,
        warmup=worker.warmup,
        step=worker.step,
    )
