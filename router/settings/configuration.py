"""All settings together, and what must hold between them.

Separate from the sections, which know nothing of each other, and from the sources, which know nothing of
meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from router.settings.auth import AuthSettings
from router.settings.calibration import CalibrationSettings
from router.settings.fleet import DiscoverySettings, HealthSettings, PollingSettings
from router.settings.limits import LimitSettings
from router.settings.mock import MockSettings
from router.settings.pairs import Pair, pair_problems, pairs_of
from router.settings.pools import DEFAULT_POOL, PoolSettings
from router.settings.prefixes import KvEventSettings, PrefixIndexSettings, TokenizerSettings
from router.settings.server import DecisionLogSettings, RequestLogSettings, ServerSettings, UsageSettings
from router.settings.slo import SloSettings
from router.settings.state import StateSettings
from router.settings.timeouts import RetrySettings, TimeoutSettings
from router.settings.workload import WorkloadSettings

ENVIRONMENT_PREFIX: Final = "POINTSMAN_"
ENVIRONMENT_DELIMITER: Final = "__"
_POOL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Settings(BaseSettings):
    """Every knob of the router. Built by `router.settings.load`; in tests also in place, from keywords alone.

    There is always at least one pool, so that workers can be added to a router that started with none.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter=ENVIRONMENT_DELIMITER,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of all choices by chance: ties, random, power_of_two. The same seed and arrivals give the same
    placements."""
    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    retry: RetrySettings = RetrySettings()
    health: HealthSettings = HealthSettings()
    polling: PollingSettings = PollingSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    auth: AuthSettings = AuthSettings()
    usage: UsageSettings = UsageSettings()
    request_log: RequestLogSettings = RequestLogSettings()
    decision_log: DecisionLogSettings = DecisionLogSettings()
    calibration: CalibrationSettings = CalibrationSettings()
    slo: SloSettings = SloSettings()
    prefix_index: PrefixIndexSettings = PrefixIndexSettings()
    kv_events: KvEventSettings = KvEventSettings()
    tokenizers: TokenizerSettings = TokenizerSettings()
    state: StateSettings = StateSettings()
    pools: dict[str, PoolSettings] = Field(default_factory=lambda: {DEFAULT_POOL: PoolSettings()})
    """Pools by name."""
    mock: MockSettings = MockSettings()
    workload: WorkloadSettings = WorkloadSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keywords alone: `load` merges the sources, because a refusal names where a value came from."""
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, value: Any) -> Any:
        """A section whose keys are all commented out is null in YAML."""
        return (
            {key: item for key, item in value.items() if item is not None}
            if isinstance(value, dict)
            else value
        )

    @field_validator("pools", mode="before")
    @classmethod
    def _at_least_one_pool(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: {} if pool is None else pool for name, pool in value.items()} or {DEFAULT_POOL: {}}

    @field_validator("pools")
    @classmethod
    def _pool_names(cls, value: dict[str, PoolSettings]) -> dict[str, PoolSettings]:
        for name in value:
            if not _POOL_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is no pool name; letters, digits and . _ - after the first, at most 64"
                )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = list(self.problems())
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs of a prefill and a decode pool."""
        return pairs_of(self.pools)

    def problems(self) -> Iterator[str]:
        """What cannot hold together, one sentence each."""
        yield from _ports_that_meet(self.server)
        if self.limits.body_bytes > self.limits.buffered_bytes:
            yield "limits.body_bytes is above limits.buffered_bytes, so its largest body would never be taken"
        yield from self.request_log.problems()
        yield from self.decision_log.problems()
        yield from self.slo.problems()
        yield from self.workload.problems()
        yield from _shared_between_pools(self.pools)
        yield from pair_problems(self.pools, lease_margin_s=self.timeouts.lease_margin_s)
        for name, pool in self.pools.items():
            yield from pool.contradictions(name)


def _ports_that_meet(server: ServerSettings) -> Iterator[str]:
    listeners = [
        ("server.port", server.host, server.port),
        ("server.admin_port", server.admin_host, server.admin_port),
    ]
    if server.prometheus is not None:
        listeners.append(("server.prometheus_port", *server.prometheus))
    taken: dict[int, str] = {}
    for key, _, port in listeners:
        if port and port in taken:
            yield f"{taken[port]} and {key} are both {port}; each listener needs a port of its own"
        taken[port] = key


def _shared_between_pools(pools: dict[str, PoolSettings]) -> Iterator[str]:
    for what in ("name", "origin_url"):
        owners: dict[str, str] = {}
        for name, pool in pools.items():
            for value in (getattr(worker, what) for worker in pool.each_rank):
                if owners.setdefault(value, name) != name:
                    word = what.removeprefix("origin_")
                    yield f"pools {owners[value]} and {name} both have a worker of {word} {value}"
