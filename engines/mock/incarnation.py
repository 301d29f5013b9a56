"""One life of an engine: the jobs it holds, what it counted, and the clock that steps it.

Separate from the process, which outlives it: a crash takes away exactly what is here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.mock.account import Account
from engines.mock.ask import Ask, HandOver, Piece
from engines.mock.connector import Mount
from engines.mock.connectors import connector_of
from engines.mock.errors import Refusal, bad_request, load_failed, queue_full, transfer_failed
from engines.mock.faults import FaultTable
from engines.mock.generation import Generation
from engines.mock.hardware import Hardware
from engines.mock.peers import Address, PeerLink
from engines.mock.sequence import OutputSequence
from engines.mock.settings import MockSettings
from engines.mock.ticker import Ticker
from engines.model.engine import Engine, EngineBusy, EngineRejects, Job, Output, Step

log = logging.getLogger("pointsman.mock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How an engine reaches other engines and how it is reached.

    Attributes:
        peers: the way to others.
        engine_id: of the present incarnation.
        address: where others reach it, once it listens.
        faults: those that strike hand-overs.
    """

    peers: PeerLink
    engine_id: Callable[[], str]
    address: Callable[[], Address]
    faults: FaultTable


class Incarnation:
    """An engine with its ticker, its account and the requests that wait for its outputs.

    Args:
        hardware: size and speed.
        draw_id: makes the random part of job ids (number of hex digits).
        reach: the way to other engines.
        died: called when the engine raised in a step.
    """

    def __init__(
        self,
        settings: MockSettings,
        hardware: Hardware,
        draw_id: Callable[[int], str],
        reach: Reach,
        died: Callable[[], None],
    ) -> None:
        self.engine = Engine(hardware.config, hardware.clock)
        self.account = Account(hardware.config.max_model_len)
        self.ticker = Ticker(
            self.engine, self._step_ended, self._step_failed, settings.time_scale, self._start_fetches
        )
        mount = Mount(
            settings=settings,
            hardware=hardware,
            engine=self.engine,
            engine_id=reach.engine_id,
            address=reach.address,
            peers=reach.peers,
            faults=reach.faults,
            wake=self.ticker.wake,
            lost=lambda job_id: self._end_job(job_id, load_failed()),
            admit=self._admit,
            handed=self._handed,
            failed=lambda job_id, message: self._end_job(job_id, transfer_failed(message)),
            died=died,
        )
        self.connector = connector_of(mount)
        self._settings = settings
        self._draw_id = draw_id
        self._died = died
        self._live: dict[str, tuple[Generation, OutputSequence]] = {}
        self._held: dict[str, Job] = {}
        self._unanswered: dict[str, tuple[Piece, Output]] = {}

    def __repr__(self) -> str:
        return f"<Incarnation {self.in_progress} requests, {self.ticker!r}, {self.engine!r}>"

    @property
    def in_progress(self) -> int:
        """Requests that the engine works on or holds in its queue."""
        return len({id(generation) for generation, _ in self._live.values()})

    # --- requests -------------------------------------------------------------------------------------

    def submit(self, ask: Ask, arrival: float, now: float, *, pooling: bool) -> Generation:
        """Queue a request.

        Raises:
            Refusal: 503 when the queue is full, 400 for what can never run.
        """
        sequences = []
        jobs = []
        suffixes = [self._draw_id(8) for _ in ask.prompts]
        for index in range(len(ask.prompts) * ask.n):
            job = self._job(ask, index, suffixes, arrival, pooling=pooling)
            jobs.append(job)
            sequences.append(OutputSequence(index, job.id, ask.sampling))
        hand_over = ask.hand_over or _NO_HAND_OVER
        held = {job.id: job for index, job in enumerate(jobs) if hand_over.of(index).meets}
        self._add([job for job in jobs if job.id not in held], now)
        self._held |= held
        generation = Generation(ask, sequences, self._abandon)
        for sequence in sequences:
            self._live[sequence.job_id] = (generation, sequence)
        if self.connector is not None and ask.hand_over is not None:
            for sequence in sequences:
                if sequence.job_id in self._live:
                    self.connector.queued(sequence.job_id, ask.hand_over.of(sequence.index))
        self.ticker.wake()
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
            seed=self._settings.seed if sampling.seed is None else sampling.seed,
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
        self._start_fetches()
        if self.connector is not None:
            self.connector.ended(job_id)

    # --- KV from and for other engines ------------------------------------------------------------------

    def _start_fetches(self) -> None:
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
        self.ticker.wake()

    def _handed(self, job_id: str) -> None:
        """The KV of a prefill was taken: now it is answered."""
        generation, sequence = self._live[job_id]
        piece, output = self._unanswered.pop(job_id)
        generation.deliver(piece)
        self._job_ended(generation, sequence, output, asyncio.get_running_loop().time())
        generation.wake()

    # --- steps ----------------------------------------------------------------------------------------

    def _step_ended(self, outputs: Sequence[Output], step: Step, now: float) -> None:
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

    def _step_failed(self, failure: Exception) -> None:
        log.error("the engine of %s died in a step", self._settings.name, exc_info=failure)
        self._died()

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
        self.ticker.stop()

    def end(self, failure: Exception) -> None:
        """Stop for good; whoever still waits gets the failure."""
        self.close()
        live, self._live = self._live, {}
        for generation in {id(generation): generation for generation, _ in live.values()}.values():
            generation.fail(failure)

    def close(self) -> None:
        """Take no further step and leave no timer and no task."""
        self.ticker.stop()
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
