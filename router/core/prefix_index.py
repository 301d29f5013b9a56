"""What each worker of a pool is believed to hold, for every prompt at once.

Separate from policies because several ask it, and from the pool because it outlives a change of policy. Every
pool has its own: a prefill worker and a decode worker of the same prompt hold different things.

Prompts come as canonical text or as token ids. Text needs no tokenizer and is approximate; token ids are cut
into blocks, which the engines' events can speak of. Both are inserted when a request is dispatched, and
confirmed or withdrawn by its outcome. Nothing frees more than a few nodes at a time; what remains due is done
by `sweep`, which the shell calls again and again.

An index takes apart what it drops and is invisible to the garbage collector: remove its workers and sweep it
before letting go of it.
"""

from __future__ import annotations

from array import array

from router.core.errors import InternalError
from router.core.kv_event import BlocksCleared, BlocksRemoved, KvEvent
from router.core.prefix_chain import HASH_BYTES, chain
from router.core.prefix_error import PrefixError
from router.core.prefix_holder import Claim, Holder
from router.core.prefix_ledger import Fit, Ledger
from router.core.prefix_match import Match
from router.core.prefix_portion import Portion, key_portion
from router.core.prefix_settings import PrefixSettings
from router.core.prefix_store import PrefixStore
from router.core.prefix_tree import Depths, End
from router.core.prompt_key import Partition
from router.core.trust import Trust, TrustSignal

Prompt = bytes | tuple[int, ...]
"""Canonical text, or token ids."""


