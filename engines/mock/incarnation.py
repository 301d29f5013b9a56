"""One life of an engine: the jobs it holds, what it counted, and the clock that steps it.

Separate from the process, which outlives it: a crash takes away exactly what is here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from engines.mock.account import Account
from engines.mock.ask import Ask
from engines.mock.errors import bad_request, queue_full
from engines.mock.generation import Generation
from engines.mock.hardware import Hardware
from engines.mock.sequence import OutputSequence
from engines.mock.settings import MockSettings
from engines.mock.ticker import Ticker
from engines.model.engine import Engine, EngineBusy, EngineRejects, Job, Output, Step

log = logging.getLogger("pointsman.mock")


class Incarnation:
    """An engine with its ticker, its account and the requests that wait for its outputs.

    Args:
        hardware: size and speed.
        draw_id: makes the random part of job ids (number of hex digits).
        died: called when the engine raised in a step.
    """

    def __init__(
        self,
        settings: MockSettings,
        hardware: Hardware,
        draw_id: Callable[[int], str],
        died: Callable[[], None],
    ) -> None:
        self.engine = Engine(hardware.config, hardware.clock)
        self.account = Account(hardware.config.max_model_len)
        self.ticker = Ticker(self.engine, self._step_ended, self._step_failed, settings.time_scale)
        self._settings = settings
        self._draw_id = draw_id
        self._died = died
        self._live: dict[str, tuple[Generation, OutputSequence]] = {}

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
        for index in range(len(ask.prompts) * ask.n):
            job = self._job(ask, index, arrival, pooling=pooling)
            jobs.append(job)
            sequences.append(OutputSequence(index, job.id, ask.sampling))
        try:
            self.engine.add_all(jobs, now)
        except EngineBusy:
            raise queue_full() from None
        except EngineRejects as refused:
            raise bad_request(f"{refused}.", refused.param) from None
        generation = Generation(ask, sequences, self._abandon)
        for sequence in sequences:
            self._live[sequence.job_id] = (generation, sequence)
        self.ticker.wake()
        return generation

    def _job(self, ask: Ask, index: int, arrival: float, *, pooling: bool) -> Job:
        sampling = ask.sampling
        prompt, child = divmod(index, ask.n)
        suffix = self._draw_id(8)
        name = ask.request_id if len(ask.prompts) == 1 else f"{ask.request_id}-{prompt}"
        script = sampling.script
        return Job(
            id=f"{child}_{name}-{suffix}" if ask.n > 1 else f"{name}-{suffix}",
            prompt_token_ids=ask.prompts[prompt],
            max_tokens=sampling.max_tokens if script is None else min(sampling.max_tokens, len(script)),
            min_tokens=sampling.min_tokens if script is None else 0,
            ignore_eos=sampling.ignore_eos or script is not None,
            seed=self._settings.seed if sampling.seed is None else sampling.seed,
            sequence=child,
            priority=ask.priority,
            cache_salt=ask.cache_salt,
            pooling=pooling,
            arrival=arrival,
        )

    def _abandon(self, generation: Generation) -> None:
        """The client left: the engine forgets its jobs at once."""
        for sequence in generation.sequences:
            if self._live.pop(sequence.job_id, None) is not None:
                self.engine.abort(sequence.job_id)
        self.account.aborted += 1

    # --- steps ----------------------------------------------------------------------------------------

    def _step_ended(self, outputs: Sequence[Output], step: Step, now: float) -> None:
        iteration = 0
        touched: dict[int, Generation] = {}
        for output in outputs:
            iteration += self.account.output(output, now)
            generation, sequence = self._live[output.job_id]
            piece = sequence.feed(output.token_ids, output.finish_reason)
            generation.deliver(piece)
            touched[id(generation)] = generation
            if output.since_last_s is None and sequence.index % generation.ask.n == 0:
                generation.cached_tokens += output.timing.cached_tokens
            if sequence.finish_reason is not None:
                self._job_ended(generation, sequence, output, now)
        if iteration:
            self.account.iteration_tokens.observe(iteration)
        for generation in touched.values():
            generation.wake()

    def _job_ended(
        self, generation: Generation, sequence: OutputSequence, output: Output, now: float
    ) -> None:
        del self._live[sequence.job_id]
        if output.finish_reason is None:
            # A stop string is seen by the text side, one step before the engine would know.
            self.engine.abort(sequence.job_id)
        reason = sequence.finish_reason or "abort"
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
            self.engine.abort(sequence.job_id)
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
        self.ticker.stop()
        live, self._live = self._live, {}
        for generation in {id(generation): generation for generation, _ in live.values()}.values():
            generation.fail(failure)
