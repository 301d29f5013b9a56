"""The pools and workers of one router: who serves which model, and where each worker listens.

The one place where a worker's name meets its address and key. The core knows names only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from router.core.budget import Budget
from router.core.errors import BadRequest, Conflict, ConnectFailed, NotFound, NoWorker
from router.core.health import Sign, State
from router.core.worker import Role, Worker
from router.dispatch import Dispatcher
from router.settings.workers import WorkerSettings
from router.topology import Topology
from router.upstream.origin import Origin


@dataclass(slots=True, eq=False)
class Member:
    """One worker with what is needed to reach it.

    Attributes:
        key: sent as its bearer token; None passes the client's own on, where that is allowed.
        url: as it was registered.
        source: who registered it ("config", a file, a DNS name, "admin"); a source only removes its own.
        model: the one it was declared to serve; None when its list of models is believed instead.
        settings: as it was written down, to notice when that changes.
        bootstrap_port: where a prefill worker tells decode engines of itself; None: it does not.
        base_models: the names under which it serves its weights without an adapter; empty before it told.
        dp_rank: the data-parallel rank of its engine that it is, as the engine counts; None: it is all of it.
        dp_size: ranks of that engine.
    """

    worker: Worker
    origin: Origin
    dispatcher: Dispatcher
    url: str = ""
    key: bytes | None = field(default=None, repr=False)
    source: str = "config"
    model: str | None = None
    bootstrap_port: int | None = None
    settings: WorkerSettings | None = None
    engine_version: str | None = None
    base_models: frozenset[str] = frozenset()
    dp_rank: int | None = None
    dp_size: int = 1

    @property
    def name(self) -> str:
        return self.worker.name

    @property
    def labels(self) -> tuple[str, ...]:
        """What an engine's metrics may call this rank: by its number in the whole engine, as vLLM does, else
        by that at its address."""
        at_address = self.settings.rank if self.settings is not None else None
        return tuple(str(rank) for rank in (self.dp_rank, at_address) if rank is not None)

    @property
    def engine_name(self) -> str:
        """What its process is called where all its ranks are meant."""
        return self.name if self.worker.process is None else self.worker.process

    def meets(self, other: Member) -> bool:
        """Whether both cannot be there at once: they share a name, or an address other than as two ranks."""
        if self.name == other.name or self.origin != other.origin:
            return self.name == other.name
        two_ranks = None not in (self.dp_rank, other.dp_rank) and self.dp_rank != other.dp_rank
        return not two_ranks or self.dispatcher is not other.dispatcher

    def is_of(self, revision: str) -> bool:
        """Whether an operator who names this revision means it."""
        return revision in (self.worker.label, self.worker.revision, self.engine_version)


class Fleet:
    """All members by name, and the dispatchers they belong to.

    State: `_dispatchers` by pool name, `_members` by worker name. Listeners hear when one joins or leaves,
    so that probing and scraping follow.
    """

    def __init__(self, in_flight: Budget) -> None:
        self.in_flight = in_flight
        self._dispatchers: dict[str, Dispatcher] = {}
        self._members: dict[str, Member] = {}
        self._declared: dict[str, str] = {}
        self._topologies: dict[str, Topology] = {}
        self.on_join: Callable[[Member], None] = _nobody
        self.on_leave: Callable[[Member], None] = _nobody

    def add_pool(self, dispatcher: Dispatcher, model: str | None = None) -> None:
        """Takes a pool in; `model` is the one it was declared to serve."""
        name = dispatcher.pool.rules.name
        self._dispatchers[name] = dispatcher
        if model is not None:
            self._declared[name] = model

    def add_topology(self, topology: Topology) -> None:
        """Two pools of this fleet work together."""
        self._topologies[topology.decode.pool.rules.name] = topology

    @property
    def topologies(self) -> Iterable[Topology]:
        return self._topologies.values()

    def topology_for(self, dispatcher: Dispatcher) -> Topology | None:
        """What a pool is part of; None for one that works alone."""
        name = dispatcher.pool.rules.name
        for topology in self._topologies.values():
            if name in (topology.decode.pool.rules.name, topology.prefill.pool.rules.name):
                return topology
        return None

    @property
    def dispatchers(self) -> dict[str, Dispatcher]:
        return self._dispatchers

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def member(self, name: str) -> Member | None:
        return self._members.get(name)

    def at(self, origin: Origin) -> list[Member]:
        """Who listens there: the ranks of an engine, or one worker, or nobody."""
        return [member for member in self._members.values() if member.origin == origin]

    def reach(self, name: str) -> Member:
        """A worker that was chosen just now. Raises ConnectFailed when it has left since."""
        member = self._members.get(name)
        if member is None:
            raise ConnectFailed("The worker left just now.")
        return member

    def join(self, member: Member, now: float) -> None:
        """Registers a worker. Raises BadRequest when its name or address is taken."""
        self.refuse_twin(member)
        member.dispatcher.pool.roster.add(member.worker, now)
        if member.model is not None:
            member.dispatcher.pool.roster.learn_models(member.name, {member.model: None})
        self._members[member.name] = member
        self.on_join(member)

    def refuse_twin(self, member: Member) -> None:
        """Raises BadRequest when its name or address is taken."""
        for other in self._members.values():
            if member.meets(other):
                raise BadRequest(f"A worker with this name or address is registered already: {other.name}.")

    def named(self, name: str) -> list[Member]:
        """The worker of this name, or all ranks of the engine of this name. Raises NotFound for neither."""
        member = self._members.get(name)
        if member is not None:
            return [member]
        ranks = [m for m in self if m.dp_rank is not None and m.name.rpartition("@")[0] == name]
        if not ranks:
            raise NotFound(f"No worker is named {name!r}.")
        return ranks

    def leave_all(self, name: str, now: float) -> None:
        """Takes a worker out, or all ranks of an engine. Raises NotFound for a name of neither."""
        for member in self.named(name):
            self.leave(member.name, now)

    def leave(self, name: str, now: float) -> Member:
        """Takes a worker out; its streams finish. Raises NotFound for a name that is not registered."""
        member = self._members.pop(name, None)
        if member is None:
            raise NotFound(f"No worker is named {name!r}.")
        member.dispatcher.pool.roster.remove(name, now)
        self.on_leave(member)
        return member

    def drain(self, name: str, now: float, *, resume: bool = False) -> Member:
        """Gives a worker no new requests (or, with `resume`, gives it some again once a probe is good)."""
        member = self._members.get(name)
        if member is None:
            raise NotFound(f"No worker is named {name!r}.")
        sign = Sign.RESUME if resume else Sign.DRAIN
        member.dispatcher.pool.roster.sign(name, sign, now, "resumed" if resume else "drained by an operator")
        return member

    def drain_revision(self, revision: str, now: float, *, force: bool = False) -> list[Member]:
        """Gives all workers of a revision no new requests. What they have prefilled is still decoded by them.

        Args:
            revision: a label, an engine version, or both as `GET /workers` shows them.
            force: also when nobody is left.

        Raises:
            BadRequest: nobody has that revision.
            Conflict: some model would be served by nobody, or by half a pair.
        """
        members = [m for m in self._members.values() if m.is_of(revision)]
        if not members:
            raise BadRequest(f"No worker is of revision {revision!r}.")
        gone = {member.name for member in members}
        left_alone = None if force else self._left_alone(gone)
        if left_alone is not None:
            message = f"Nobody would be left to serve `{left_alone}`; say force to drain it all the same."
            raise Conflict(message)
        for member in members:
            roster = member.dispatcher.pool.roster
            roster.sign(member.name, Sign.DRAIN, now, f"revision {revision} was drained by an operator")
        return members

    def _left_alone(self, gone: set[str]) -> str | None:
        """A model that is served now and would not be without these workers; None when there is none."""
        for dispatcher in self._dispatchers.values():
            roster = dispatcher.pool.roster
            topology = self.topology_for(dispatcher)
            for model in sorted(roster.models()):
                ready = roster.ready(model)
                if not any(worker.name in gone for worker in ready):
                    continue
                left = {worker.revision for worker in ready if worker.name not in gone}
                if topology is not None:
                    left &= topology.partners.revisions_without(gone, model)
                if not left:
                    return model
        return None

    def models(self) -> set[str]:
        """Every name that can be asked for, also while its workers are down."""
        names = {model for d in self._dispatchers.values() for model in d.pool.roster.models()}
        return names | set(self._declared.values())

    def serves(self, model: str) -> bool:
        return any(self._serves(name, d, model) for name, d in self._dispatchers.items())

    def _serves(self, name: str, dispatcher: Dispatcher, model: str) -> bool:
        roster = dispatcher.pool.roster
        return bool(roster.ready(model)) or self._declared.get(name) == model or model in roster.models()

    def dispatcher_for(self, model: str) -> Dispatcher | None:
        """The pool that takes requests for a model: one with a ready worker, else one that knows the name."""
        known = None
        for name, dispatcher in self._dispatchers.items():
            if dispatcher.pool.roster.ready(model):
                return dispatcher
            if known is None and self._serves(name, dispatcher, model):
                known = dispatcher
        return known or self._learning()

    def _learning(self) -> Dispatcher | None:
        """While a worker has not told its models yet, any name may turn out to be one of them. When no model
        is known at all, that holds for workers that are down, too: the client should come back later, which
        a 404 does not say."""
        mute = not self.models()
        pools = ((dispatcher, dispatcher.pool.roster) for dispatcher in self._dispatchers.values())
        return next((d for d, roster in pools if roster.learning or (mute and len(roster))), None)

    def sole_model(self) -> str | None:
        """The one model there is, None when there are several or none."""
        names = self.models()
        return next(iter(names)) if len(names) == 1 else None

    def require_any(self) -> None:
        """Raises NoWorker when nothing is registered at all."""
        if not self._members:
            raise NoWorker("No worker is registered with this router yet.", retry_after_s=5)

    @property
    def ready(self) -> bool:
        """Whether some worker could take a request now. Prefill workers alone answer nothing."""
        pools = [d.pool for d in self._dispatchers.values() if d.pool.rules.role is not Role.PREFILL]
        return any(worker.state is State.READY for pool in pools for worker in pool.roster)

    def wake(self) -> None:
        """Lets every pool that has a queue look again: room was made somewhere, or a worker came back."""
        for dispatcher in self._dispatchers.values():
            dispatcher.wake()

    def __repr__(self) -> str:
        pools = " ".join(repr(d.pool) for d in self._dispatchers.values())
        return f"<Fleet [{len(self._members)} workers] {pools}>"


def _nobody(member: Member) -> None:
    """Nobody listens yet."""
