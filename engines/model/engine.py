"""One LLM engine: jobs in, steps that last, outputs out.

Separate from the scheduler so that what a step decides and what it yields stay apart. A step is split in
`begin_step` and `end_step`: in between the driver lets `step.duration_s` pass, in real or virtual time, and
may add and abort jobs.
"""

from __future__ import annotations

from collections.abc import Collection, KeysView
from collections.abc import Sequence as Iterated
from typing import NoReturn

from engines.model.block_hash import BlockHash
from engines.model.handover import Fetch, Kept, KeptBlocks
from engines.model.job import (
    Counters,
    EngineBusy,
    EngineConfig,
    EngineFault,
    EngineRejects,
    FinishReason,
    Job,
    Output,
    Timing,
)
from engines.model.kv_cache import KvEvent
from engines.model.refusals import check
from engines.model.roofline import StepClock, StepLoad
from engines.model.scheduler import Scheduler
from engines.model.sequence import Sequence, State
from engines.model.span import Span, advance, plan_span
from engines.model.step import Step
from engines.model.text import EOS_TOKEN

__all__ = [
    "Counters", "Engine", "EngineBusy", "EngineConfig", "EngineFault", "EngineRejects", "Fetch",
    "FinishReason", "Job", "Kept", "Output", "Step", "Timing",
]  # fmt: skip

_DUMMY = StepLoad(decode_sequences=1, decode_kv_tokens=1)


