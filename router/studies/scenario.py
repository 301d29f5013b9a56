"""A scenario: the pools of a configuration and the calls that come to them, as something that can be run.

Separate from the settings, which the live router reads and which know no engine, and from the simulation,
which takes any fleet: here one becomes the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from router.core.slo import LOOSE, TIGHT, Slos, Targets
from router.policies import POLICIES
from router.settings import Pair, PoolSettings, Settings, WorkerSettings, read_workers_file
from router.settings.calibration_file import CalibrationFile, read_calibration
from router.settings.limits import MAX_IN_FLIGHT
from router.settings.refusals import closest
from router.studies.metrics import Slo
from router.studies.scenario_engines import Machine, ScenarioError, machine_of
from router.studies.scenario_load import Load
from router.studies.scenario_rules import delays, ignored, patience, split_plan
from router.studies.setups import Choosing
from router.studies.simulation.call import Call
from router.studies.simulation.fleet import FleetPlan, PoolPlan, Trouble, WorkerPlan
from router.studies.workloads import WorkloadStatistics, describe

__all__ = ["Scenario", "ScenarioError", "scenario_of"]

_MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is run.

    Attributes:
        name: of its file.
        fleet: under the policies of the configuration.
        pools: as they were written down, by name.
        targets: of each class of service; empty: nothing was promised.
        classes: class of service by tenant, and of all others by "".
        notes: what the live router does and the simulation does not, one sentence each.
    """

    name: str
    fleet: FleetPlan
    pools: Mapping[str, PoolSettings]
    targets: Mapping[str, Slo]
    load: Load
    classes: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def configured(self) -> Choosing:
        """The policy of the configuration; of a pair with two, both names."""
        first = self.fleet.pools[0]
        if all((pool.policy, pool.params) == (first.policy, first.params) for pool in self.fleet.pools):
            return Choosing(policy=first.policy, params=first.params)
        return Choosing(policy=" + ".join(pool.policy for pool in self.fleet.pools))

    def under(self, choosing: Choosing) -> FleetPlan:
        """The fleet under a policy: in each pool that it is for; others keep theirs.

        Raises:
            ScenarioError: it fits no pool.
        """
        if choosing == self.configured:
            return self.fleet
        if choosing.policy not in POLICIES:
            raise ScenarioError(f"policy {choosing.policy!r} is unknown; known: {', '.join(POLICIES)}")
        problems = {name: _misfit(name, pool, choosing) for name, pool in self.pools.items()}
        if all(problems.values()):
            # Of a pair the decode pool comes last, and takes every kind of policy.
            raise ScenarioError(list(problems.values())[-1])
        return replace(
            self.fleet,
            pools=tuple(
                plan if problems[plan.name] else _chosen(plan, self.pools[plan.name], choosing)
                for plan in self.fleet.pools
            ),
        )

    def fitting(self) -> tuple[list[Choosing], list[str]]:
        """Every policy that fits, the configured one first, and why the others do not."""
        found, left_out = [self.configured], []
        for name in POLICIES:
            choosing = Choosing(policy=name)
            if name == found[0].policy:
                continue
            try:
                self.under(choosing)
            except ScenarioError as error:
                left_out.append(f"{name} is left out: {error}")
            else:
                found.append(choosing)
        return found, left_out

    def calls(self, count: int, rate: float | None, seed: int) -> list[Call]:
        """Its calls; each with a class of service, as the live router gives one."""
        default = self.classes.get("", "")
        return [
            structs.replace(call, slo=call.slo or self.classes.get(call.tenant) or default)
            for call in self.load.calls(count, rate, seed)
        ]

    def statistics(self) -> dict[str, WorkloadStatistics]:
        """What its calls are like, by the name of their workload."""
        return {self.load.workload: describe(self.calls(self.load.requests, self.load.rate, seed=1))}

    def doubts(self) -> list[str]:
        """What of its calls no engine takes or answers whole, in a sentence."""
        calls = self.calls(self.load.requests, self.load.rate, seed=1)
        longest = max(worker.engine.max_model_len for pool in self.fleet.pools for worker in pool.workers)
        refused = sum(call.prompt_tokens >= longest or call.output_tokens > longest for call in calls)
        cut = sum(call.prompt_tokens + call.output_tokens > longest for call in calls) - refused
        words = [
            *([f"{refused:,} are refused as too long, as an engine does"] if refused else []),
            *([f"{cut:,} are answered as far as there is room"] if cut else []),
        ]
        if not words:
            return []
        return [
            f"of {len(calls):,} calls, not all fit into the {longest:,} tokens that an engine takes: "
            f"{', '.join(words)}; max-model-len of mock.fleet says how many it takes"
        ]


def scenario_of(settings: Settings, name: str, load: Load) -> Scenario:
    """The pools of a configuration, and a load for them.

    Raises:
        ScenarioError: the sentence says what is missing, or what cannot be simulated.
    """
    calibration = _calibration(settings)
    pools, pair = _pools_of(settings, load.model)
    machines = {key: _machines(settings, calibration, pool) for key, pool in pools.items()}
    plans = tuple(_pool_plan(settings, key, machines[key], in_pair=pair is not None) for key in pools)
    fleet = FleetPlan(
        pools=plans,
        model=next((pool.model for pool in pools.values() if pool.model), _MODEL),
        split=None
        if pair is None
        else split_plan(settings, pair, calibration, machines[pair.prefill], machines[pair.decode]),
        delays=delays(settings),
        troubles=_troubles(settings, plans),
        max_queued=settings.limits.queue_size,
        max_wait_s=settings.limits.queue_timeout_s,
        queued_bytes=settings.limits.queue_bytes,
        in_flight=settings.limits.max_in_flight or MAX_IN_FLIGHT,
        prefix_index=settings.prefix_index.core,
        patience=patience(settings),
    )
    return Scenario(
        name=name,
        fleet=fleet,
        pools=pools,
        targets=_targets(settings, calibration, pools),
        load=load,
        classes={key.tenant: key.slo for key in settings.auth.client_api_keys if key.tenant and key.slo}
        | {"": settings.slo.default_class},
        notes=tuple(ignored(settings, pools)),
    )


