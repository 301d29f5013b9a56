"""The engines that are measured, and the pairs among them that hand KV over.

Separate from the measuring: where the list comes from, a configuration or a running router, is the same to
    it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr, ValidationError

from router.connectors import Connector
from router.core.worker import Role
from router.settings import PoolSettings, Settings, WorkerSettings, read_workers_file
from router.settings.refusals import sentences
from router.upstream.origin import Origin


class FleetError(Exception):
    """There is nothing to measure, or it cannot be reached as it is named. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One worker, as its measurement sees it.

    Attributes:
        url: as the router knows it, with its rank if any.
        model: that it was said to serve; None takes the first of its list.
        key: its bearer token.
        slots: sequences that run at once; None when nobody said.
        hardware: engines of one name share their steps, and are not measured at the same time.
        rank: its data-parallel rank, where several share one address.
        dp_size: how many do.
    """

    name: str
    url: str
    origin: Origin
    role: Role = Role.BOTH
    pool: str = "default"
    model: str | None = None
    key: SecretStr | None = None
    slots: int | None = None
    hardware: str = ""
    bootstrap_port: int | None = None
    rank: int | None = None
    dp_size: int = 1

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """What every request to it carries."""
        headers = [(b"content-type", b"application/json"), (b"user-agent", b"pointsman-calibrate")]
        if self.key is not None:
            headers.append((b"authorization", b"Bearer " + self.key.get_secret_value().encode()))
        if self.rank is not None:
            headers.append((b"x-data-parallel-rank", b"%d" % self.rank))
        return tuple(headers)


@dataclass(frozen=True, slots=True)
class Couple:
    """A prefill and a decode engine that hand over in one way."""

    prefill: Engine
    decode: Engine
    connector: Connector


@dataclass(frozen=True, slots=True)
class MeasuredFleet:
    """Engines in the order of their pools, and every couple of them."""

    engines: tuple[Engine, ...]
    couples: tuple[Couple, ...] = ()

    def coupled(self, engine: Engine) -> Couple | None:
        """A couple that it belongs to; None when it works alone."""
        return next((c for c in self.couples if engine.name in (c.prefill.name, c.decode.name)), None)


def fleet_of(settings: Settings) -> MeasuredFleet:
    """The workers of a configuration.

    Raises:
        FleetError: it has none, or some whose addresses must be looked up.
    """
    engines = tuple(
        engine for name, pool in settings.pools.items() for engine in _engines_of(name, pool, settings)
    )
    if not engines:
        raise FleetError(
            "there is no worker to measure: name them with --config, --worker-urls, or --prefill and "
            "--decode, or name a running router with --url"
        )
    couples = tuple(
        Couple(prefill, decode, pair.connector)
        for pair in settings.pairs
        for prefill in engines
        if prefill.pool == pair.prefill
        for decode in engines
        if decode.pool == pair.decode and decode.role is Role.DECODE
    )
    return MeasuredFleet(engines, couples)


def _engines_of(name: str, pool: PoolSettings, settings: Settings) -> Iterator[Engine]:
    more = read_workers_file(pool.workers_file) if pool.workers_file is not None else ()
    for entry in (*pool.workers, *more):
        if entry.resolves:
            raise FleetError(
                f"worker {entry.name} is a name that is looked up while a router runs; "
                "ask that router for its workers with --url"
            )
        for worker in pool.ranks_of(entry):
            yield _engine(name, pool, worker, settings)


def _engine(name: str, pool: PoolSettings, worker: WorkerSettings, settings: Settings) -> Engine:
    return Engine(
        name=worker.name,
        url=worker.url,
        origin=Origin.parse(worker.origin_url),
        role=pool.role_of(worker),
        pool=name,
        model=worker.model or pool.model,
        key=worker.api_key or settings.auth.api_key,
        slots=pool.slots_of(worker),
        hardware=pool.barrier_group_of(worker) or worker.origin_url,
        bootstrap_port=pool.bootstrap_port_of(worker),
        rank=None if worker.rank is None else worker.rank + worker.dp_rank_offset,
        dp_size=pool.dp_size_of(worker) or 1,
    )


def settings_from_router(
    answer: Mapping[str, Any], settings: Settings, connector: str | None = None
) -> Settings:
    """Settings whose pools are those of a running router, from its `GET /workers`. Keys and everything else
    stay.

    A router does not tell how its pairs hand KV over, so that must be said where it is not nixl.

    Raises:
        FleetError: what it answered are no workers.
    """
    pools: dict[str, dict[str, Any]] = {}
    try:
        for said in answer["workers"]:
            pool = pools.setdefault(said["pool"], {"workers": [], "model": None})
            pool["workers"].append(_worker(said))
            pool["model"] = pool["model"] or min(said["models"], default=None)
            pool.setdefault("roles", set()).add(said["role"])
    except (KeyError, TypeError, AttributeError) as error:
        raise FleetError(f"what answers there is not this router's admin API: {error!r} is missing") from None
    models = {pool["model"] for pool in pools.values()} - {None}
    for pool in pools.values():
        # A worker that has not told its models yet serves the one that all others serve, as far as one can
        # know.
        pool["model"] = pool["model"] or (min(models) if len(models) == 1 else None)
        roles = pool.pop("roles")
        role = "prefill" if "prefill" in roles else "decode" if "decode" in roles else "both"
        pool["role"] = role
        if role == "decode" and connector is not None:
            pool["connector"] = connector
        for worker in pool["workers"]:
            if worker["role"] == role:
                del worker["role"]
    try:
        return Settings.model_validate({**dict(settings), "pools": pools})
    except ValidationError as error:
        said = "; ".join(sentences(error, Settings, lambda _: ""))
        raise FleetError(f"the workers of that router cannot be measured: {said}") from None


def _worker(said: Mapping[str, Any]) -> dict[str, Any]:
    worker = {"url": said["url"], "name": said["name"], "role": said["role"], "slots": said.get("slots")}
    if said.get("bootstrap_port") is not None and said["role"] == "prefill":
        worker["bootstrap_port"] = said["bootstrap_port"]
    return worker
