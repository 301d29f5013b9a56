"""One data-parallel rank in one life of its process: the jobs it holds, what it counted, whom it answers.

Separate from the incarnation, whose ranks step together: here is what they have apart, and most engines have
one rank only. A crash takes away exactly what is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.mock.account import Account
from engines.mock.ask import Ask, HandOver, Piece
from engines.mock.connector import Mount
from engines.mock.connectors import connector_of
from engines.mock.errors import Refusal, bad_request, load_failed, queue_full, transfer_failed
from engines.mock.faults import FaultTable
from engines.mock.fields import Json
from engines.mock.generation import Generation
from engines.mock.hardware import Hardware
from engines.mock.kv_events import KvPublisher
from engines.mock.peers import Address, PeerLink
from engines.mock.sequence import OutputSequence
from engines.mock.settings import MockSettings
from engines.model.engine import Engine, EngineBusy, EngineRejects, Job, Output


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a process lends to its ranks.

    Attributes:
        hardware: size and speed of each rank.
        draw_id: makes the random part of job ids (number of hex digits).
        unix_now: the date (Unix seconds).
        peers: the way to other engines.
        engine_id: of a rank of the present incarnation.
        address: where others reach it, once it listens.
        faults: those that strike hand-overs.
        died: called when an engine raised.
    """

    settings: MockSettings
    hardware: Hardware
    draw_id: Callable[[int], str]
    unix_now: Callable[[], float]
    peers: PeerLink
    engine_id: Callable[[int], str]
    address: Callable[[], Address]
    faults: FaultTable
    died: Callable[[], None]