# --- pools ------------------------------------------------------------------------------------------------


def _calibration(settings: Settings) -> CalibrationFile | None:
    path: Path | None = settings.calibration.file
    return None if path is None else read_calibration(path)


def _pools_of(settings: Settings, model: str | None) -> tuple[dict[str, PoolSettings], Pair | None]:
    """The one pool of a model, or its one pair with the prefill pool first; None: there is only one."""
    pools = {name: pool for name, pool in settings.pools.items() if model in (None, pool.model)}
    pairs = [pair for pair in settings.pairs if pair.decode in pools]
    if len(pools) == 2 and pairs:
        return {name: pools[name] for name in (pairs[0].prefill, pairs[0].decode)}, pairs[0]
    if len(pools) == 1:
        return pools, None
    models = ", ".join(dict.fromkeys(pool.model for pool in settings.pools.values() if pool.model))
    if not pools:
        raise ScenarioError(f"no pool says that it serves {model}; pools serve {models or 'what they learn'}")
    raise ScenarioError(
        f"there are the pools {', '.join(pools)}, and a simulation has one pool or one pair: name their "
        f"model, in workload.model or with --model ({models})"
    )


def _machines(
    settings: Settings, calibration: CalibrationFile | None, pool: PoolSettings
) -> dict[str, tuple[WorkerSettings, Machine]]:
    entries = pool.workers + (read_workers_file(pool.workers_file) if pool.workers_file else ())
    ranks = [rank for entry in entries for rank in pool.ranks_of(entry)]
    if not ranks:
        raise ScenarioError(
            "a pool has no workers, so there is nothing to simulate; name some in its workers"
        )
    return {worker.name: (worker, machine_of(settings, calibration, pool, worker)) for worker in ranks}


def _pool_plan(
    settings: Settings,
    name: str,
    machines: Mapping[str, tuple[WorkerSettings, Machine]],
    *,
    in_pair: bool,
) -> PoolPlan:
    pool = settings.pools[name]
    return PoolPlan(
        name=name,
        workers=tuple(
            WorkerPlan(
                name=worker.name,
                engine=replace(made.engine, kv_connector=in_pair),
                clock=made.clock,
                slots=pool.slots_of(worker),
                capacity=worker.capacity or 1.0,
                barrier_group=pool.barrier_group_of(worker),
                calibrated=made.calibrated,
                slow=made.slow,
                role=pool.role_of(worker),
                may_prefill=pool.serves_whole(worker),
                revision=worker.revision or "",
                process=None if worker.rank is None else worker.origin_url,
            )
            for worker, made in machines.values()
        ),
        policy=pool.policy,
        params=pool.policy_params,
        role=pool.role,
        mode=pool.mode,
        local=pool.local_rules(settings.limits.queue_size),
    )


def _troubles(settings: Settings, plans: Sequence[PoolPlan]) -> tuple[Trouble, ...]:
    known = [worker.name for plan in plans for worker in plan.workers]
    for index, trouble in enumerate(settings.workload.troubles):
        if trouble.worker not in known:
            near = closest(trouble.worker, known)
            raise ScenarioError(
                f"workload.troubles[{index}].worker is {trouble.worker!r}, which is no worker; "
                + (f"did you mean {near}?" if near else f"known: {', '.join(known)}")
            )
    return tuple(
        Trouble(trouble.at_s, trouble.worker, trouble.what, trouble.factor)
        for trouble in settings.workload.troubles
    )


def _misfit(name: str, pool: PoolSettings, choosing: Choosing) -> str:
    """Why a policy cannot decide in a pool, as its configuration would be refused; "" when it can."""
    asked = pool.model_copy(update={"policy": choosing.policy, "policy_params": dict(choosing.params)})
    return next(asked.contradictions(name), "")


def _chosen(plan: PoolPlan, pool: PoolSettings, choosing: Choosing) -> PoolPlan:
    asked = pool.model_copy(update={"policy": choosing.policy})
    return replace(plan, policy=choosing.policy, params=dict(choosing.params), mode=asked.mode)


# --- promises ---------------------------------------------------------------------------------------------


def _targets(
    settings: Settings, calibration: CalibrationFile | None, pools: Mapping[str, PoolSettings]
) -> dict[str, Slo]:
    """Targets of both classes, and of calls that name neither; empty when nothing is promised."""
    model = next((pool.model for pool in pools.values() if pool.model), "")
    measured = {} if calibration is None else calibration.slo
    slos = Slos(
        settings.slo.configured,
        {
            name: {
                TIGHT: Targets(t.tight.ttft_s, t.tight.tpot_s),
                LOOSE: Targets(t.loose.ttft_s, t.loose.tpot_s),
            }
            for name, t in measured.items()
        },
        settings.slo.default_class,
    )
    targets = {name: slos.targets(model, name) for name in (TIGHT, LOOSE)}
    if not any(targets.values()):
        return {}
    made = {name: _slo(target) for name, target in targets.items()}
    return {"": made[settings.slo.default_class], **made}


def _slo(target: Targets) -> Slo:
    ttft_s, tpot_s = target.ttft_s, target.tpot_s
    return Slo(math.inf if ttft_s is None else ttft_s, math.inf if tpot_s is None else tpot_s)
