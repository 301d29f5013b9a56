"""The workers of one pool: membership, health, incarnations, and who is eligible.

Separate from the Pool because it changes on another rhythm (probes, scrapes, operators) and knows nothing of
requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from router.core.barriers import fill_peers
from router.core.calibration import Calibration, StepErrors
from router.core.drift import Drift
from router.core.engine_stats import EngineStats
from router.core.health import Sign, State
from router.core.lives import Lives, Verdict
from router.core.mirror import Mirror
from router.core.step_model import StepModel, TransferModel
from router.core.worker import Worker

_HOPEFUL = frozenset({State.STARTING, State.SUSPECT, State.READY})
_MEMBERS = frozenset({State.STARTING, State.READY, State.SUSPECT, State.EJECTED})
_SPARED = frozenset({Sign.BAD, Sign.STALLED})
# A request that only one worker can serve goes there as long as that worker may still answer.
_REACHABLE = frozenset({State.STARTING, State.READY, State.SUSPECT, State.DRAINING})


@dataclass(frozen=True, slots=True)
class Change:
    """A worker went from one state to another, became a new incarnation, or was found to refuse connections.

    In the second and third case `before` and `after` may be the same.

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

    State: `_workers`, `_lives` (one for each worker, shared by the ranks of a process), `_warming`, and three
    caches that every change clears: per model the ready workers and the shortest context among them, per
    model and revision who reads its KV.
    """

    def __init__(self, *, min_share: float = 0.5, on_change: Callable[[Change], None] | None = None) -> None:
        self._workers: dict[str, Worker] = {}
        self._lives: dict[str, Lives] = {}
        self._ready: dict[str, tuple[Worker, ...]] = {}
        self._shortest: dict[str, int | None] = {}
        self._of_revision: dict[tuple[str, str], tuple[Worker, ...]] = {}
        self._warming: list[Worker] = []
        self._next_incarnation = 0
        self._min_share = min_share
        self._on_change = on_change
        self._pool_is_group = False

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
        siblings = [other.name for other in self._of_process(worker) if other is not worker]
        self._lives[worker.name] = self._lives[siblings[0]] if siblings else Lives()
        self._regroup()
        self._forget_ready()

    def group_pool(self, yes: bool) -> None:
        """Whether workers of no declared barrier group are taken to be one group."""
        self._pool_is_group = yes
        self._regroup()

    def _regroup(self) -> None:
        fill_peers(self._workers.values(), pool_is_group=self._pool_is_group)

    def _of_process(self, worker: Worker) -> list[Worker]:
        """Who shares its process: the ranks of its engine, or it alone."""
        if worker.process is None:
            return [worker]
        return [other for other in self._workers.values() if other.process == worker.process]

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
        if gone:
            self._regroup()
        return gone

    def sign(self, name: str, sign: Sign, now: float, reason: str = "") -> bool:
        """Applies a health sign to a worker that is known; True when its state changed.

        A sign that would leave less than the minimum share of the pool in rotation is not applied, unless the
        port itself refuses: a whole fleet that answers late is not helped by being ejected. A port that
        refuses does so for all the ranks behind it.
        """
        worker = self._workers.get(name)
        if worker is None:
            return False
        of_port = self._of_process(worker) if sign is Sign.REFUSED else [worker]
        changed = [other for other in of_port if self._take(other, sign, now, reason)]
        return worker in changed

    def _take(self, worker: Worker, sign: Sign, now: float, reason: str) -> bool:
        before = worker.state
        if before is State.READY and sign in _SPARED and not self._may_lose(worker):
            return False
        lost = sign is Sign.REFUSED and not worker.health.refuses
        if sign in (Sign.REFUSED, Sign.GOOD):
            worker.health.refuses = sign is Sign.REFUSED
        changed = worker.health.take(sign, now, reason)
        if changed:
            self._forget_ready()
            self._warm_up(worker)
            if worker.state is State.READY and worker.health.slept:
                self._reincarnate(worker, now, "woke up")
            self._tell(worker, before, worker.health.reason, lost=lost)
        elif lost:
            # It was out already (drained, ejected, removed); the streams that it still has must hear of it.
            self._tell(worker, before, reason, lost=True)
        return changed

    def _may_lose(self, worker: Worker) -> bool:
        """Whether enough stays in rotation without this ready worker, of those that serve what it serves."""
        peers = [
            w.state
            for w in self._workers.values()
            if w.state in _MEMBERS and (w is worker or not w.models.isdisjoint(worker.models))
        ]
        return peers.count(State.READY) - 1 >= self._min_share * len(peers)

    def _warm_up(self, worker: Worker) -> None:
        if worker.health.returned is not None and worker not in self._warming:
            self._warming.append(worker)

    def probed(self, name: str, now: float) -> None:
        """A probe was answered well."""
        worker = self._workers.get(name)
        if worker is None:
            return
        worker.health.timeouts = 0
        # A suspect with nothing left to do can show no progress; the probe is all there is to go by.
        if worker.state is State.SUSPECT and not worker.mirror.working:
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
        lengths = {model: length for model, length in models.items() if length is not None}
        if worker.models == models.keys() and worker.max_model_len == lengths:
            return  # it is read over and over, and hardly ever changes
        worker.models = frozenset(models)
        worker.max_model_len = lengths
        self._forget_ready()

    def learn_revision(self, name: str, version: str | None, root: str | None) -> None:
        """What an engine said of itself. A configured label stands for the weights, whose path may differ
        from host to host; the engine's version counts always, since KV is laid out by it."""
        worker = self._workers.get(name)
        if worker is None:
            return
        revision = " ".join(part for part in (worker.label or root, version) if part)
        if revision != worker.revision:
            worker.revision = revision
            self._forget_ready()

    def calibrate(
        self,
        name: str,
        step: StepModel | None,
        transfers: Mapping[str, TransferModel],
        source: str,
        errors: StepErrors | None = None,
    ) -> None:
        """Takes in coefficients that were measured before; what is learned online begins from them.

        Args:
            step: None withdraws what the worker had.
            transfers: time to get KV from each prefill worker, by name.
            source: for people: the file that says so.
            errors: one standard error of each coefficient, where the file has them.
        """
        worker = self._workers.get(name)
        if worker is not None:
            worker.calibrate(Calibration.loaded(step, transfers, source, errors))

    def lose_model(self, name: str, model: str) -> None:
        """A worker answered that it does not know a model; believed until its list is read again."""
        worker = self._workers.get(name)
        if worker is not None:
            worker.models -= {model}
            self._forget_ready()

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
        """Takes a scrape in: progress, sleep, and whether the process behind the URL is still the same; of a
        rank, `see` tells that."""
        worker = self._workers.get(name)
        if worker is None:
            return Verdict.SAME
        verdict = self.see(name, stats, now) if worker.process is None else Verdict.SAME
        if worker.shared_address:
            worker.stats = None
            worker.drift = Drift()
            return Verdict.SHARED
        if verdict is Verdict.SAME and _moved(worker.stats, stats):
            self.show_progress(worker, now)
        worker.stats = stats
        if stats.asleep is not None and worker.state is not State.DRAINING:
            self.sign(name, Sign.SLEEP if stats.asleep else Sign.WAKE, now)
        return verdict

    def see(self, name: str, stats: EngineStats, now: float) -> Verdict:
        """Whether the process behind a worker is still the same; if not, all its ranks are born anew.

        Args:
            stats: of all its ranks together.
        """
        worker = self._workers.get(name)
        if worker is None:
            return Verdict.SAME
        verdict = self._lives[name].see(stats)
        for rank in self._of_process(worker):
            rank.shared_address |= verdict is Verdict.SHARED
            if verdict is Verdict.RESTARTED and not rank.shared_address:
                self._reincarnate(rank, now, "the engine restarted")
        return verdict

    def show_progress(self, worker: Worker, now: float) -> None:
        worker.last_sign = now
        if worker.state is State.SUSPECT:
            self.sign(worker.name, Sign.PROGRESS, now, "moves again")

    def _reincarnate(self, worker: Worker, now: float, reason: str) -> None:
        worker.incarnation += 1
        worker.mirror = Mirror()
        worker.drift = Drift()
        worker.stats = None
        worker.last_sign = worker.health.returned = now
        worker.health.failures = worker.health.timeouts = 0
        worker.health.slept = False
        self._warm_up(worker)
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
            lengths = [w.max_model_len[model] for w in ready if model in w.max_model_len]
            self._shortest[model] = min(lengths, default=None)
        return ready

    def of_revision(self, model: str, revision: str) -> Sequence[Worker]:
        """Those who understand KV of this revision: ready ones, else ones that drain. What was prefilled for
        them is of no use to anybody else."""
        ready = self.ready(model)
        try:
            return self._of_revision[model, revision]
        except KeyError:
            pass
        workers: Iterable[Worker] = ready
        if all(w.revision != revision for w in ready):
            workers = [w for w in self._workers.values() if w.state is State.DRAINING and model in w.models]
        found = tuple(w for w in workers if w.revision == revision)
        if found:
            self._of_revision[model, revision] = found
        return found

    def fits_all(self, model: str, tokens: int) -> bool:
        """Whether a prompt of `tokens` is within the context of every ready worker, as nearly all are; only
        otherwise it is worth comparing with each of them."""
        shortest = self._shortest.get(model)
        return shortest is None or tokens <= shortest

    def _forget_ready(self) -> None:
        self._ready.clear()
        self._shortest.clear()
        self._of_revision.clear()

    def reachable(self, name: str) -> tuple[Worker, ...]:
        """The worker of this name, when it may still answer what only it can: also while it drains."""
        worker = self._workers.get(name)
        return (worker,) if worker is not None and worker.state in _REACHABLE else ()

    def hopeful(self, model: str) -> bool:
        """Whether some worker may become eligible soon: waiting makes sense.

        One that has not told its models yet may turn out to serve any.
        """
        return any(
            w.state in _HOPEFUL and (model in w.models or not w.models) for w in self._workers.values()
        )

    def serves(self, model: str) -> bool:
        """Whether a member serves `model`, also while it is out of rotation."""
        return model in self._ready or any(
            model in w.models for w in self._workers.values() if w.state is not State.GONE
        )

    @property
    def learning(self) -> bool:
        """Whether some worker that may become eligible soon has not told its models yet."""
        return any(w.state in _HOPEFUL and not w.models for w in self._workers.values())

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