class Rank:
    """An engine with its account and the requests that wait for its outputs.

    Args:
        host: its process.
        account: what it counts; SGLang keeps one for all ranks.
        publisher: of its KV events; None publishes none.
        wake: lets a step begin soon.

    Attributes:
        index: its data-parallel rank.
    """

    def __init__(
        self,
        host: Host,
        index: int,
        account: Account,
        publisher: KvPublisher | None,
        wake: Callable[[], None],
    ) -> None:
        self.index = index
        self.engine = Engine(host.hardware.config, host.hardware.clock)
        self.account = account
        mount = Mount(
            settings=host.settings,
            hardware=host.hardware,
            engine=self.engine,
            engine_id=lambda: self.engine_id,
            address=host.address,
            peers=host.peers,
            faults=host.faults,
            wake=wake,
            lost=lambda job_id: self._end_job(job_id, load_failed()),
            admit=self._admit,
            handed=self._handed,
            failed=lambda job_id, message: self._end_job(job_id, transfer_failed(message)),
            died=host.died,
        )
        self.connector = connector_of(mount)
        self._host = host
        self._publisher = publisher
        self._wake = wake
        self._live: dict[str, tuple[Generation, OutputSequence]] = {}
        self._held: dict[str, Job] = {}
        self._unanswered: dict[str, tuple[Piece, Output]] = {}

    def __repr__(self) -> str:
        return f"<Rank {self.index} {self.in_progress} requests, {self.engine!r}>"

    @property
    def engine_id(self) -> str:
        """Its name among engines that hand KV over."""
        return self._host.engine_id(self.index)

    @property
    def in_flight(self) -> int:
        """Answers that have not ended."""
        return len(self._live)

    @property
    def in_progress(self) -> int:
        """Requests that the engine works on or holds in its queue."""
        return len({id(generation) for generation, _ in self._live.values()})

    def state(self) -> Json:
        """What a test may want to see."""
        engine = self.engine
        return {
            "running": engine.running,
            "waiting": engine.waiting,
            "kv_usage": engine.kv_usage,
            "prompt_tokens": engine.counters.prompt_tokens,
            "prompt_tokens_cached": engine.counters.prompt_tokens_cached,
            "generation_tokens": engine.counters.generation_tokens,
        }

    # --- requests -------------------------------------------------------------------------------------

    def submit(self, ask: Ask, arrival: float, now: float, *, pooling: bool) -> Generation:
        """Queue a request.

        Raises:
            Refusal: 503 when the queue is full, 400 for what can never run.
        """
        sequences = []
        jobs = []
        suffixes = [self._host.draw_id(8) for _ in ask.prompts]
        for index in range(len(ask.prompts) * ask.n):
            job = self._job(ask, index, suffixes, arrival, pooling=pooling)
            jobs.append(job)
            sequences.append(OutputSequence(index, job.id, ask.sampling))
        hand_over = ask.hand_over or _NO_HAND_OVER
        held = {job.id: job for index, job in enumerate(jobs) if hand_over.of(index).meets}
        self._add([job for job in jobs if job.id not in held], now)
        self._held |= held
        generation = Generation(ask, sequences, self._abandon, self.index)
        for sequence in sequences:
            self._live[sequence.job_id] = (generation, sequence)
        if self.connector is not None and ask.hand_over is not None:
            for sequence in sequences:
                if sequence.job_id in self._live:
                    self.connector.queued(sequence.job_id, ask.hand_over.of(sequence.index))
        self._wake()
        return generation

    def _add(self, jobs: Sequence[Job], now: float) -> None:
        """Put jobs into the engine's queue.

        Raises:
            Refusal: 503 when the queue is full, 400 for what can never run.
        """
        try:
            self.engine.add_all(jobs, now)
        except EngineBusy:
            raise queue_full() from None
        except EngineRejects as refused:
            raise bad_request(f"{refused}.", refused.param) from None

    def _job(self, ask: Ask, index: int, suffixes: Sequence[str], arrival: float, *, pooling: bool) -> Job:
        sampling = ask.sampling
        prompt, child = divmod(index, ask.n)
        script = sampling.script
        hand_over = (ask.hand_over or _NO_HAND_OVER).of(index)
        return Job(
            id=_job_id(ask, prompt, child, suffixes[prompt]),
            prompt_token_ids=ask.prompts[prompt],
            max_tokens=sampling.max_tokens if script is None else min(sampling.max_tokens, len(script)),
            min_tokens=sampling.min_tokens if script is None else 0,
            ignore_eos=sampling.ignore_eos or script is not None,
            seed=self._host.settings.seed if sampling.seed is None else sampling.seed,
            sequence=child,
            priority=ask.priority,
            cache_salt=ask.cache_salt,
            pooling=pooling,
            skip_cache=ask.prompt_logprobs is not None,
            retain=hand_over.retain,
            fetch=hand_over.handle is not None,
            remote_cached_tokens=hand_over.remote_cached_tokens,
            arrival=arrival,
        )

    def _abandon(self, generation: Generation) -> None:
        """The client left: the engine forgets its jobs at once."""
        self._drop(generation)
        self.account.aborted += 1

    def _drop(self, generation: Generation) -> None:
        """Take the jobs of a request that is over out of the engine."""
        for sequence in generation.sequences:
            if self._live.pop(sequence.job_id, None) is not None:
                self._abort(sequence.job_id)

    def _abort(self, job_id: str) -> None:
        """Take a job out, and let the connector know: before, during or after its fetch."""
        self._held.pop(job_id, None)
        self._unanswered.pop(job_id, None)
        self.engine.abort(job_id)
        self.start_fetches()
        if self.connector is not None:
            self.connector.ended(job_id)

    # --- KV from and for other engines ------------------------------------------------------------------

    def start_fetches(self) -> None:
        """Hand what the engine wants of other engines to the connector."""
        if self.connector is not None:
            for fetch in self.engine.drain_fetches():
                self.connector.start(fetch)

    def _end_job(self, job_id: str, failure: Refusal) -> None:
        """End the request of a job with an error, and with it its other answers. The job is out, or goes."""
        generation, _ = self._live.pop(job_id)
        self._abort(job_id)
        self.account.finished["error"] += 1
        generation.fail(failure)
        self._drop(generation)

    def _admit(self, job_id: str) -> None:
        """A decode engine waits for the KV of a job that was held until then."""
        try:
            self._add((self._held.pop(job_id),), asyncio.get_running_loop().time())
        except Refusal as refusal:
            self._end_job(job_id, refusal)
        self._wake()

    def _handed(self, job_id: str) -> None:
        """The KV of a prefill was taken: now it is answered."""
        generation, sequence = self._live[job_id]
        piece, output = self._unanswered.pop(job_id)
        generation.deliver(piece)
        self._job_ended(generation, sequence, output, asyncio.get_running_loop().time())
        generation.wake()

    # --- steps ----------------------------------------------------------------------------------------

    def step_ended(self, outputs: Sequence[Output], now: float) -> None:
        """Publish what the step did to the KV cache, count its outputs and hand them out."""
        if self._publisher is not None:
            self._publisher.publish(self.engine.drain_kv_events(), self._host.unix_now())
        if outputs:
            self._hand_out(outputs, now)

    def _hand_out(self, outputs: Sequence[Output], now: float) -> None:
        iteration = 0
        touched: dict[int, Generation] = {}
        for output in outputs:
            iteration += self.account.output(output, now)
            generation, sequence = self._live[output.job_id]
            if output.timing.garbled:
                sequence.garble()
            piece = sequence.feed(output.token_ids, output.finish_reason)
            if output.since_last_s is None and sequence.index % generation.ask.n == 0:
                block_size = self.engine.config.block_size
                generation.cached_tokens += output.timing.reported_cached_tokens
                generation.created_cache_tokens += output.timing.created_cache_tokens(block_size)
            if self._answers_later(generation, piece, output):
                continue
            generation.deliver(piece)
            touched[id(generation)] = generation
            if sequence.finish_reason is not None:
                self._job_ended(generation, sequence, output, now)
        if iteration:
            self.account.iteration_tokens.observe(iteration)
        for generation in touched.values():
            generation.wake()

    def _answers_later(self, generation: Generation, piece: Piece, output: Output) -> bool:
        """Whether a prefill that ended is answered when its KV was taken, and not now."""
        hand_over = (generation.ask.hand_over or _NO_HAND_OVER).of(piece.index)
        if self.connector is None or not hand_over.meets or output.kept is None:
            return False
        kept, output.kept = output.kept, None
        self._unanswered[output.job_id] = piece, output
        self.connector.handle(output.job_id, kept, output.timing)
        return True

    def _job_ended(
        self, generation: Generation, sequence: OutputSequence, output: Output, now: float
    ) -> None:
        del self._live[sequence.job_id]
        kept = output.kept
        if output.finish_reason is None:
            # The text side saw the end. A stop token is the engine's own business, a stop string is not.
            if isinstance(sequence.stop_reason, int):
                kept = self.engine.stop(sequence.job_id, now)
            else:
                self.engine.abort(sequence.job_id)
        reason = sequence.finish_reason or "abort"
        hand_over = (generation.ask.hand_over or _NO_HAND_OVER).of(sequence.index)
        if kept is not None and reason == "stop" and not hand_over.retain_stopped:
            self.engine.kept.release(sequence.job_id, now)
            kept = None
        if self.connector is not None:
            if kept is not None:
                handle = self.connector.handle(sequence.job_id, kept, output.timing)
                if sequence.index < generation.ask.n:
                    # As recorded: one handle for all answers, of the first prompt's last one to end.
                    generation.kv_transfer_params = handle
            self.connector.ended(sequence.job_id)
        self.account.finish(output.timing, reason, generation.ask.sampling.max_tokens, now)
        if generation.all_ended:
            longest = max(len(sequence.token_ids) for sequence in generation.sequences)
            self.account.request_done(generation.ask.n, longest)

    # --- ends -----------------------------------------------------------------------------------------

    def abort_all(self, request_id: str | None = None) -> int:
        """End streams with `finish_reason: "abort"`, as vLLM's default SIGTERM does; return how many.

        Args:
            request_id: only this request; None is all of them.
        """
        live = list(self._live.values())
        if request_id is not None:
            live = [entry for entry in live if entry[0].ask.request_id == request_id]
        touched: dict[int, Generation] = {}
        for generation, sequence in live:
            del self._live[sequence.job_id]
            self._abort(sequence.job_id)
            generation.deliver(sequence.close("abort"))
            touched[id(generation)] = generation
        for generation in touched.values():
            generation.wake()
        return len(touched)

    def fall_silent(self) -> None:
        """Open streams get no further byte and no end, as vLLM was also seen to do on SIGTERM."""
        for generation, _ in self._live.values():
            generation.silent = True

    def end(self, failure: Exception) -> None:
        """Stop for good; whoever still waits gets the failure."""
        self.close()
        live, self._live = self._live, {}
        for generation in {id(generation): generation for generation, _ in live.values()}.values():
            generation.fail(failure)

    def close(self) -> None:
        """Leave no timer and no task."""
        if self.connector is not None:
            self.connector.close()


_NO_HAND_OVER = HandOver()


def _job_id(ask: Ask, prompt: int, child: int, suffix: str) -> str:
    """The engine's name for one answer, as vLLM composes it.

    Completions number their prompts, and the answers of one prompt share its random suffix.
    """
    name = ask.request_id
    if name.startswith("cmpl-") or len(ask.prompts) > 1:
        name = f"{name}-{prompt}"
    name = f"{name}-{suffix}"
    return f"{child}_{name}" if ask.n > 1 else name