class PrefixIndex:
    """The index of one pool."""

    def __init__(self, settings: PrefixSettings | None = None) -> None:
        self.settings = settings or PrefixSettings()
        self.store = PrefixStore(self.settings)
        self._holders: dict[str, Holder] = {}
        self._exact = 0  # bits of workers whose events are trusted, and of their ledgers
        self._exact_ledgers = 0
        self._distrusted = 0
        self._chained: tuple[Partition, Prompt, array[int]] | None = None

    # --- members -------------------------------------------------------------------------------------

    def admit(self, worker: str, incarnation: int, kv_capacity_tokens: int | None = None) -> None:
        """Knows a worker. A new incarnation begins with nothing; the same again corrects its capacity."""
        holder = self._holders.get(worker)
        if holder is None or holder.incarnation != incarnation:
            self.remove(worker)
            holder = Holder(worker, incarnation, self.store.slots.take(worker))
            self._holders[worker] = holder
        holder.kv_capacity_tokens = kv_capacity_tokens

    def remove(self, worker: str) -> None:
        """Forgets a worker, in the same time however much it held. One that is not known is ignored."""
        holder = self._holders.pop(worker, None)
        if holder is not None:
            self.store.retire(holder)
            self._remask()

    def holder(self, worker: str) -> Holder | None:
        """Figures of one worker, for metrics and explanations."""
        return self._holders.get(worker)

    def trust(self, worker: str, *, text: bool) -> Trust:
        """How far the index is to be relied upon for it, by what its prompts come as.

        Text is never exact; a worker that is not known counts by load alone.
        """
        holder = self._holders.get(worker)
        if holder is None:
            return Trust.LOAD_ONLY
        return Trust.APPROXIMATE if text and holder.trust is Trust.EXACT else holder.trust

    @property
    def workers(self) -> frozenset[str]:
        """Names of all workers that it knows."""
        return frozenset(self._holders)

    @property
    def used_bytes(self) -> int:
        """Memory accounted to the index."""
        return self.store.used_bytes

    # --- prompts -------------------------------------------------------------------------------------

    def match(self, partition: Partition, prompt: Prompt, prompt_tokens: int) -> Match:
        """Who holds how much of a prompt. Changes nothing.

        Args:
            prompt_tokens: its length as estimated; for token ids their number counts instead.
        """
        store = self.store
        trusted = store.slots.live & ~self._distrusted
        if isinstance(prompt, bytes):
            match = Match(prompt_tokens, {})
            if prompt:
                depths, size = store.text.match(partition, prompt, trusted), len(prompt)
                match.take([(held * prompt_tokens // size, mask) for held, mask in depths], store.slots)
            return match
        hashes = self._chain(partition, prompt)
        packed, match = hashes.tobytes(), Match(len(prompt), {})
        depths = store.blocks.match(partition, packed, trusted & ~self._exact)
        match.take(self._in_tokens(depths), store.slots)
        if self._exact:
            depths = store.predicted.match(partition, packed, self._exact)
            match.take(self._in_tokens(depths), store.slots)
            match.take(store.event_blocks.match(hashes, self._exact_ledgers), store.ledger_slots)
        return match

    def portion(self, partition: Partition, prompt: Prompt, prompt_tokens: int) -> Portion | None:
        """The key portion of a prompt, None for one too short to have any. Changes nothing."""
        store = self.store
        if isinstance(prompt, bytes):
            begin, pieces = key_portion(store.text.root(partition), prompt, 1)
            end, size = sum(map(len, pieces)), len(prompt)
            if not end:
                return None
            tokens, before = end * prompt_tokens // size, begin * prompt_tokens // size
            return Portion(hash((partition, *pieces)), tokens, tokens - before)
        hashes, per_block = self._chain(partition, prompt), self.settings.block_tokens
        begin, pieces = key_portion(store.blocks.root(partition), hashes.tobytes(), HASH_BYTES)
        end = sum(map(len, pieces))
        if not end:
            return None
        blocks = end // HASH_BYTES
        own_tokens = (end - begin) // HASH_BYTES * per_block
        return Portion(hashes[blocks - 1], blocks * per_block, own_tokens)

    def insert(
        self, partition: Partition, prompt: Prompt, worker: str, now: float, *, prompt_tokens: int
    ) -> Claim | None:
        """Believes that the worker will hold the prompt, as it was dispatched there.

        None when there is nothing to believe: an empty prompt, one shorter than a block, an unknown worker.
        """
        holder = self._holders.get(worker)
        if holder is None:
            return None
        if isinstance(prompt, bytes):
            claim = self._insert_text(partition, prompt, holder, now, prompt_tokens)
        else:
            claim = self._insert_blocks(partition, prompt, holder, now)
        if claim is not None:
            holder.pending_tokens += claim.tokens
            self.store.make_room(holder, now)
        return claim

    def confirm(self, claim: Claim, now: float) -> None:
        """The engine answered: it holds the prompt. A claim is settled once; a repeat is ignored."""
        if self._settles(claim):
            claim.tree.confirm(claim.end, claim.book, now)
            if claim.predicted is not None:
                self.store.predicted.confirm(claim.predicted, claim.holder.predicted, now)

    def withdraw(self, claim: Claim) -> None:
        """It never came to compute the prompt: refused, unreachable, cancelled before its turn."""
        if self._settles(claim):
            claim.tree.withdraw(claim.end, claim.book)
            if claim.predicted is not None:
                self.store.predicted.withdraw(claim.predicted, claim.holder.predicted)

    def extend(self, claim: Claim, tail: bytes, now: float) -> None:
        """Believes that the worker also holds what stands behind the text of a confirmed claim.

        That is the answer as the next turn will send it back. Nothing happens for token ids, an empty tail,
        or a text that is held no more.
        """
        holder = claim.holder
        if not tail or holder.gone or not claim.text_bytes or not claim.whole:
            return
        found = claim.tree.extend(claim.end, tail, holder.text, now)
        if found is not None:
            claim.tree.confirm(found.end, holder.text, now)
            self.store.make_room(holder, now)

    def report(self, claim: Claim, prompt_tokens: int, cached_tokens: int | None) -> None:
        """The engine said how long the prompt was and how much of it was cached; call once per request.

        Args:
            cached_tokens: None when it did not say; then only the length is learned.
        """
        if prompt_tokens <= 0:
            return
        if claim.text_bytes:
            self.store.learn_ratio(claim.text_bytes, prompt_tokens)
        holder = claim.holder
        if cached_tokens is not None and not holder.gone:
            before = holder.trust
            holder.learn(claim, prompt_tokens, cached_tokens, self.settings)
            self._moved(holder, before)

    # --- the engine's events -------------------------------------------------------------------------

    def follow(self, worker: str, *, counts_only: bool = False) -> None:
        """Begins a ledger of the worker's events, in place of any older one.

        It is trusted when the stream says that it is complete, or once it agrees with the cached tokens that
        the engine reports.

        Args:
            counts_only: no prompt for it ever comes as token ids; its blocks are only counted.
        """
        holder = self._known(worker)
        self.store.retire_ledger(holder)
        holder.ledger = Ledger(self.store.ledger_slots.take(worker), counts_only=counts_only)
        holder.listening, holder.counted, holder.events = True, False, PrefixError()
        holder.signal(TrustSignal.LOST)
        self._remask()

    def apply(self, worker: str, event: KvEvent) -> Fit:
        """Takes in one event of a worker that is followed; events come in order and none is missing.

        `Fit.FULL`: there is no room for its ledger, which is dropped. The worker is approximate until it is
        followed anew.
        """
        holder = self._known(worker)
        if holder.ledger is None:
            return Fit.FULL
        if isinstance(event, BlocksCleared):
            self._cleared(holder)
        elif isinstance(event, BlocksRemoved):
            self.store.event_blocks.remove(holder.ledger, event.hashes)
        else:
            fit = self.store.event_blocks.store(holder.ledger, event)
            if fit is Fit.FULL:
                self.store.retire_ledger(holder)
                holder.signal(TrustSignal.LOST)
                self._remask()
            return fit
        return Fit.WELL

    def stream(self, worker: str, signal: TrustSignal) -> None:
        """What the listener knows of the stream: complete, silent, or lost events.

        Lost events end the ledger; a new one begins with the next event, and has to prove itself by the
        cached tokens that the engine reports.
        """
        holder = self._known(worker)
        if holder.ledger is None:
            return
        if signal is TrustSignal.LOST:
            self.follow(worker, counts_only=holder.ledger.counts_only)
            return
        holder.listening = holder.counted = signal is TrustSignal.COMPLETE
        if not holder.ledger.counts_only:
            before = holder.trust
            holder.signal(signal)
            self._moved(holder, before)

    # --- upkeep --------------------------------------------------------------------------------------

    def sweep(self, now: float, most: int = 256) -> int:
        """Keeps the bounds, at most about `most` steps of some microseconds each; returns how many it took.

        Fewer than `most` means that nothing is due any more.
        """
        return self.store.sweep(list(self._holders.values()), now, most)

    # --- the parts -----------------------------------------------------------------------------------

    def _insert_text(
        self, partition: Partition, text: bytes, holder: Holder, now: float, prompt_tokens: int
    ) -> Claim | None:
        fitting = text[: int(self.store.longest_tokens(holder) * self.store.bytes_per_token)]
        if not fitting:
            return None
        found = self.store.text.insert(partition, fitting, holder.text, now)
        self.store.entered(self.store.text, holder.text)
        size = len(text)
        return Claim(
            holder=holder,
            tree=self.store.text,
            book=holder.text,
            end=found.end,
            tokens=prompt_tokens,
            held_tokens=found.held * prompt_tokens // size,
            sure_tokens=found.sure * prompt_tokens // size,
            sure_touched=found.sure_touched,
            text_bytes=size,
            whole=found.length == size,
        )

    def _insert_blocks(
        self, partition: Partition, prompt: tuple[int, ...], holder: Holder, now: float
    ) -> Claim | None:
        hashes, store, per_block = self._chain(partition, prompt), self.store, self.settings.block_tokens
        packed = hashes[: int(store.longest_tokens(holder)) // per_block].tobytes()
        if not packed:
            return None
        found = store.blocks.insert(partition, packed, holder.blocks, now)
        store.entered(store.blocks, holder.blocks)
        stored = None
        if holder.ledger is not None and holder.listening and not holder.ledger.counts_only:
            stored = max(
                (length for length, _ in store.event_blocks.match(hashes, holder.ledger.bit)), default=0
            )
        return Claim(
            holder=holder,
            tree=store.blocks,
            book=holder.blocks,
            end=found.end,
            tokens=len(prompt),
            held_tokens=found.held // HASH_BYTES * per_block,
            sure_tokens=found.sure // HASH_BYTES * per_block,
            sure_touched=found.sure_touched,
            predicted=self._predict(partition, packed, holder, now),
            stored_tokens=stored,
        )

    def _predict(self, partition: Partition, packed: bytes, holder: Holder, now: float) -> End | None:
        if holder.trust is not Trust.EXACT:
            return None
        end = self.store.predicted.insert(partition, packed, holder.predicted, now).end
        self.store.entered(self.store.predicted, holder.predicted)
        return end

    def _in_tokens(self, depths: Depths) -> Depths:
        """Depths of packed chains; of a hash that is only partly the same, nothing is shared."""
        per_block = self.settings.block_tokens
        return [(length // HASH_BYTES * per_block, mask) for length, mask in depths]

    def _chain(self, partition: Partition, prompt: tuple[int, ...]) -> array[int]:
        """The chain of a prompt. The last is kept: a prompt is matched and inserted in one turn."""
        last = self._chained
        if last is not None and last[1] is prompt and last[0] == partition:
            return last[2]
        hashes = chain(partition, prompt, self.settings.block_tokens)
        self._chained = (partition, prompt, hashes)
        return hashes

    def _cleared(self, holder: Holder) -> None:
        """A worker that forgot everything is a new holder with the old one's name and figures."""
        counts_only = holder.ledger is not None and holder.ledger.counts_only
        fresh = Holder(holder.name, holder.incarnation, self.store.slots.take(holder.name))
        fresh.kv_capacity_tokens = holder.kv_capacity_tokens
        fresh.trust, fresh.beliefs, fresh.events = holder.trust, holder.beliefs, holder.events
        self.store.retire(holder)
        self._holders[holder.name] = fresh
        self.follow(holder.name, counts_only=counts_only)
        self.stream(holder.name, TrustSignal.COMPLETE)

    @staticmethod
    def _settles(claim: Claim) -> bool:
        """Whether this is the first outcome of the claim, and its worker's incarnation still counts."""
        if claim.settled:
            return False
        claim.settled = True
        claim.holder.pending_tokens -= claim.tokens
        return not claim.holder.gone

    def _moved(self, holder: Holder, before: Trust) -> None:
        if holder.trust is not before:
            self._remask()

    def _remask(self) -> None:
        """Workers by how far they are trusted; done when somebody's trust or ledger changes."""
        self._exact = self._exact_ledgers = self._distrusted = 0
        for holder in self._holders.values():
            if holder.trust is Trust.LOAD_ONLY:
                self._distrusted |= holder.bit
            elif holder.trust is Trust.EXACT and holder.ledger is not None:
                self._exact |= holder.bit
                self._exact_ledgers |= holder.ledger.bit

    def _known(self, worker: str) -> Holder:
        holder = self._holders.get(worker)
        if holder is None:
            raise InternalError(f"the prefix index was told of worker {worker!r}, which it does not know")
        return holder

    def __repr__(self) -> str:
        return f"<PrefixIndex [{len(self._holders)} workers | {self.store!r}]>"