class Engine:
    """A continuous batcher over a prefix-caching KV cache, with vLLM V1's rules.

    Args:
        clock: says how long a step lasts: a `Roofline` or `StepTimes`.

    Attributes:
        kept: blocks of finished prefills that a decode engine may still read. Whoever drives the engine ends
            their leases; freed blocks may let a job begin.
    """

    def __init__(self, config: EngineConfig, clock: StepClock) -> None:
        self.config = config
        self.counters = Counters()
        self._clock = clock
        self._scheduler = Scheduler(config, self.counters)
        self.kept = KeptBlocks(self._scheduler.kv, config.kv_lease_s)
        self._jobs: dict[str, Sequence] = {}
        self._order = 0
        self._open: Step | None = None

    # --- the state, as metrics show it ----------------------------------------------------------------

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for room or for their KV, preempted ones included."""
        scheduler = self._scheduler
        return len(scheduler.waiting) + len(scheduler.fetching) + len(scheduler.fetched)

    @property
    def waiting_by_reason(self) -> dict[str, int]:
        """`waiting` split by vLLM's labels: for want of room, or deferred: `max_loras`, KV on its way."""
        in_queue = len(self._scheduler.waiting)
        deferred = min(self._scheduler.deferred, in_queue) + self.waiting - in_queue
        return {"capacity": self.waiting - deferred, "deferred": deferred}

    @property
    def kv_fetch_by_stage(self) -> dict[str, int]:
        """Sequences whose KV is with a prefill engine, by vLLM's labels of how far they are."""
        return {
            "waiting_to_start": sum(one.to_fetch for one in self._jobs.values()),
            "in_progress": len(self._scheduler.fetching),
            "completed_waiting": len(self._scheduler.fetched),
        }

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks held by sequences, 0 to 1; 0.0 when idle, whatever is cached."""
        return self._scheduler.kv.usage

    @property
    def running_tokens(self) -> int:
        """Computed tokens of all sequences in the batch: what a decode step reads."""
        return sum(sequence.computed for sequence in self._scheduler.running)

    @property
    def cached_hashes(self) -> KeysView[BlockHash]:
        """Content of the prefix cache, each block once."""
        return self._scheduler.kv.cached_hashes

    @property
    def kv_capacity_tokens(self) -> int:
        """KV tokens that fit."""
        return self._scheduler.kv.capacity_tokens

    @property
    def dummy_step_s(self) -> float:
        """Seconds of the step that keeps others company: a batch of one token, as vLLM's."""
        return self._clock.step_from_totals(_DUMMY)

    @property
    def idle(self) -> bool:
        """Whether no job is here."""
        return not self._jobs

    def drain_kv_events(self) -> list[KvEvent]:
        """KV events since the last call; empty unless `record_kv_events` is set."""
        return self._scheduler.kv.drain_events()

    # --- jobs -----------------------------------------------------------------------------------------

    def add(self, job: Job, now: float) -> None:
        """Queue one job.

        Raises:
            EngineRejects: the job can never run here.
            EngineBusy: a bound of `config` leaves no room for them.
        """
        self.add_all((job,), now)

    def add_all(self, jobs: Collection[Job], now: float) -> None:
        """Queue the jobs of one request (n > 1, several prompts): all of them or none.

        Raises:
            EngineRejects: one of them can never run here.
            EngineBusy: a bound of `config` leaves no room for them.
        """
        seen: set[str] = set()
        for job in jobs:
            if job.id in self._jobs or job.id in seen:
                raise EngineRejects("id", f"a job with id {job.id} is here already")
            seen.add(job.id)
            check(job, self.config.max_model_len)
        self._check_room(len(jobs))
        for job in jobs:
            sequence = Sequence(job, self.config, self._order, now)
            self._order += 1
            self._jobs[job.id] = sequence
            self._scheduler.waiting.add(sequence)

    def abort(self, job_id: str) -> bool:
        """Drop a job at any time, also inside a step. Its blocks are free at once, full ones stay cached.

        Those of a job whose KV is on its way are free when that ends.

        False when there is no such job (any more). No counter of finished jobs moves.
        """
        sequence = self._jobs.pop(job_id, None)
        if sequence is None:
            return False
        self._scheduler.release(sequence)
        return True

    def stop(self, job_id: str, now: float) -> Kept | None:
        """End a job between two outputs, as a stop token does: it may retain its blocks, a dropped one not.

        None when it retains none.
        """
        sequence = self._jobs.pop(job_id)
        return self._leave(sequence, now)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks. False, and nothing done, while any block is held."""
        return self._scheduler.kv.reset()

    # --- KV from a prefill engine -----------------------------------------------------------------------

    def drain_fetches(self) -> list[Fetch]:
        """What is to be fetched, or told, since the last call.

        Ask after each `begin_step` and `abort`; answer each that is to be read with `fetched` or
        `fetch_failed`.
        """
        return self._scheduler.drain_fetches()

    def fetched(self, job_id: str, *, right: bool = True, cached_tokens: int | None = None) -> None:
        """The KV of a job is here; a new step may begin.

        Args:
            right: whether it is the KV of the job's prompt (`Fetch.is_right`). If not, the answer is garbled,
                and so is every later one over the blocks that stay in the cache.
            cached_tokens: as the prefill engine counted them, where that is told with the KV; reported in
                place of ours.

        Raises:
            EngineFault: nothing was on its way for such a job.
        """
        if not self._was_orphan(job_id):
            sequence = self._fetching(job_id)
            if cached_tokens is not None:
                sequence.timing.remote_cached_tokens = cached_tokens
            self._scheduler.arrived(sequence, right=right)

    def fetch_failed(self, job_id: str) -> bool:
        """The KV of a job will not come; a new step may begin.

        Returns:
            Whether the job is lost. If not, it computes its prompt itself, or its client had left before.

        Raises:
            EngineFault: nothing was on its way for such a job.
        """
        if self._was_orphan(job_id):
            return False
        sequence = self._fetching(job_id)
        self._scheduler.not_arrived(sequence)
        if self.config.recompute_failed_loads:
            return False
        return self.abort(job_id)

    def _was_orphan(self, job_id: str) -> bool:
        """Free the blocks of a dropped job, now that nothing is written to them any more."""
        blocks = self._scheduler.orphans.pop(job_id, None)
        if blocks is not None:
            self._scheduler.kv.free(blocks)
        return blocks is not None

    def _fetching(self, job_id: str) -> Sequence:
        sequence = self._scheduler.fetching.get(job_id)
        if sequence is None:
            raise EngineFault(f"no KV is on its way for a job {job_id}")
        return sequence

    # --- steps ----------------------------------------------------------------------------------------

    def begin_step(self, now: float) -> Step | None:
        """Decide what the next step computes and how long it lasts; None when no job is here, or none can run
        before KV arrives or is released.

        Raises:
            EngineFault: the step before has not ended.
        """
        if self._open is not None:
            raise EngineFault("the step before has not ended")
        if not self._jobs:
            return None
        plan = self._scheduler.plan(now)
        if not plan.scheduled and plan.preempted:
            # The last running sequences gave their blocks away, so those that wait for a place get it now.
            plan = self._scheduler.plan(now)
        if not plan.scheduled:
            if not (self._scheduler.fetching or self._scheduler.orphans or self.kept):
                raise EngineFault(f"jobs are here and none can run: {self!r}")
            return None
        self._open = Step(
            duration_s=self._clock.step_from_totals(plan.load),
            load=plan.load,
            scheduled=plan.scheduled,
            preempted=tuple(sequence.id for sequence in plan.preempted),
        )
        return self._open

    def end_step(self, step: Step, now: float, *, news: bool = False) -> list[Output]:
        """Sample one token for each sequence that caught up with its length. Aborted ones yield nothing.

        Args:
            news: only the first and the last output of each job are wanted, for drivers of many engines.

        Raises:
            EngineFault: `step` is not the open step.
        """
        if step is not self._open:
            raise EngineFault("this step is not the open one")
        self._open = None
        self.counters.steps += 1
        # One that was aborted since holds no block, so nothing of it is computed and it is passed over.
        sampled = [sequence for sequence, _ in step.scheduled if sequence.computed == sequence.length]
        if news:
            sampled = self._news(sampled, now)
        return [self._sample(sequence, now) for sequence in sampled]

    def _news(self, sampled: list[Sequence], now: float) -> list[Sequence]:
        """Those whose token is the first or the last; that of others is written, without an output."""
        news = []
        for sequence in sampled:
            timing = sequence.timing
            index = timing.generation_tokens
            if timing.last_token is None or index >= sequence.last_index:
                news.append(sequence)
                continue
            sequence.grow(1)
            timing.last_token, timing.generation_tokens = now, index + 1
        self.counters.generation_tokens += len(sampled) - len(news)
        return news

    def begin_span(self, most: int) -> Span | None:
        """Decode steps in a row that may pass without a look at each; None when the next step is one of its
        own, for `begin_step`. Nothing is decided yet: jobs may come and go until `end_span`, which says how
        many steps there were."""
        if self._open is not None:
            raise EngineFault("the step before has not ended")
        return plan_span(self._scheduler, most)

    def end_span(self, span: Span, ends: Iterated[float]) -> list[Output]:
        """Compute the first steps of a span, which ended at these times; the outputs are the last ones of
        jobs that ended with it, and no others.

        Raises:
            EngineFault: a job of the span was aborted since, or there are more steps than it has.
        """
        steps = len(ends)
        if not 1 <= steps <= span.steps:
            raise EngineFault(f"{steps} steps of a span of {span.steps}")
        for sequence in span.sequences:
            if sequence.state is not State.RUNNING:
                raise EngineFault("a job left in the middle of a span")
        ending = advance(self._scheduler, span, ends)
        self.counters.steps += steps
        self.counters.generation_tokens += steps * len(span.sequences) - len(ending)
        return [self._sample(sequence, ends[-1]) for sequence in ending]

    def _sample(self, sequence: Sequence, now: float) -> Output:
        timing = sequence.timing
        before = timing.last_token
        timing.last_token = now
        since = None
        if before is not None:
            since = now - before
        else:
            self._count_prompt(sequence, now)
        if sequence.job.pooling:
            return self._finish(sequence, Output(sequence.id, (), sequence.last_reason, since, timing), now)
        index = timing.generation_tokens
        timing.generation_tokens = index + 1
        self.counters.generation_tokens += 1
        if index < sequence.last_index:
            token = sequence.token(index)
            sequence.append(token)
            return Output(sequence.id, (token,), None, since, timing)
        token = EOS_TOKEN if sequence.last_reason == "stop" else sequence.token(index)
        return self._finish(sequence, Output(sequence.id, (token,), sequence.last_reason, since, timing), now)

    def _count_prompt(self, sequence: Sequence, now: float) -> None:
        sequence.timing.first_token = now
        self.counters.prompt_tokens += sequence.prompt_tokens
        timing = sequence.timing
        self.counters.prompt_tokens_cached += timing.cached_tokens + timing.external_tokens
        self.counters.prompt_tokens_external += timing.external_tokens

    def _finish(self, sequence: Sequence, output: Output, now: float) -> Output:
        del self._jobs[sequence.id]
        output.kept = self._leave(sequence, now)
        self.counters.finished[sequence.last_reason] += 1
        return output

    def _leave(self, sequence: Sequence, now: float) -> Kept | None:
        """Release a sequence that has come to its end, or put its blocks under a lease."""
        if not sequence.job.retain:
            self._scheduler.release(sequence)
            return None
        computed = sequence.computed
        blocks = self._scheduler.take_out(sequence)
        self.kept.keep(sequence.id, blocks, sequence.content, now)
        return Kept(tuple(blocks), computed)

    # --- refusals -------------------------------------------------------------------------------------

    def _check_room(self, sequences: int) -> None:
        """A request may not go over a bound; that of tokens only holds once it is reached, as in vLLM."""
        reqs, waiting = self.config.max_num_queued_reqs, self.config.max_num_waiting
        tokens = self.config.max_num_queued_tokens
        if reqs is not None and len(self._jobs) + sequences > reqs:
            self._refuse("max_num_queued_reqs", f"{len(self._jobs)} sequences are here of {reqs}")
        if waiting is not None and self.waiting + sequences > waiting:
            self._refuse("max_num_waiting", f"{self.waiting} sequences wait of {waiting}")
        if tokens is not None and self._prefill_tokens() >= tokens:
            self._refuse("max_num_queued_tokens", f"{self._prefill_tokens()} tokens wait of {tokens}")

    def _prefill_tokens(self) -> int:
        """Prompt tokens of sequences that have no output yet, however much of them is computed."""
        return sum(one.prompt_tokens for one in self._jobs.values() if one.length == one.prompt_tokens)

    def _refuse(self, reason: str, message: str) -> NoReturn:
        self.counters.rejected[reason] += 1
        raise EngineBusy(reason, message)

    def __repr__(self) -> str:
        step = "idle" if self.idle else "in a step" if self._open else "between steps"
        return (
            f"<Engine {step} | {self.running} running, {self.waiting} waiting "
            f"| {self._scheduler.kv!r} | {self._clock!r}>"
        )
