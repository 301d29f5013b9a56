"""Pools, as they are written down: which workers serve a model, in which role, and how they are chosen.

Separate from the workers, which know nothing of a pool, and from the pairs, which are two pools of one model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from router.connectors import BOOTSTRAP_PORT
from router.core.binding import Mode
from router.core.local_queue import LocalQueueRules, Order
from router.core.shadows import MAX_SHADOWS
from router.core.worker import Role
from router.policies import POLICIES, Shape
from router.settings.ranks import NO_GROUP, DpSize
from router.settings.refusals import closest
from router.settings.section import FilePath, Seconds, Section, Share, Words
from router.settings.workers import BootstrapPort, Slots, WorkerSettings, refuse_twins
from router.tokenizer.tokenizer import why_not

DEFAULT_POOL: Final = "default"
"""Name of the pool that flags make, and of the one that exists when none is configured."""

DEFAULT_POLICIES: Final = {
    Role.BOTH: "cache_aware",
    Role.PREFILL: "cache_aware",
    Role.DECODE: "least_requests",
}
"""Policies of pools that name none."""

Binding = Literal["auto", "early", "late", "adaptive"]
ConnectorName = Literal["nixl", "mooncake", "sglang", "none"]
Fallback = Literal["aggregated", "strict"]
LocalOrder = Literal["auto", "off", "fcfs", "priority_groups"]

_HOLDING: Final = frozenset({"fcfs", "priority_groups"})
_PAIR: Final = (Role.PREFILL, Role.DECODE)
_ROLES_OF: Final[dict[str, tuple[Role, ...]]] = {
    "connector": _PAIR,
    "bootstrap_port": (Role.PREFILL,),
    "prefill_budget_high": (Role.PREFILL,),
    "prefill_budget_low": (Role.PREFILL,),
    "pd_split_min_tokens": (Role.DECODE,),
    "fallback": (Role.DECODE,),
    "may_prefill": (Role.DECODE,),
    "max_transfers_per_worker": (Role.DECODE,),
    "kv_lease_s": (Role.DECODE,),
    "mooncake_concurrent": (Role.DECODE,),
    "local_queue": (Role.BOTH, Role.PREFILL),
    "max_dispatched": (Role.BOTH, Role.PREFILL),
    "local_queue_ageing_s": (Role.BOTH, Role.PREFILL),
}
"""Keys that mean something in pools of some roles only."""
_WORKER_ROLES: Final[dict[Role, tuple[Role, ...]]] = {
    Role.BOTH: (Role.BOTH,),
    Role.PREFILL: (Role.PREFILL,),
    Role.DECODE: (Role.DECODE, Role.BOTH),
}
"""Roles that a worker may have in a pool of a role."""


class PoolSettings(Section):
    """Workers that serve one model, and how requests are placed on them."""

    model: str | None = None
    """Model that the pool serves; null learns the models from its workers."""
    role: Role = Role.BOTH
    """What its workers do. A pool of role `prefill` and one of role `decode` with the same `model` are a
    pair: a request is prefilled in the one, its KV is handed over, and it is answered by the other."""
    policy: str = Field(
        default_factory=lambda given: DEFAULT_POLICIES[given.get("role", Role.BOTH)],
        json_schema_extra={"choices": list(POLICIES)},
    )
    """How a worker is chosen; `docs/policies.md` describes each policy. In decode pools the default is
    `least_requests`: what is prefilled elsewhere brings its KV along."""
    policy_params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the policy, by name."""
    shadow_policies: Words = ()
    """Policies that decide about every request, too, but without effect; metrics tell how often each agrees,
    and by how much the choices that were made are dearer than its own. At most four, with their defaults."""
    shadow_sample: Share = 1.0
    """Share of the decisions that they are asked about. They learn from all requests in any case."""
    slots: Slots | None = None
    """Sequences that each worker runs at once (`max_num_seqs`); no engine tells it. Late binding and
    the policies balance_route_0 and balance_route_h need it. Each data-parallel rank has so many."""
    barrier_group: str | None = None
    """Name of the data-parallel group that all its workers step in lock-step in. null: the ranks of one URL
    are a group, and other workers are in none. `none`: nobody waits for anybody."""
    dp_size: DpSize | None = None
    """Data-parallel ranks of each engine; each becomes a worker of its own, named `NAME@RANK` and reached by
    the header `X-data-parallel-rank`. null: an engine is one worker, and spreads what it gets by itself."""
    binding: Binding = "auto"
    """`early` places a request as it comes; `late` keeps it until a worker has a free slot; `auto` is late
    when the policy asks for it or a barrier group is declared. In a decode pool a request comes when it is
    prefilled; `auto` is late there for a barrier group with known slots, and `adaptive` changes between the
    two with the load."""
    connector: ConnectorName | None = None
    """How KV gets from the prefill to the decode pool of a pair; said in either, or the same in both. `nixl`
    and `mooncake` are connectors of vLLM, `sglang` is SGLang's bootstrap, `none` is shared storage that the
    engines fill and read by themselves. null: as the other pool says, else nixl."""
    bootstrap_port: BootstrapPort | None = None
    """Prefill pools with mooncake or sglang: port of each worker's bootstrap server; null: 8998, the default
    of both."""
    prefill_budget_high: Share = 0.85
    """Prefill pools: a worker with so much of its KV in use, KV held for a hand-over included, gets no
    further request …"""
    prefill_budget_low: Share = 0.75
    """… until it is below this."""
    pd_split_min_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 512
    """Decode pools: a shorter prompt is not split but served whole, where a decode worker may do that. 0
    splits every prompt."""
    fallback: Fallback = "aggregated"
    """Decode pools: while no prefill worker is in rotation, `aggregated` lets decode workers serve whole
    requests (vLLM's can; those of SGLang cannot, and the request is refused); `strict` refuses it."""
    may_prefill: bool = False
    """Decode pools: the workers may serve whole requests. Right for vLLM's NIXL connector, wrong for a decode
    server of SGLang."""
    max_transfers_per_worker: Annotated[int, Field(ge=1, le=1000)] = 4
    """Decode pools: hand-overs to one worker that may be under way at once."""
    kv_lease_s: Annotated[float, Field(ge=1, le=86_400)] | None = None
    """Decode pools: how long a prefill worker holds KV that nobody fetches, as the engines were told; null:
    as the connector has it, 30 s for nixl (`kv_lease_duration`), 480 s for mooncake
    (`VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT`)."""
    mooncake_concurrent: bool = False
    """Decode pools with mooncake: choose both workers up front and send both legs at once, in place of the
    decode leg after the prefill leg."""
    local_queue: LocalOrder = "auto"
    """Whether requests that have their worker wait in the router while it has enough to do, and in which
    order they then start: `fcfs` as they came, `priority_groups` by how much of each is cached there, `off`
    sends all at once; `auto` is `priority_groups` where the policy is preble, and off elsewhere. Not for
    decode pools."""
    max_dispatched: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Requests that are sent to one worker at most, with a local queue; null: its slots and 2 more, and no
    bound while those are not known either."""
    local_queue_ageing_s: Seconds = 5.0
    """With `priority_groups`: whoever has waited so long for its turn goes before all others."""
    tokenizer: FilePath | None = None
    """Directory with the model's tokenizer.json, and its chat template in tokenizer_config.json or
    chat_template.jinja. With it, prompts of text are known by the token ids that engines make of them, and
    their KV events tell exactly who holds them. Needs the extra `tokenizer`; nothing is ever downloaded."""
    workers: tuple[WorkerSettings, ...] = ()
    """Its workers."""
    workers_file: FilePath | None = None
    """File with more workers, watched while the router runs: a YAML or JSON list of what `workers` holds, or
    URLs, one a line."""

    @field_validator("policy")
    @classmethod
    def _exists(cls, value: str) -> str:
        _require_known(value)
        return value

    @field_validator("shadow_policies")
    @classmethod
    def _exist(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            _require_known(name)
        if len(value) > MAX_SHADOWS or len(value) != len(set(value)):
            raise ValueError(f"it must be at most {MAX_SHADOWS} different policies")
        return value

    @field_validator("policy_params")
    @classmethod
    def _fit_the_policy(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        params = {name: _as_number(item) for name, item in value.items()}
        if "policy" in info.data:
            POLICIES[info.data["policy"]].check(params)
        return params

    @field_validator("tokenizer")
    @classmethod
    def _can_tokenize(cls, value: Path | None) -> Path | None:
        reason = None if value is None else why_not(value)
        if reason is not None:
            raise ValueError(reason)
        return value

    @field_validator("workers", mode="before")
    @classmethod
    def _split_words(cls, value: Any) -> Any:
        return re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value or ()

    @field_validator("workers")
    @classmethod
    def _told_apart(cls, value: tuple[WorkerSettings, ...]) -> tuple[WorkerSettings, ...]:
        return refuse_twins(value)

    @property
    def mode(self) -> Mode:
        """When a request gets its worker: as it comes, when there is a slot, or changing with the load."""
        if self.binding != "auto":
            return Mode(self.binding)
        return POLICIES[self.policy].mode(self.role, barrier=self.has_barrier, slots=self.knows_slots)

    @property
    def late_binding(self) -> bool:
        """Whether requests always wait in the router until a worker has a free slot."""
        return self.mode is Mode.LATE

    @property
    def has_barrier(self) -> bool:
        """Whether any of its workers steps in lock-step with others, as far as somebody said so. Ranks do,
        which asks for nothing that is not there: it counts where their slots are known."""
        declared = (self.barrier_group, *(worker.barrier_group for worker in self.workers))
        if any(group not in (None, NO_GROUP) for group in declared):
            return True
        return self.knows_slots and any(map(self.barrier_group_of, self.each_rank))

    @property
    def each_rank(self) -> tuple[WorkerSettings, ...]:
        """The workers that are written down here, those with several ranks once for each."""
        return tuple(rank for worker in self.workers for rank in self.ranks_of(worker))

    def ranks_of(self, worker: WorkerSettings) -> tuple[WorkerSettings, ...]:
        """The workers that one entry stands for: the ranks of its engine, or itself."""
        return worker.ranks(self.dp_size_of(worker) or 1)

    def dp_size_of(self, worker: WorkerSettings) -> int | None:
        """Data-parallel ranks of this worker's engine, None when nobody said."""
        return worker.dp_size or self.dp_size

    @property
    def knows_slots(self) -> bool:
        """Whether the slots of every worker written down here are known, and there is one at all."""
        each = [self.slots_of(worker) for worker in self.workers]
        return None not in each if each else self.slots is not None

    def local_rules(self, max_held: int) -> LocalQueueRules:
        """What is held back of the requests that have their worker."""
        order = Order.OFF if self.role is Role.DECODE else Order(self.local_queue)
        return LocalQueueRules(order, self.max_dispatched, self.local_queue_ageing_s, max_held)

    def slots_of(self, worker: WorkerSettings) -> int | None:
        """Sequences that this worker runs at once, None when nobody said."""
        return worker.slots or self.slots

    def barrier_group_of(self, worker: WorkerSettings) -> str | None:
        """Group whose steps this worker shares, None outside of any. Ranks of one URL share theirs unless
        they are told otherwise."""
        group = worker.barrier_group or self.barrier_group
        if group is None and worker.rank is not None:
            return worker.origin_url
        return None if group == NO_GROUP else group

    def role_of(self, worker: WorkerSettings) -> Role:
        """What this worker does."""
        return worker.role or self.role

    def serves_whole(self, worker: WorkerSettings) -> bool:
        """Whether this worker may prefill and decode one request by itself."""
        if self.role_of(worker) is Role.DECODE:
            return self.may_prefill if worker.may_prefill is None else worker.may_prefill
        return self.role_of(worker) is Role.BOTH

    def bootstrap_port_of(self, worker: WorkerSettings) -> int:
        """Port of this prefill worker's bootstrap server; only mooncake and sglang have one."""
        return worker.bootstrap_port or self.bootstrap_port or BOOTSTRAP_PORT

    def misfit(self, worker: WorkerSettings) -> str | None:
        """Why this worker cannot be in a pool of this role, as a clause about "it"; None when it can.

        Asked of the workers of the configuration, and of each that comes while the router runs.
        """
        allowed = _WORKER_ROLES[self.role]
        if worker.role is not None and worker.role not in allowed:
            words = " or ".join(role.value for role in allowed)
            return f"it has the role {worker.role.value}, but a pool of role {self.role.value} takes {words}"
        if worker.may_prefill is not None and (self.role is not Role.DECODE or worker.role is Role.BOTH):
            return (
                f"it says may_prefill, which is for workers of role decode, not {self.role_of(worker).value}"
            )
        if worker.bootstrap_port is not None and self.role is not Role.PREFILL:
            return f"it has a bootstrap_port, which is for workers of role prefill, not {self.role.value}"
        return None

    def contradictions(self, name: str) -> Iterator[str]:
        """What cannot hold together in this pool, one sentence each; `name` is the pool's own."""
        mine = self.role.value
        yield from self._of_its_workers(name)
        for key, roles in _ROLES_OF.items():
            if key in self.model_fields_set and self.role not in roles:
                words = " and ".join(role.value for role in roles)
                yield f"pools.{name}.{key} is for pools of role {words}, and this one is of role {mine}"
        if self.prefill_budget_low >= self.prefill_budget_high:
            yield (
                f"pools.{name}.prefill_budget_low is {self.prefill_budget_low:g} and must be below "
                f"prefill_budget_high, which is {self.prefill_budget_high:g}"
            )
        if self.local_queue in _HOLDING and self.max_dispatched is None and not self.knows_slots:
            yield (
                f"pools.{name}.local_queue is {self.local_queue}, which needs a bound on what is sent to a "
                f"worker: set pools.{name}.slots or pools.{name}.max_dispatched"
            )
        yield from self._of_its_policy(name)

    def _of_its_workers(self, name: str) -> Iterator[str]:
        needs_slots = self.mode is not Mode.EARLY or POLICIES[self.policy].shape is Shape.BATCH
        for index, worker in enumerate(self.workers):
            where = f"pools.{name}.workers[{index}]"
            if self.model is not None and worker.model not in (None, self.model):
                yield f"{where}.model is {worker.model}, but pools.{name}.model is {self.model}"
            misfit = self.misfit(worker)
            if misfit is not None:
                yield f"{where} cannot be in this pool: {misfit}"
            if needs_slots and self.slots_of(worker) is None:
                yield (
                    f"{where} has no slots, but {self._why_not_early()} needs them; "
                    f"set pools.{name}.slots to its max_num_seqs"
                )

    def _why_not_early(self) -> str:
        if self.mode is not Mode.EARLY and self.binding != "auto":
            return f"binding {self.binding}"
        if POLICIES[self.policy].shape is Shape.BATCH:
            return f"its policy {self.policy}, which fills slots,"
        return "late binding, which its barrier group asks for,"

    def _of_its_policy(self, name: str) -> Iterator[str]:
        spec, mine = POLICIES[self.policy], self.role.value
        for key, policy in (
            ("policy", self.policy),
            *(("shadow_policies", one) for one in self.shadow_policies),
        ):
            if self.role not in POLICIES[policy].roles:
                roles = ", ".join(sorted(role.value for role in POLICIES[policy].roles))
                yield f"pools.{name}.{key} is {policy}, which is for the roles {roles}, not {mine}"
        if self.role in spec.roles and self.role is Role.PREFILL and spec.shape is Shape.BATCH:
            yield (
                f"pools.{name}.policy is {self.policy}, which places whole batches of decodes; "
                "a prefill pool places one prompt at a time"
            )
        if self.binding == "adaptive" and self.role is not Role.DECODE:
            yield f"pools.{name}.binding is adaptive, which is for pools of role decode, not {mine}"


def _require_known(policy: str) -> None:
    if policy not in POLICIES:
        near = closest(policy, POLICIES)
        meant = f"; did you mean {near}?" if near else ""
        raise ValueError(f"it must be one of {', '.join(POLICIES)}{meant}")


def _as_number(value: Any) -> Any:
    """The number that a text is, for parameters from the environment; anything else as it was."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
