"""The workers of one pool: membership, health, incarnations, and who is eligible.

Separate from the Pool because it changes on another rhythm (probes, scrapes, operators) and knows nothing of
requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from router.core.health import Sign, State
from router.core.lives import Lives, Verdict
from router.core.mirror import Mirror
from router.core.worker import EngineStats, Worker

_HOPEFUL = frozenset({State.STARTING, State.SUSPECT, State.READY})
_IN_ROTATION = frozenset({State.STARTING, State.READY})
_MEMBERS = frozenset({State.STARTING, State.READY, State.SUSPECT, State.EJECTED})


@dataclass(frozen=True, slots=True)
class Change:
    """A worker went from one state to another, or became a new incarnation.

    `lost`: the process that had its streams is gone, or its port is; what is silent will not speak again.
    """

    worker: str
    before: State
    after: State
    reason: str
    incarnation: int
    lost: bool = False


class Roster:
    """Workers by name, in name order.

    State: `_workers`, `_lives` (one entry per worker), `_warming`, and the cache of ready workers per model,
    which every change clears.
    """

    def __init__(self, *, min_share: float = 0.5, on_change: Callable[[Change], None] | None = None) -> None:
        self._workers: dict[str, Worker] = {}
        self._lives: dict[str, Lives] = {}
        self._ready: dict[str, tuple[Worker, ...]] = {}
        self._warming: list[Worker] = []
        self._next_incarnation = 0
        self._min_share = min_share
        self._on_change = on_change

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def workers(self) -> Mapping[str, Worker]:
        return self._workers

    def add(self, worker: Worker, now: float) -> None:
        """Takes a worker in. One of the same name that is still there is replaced by a new incarnation."""
        before = self._workers.get(worker.name)
        # Never a number that a forgotten worker of this name may have had: a lease that it left behind must
        # not be taken for one of the new worker.
        worker.incarnation = self._next_incarnation if before is None else before.incarnation + 1
        worker.health.since = worker.last_sign = now
        self._workers[worker.name] = worker
        self._workers = dict(sorted(self._workers.items()))
        self._lives[worker.name] = Lives()
        self._ready.clear()

    def remove(self, name: str, now: float) -> None:
        """Out for good: no new picks. It is forgotten when its last lease has ended (`forget_gone`)."""
        self.sign(name, Sign.REMOVE, now, "removed")

    def forget_gone(self) -> list[Worker]:
        """Drops removed workers that hold nothing any more, and returns them."""
        gone = [w for w in self._workers.values() if w.state is State.GONE and w.mirror.idle]
        for worker in gone:
            self._next_incarnation = max(self._next_incarnation, worker.incarnation + 1)
            del self._workers[worker.name]
            del self._lives[worker.name]
        return gone

    def sign(self, name: str, sign: Sign, now: float, reason: str = "") -> bool:
        """Applies a health sign to a worker that is known; True when its state changed.

        A sign that would leave less than the minimum share of the pool in rotation is not applied, unless the
        port itself refuses: a whole fleet that answers late is not helped by being ejected.
        """
        worker = self._workers.get(name)
        if worker is None:
            return False
        if sign in (Sign.BAD, Sign.STALLED) and worker.state in _IN_ROTATION and not self._may_lose_one():
            return False
        before = worker.state
        changed = worker.health.take(sign, now, reason)
        if changed:
            self._ready.clear()
            if worker.health.returned is not None and worker not in self._warming:
                self._warming.append(worker)
            if before is State.ASLEEP and worker.state is State.READY:
                self._reincarnate(worker, now, "woke up")
            self._tell(worker, before, worker.health.reason, lost=sign is Sign.REFUSED)
        return changed

    def _may_lose_one(self) -> bool:
        members = sum(w.state in _MEMBERS for w in self._workers.values())
        in_rotation = sum(w.state in _IN_ROTATION for w in self._workers.values())
        return in_rotation - 1 >= self._min_share * members

    def probed(self, name: str, now: float) -> None:
        """A probe was answered well."""
        worker = self._workers.get(name)
        if worker is None:
            return
        worker.health.timeouts = 0
        # A suspect with nothing left in flight can show no progress; the probe is all there is to go by.
        if worker.state is State.SUSPECT and worker.mirror.idle:
            self.sign(name, Sign.PROGRESS, now, "idle again")
        else:
            self.sign(name, Sign.GOOD, now, "probe answered")

    def probe_timed_out(self, name: str, now: float) -> None:
        worker = self._workers.get(name)
        if worker is not None and worker.health.probe_timed_out():
            self.sign(name, Sign.BAD, now, f"{worker.health.timeouts} probes in a row timed out")

    def learn_models(self, name: str, models: Mapping[str, int | None]) -> None:
        """What `/v1/models` of a worker listed: name to longest context (None: not said)."""
        worker = self._workers.get(name)
        if worker is None:
            return
        worker.models = frozenset(models)
        worker.max_model_len = {model: length for model, length in models.items() if length is not None}
        self._ready.clear()

    def lose_model(self, name: str, model: str) -> None:
        """A worker answered that it does not know a model; believed until its list is read again."""
        worker = self._workers.get(name)
        if worker is not None:
            worker.models -= {model}
            self._ready.clear()

    def no_longer_than(self, name: str, model: str) -> frozenset[str]:
        """Workers whose context for `model` is not longer than this one's: a prompt that it refused for its
        length is lost on them too. A worker that did not say how long its context is counts among them."""
        limit = self._workers[name].max_model_len.get(model) if name in self._workers else None
        return frozenset(
            w.name
            for w in self._workers.values()
            if limit is None or (w.max_model_len.get(model) or 0) <= limit
        )

    def observe(self, name: str, stats: EngineStats, now: float) -> Verdict:
        """Takes a scrape in: progress, sleep, and whether the process behind the URL is still the same."""
        worker = self._workers.get(name)
        if worker is None:
            return Verdict.SAME
        verdict = self._lives[name].see(stats)
        if verdict is Verdict.SHARED:
            worker.shared_address = True
        if worker.shared_address:
            worker.stats = None
            return Verdict.SHARED
        if verdict is Verdict.RESTARTED:
            self._reincarnate(worker, now, "the engine restarted")
        elif _moved(worker.stats, stats):
            self.show_progress(worker, now)
        worker.stats = stats
        if stats.asleep is not None and worker.state is not State.DRAINING:
            self.sign(name, Sign.SLEEP if stats.asleep else Sign.WAKE, now)
        return verdict

    def show_progress(self, worker: Worker, now: float) -> None:
        worker.last_sign = now
        if worker.state is State.SUSPECT:
            self.sign(worker.name, Sign.PROGRESS, now, "moves again")

    def _reincarnate(self, worker: Worker, now: float, reason: str) -> None:
        worker.incarnation += 1
        worker.mirror = Mirror()
        worker.stats = None
        worker.last_sign = worker.health.returned = now
        worker.health.failures = worker.health.timeouts = 0
        if worker not in self._warming:
            self._warming.append(worker)
        self._tell(worker, worker.state, reason, lost=True)

    def _tell(self, worker: Worker, before: State, reason: str, *, lost: bool) -> None:
        if self._on_change is not None:
            change = Change(worker.name, before, worker.state, reason, worker.incarnation, lost)
            self._on_change(change)

    def warm(self, now: float) -> None:
        """Sets the fading extra cost of the workers that came back lately."""
        for worker in list(self._warming):
            worker.warmup = worker.health.warmup(now)
            if worker.warmup <= 1.0:
                self._warming.remove(worker)

    def ready(self, model: str) -> tuple[Worker, ...]:
        """The workers that may be chosen for `model`, in name order."""
        try:
            return self._ready[model]
        except KeyError:
            ready = tuple(w for w in self._workers.values() if w.state is State.READY and model in w.models)
        if ready:  # names that nobody serves are the client's to make up, so they are not remembered
            self._ready[model] = ready
        return ready

    def hopeful(self, model: str) -> bool:
        """Whether some worker may become eligible soon: waiting makes sense."""
        return any(
            w.state in _HOPEFUL and (model in w.models or w.state is State.STARTING)
            for w in self._workers.values()
        )

    def models(self) -> set[str]:
        """Names that members serve, also while they are out of rotation."""
        members = (w for w in self._workers.values() if w.state is not State.GONE)
        return {model for worker in members for model in worker.models}

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for worker in self._workers.values():
            counts[worker.state.value] = counts.get(worker.state.value, 0) + 1
        parts = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()) if state != "ready")
        return f"<Roster [{len(self)} workers{', ' + parts if parts else ''}]>"


def _moved(before: EngineStats | None, after: EngineStats) -> bool:
    if before is None:
        return True
    pairs = (
        (before.generation_tokens, after.generation_tokens),
        (before.prompt_tokens, after.prompt_tokens),
    )
    return any(old is not None and new is not None and new > old for old, new in pairs)
