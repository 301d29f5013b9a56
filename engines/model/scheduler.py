"""Which sequences compute how many tokens in the next step: vLLM V1's loop.

Separate from the engine, which owns time, outputs and counters. There is no prefill phase and no decode
phase: each sequence has computed tokens that chase its length. Running sequences come first, in order;
waiting ones are admitted only when nothing was preempted in the same step, and of those the ones that hold
blocks (their KV was fetched) before all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engines.model.handover import Fetch
from engines.model.job import Counters, EngineConfig
from engines.model.kv_cache import KvCache, blocks_for
from engines.model.prefix_queues import LongestPrefix, PriorityGroups
from engines.model.roofline import StepLoad
from engines.model.sequence import Sequence, State
from engines.model.waiting import ArrivalQueue, PriorityQueue, WaitingQueue


@dataclass(slots=True)
class Plan:
    """One step's decision: (sequence, new tokens) in batch order, who lost its blocks, and the load."""

    budget: int
    scheduled: list[tuple[Sequence, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    load: StepLoad = field(default_factory=StepLoad)


class Scheduler:
    """The running batch, the waiting queue and the KV cache of one engine.

    Attributes:
        fetching: sequences whose KV is on its way, by job id.
        fetched: sequences whose KV has come and that are not in the batch yet.
        orphans: blocks of dropped sequences into which KV is still being written.
        deferred: waiting sequences that the last step passed over.
    """

    def __init__(self, config: EngineConfig, counters: Counters) -> None:
        self._config = config
        self._counters = counters
        self.kv = KvCache(config.num_blocks, config.block_size, record_events=config.record_kv_events)
        self.running: list[Sequence] = []
        self.waiting = self._order_of_waiting()
        self._looked_at = 0
        self._asked: tuple[Sequence, int, int] | None = None
        self._found: list[int] = []
        self.fetching: dict[str, Sequence] = {}
        self.fetched = ArrivalQueue()
        self.orphans: dict[str, list[int]] = {}
        self.deferred = 0
        self._fetches: list[Fetch] = []
        threshold = config.long_prefill_token_threshold
        self._chunk_tokens = threshold if threshold is not None else config.max_num_batched_tokens

    def plan(self, now: float) -> Plan:
        """Decide the next step, hand out blocks and register the blocks that it fills."""
        plan = Plan(budget=self._config.max_num_batched_tokens)
        self._schedule_running(plan)
        self._advance(plan.scheduled, plan.load)
        if not plan.preempted:
            self._admit(plan, now)
        return plan

    def admits_nobody(self) -> bool:
        """Whether no waiting sequence can begin before one of the batch ends. That a look-up would find more
        of it cached by then is left out, where the order does not go by that."""
        if self.fetched.head() is not None or self._config.max_loras is not None:
            return False
        sequence = self.waiting.head()
        if sequence is None or len(self.running) >= self._config.max_num_seqs:
            return True
        if sequence.to_fetch or self._config.goes_by_cache:
            return False
        hits = self._cached_prefix(sequence)
        whole = blocks_for(sequence.length, self._config.block_size) - len(hits)
        return not self.kv.can_allocate(whole, held_back=hits)

    def release(self, sequence: Sequence) -> None:
        """Take a sequence out for good, from wherever it is; its blocks are free at once, or when nothing is
        written to them any more."""
        if sequence.state is State.FETCHING:
            # The transfer cannot be called back: what it writes to is nobody else's until its end.
            del self.fetching[sequence.id]
            self.orphans[sequence.id] = sequence.blocks
            sequence.hold([], stored=0)
            sequence.move(State.GONE)
        else:
            self.kv.free(self.take_out(sequence))

    def take_out(self, sequence: Sequence) -> list[int]:
        """Take a sequence that fetches nothing out for good and return its blocks, held as before."""
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
        elif sequence.state is State.FETCHED:
            self.fetched.discard(sequence)
        else:
            self.waiting.discard(sequence)
            self._tell(sequence)
        blocks = sequence.blocks
        sequence.hold([], stored=0)
        sequence.move(State.GONE)
        return blocks

    # --- running ------------------------------------------------------------------------------------

    def _schedule_running(self, plan: Plan) -> None:
        running, scheduled, chunk = self.running, plan.scheduled, self._chunk_tokens
        index = 0
        while index < len(running) and plan.budget > 0:
            sequence = running[index]
            computed = sequence.computed
            new = sequence.length - computed
            if new > 1:
                new = min(new, plan.budget, chunk)
            if computed + new <= sequence.room or self._grow(sequence, new, plan):
                scheduled.append((sequence, new))
                plan.budget -= new
            # The scheduled ones are the head of `running`, also after a preemption took some of either.
            index = len(scheduled)

    def _grow(self, sequence: Sequence, new: int, plan: Plan) -> bool:
        """Give a running sequence the blocks for its next tokens, at the cost of others.

        False when it was itself the one to go.
        """
        missing = blocks_for(sequence.computed + new, self._config.block_size) - len(sequence.blocks)
        while not self.kv.can_allocate(missing):
            victim = self._victim()
            self._preempt(victim, plan)
            if victim is sequence:
                return False
        sequence.extend(self.kv.allocate(missing))
        return True

    def _victim(self) -> Sequence:
        if self._config.scheduling == "priority":
            return max(self.running, key=lambda sequence: sequence.rank)
        return self.running[-1]

    def _preempt(self, victim: Sequence, plan: Plan) -> None:
        self.running.remove(victim)
        for position, (sequence, new) in enumerate(plan.scheduled):
            if sequence is victim:
                del plan.scheduled[position]
                plan.budget += new
                break
        self._free(victim)
        victim.move(State.WAITING)
        victim.timing.preemptions += 1
        self._counters.preemptions += 1
        self.waiting.put_back(victim)
        plan.preempted.append(victim)

    # --- waiting ------------------------------------------------------------------------------------

    def _admit(self, plan: Plan, now: float) -> None:
        if self._looked_at != self.kv.changes:
            self._looked_at = self.kv.changes
            self.waiting.look()
        loras = self._active_loras()
        passed_over: list[Sequence] = []
        held_up: list[Sequence] = []
        while plan.budget > 0 and len(self.running) < self._config.max_num_seqs:
            sequence = self.fetched.head() or self.waiting.head()
            if sequence is None:
                break
            if self._lora_is_over(sequence.job.lora, loras):
                fetched = sequence.state is State.FETCHED
                (held_up if fetched else passed_over).append(
                    (self.fetched if fetched else self.waiting).take()
                )
                continue
            if not self._start(sequence, plan, now):
                break
            loras.add(sequence.job.lora)
        self.deferred = len(passed_over)
        for sequence in reversed(passed_over):
            self.waiting.put_back(sequence)
        for sequence in reversed(held_up):
            self.fetched.put_back(sequence)

    def _order_of_waiting(self) -> WaitingQueue:
        orders: dict[str, Callable[[], WaitingQueue]] = {
            "fcfs": ArrivalQueue,
            "priority": PriorityQueue,
            "priority_groups": lambda: PriorityGroups(self._cached_tokens),
            "longest_prefix": lambda: LongestPrefix(self._cached_tokens),
        }
        return orders[self._config.scheduling]()

    def _cached_tokens(self, sequence: Sequence) -> int:
        """Tokens of a waiting sequence that are cached now."""
        if not self._config.enable_prefix_caching or sequence.job.skip_cache:
            return 0
        size = self._config.block_size
        limit = (sequence.length - 1) // size
        return self.kv.prefix_blocks(sequence.chain.hash_full_blocks(), limit) * size

    def _active_loras(self) -> set[str | None]:
        """Adapters of the running batch; None, no adapter, is always among them. Unused without a bound."""
        if self._config.max_loras is None:
            return set()
        return {None, *(sequence.job.lora for sequence in self.running)}

    def _lora_is_over(self, lora: str | None, active: set[str | None]) -> bool:
        bound = self._config.max_loras
        return bound is not None and lora not in active and len(active) > bound

    def _start(self, sequence: Sequence, plan: Plan, now: float) -> bool:
        """Admit the head of the queue if all its blocks could be had now; False leaves it there."""
        if sequence.state is State.FETCHED:
            self.fetched.take()
            self._run(sequence, plan, 1, now)
            return True
        size, length = self._config.block_size, sequence.length
        hits = self._cached_prefix(sequence)
        if sequence.to_fetch and not sequence.job.skip_cache:
            return self._park(sequence, hits)
        whole = blocks_for(length, size) - len(hits)
        if not self.kv.can_allocate(whole, held_back=hits):
            return False
        self.waiting.take()
        self._tell(sequence)
        self._adopt(sequence, hits)
        cached = len(hits) * size
        new = min(length - cached, plan.budget, self._chunk_tokens)
        sequence.extend(self.kv.allocate(blocks_for(cached + new, size) - len(hits)))
        self._count_look_up(sequence, cached, 0)
        self._run(sequence, plan, new, now)
        return True

    def _adopt(self, sequence: Sequence, hits: list[int]) -> None:
        """Hold the cached blocks of a sequence; whatever is wrong with them is wrong with its answer."""
        self.kv.take(hits)
        self._asked = None
        sequence.hold(hits, stored=len(hits))
        if self.kv.is_spoiled(hits):
            sequence.garble()

    def _run(self, sequence: Sequence, plan: Plan, new: int, now: float) -> None:
        sequence.move(State.RUNNING)
        self.running.append(sequence)
        if sequence.timing.scheduled is None:
            sequence.timing.scheduled = now
        plan.scheduled.append((sequence, new))
        plan.budget -= new
        self._advance(plan.scheduled[-1:], plan.load)

    def _cached_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks of it that are cached. The head of the queue is asked about in every step that it waits, so
        the last answer is kept as long as it holds."""
        if not self._config.enable_prefix_caching or sequence.job.skip_cache:
            return []
        # At least one token is computed anew: there is nothing to sample from otherwise.
        asked = (sequence, self.kv.changes, sequence.length)
        if self._asked != asked:
            limit = (sequence.length - 1) // self._config.block_size
            self._asked, self._found = asked, self.kv.find(sequence.chain.hash_full_blocks(), limit)
        return self._found

    def _count_look_up(self, sequence: Sequence, cached: int, external: int) -> None:
        """At the first admission; later ones, after a preemption, are not counted."""
        timing, counters = sequence.timing, self._counters
        if timing.looked_up:
            return
        timing.looked_up = True
        timing.cached_tokens = cached
        timing.external_tokens = external
        if self._config.enable_prefix_caching and not sequence.job.skip_cache:
            counters.prefix_queries_tokens += sequence.length
            counters.prefix_hits_tokens += cached
        if self._config.kv_connector:
            counters.external_queries_tokens += sequence.length - cached
            counters.external_hits_tokens += external

    # --- KV from a prefill engine -------------------------------------------------------------------

    def drain_fetches(self) -> list[Fetch]:
        """What is to be fetched, or told, since the last call."""
        fetches, self._fetches = self._fetches, []
        return fetches

    def arrived(self, sequence: Sequence, *, right: bool) -> None:
        """The KV of a fetching sequence is here; `right` says whether it is that of its prompt."""
        del self.fetching[sequence.id]
        sequence.move(State.FETCHED)
        self.fetched.add(sequence)
        first = sequence.stored
        sequence.loaded()
        if not right:
            sequence.garble()
            self.kv.spoil(sequence.blocks[first:])
        if self._config.enable_prefix_caching:
            sequence.chain.hash_full_blocks()
            self.kv.store(sequence.chain, sequence.blocks, first, sequence.stored)

    def not_arrived(self, sequence: Sequence) -> None:
        """The KV of a fetching sequence will not come: it waits in front, to be computed here."""
        del self.fetching[sequence.id]
        self._free(sequence)
        sequence.move(State.WAITING)
        self.waiting.put_back(sequence)

    def _park(self, sequence: Sequence, hits: list[int]) -> bool:
        """Give the head of the queue blocks for its whole prompt and let its KV be fetched.

        A parked sequence cannot be preempted, so blocks that running prefills still need are left to them.
        """
        size, length, held = self._config.block_size, sequence.length, len(hits)
        missing = blocks_for(length, size) - held
        if not self.kv.can_allocate(missing + self._promised_blocks(), held_back=hits):
            return False
        self.waiting.take()
        sequence.move(State.FETCHING)
        sequence.to_fetch = False
        self._adopt(sequence, hits)
        sequence.extend(self.kv.allocate(missing))
        self.fetching[sequence.id] = sequence
        self._fetches.append(Fetch(sequence.id, missing, held, sequence.content))
        self._count_look_up(sequence, held * size, length - held * size)
        return True

    def _promised_blocks(self) -> int:
        """Blocks that prefills in the batch need before their first token."""
        size = self._config.block_size
        return sum(
            blocks_for(sequence.length, size) - len(sequence.blocks)
            for sequence in self.running
            if sequence.length - sequence.computed > 1
        )

    def _tell(self, sequence: Sequence) -> None:
        """Its KV will not be fetched: the prefill engine that keeps it should know."""
        if sequence.to_fetch:
            sequence.to_fetch = False
            self._fetches.append(Fetch(sequence.id, 0, 0, sequence.content))

    # --- both ---------------------------------------------------------------------------------------

    def _advance(self, scheduled: list[tuple[Sequence, int]], load: StepLoad) -> None:
        """Count tokens as computed and register the blocks they fill: at scheduling, as vLLM does."""
        sequences = kv_tokens = 0
        for sequence, new in scheduled:
            before = sequence.computed
            sequence.computed = computed = before + new
            if new == 1 and before >= sequence.prompt_tokens:
                sequences += 1
                kv_tokens += computed
            else:
                load.add_prefill(new, before)
            if computed >= sequence.fills_at:
                self.store(sequence)
        load.decode_sequences += sequences
        load.decode_kv_tokens += kv_tokens

    def store(self, sequence: Sequence) -> None:
        """Register the blocks that it has filled."""
        size = self._config.block_size
        full = sequence.computed // size
        if self._config.enable_prefix_caching:
            sequence.chain.hash_full_blocks()
            self.kv.store(sequence.chain, sequence.blocks, sequence.stored, full)
            if sequence.timing.garbled:
                self.kv.spoil(sequence.blocks[sequence.stored : full])
        sequence.stored = full
        sequence.fills_at = (full + 1) * size

    def _free(self, sequence: Sequence) -> None:
        self.kv.free(sequence.blocks)
        sequence.hold([], stored=0)
