"""Pairs: a prefill pool and a decode pool that serve one model, and what must hold between the two.

Separate from the pools, each of which knows nothing of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from router.connectors import CONNECTORS, Connector, build_connector
from router.core.worker import Role
from router.settings.pools import ConnectorName, PoolSettings

DEFAULT_CONNECTOR: Final[ConnectorName] = "nixl"
BOOTSTRAPPED: Final[tuple[ConnectorName, ...]] = ("mooncake", "sglang")
"""Connectors whose prefill workers run a bootstrap server that decode workers are told the address of."""
_OPTIONS: Final = {"kv_lease_s": "lease_s", "mooncake_concurrent": "concurrent"}
"""Keys of a decode pool that are options of some connectors."""

Pools = Mapping[str, PoolSettings]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two pools that serve one model together.

    Attributes:
        prefill, decode: names of the pools.
        model: that they serve; None when their workers tell.
        connector: how KV gets from one to the other, with its options.
    """

    prefill: str
    decode: str
    model: str | None
    connector: Connector


def pairs_of(pools: Pools) -> tuple[Pair, ...]:
    """The pairs among pools that `pair_problems` finds nothing wrong with, in the order of decode pools."""
    prefills = {pool.model: name for name, pool in pools.items() if pool.role is Role.PREFILL}
    return tuple(
        Pair(prefills[pool.model], name, pool.model, _connector(pools[prefills[pool.model]], pool))
        for name, pool in pools.items()
        if pool.role is Role.DECODE and pool.model in prefills
    )


def _connector(prefill: PoolSettings, decode: PoolSettings) -> Connector:
    name = decode.connector or prefill.connector or DEFAULT_CONNECTOR
    taken = _options_of(name)
    said: dict[str, Any] = {option: getattr(decode, key) for key, option in _OPTIONS.items()}
    return build_connector(
        name, **{o: value for o, value in said.items() if value is not None and o in taken}
    )


def _options_of(connector: str) -> set[str]:
    return {option.name for option in fields(CONNECTORS[connector])}


def pair_problems(pools: Pools, *, lease_margin_s: float) -> Iterator[str]:
    """What cannot hold between pools of one model, one sentence each."""
    models = dict.fromkeys(pool.model for pool in pools.values())
    broken = [problem for model in models for problem in _sharing(pools, model)]
    yield from broken
    if not broken:
        for pair in pairs_of(pools):
            yield from _disagreements(pools, pair)
            yield from _without_effect(pools, pair)
            yield from _rank_problems(pools[pair.prefill], pair)
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


def _rank_problems(prefill: PoolSettings, pair: Pair) -> Iterator[str]:
    """A prefill engine of SGLang takes the rank that its room says, modulo the number of its ranks."""
    if pair.connector.name != "sglang":
        return
    for index, worker in enumerate(prefill.workers):
        if worker.rank is not None and prefill.dp_size_of(worker) is None:
            yield (
                f"pools.{pair.prefill}.workers[{index}] is rank {worker.rank} of an engine, but not of how "
                "many, which its rooms depend on; set its dp_size"
            )


def _without_effect(pools: Pools, pair: Pair) -> Iterator[str]:
    prefill, decode, name = pools[pair.prefill], pools[pair.decode], pair.connector.name
    ports = [prefill.bootstrap_port, *(worker.bootstrap_port for worker in prefill.workers)]
    if name not in BOOTSTRAPPED and any(ports):
        yield (
            f"pools.{pair.prefill} has a bootstrap port, which the connector {name} does not use; "
            "say connector: sglang or mooncake, or leave the port out"
        )
    for key, option in _OPTIONS.items():
        if getattr(decode, key) and option not in _options_of(name):
            others = " or ".join(other for other in CONNECTORS if option in _options_of(other))
            yield f"pools.{pair.decode}.{key} is for the connector {others}, and this one is {name}"
    whole = next((worker.name for worker in decode.workers if decode.serves_whole(worker)), None)
    if not pair.connector.decode_takes_whole and (whole or decode.may_prefill):
        yield (
            f"pools.{pair.decode} lets {whole or 'its workers'} serve whole requests, which a decode server "
            f"with the connector {name} refuses; leave out may_prefill and role: both"
        )


def _lease_problems(pair: Pair, said: float | None, margin_s: float) -> Iterator[str]:
    lease_s = pair.connector.lease_s
    if lease_s is None or lease_s > margin_s:
        return
    whose = (
        f"the lease of connector {pair.connector.name}" if said is None else f"pools.{pair.decode}.kv_lease_s"
    )
    yield (
        f"{whose} is {lease_s:g} s, and must be above timeouts.lease_margin_s, which is {margin_s:g} s, "
        "or every hand-over would be too late"
    )
