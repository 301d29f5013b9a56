"""Pairs: a prefill pool and a decode pool that serve one model, and what must hold between the two.

Separate from the pools, each of which knows nothing of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from router.core.worker import Role
from router.settings.pools import Connector, PoolSettings

DEFAULT_CONNECTOR: Final[Connector] = "nixl"
LEASES_S: Final[Mapping[Connector, float]] = {"nixl": 30.0, "mooncake": 480.0}
"""How long a producer holds KV that nobody fetches, unless it was told otherwise: vLLM's
`kv_lease_duration` and `VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT`."""
BOOTSTRAPPED: Final[tuple[Connector, ...]] = ("mooncake", "sglang")
"""Connectors whose prefill workers run a bootstrap server that decode workers are told the address of."""

Pools = Mapping[str, PoolSettings]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two pools that serve one model together.

    Attributes:
        prefill, decode: names of the pools.
        model: that they serve; None when their workers tell.
        connector: how KV gets from one to the other.
        concurrent: both legs are sent at once, so the two workers are chosen together and up front.
        lease_s: how long a prefill worker holds KV that nobody fetches; None when it holds none for a decode
            that comes later.
    """

    prefill: str
    decode: str
    model: str | None
    connector: Connector
    concurrent: bool
    lease_s: float | None


def pairs_of(pools: Pools) -> tuple[Pair, ...]:
    """The pairs among pools that `pair_problems` finds nothing wrong with, in the order of decode pools."""
    prefills = {pool.model: name for name, pool in pools.items() if pool.role is Role.PREFILL}
    return tuple(
        _pair(pools, prefills[pool.model], name)
        for name, pool in pools.items()
        if pool.role is Role.DECODE and pool.model in prefills
    )


def _pair(pools: Pools, prefill: str, decode: str) -> Pair:
    pool = pools[decode]
    connector = pool.connector or pools[prefill].connector or DEFAULT_CONNECTOR
    concurrent = connector == "sglang" or (connector == "mooncake" and pool.mooncake_concurrent)
    lease_s = pool.kv_lease_s or LEASES_S.get(connector)
    return Pair(prefill, decode, pool.model, connector, concurrent, lease_s)


def pair_problems(pools: Pools, *, lease_margin_s: float) -> Iterator[str]:
    """What cannot hold between pools of one model, one sentence each."""
    models = dict.fromkeys(pool.model for pool in pools.values())
    broken = [problem for model in models for problem in _sharing(pools, model)]
    yield from broken
    if not broken:
        for pair in pairs_of(pools):
            yield from _disagreements(pools, pair)
            yield from _without_effect(pools, pair)
            yield from _lease_problems(pair, pools[pair.decode].kv_lease_s, lease_margin_s)


def _sharing(pools: Pools, model: str | None) -> Iterator[str]:
    """Which pools may serve one model: one of role both, or one pair. Any number may still learn theirs."""
    by_role = {
        role: [name for name, pool in pools.items() if pool.model == model and pool.role is role]
        for role in Role
    }
    whole, prefills, decodes = by_role[Role.BOTH], by_role[Role.PREFILL], by_role[Role.DECODE]
    served = f"serve {model}" if model is not None else "have no model"
    if model is not None and len(whole) > 1:
        yield f"pools {whole[0]} and {whole[1]} both serve {model}; put the workers into one"
    if model is not None and whole and (prefills or decodes):
        yield (
            f"pools {whole[0]} and {(prefills + decodes)[0]} both serve {model}; a worker that takes whole "
            "requests beside a pair belongs into the decode pool, with role: both"
        )
    for role, names in ((Role.PREFILL, prefills), (Role.DECODE, decodes)):
        if len(names) > 1:
            yield (
                f"pools {names[0]} and {names[1]} are both of role {role.value} and {served}; "
                "a model has one pair of pools"
            )
    if bool(prefills) != bool(decodes):
        yield _alone((prefills or decodes)[0], pools)


def _alone(name: str, pools: Pools) -> str:
    pool = pools[name]
    wanted = Role.DECODE if pool.role is Role.PREFILL else Role.PREFILL
    others = [
        f"{other} has {each.model or 'no model'}" for other, each in pools.items() if each.role is wanted
    ]
    near = f" (pool {', '.join(others)})" if others else ""
    same = f"of model {pool.model}" if pool.model is not None else "that has no model either"
    return (
        f"pools.{name} has the role {pool.role.value}, and needs a pool of role {wanted.value} {same}, "
        f"but there is none{near}; --{wanted.value} makes one"
    )


def _disagreements(pools: Pools, pair: Pair) -> Iterator[str]:
    prefill, decode = pools[pair.prefill].connector, pools[pair.decode].connector
    if prefill is not None and decode is not None and prefill != decode:
        yield (
            f"pools.{pair.prefill}.connector is {prefill}, but pools.{pair.decode}.connector is {decode}; "
            "the two pools of a pair have one"
        )


def _without_effect(pools: Pools, pair: Pair) -> Iterator[str]:
    prefill, decode = pools[pair.prefill], pools[pair.decode]
    ports = [prefill.bootstrap_port, *(worker.bootstrap_port for worker in prefill.workers)]
    if pair.connector not in BOOTSTRAPPED and any(ports):
        yield (
            f"pools.{pair.prefill} has a bootstrap port, which the connector {pair.connector} does not use; "
            "say connector: sglang or mooncake, or leave the port out"
        )
    if decode.mooncake_concurrent and pair.connector != "mooncake":
        yield f"pools.{pair.decode}.mooncake_concurrent is true, but the connector is {pair.connector}"
    whole = next((worker.name for worker in decode.workers if decode.serves_whole(worker)), None)
    if pair.connector == "sglang" and (whole or decode.may_prefill):
        yield (
            f"pools.{pair.decode} lets {whole or 'its workers'} serve whole requests, which a decode server "
            "of SGLang refuses; leave out may_prefill and role: both"
        )
    if decode.kv_lease_s is not None and pair.connector not in LEASES_S:
        yield f"pools.{pair.decode}.kv_lease_s is set, but the connector {pair.connector} holds no lease"


def _lease_problems(pair: Pair, said: float | None, margin_s: float) -> Iterator[str]:
    if pair.lease_s is None or pair.lease_s > margin_s:
        return
    whose = (
        f"pools.{pair.decode}.kv_lease_s" if said is not None else f"the lease of connector {pair.connector}"
    )
    yield (
        f"{whose} is {pair.lease_s:g} s, and must be above timeouts.lease_margin_s, which is {margin_s:g} s, "
        "or every hand-over would be too late"
    )
