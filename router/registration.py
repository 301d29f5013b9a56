"""From a worker that is written down to one that is a member of the fleet.

Separate from the fleet, which knows members and no settings, and from whoever finds workers: the
configuration, a file, a name, an administrator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from router.core.errors import BadRequest
from router.core.health import Health, HealthSettings
from router.core.worker import Worker
from router.dispatch import Dispatcher
from router.fleet import Fleet, Member
from router.settings.configuration import Settings
from router.settings.pools import PoolSettings
from router.settings.workers import WorkerSettings
from router.upstream.origin import Origin

log = logging.getLogger("pointsman")


class Registration:
    """Takes workers in. No state.

    Args:
        on_joined: told of every new member.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: Settings,
        now: Callable[[], float],
        on_joined: Callable[[Member], None],
    ) -> None:
        self._fleet = fleet
        self._settings = settings
        self._now = now
        self._on_joined = on_joined

    def ranks_of(self, pool: str, settings: WorkerSettings) -> tuple[WorkerSettings, ...]:
        """The workers that one entry stands for. Raises BadRequest for an unknown pool."""
        return self._pool(pool)[1].ranks_of(settings)

    def register(self, pool: str, settings: WorkerSettings, source: str) -> list[Member]:
        """Adds a worker to a pool, or each rank of it; all of them or none.

        Raises BadRequest for an unknown pool, a worker that does not fit it, or a name or address in use.
        """
        members = [self._member(pool, rank, source) for rank in self.ranks_of(pool, settings)]
        for member in members:
            self._fleet.refuse_twin(member)
        for member in members:
            self._fleet.join(member, self._now())
            self._on_joined(member)
            log.info("worker %s joins pool %s (%s)", member.name, pool, source)
        return members

    def _pool(self, name: str) -> tuple[Dispatcher, PoolSettings]:
        dispatcher = self._fleet.dispatchers.get(name)
        if dispatcher is None:
            raise BadRequest(f"No pool is named {name!r}; there are: {', '.join(self._fleet.dispatchers)}.")
        return dispatcher, self._settings.pools[name]

    def _member(self, name: str, settings: WorkerSettings, source: str) -> Member:
        dispatcher, pool = self._pool(name)
        if settings.resolves and source == "admin":
            raise BadRequest("A name that is resolved over and over belongs into the configuration.")
        misfit = pool.misfit(settings)
        if misfit is not None:
            raise BadRequest(f"The worker does not fit pool {name}: {misfit}.")
        secret = settings.api_key or self._settings.auth.api_key
        rank = settings.rank
        return Member(
            worker=self._worker(pool, settings),
            origin=Origin.parse(settings.origin_url),
            dispatcher=dispatcher,
            url=settings.origin_url,
            key=secret.get_secret_value().encode() if secret is not None else None,
            source=source,
            model=settings.model or pool.model,
            bootstrap_port=pool.bootstrap_port_of(settings),
            settings=settings,
            dp_rank=None if rank is None else rank + settings.dp_rank_offset,
            dp_size=pool.dp_size_of(settings) or 1,
        )

    def _worker(self, pool: PoolSettings, settings: WorkerSettings) -> Worker:
        health = self._settings.health
        return Worker(
            name=settings.name,
            role=pool.role_of(settings),
            label=settings.revision or "",
            revision=settings.revision or "",
            may_prefill=pool.serves_whole(settings),
            barrier_group=pool.barrier_group_of(settings),
            process=None if settings.rank is None else settings.origin_url,
            slots=pool.slots_of(settings),
            capacity=settings.capacity or 1.0,
            health=Health(
                HealthSettings(health.timeouts_to_eject, health.failures_to_eject, health.warmup_s)
            ),
        )
