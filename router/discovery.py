"""Where workers come from while the router runs: a watched file, and names that resolve to many addresses.

Level-triggered: each look compares what should be there with what is, so a missed change is made up for by
the next look. A source that cannot be read right now changes nothing: an empty answer because the resolver is
down must not empty the fleet.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from router.core.errors import RouterError
from router.fleet import Fleet
from router.registration import Registration
from router.settings.ranks import with_rank
from router.settings.workers import WorkerSettings, read_workers_file

log = logging.getLogger("pointsman.discovery")

FILE_PERIOD_S = 1.0

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) to addresses."""


class Discovery:
    """Reconciles the fleet with one source at a time.

    Args:
        registration: makes members of settings.
    """

    def __init__(self, fleet: Fleet, registration: Registration, now: Callable[[], float]) -> None:
        self._fleet = fleet
        self._registration = registration
        self._now = now

    def reconcile(self, pool: str, source: str, wanted: Iterable[WorkerSettings]) -> None:
        """Makes the workers of `source` in the fleet equal to `wanted`: those of which nothing has changed
        stay as they are, others leave and join."""
        ranks = (rank for worker in wanted for rank in self._registration.ranks_of(pool, worker))
        desired = {rank.name: rank for rank in ranks}
        stay = set()
        for member in [member for member in self._fleet if member.source == source]:
            kept = desired.get(member.name)
            if kept is not None and kept == member.settings:
                stay.add(member.name)
                continue
            why = "it is no longer in" if kept is None else "it is another one now in"
            log.info("worker %s leaves: %s %s", member.name, why, source)
            self._fleet.leave(member.name, self._now())
        for name, worker in desired.items():
            if name not in stay:
                self._join(pool, worker, source)

    def _join(self, pool: str, worker: WorkerSettings, source: str) -> None:
        """A worker that cannot join, because another source has it already, does not keep others out."""
        try:
            self._registration.register(pool, worker, source)
        except RouterError as error:
            log.warning("worker %s of %s is left out: %s", worker.name, source, error.message)

    async def follow_file(self, pool: str, path: Path, *, period_s: float = FILE_PERIOD_S) -> None:
        """Watches a workers file for ever. Its content is compared, not its events: editors replace files,
        and mounted configuration changes behind a link. An empty file is one that is just being written, and
        takes no worker away; `[]` does."""
        source, trouble = f"file {path}", ""
        seen: str | None = None
        while True:
            before, trouble = trouble, ""
            try:
                text = await asyncio.to_thread(path.read_text, encoding="utf-8")
                if not text.strip():
                    trouble, seen = f"the workers file {path} is empty (`[]` stands for no worker)", None
                elif text != seen:
                    seen = text
                    self.reconcile(pool, source, read_workers_file(path))
            except (OSError, UnicodeDecodeError) as error:
                trouble, seen = f"the workers file {path} cannot be read ({error})", None
            except ValueError as error:
                log.warning("%s; its workers stay as they were", error)
            if trouble and trouble != before:
                log.warning("%s; its workers stay as they were", trouble)
            await asyncio.sleep(period_s)

    async def follow_name(
        self, pool: str, template: WorkerSettings, resolve: Resolve, *, period_s: float
    ) -> None:
        """Resolves the host of `template` for ever; each address becomes a worker of its own. Trouble is said
        when it begins or changes, not at each look."""
        source, trouble = f"dns {template.url}", ""
        parts = urlsplit(template.origin_url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        while True:
            before, trouble = trouble, ""
            try:
                addresses = await resolve(parts.hostname or "", port)
            except OSError as error:
                addresses, trouble = [], f"does not resolve ({error})"
            workers = []
            for address in sorted(set(addresses)):
                host = f"[{address}]" if ":" in address else address
                origin = urlunsplit((parts.scheme, f"{host}:{port}", parts.path, "", ""))
                url = with_rank(origin, template.rank)
                name = f"{template.name}/{host}"
                workers.append(template.model_copy(update={"url": url, "name": name}))
            if workers:
                self.reconcile(pool, source, workers)
            elif not trouble:
                trouble = "resolves to no address"
            if trouble and trouble != before:
                log.warning("%s %s; its workers stay as they were", template.origin_url, trouble)
            await asyncio.sleep(period_s)


async def resolve_with_system(host: str, port: int) -> list[str]:
    """Addresses of a name, as the system resolves it. Raises OSError (socket.gaierror)."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
