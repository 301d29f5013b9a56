"""One line of the decision log: which worker a request was given, by which policy, in place of which others.

Separate from the writing (`decision_log`) because whoever reads these asks why, and never writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from router.core.explain import Table
from router.core.rounds import RoundMemory
from router.core.step_model import StepModel
from router.telemetry.log_lines import LogKind

FORMAT = "pointsman-decision-log"
FORMAT_VERSION = 1


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of every file."""

    format: str = FORMAT
    version: int = FORMAT_VERSION


class Other(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One that was not chosen, and what it would have cost."""

    worker: str
    cost: float
    prefill_worker: str | None = None


class DecisionRecord(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="decision"
):
    """One choice: one for each leg and each attempt of a request.

    Attributes:
        at: Unix time (s).
        id: of the request, with its number in this process; the client's own id comes before the `#`.
        params_id: tells parameters apart; in a full record they stand in `params`.
        seed, sequence: what ties are broken by.
        cost: of the chosen one, and of the `others`, the best three, in `unit`.
        round: number of the round that it was chosen in, when that one is in the file.
        table: everything that was compared; only of a sample, and only where its rule leads to this choice.
    """

    at: float
    id: str
    pool: str
    policy: str
    params_id: str
    seed: int | None = None
    sequence: int
    attempt: int = 0
    worker: str
    prefill_worker: str | None = None
    reason: str
    cost: float
    unit: str = ""
    others: tuple[Other, ...] = ()
    round: int | None = None
    params: dict[str, Any] | None = None
    table: Table | None = None


class WaitingRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that waited. `came`: into this queue (s, on the clock of the router)."""

    id: str
    sequence: int
    came: float
    prompt_tokens: int
    sequences: int = 1
    max_tokens: int | None = None
    attempt: int = 0


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker as it was before the round.

    Attributes:
        group: number of the barrier group that it belonged to, in the order of the file.
        barrier_group: its name; None where none is declared.
        offered: it could be given requests; others only count in their group.
    """

    name: str
    group: int
    barrier_group: str | None = None
    offered: bool = True
    in_flight: int = 0
    sequences: int = 0
    queued_tokens: int = 0
    kv_tokens: int = 0
    remaining_tokens: int = 0
    kv_capacity_tokens: int | None = None
    free_slots: int | None = None
    capacity: float = 1.0
    warmup: float = 1.0
    step: StepModel | None = None


class MadeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a round."""

    id: str
    worker: str
    cost: float
    reason: str


class RoundRecord(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="round"
):
    """One round of a batch policy, with all that it depended on.

    Attributes:
        now: on the clock of the router (s), as all times in `waiting` and `memory`.
        waiting: oldest first.
        members: of all barrier groups, those that were offered first within each.
    """

    at: float
    number: int
    pool: str
    policy: str
    params: dict[str, Any]
    seed: int
    now: float
    waiting: tuple[WaitingRecord, ...]
    members: tuple[MemberRecord, ...]
    memory: RoundMemory
    choices: tuple[MadeRecord, ...]


Record = DecisionRecord | RoundRecord

_LOG: LogKind[Header, Record] = LogKind(
    "decision log",
    FORMAT,
    FORMAT_VERSION,
    msgspec.json.Decoder(Header),
    msgspec.json.Decoder(Record),
)


def read_decisions(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The records of a decision log, in the order in which they were made. Raises as `LogKind.records_of`."""
    return _LOG.records_of(path)
