"""Background work that is watched: a task that dies is logged, started again with back-off, and counted.

One failing task never cancels another, and never the streams of clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("pointsman.supervisor")

_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0
_FORGIVEN_AFTER_S = 60.0


class Supervisor:
    """Owns the background tasks of a process.

    State: `_tasks` by name; `_failing`, the names that wait to be started again; `_vital`, the names without
    which the router should get no traffic.
    """

    def __init__(
        self, now: Callable[[], float], *, on_restart: Callable[[str], None] = lambda _name: None
    ) -> None:
        self._now = now
        self._on_restart = on_restart
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failing: set[str] = set()
        self._vital: set[str] = set()

    def start(self, name: str, work: Callable[[], Awaitable[None]], *, vital: bool = False) -> None:
        """Runs `work` until it returns, again whenever it raises. A name that runs already is replaced."""
        self.stop(name)
        if vital:
            self._vital.add(name)
        task = asyncio.get_running_loop().create_task(self._watch(name, work), name=f"pointsman:{name}")
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._forget(name, done))

    def stop(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        self._failing.discard(name)
        if task is not None:
            task.cancel()

    async def aclose(self) -> None:
        """Cancels everything and waits for it to be gone."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self._failing.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def why_unwell(self) -> str | None:
        """What fails of that without which the router should get no traffic; None when nothing does.

        Work for one worker is not among it: what one engine makes fail, it makes fail in every router.
        """
        failing = sorted(self._failing & self._vital)
        return f"background work fails: {', '.join(failing)}" if failing else None

    def _forget(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
            self._failing.discard(name)

    async def _watch(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            started = self._now()
            try:
                await work()
            except Exception:
                log.exception("background task %s failed; starting it again in %.1f s", name, backoff_s)
            else:
                return
            if self._now() - started > _FORGIVEN_AFTER_S:
                backoff_s = _FIRST_BACKOFF_S
            self._failing.add(name)
            self._on_restart(name)
            await asyncio.sleep(backoff_s)
            self._failing.discard(name)
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    def __repr__(self) -> str:
        failing = f", {len(self._failing)} failing" if self._failing else ""
        return f"<Supervisor [{len(self._tasks)} tasks{failing}]>"
