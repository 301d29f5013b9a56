"""The prefix index as policies see it, and as a pool feeds it.

Separate from the index, which knows no requests and no leases, and from the pool, most of whose policies ask
nothing of it: a pool has prefixes only while its policy wants them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, runtime_checkable

from router.core.answer import Usage
from router.core.answered_turns import with_answer
from router.core.health import State
from router.core.lease import Lease, Outcome
from router.core.prefix_holder import Claim
from router.core.prefix_index import PrefixIndex
from router.core.prefix_match import Match
from router.core.prefix_portion import Portion
from router.core.prefix_settings import PrefixSettings, TreeBound
from router.core.prompt_key import Partition, PromptKey
from router.core.request import Request
from router.core.worker import Worker, WorkerView

_MAX_UNREPORTED = 1_024


class Prefixes(Protocol):
    """What a policy may ask of the prefixes that workers are believed to hold. No question changes them."""

    def matched(self, request: Request) -> Match:
        """Who holds how much of its prompt.

        For a request that was just charged, what was true before. Empty for a call without a prompt.
        """
        ...

    def portion(self, request: Request) -> Portion | None:
        """The key portion of its prompt; None for a call without one."""
        ...

    def held_tokens(self, workers: Sequence[WorkerView]) -> list[float]:
        """Tokens that each worker is believed to hold in all."""
        ...

    def bound(self, bound: TreeBound) -> None:
        """Of the text of one worker, from now on: for a policy that was just put in use."""
        ...


@runtime_checkable
class Binds(Protocol):
    """Optional, for a policy that asks about prefixes: told once where, when a pool puts it in use."""

    def bind(self, prefixes: Prefixes) -> None: ...


class PoolPrefixes:
    """The prefixes of one pool. Pool and ledger tell it of members and leases, and nobody else.

    State: the index, a claim per lease that is held, the claims of the last leases whose usage is still to
    come, and what was last answered. One decision asks about one request many times (its policy, a shadow,
    the charge that follows), and the prompt is walked once.

    Attributes:
        sees_tokens: whether any prompt came as token ids, which events of blocks can speak of.
    """

    __slots__ = (
        "_aliases", "_claims", "_match", "_portion", "_request", "_unreported", "index", "sees_tokens",
    )  # fmt: skip

    def __init__(self, settings: PrefixSettings | None = None) -> None:
        self.index = PrefixIndex(settings)
        self.sees_tokens = False
        self._aliases: dict[str, str] = {}
        self._claims: dict[Lease, Claim] = {}
        self._unreported: OrderedDict[Lease, Claim] = OrderedDict()
        self._request: Request | None = None
        self._match: Match | None = None
        self._portion: Portion | None = None

    # --- what policies ask ---------------------------------------------------------------------------

    def matched(self, request: Request) -> Match:
        key = request.key
        if key is None:
            return Match(request.prompt_tokens, {})
        if request is not self._request:
            self.changed()
        if self._match is None:
            prompt = key.cached_by
            match = self.index.match(self._partition(key), prompt, request.prompt_tokens)
            self._match = with_answer(match, prompt) if isinstance(prompt, bytes) else match
            self._request = request
        return self._match

    def portion(self, request: Request) -> Portion | None:
        key = request.key
        if key is None:
            return None
        if request is not self._request:
            self.changed()
        if self._portion is None:
            self._portion = self.index.portion(self._partition(key), key.cached_by, request.prompt_tokens)
            self._request = request
        return self._portion

    def held_tokens(self, workers: Sequence[WorkerView]) -> list[float]:
        index = self.index
        holders = [index.holder(worker.name) for worker in workers]
        return [0.0 if holder is None else index.store.held_tokens(holder) for holder in holders]

    def bound(self, bound: TreeBound) -> None:
        self.index.store.tree_bound = bound

    def _partition(self, key: PromptKey) -> Partition:
        """Where a prompt is kept: whatever its model was called, its weights have one cache."""
        model = self._aliases.get(key.partition.model)
        return key.partition if model is None else key.partition._replace(model=model)

    # --- what the pool tells -------------------------------------------------------------------------

    def same_weights(self, names: Collection[str]) -> str:
        """One model is served under all these names. The one under which its prompts are kept."""
        kept = min(names)
        self._aliases.update((name, kept) for name in names if name != kept)
        return kept

    def changed(self) -> None:
        """The index was changed by somebody else (its events, its sweep): forgets what was answered."""
        self._request = self._match = self._portion = None

    def joined(self, worker: Worker) -> None:
        """A worker is there, or is another incarnation, or its KV capacity became known; a repeat is free.

        Of one whose address hides several processes nothing is believed: nobody knows which of them gets a
        request.
        """
        holder, capacity = self.index.holder(worker.name), worker.kv_capacity_tokens
        if worker.shared_address:
            if holder is not None:
                self.left(worker.name)
            return
        if (
            holder is None
            or holder.incarnation != worker.incarnation
            or holder.kv_capacity_tokens != capacity
        ):
            self.index.admit(worker.name, worker.incarnation, capacity)
            self.changed()

    def left(self, worker: str) -> None:
        """A worker is gone for good, and all that it held."""
        self.index.remove(worker)
        self.changed()

    def charged(self, lease: Lease, worker: Worker, now: float) -> None:
        """A lease was granted: its worker will hold the prompt, unless its outcome says otherwise."""
        request = lease.request
        key = request.key
        if key is None:
            return
        self.joined(worker)
        self.matched(request)  # is remembered: what was true before its own charge
        claim = self.index.insert(
            self._partition(key), key.cached_by, lease.worker, now, prompt_tokens=request.prompt_tokens
        )
        if claim is not None:
            self._claims[lease] = claim
            self.sees_tokens = self.sees_tokens or not claim.text_bytes

    def started(self, lease: Lease, now: float) -> None:
        """Its first output was seen: the prompt was computed."""
        claim = self._claims.get(lease)
        if claim is not None and not claim.settled:
            self.index.confirm(claim, now)
            self.changed()

    def settled(self, lease: Lease, now: float) -> None:
        """A lease ended. Without any output and without success, its prompt was never computed.

        What the engine said of its cache is taken in.
        """
        claim = self._claims.pop(lease, None)
        if claim is None:
            return
        if lease.answered or lease.outcome is Outcome.OK:
            self.index.confirm(claim, now)
        else:
            self.index.withdraw(claim)
        # To an engine, KV that came from another worker is cached, too.
        if lease.prefill is None:
            if lease.prompt_known:
                self.index.report(claim, lease.prompt_tokens, lease.cached_tokens)
            elif lease.outcome is Outcome.OK:
                self._unreported[lease] = claim
                if len(self._unreported) > _MAX_UNREPORTED:
                    self._unreported.popitem(last=False)
        self.changed()

    def reported(self, lease: Lease, usage: Usage) -> None:
        """The usage of a stream came after its last token, when its lease was settled already."""
        claim = self._unreported.pop(lease, None)
        if claim is not None and usage.prompt_tokens is not None:
            self.index.report(claim, usage.prompt_tokens, usage.cached_tokens)
            self.changed()

    def sweep(self, workers: Iterable[Worker], now: float) -> None:
        """Upkeep, to be called again and again: who is still there, and the bounds of the index."""
        there: set[str] = set()
        for worker in workers:
            if worker.state is not State.GONE:
                there.add(worker.name)
                self.joined(worker)
        for name in self.index.workers - there:
            self.left(name)
        if self.index.sweep(now):
            self.changed()

    def close(self) -> None:
        """Takes the index apart, before it is let go of."""
        for name in self.index.workers:
            self.left(name)
        self._claims.clear()
        self._unreported.clear()
        while self.index.sweep(0.0):
            pass

    @property
    def claims(self) -> int:
        """Leases whose outcome is not known yet; 0 when idle."""
        return len(self._claims)

    def __repr__(self) -> str:
        return f"<PoolPrefixes [{self.claims} claims | {self.index!r}]>"
