"""KV on its way from the engine that prefilled to the one that decodes.

Separate from the courses of calls: engines ask each other for KV, and the router sees nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from engines.model.engine import Fetch
from engines.model.handover import TransferLink
from router.studies.simulation.hall import Hall
from router.studies.simulation.stepper import Rank
from router.studies.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a prefill engine holds for a request: by which job, and as which process."""

    rank: Rank
    job_id: str


class Wires:
    """Brings KV over.

    Args:
        wanted: whether a job at a worker is still waited for.
        lost: told of every job whose KV is gone with its producer, and the job with it.

    State: `_kept`, by request, what is held for it; `_awaited`, who waits for the end of a prefill.
    """

    def __init__(
        self,
        timeline: Timeline,
        hall: Hall,
        link: TransferLink,
        wanted: Callable[[str, str], bool],
        lost: Callable[[str, str], None],
    ) -> None:
        self._timeline = timeline
        self._hall = hall
        self._link = link
        self._wanted = wanted
        self._lost = lost
        self._kept: dict[str, _Kept] = {}
        self._awaited: dict[str, tuple[Rank, Fetch]] = {}

    def kept(self, rank: Rank, job_id: str) -> None:
        """A prefill engine holds KV to be fetched; who waits for it may have it now."""
        name = request_of(job_id)
        self._kept[name] = _Kept(rank, job_id)
        waiting = self._awaited.pop(name, None)
        if waiting is not None:
            self._transfer(*waiting)

    def fetches(self, rank: Rank, fetch: Fetch) -> None:
        """A job wants its KV from another engine, or needs it no more."""
        name = request_of(fetch.job_id)
        if self._is_for(name, fetch):
            self._transfer(rank, fetch)
        elif not fetch.tells_only and self._wanted(rank.name, fetch.job_id):
            self._awaited[name] = (rank, fetch)
        elif not fetch.tells_only:
            self._timeline.after(0.0, partial(self._transferred, rank, fetch))

    def let_go(self, request_id: str, at: float) -> None:
        """Nobody will fetch what is held for a request; its engine lets go of it then (infinite: never)."""
        waiting = self._awaited.pop(request_id, None)
        if waiting is not None:
            self._timeline.after(0.0, partial(self._transferred, *waiting))
        held = self._kept.pop(request_id, None)
        if held is not None and at < math.inf:
            self._timeline.at(at, partial(self._release, held))

    def _is_for(self, request_id: str, fetch: Fetch) -> bool:
        """Whether what is held for a request was prefilled for this try of it, and not for a later one."""
        held = self._kept.get(request_id)
        return held is not None and _number_of(held.job_id) < _number_of(fetch.job_id)

    def _transfer(self, rank: Rank, fetch: Fetch) -> None:
        if fetch.tells_only:
            self._transferred(rank, fetch)
            return
        lives = self._lives(self._kept[request_of(fetch.job_id)].rank)
        seconds = self._link.seconds(fetch.blocks) if lives else 0.0
        self._timeline.after(seconds, partial(self._transferred, rank, fetch))

    def _transferred(self, rank: Rank, fetch: Fetch) -> None:
        name = request_of(fetch.job_id)
        held = self._kept.pop(name) if self._is_for(name, fetch) else None
        came = held is not None and self._lives(held.rank)
        if held is not None:
            self._release(held)
        if fetch.tells_only or not self._lives(rank):
            return
        if came:
            rank.engine.fetched(fetch.job_id)
        elif rank.engine.fetch_failed(fetch.job_id):
            self._lost(rank.name, fetch.job_id)
        self._hall.stepper(rank.name).look(rank)

    def _release(self, held: _Kept) -> None:
        if self._lives(held.rank) and held.job_id in held.rank.engine.kept:
            held.rank.engine.kept.release(held.job_id, self._timeline.now)
            self._hall.stepper(held.rank.name).look(held.rank)

    def _lives(self, rank: Rank) -> bool:
        """Whether the process is still the one that it was."""
        return self._hall.is_up(rank.name) and self._hall.rank(rank.name) is rank

    def __repr__(self) -> str:
        return f"<Wires [{len(self._kept)} kept | {len(self._awaited)} awaited]>"


def request_of(job_id: str) -> str:
    """The request that a job is of."""
    return job_id.partition("/")[0]


def _number_of(job_id: str) -> int:
    """The number of its leg among those of its request."""
    return int(job_id.split("/")[1][1:])
