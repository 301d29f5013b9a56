"""One engine process (or one data-parallel rank of it), and the read-only view that policies get of it."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from router.core.calibration import Calibration
from router.core.drift import Drift
from router.core.engine_stats import EngineStats
from router.core.health import Health, State
from router.core.lease import Lease
from router.core.mirror import Mirror
from router.core.step_model import StepModel, TransferModel

__all__ = ["Role", "StepModel", "TransferModel", "Worker", "WorkerView"]


class Role(enum.Enum):
    """What a worker does in its pool."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class WorkerView(Protocol):
    """Everything a policy may know about a worker; read-only to the type checker.

    Absent data is None. Loads are the router's own ledger, true at this instant; `stats` is what the engine
    last said, with its age in `stats.taken`.
    """

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> Role: ...
    @property
    def model(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def barrier_group(self) -> str | None: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def in_flight(self) -> int:
        """Leases held."""
        ...

    @property
    def sequences(self) -> int:
        """Output sequences of those leases (n > 1 counts n times)."""
        ...

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens charged and not yet known to be prefilled."""
        ...

    @property
    def kv_tokens(self) -> int:
        """Prompt and generated tokens of all leases, and what the engine persistently holds beyond them: the
        router's belief of KV in use."""
        ...

    @property
    def remaining_tokens(self) -> int:
        """Output tokens still expected of all leases, by their predicted length less what was seen."""
        ...

    @property
    def kv_capacity_tokens(self) -> int | None: ...
    @property
    def free_slots(self) -> int | None: ...
    @property
    def capacity(self) -> float:
        """Relative speed: 1.0 is the mean of the pool. Loads are divided by it."""
        ...

    @property
    def warmup(self) -> float:
        """Extra load factor of a worker that came back lately: 1.0 normally, up to 2.0 just after."""
        ...

    @property
    def step(self) -> StepModel | None: ...
    @property
    def transfers(self) -> Mapping[str, TransferModel]:
        """What it takes to get KV from a prefill worker, by the name of that one; only what was measured."""
        ...

    @property
    def residents(self) -> Collection[Lease]:
        """The leases that it holds, in the order in which they were granted."""
        ...

    @property
    def barrier_peers(self) -> Sequence[WorkerView]:
        """All that step together with it, itself included, whatever their state; empty outside a group."""
        ...

    @property
    def stats(self) -> EngineStats | None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Worker:
    """A member of a pool; implements WorkerView. The Pool is its only writer.

    Attributes:
        revision: what must be equal for KV to be understood: label, engine version, model root.
        label: the part of it that was configured.
        may_prefill: a decode worker that may serve a request from its beginning, too.
        models: names it serves (base model and LoRA adapters); empty until learned.
        max_model_len: longest context it takes, per model, as `/v1/models` says.
        slots: sequences that may run at once; None when nobody said.
        step, transfers: coefficients that may be relied on; see `calibrate`.
        calibration: where they come from and how well they are known, also while they are not relied on.
        barrier_peers: all members of its barrier group, itself included.
        process: what the data-parallel ranks of one engine have in common: they live and die together. None:
            it is an engine of its own.
        last_sign: when it last showed life: an event, or a counter that moved (s).
        shared_address: its URL hides several processes, so its metrics and incarnations say nothing certain.
    """

    name: str
    role: Role = Role.BOTH
    revision: str = ""
    label: str = ""
    may_prefill: bool = False
    barrier_group: str | None = None
    process: str | None = None
    slots: int | None = None
    capacity: float = 1.0
    models: frozenset[str] = frozenset()
    max_model_len: dict[str, int] = field(default_factory=dict)
    configured_kv_tokens: int | None = None
    incarnation: int = 0
    health: Health = field(default_factory=Health)
    mirror: Mirror = field(default_factory=Mirror)
    drift: Drift = field(default_factory=Drift)
    step: StepModel | None = None
    transfers: Mapping[str, TransferModel] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)
    barrier_peers: Sequence[WorkerView] = ()
    stats: EngineStats | None = None
    last_sign: float = 0.0
    warmup: float = 1.0
    shared_address: bool = False

    @property
    def model(self) -> str:
        """The one name, or the first in order, for labels."""
        return min(self.models, default="")

    @property
    def state(self) -> State:
        return self.health.state

    @property
    def in_flight(self) -> int:
        return self.mirror.in_flight

    @property
    def sequences(self) -> int:
        return self.mirror.sequences

    @property
    def residents(self) -> Collection[Lease]:
        return self.mirror.leases

    @property
    def queued_tokens(self) -> int:
        return self.mirror.queued_tokens

    @property
    def kv_tokens(self) -> int:
        return self.mirror.kv_tokens + self.drift.unexplained_tokens

    @property
    def remaining_tokens(self) -> int:
        return self.mirror.remaining_tokens

    @property
    def kv_capacity_tokens(self) -> int | None:
        if self.configured_kv_tokens is not None:
            return self.configured_kv_tokens
        return self.stats.kv_capacity_tokens if self.stats else None

    @property
    def free_slots(self) -> int | None:
        return None if self.slots is None else max(self.slots - self.mirror.sequences, 0)

    @property
    def does_both(self) -> bool:
        """Whether it may serve a request from its prompt to its last token."""
        return self.role is Role.BOTH or self.may_prefill

    def calibrate(self, calibration: Calibration) -> None:
        """Takes coefficients in; policies see only those of a trusted state."""
        self.calibration = calibration
        trusted = calibration.state.trusted
        self.step = calibration.step if trusted else None
        self.transfers = calibration.transfers if trusted else {}

    def fits(self, model: str, tokens: int) -> bool:
        """Whether a prompt of `tokens` is within what it takes; unknown means yes, the engine will say."""
        longest = self.max_model_len.get(model)
        return longest is None or tokens <= longest

    def __repr__(self) -> str:
        return (
            f"<Worker {self.name}#{self.incarnation} {self.role.value} {self.state.value} "
            f"[{self.in_flight} in flight | {self.kv_tokens} KV tokens]>"
        )
