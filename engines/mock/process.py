"""One engine process: an engine, its clock, its account, and what outlives a crash of it.

Separate from the HTTP side so that the life of a process (start, die, come back as a new incarnation)
can be read in one place, and from `engines.model`, which knows neither clients nor crashes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

from engines.mock.account import Account
from engines.mock.ask import Ask
from engines.mock.errors import Refusal, bad_request, draining, engine_dead, queue_full
from engines.mock.faults import Fault
from engines.mock.generation import Generation
from engines.mock.hardware import Hardware
from engines.mock.sequence import OutputSequence
from engines.mock.settings import MockSettings
from engines.mock.ticker import Ticker
from engines.model.engine import Engine, EngineBusy, EngineRejects, Job, Output, Step

log = logging.getLogger("pointsman.mock")


class Listener(Protocol):
    """Where an engine process is reached; a server gives one, an in-memory run may have none."""

    def close(self) -> None:
        """Refuse new connections."""

    def reopen(self) -> None:
        """Accept new connections again."""

    def reset_connections(self) -> None:
        """End every open connection the hard way."""

    def end_connections(self) -> None:
        """Close idle connections now and the others when their answer is complete."""

    @property
    def connections(self) -> int:
        """Open connections, idle ones too."""


class EngineProcess:
    """The server side of one worker URL.

    Args:
        settings: what the engine is.
        instance: tells engines with the same settings apart, so that their ids differ.
        unix_origin_s: wall-clock time at which the loop's clock is first read; all later wall times are
            computed from the loop's clock, so a virtual loop has virtual dates.
    """

    def __init__(self, settings: MockSettings, unix_origin_s: float, instance: str = "") -> None:
        self.settings = settings
        self.instance = instance
        self.hardware = Hardware.of(settings)
        self.listener: Listener | None = None
        self.incarnation = 1
        self.up = True
        self.draining = False
        self._unix_origin_s = unix_origin_s
        self._loop_origin_s: float | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._drawn = 0
        self._live: dict[str, tuple[Generation, OutputSequence]] = {}
        self.started_unix_s = unix_origin_s
        self._boot()

    def __repr__(self) -> str:
        state = "up" if self.up else "down"
        return f"<EngineProcess {self.settings.name} #{self.incarnation} {state} {self.engine!r}>"

    def _boot(self) -> None:
        self.engine = Engine(self.hardware.config, self.hardware.clock)
        self.account = Account(self.hardware.config.max_model_len)
        self.ticker = Ticker(self.engine, self._step_ended, self._step_failed, self.settings.time_scale)

    # --- time and names -------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the loop's clock (s, monotonic)."""
        return asyncio.get_running_loop().time()

    def unix_now(self) -> float:
        """Return the date that belongs to the loop's clock (Unix seconds)."""
        now = self.now()
        if self._loop_origin_s is None:
            self._loop_origin_s = now
        return self._unix_origin_s + now - self._loop_origin_s

    def draw_id(self, hex_digits: int = 16) -> str:
        """Return an id that repeats from run to run but not within one."""
        self._drawn += 1
        seed = f"{self.instance}/{self.settings.seed}/{self.settings.name}/{self.incarnation}/{self._drawn}"
        return blake2b(seed.encode(), digest_size=16).hexdigest()[:hex_digits]

    @property
    def fingerprint(self) -> str:
        """The `system_fingerprint` of answers: version and a hash of the configuration."""
        return self.hardware.fingerprint

    @property
    def in_progress(self) -> int:
        """Requests that the engine works on or holds in its queue."""
        return len({id(generation) for generation, _ in self._live.values()})

    # --- requests -------------------------------------------------------------------------------------

    def submit(self, ask: Ask, arrival: float, *, pooling: bool = False) -> Generation:
        """Queue a request.

        Raises:
            Refusal: 503 when the queue is full, 400 for what can never run, 500 when the engine is dead.
        """
        if not self.up:
            raise engine_dead()
        if self.draining:
            raise draining()
        sequences = []
        jobs = []
        for index in range(len(ask.prompts) * ask.n):
            job = self._job(ask, index, arrival, pooling=pooling)
            jobs.append(job)
            sequences.append(OutputSequence(index, job.id, ask.sampling))
        try:
            self.engine.add_all(jobs, self.now())
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
        suffix = self.draw_id(8)
        name = ask.request_id if len(ask.prompts) == 1 else f"{ask.request_id}-{prompt}"
        script = sampling.script
        return Job(
            id=f"{child}_{name}-{suffix}" if ask.n > 1 else f"{name}-{suffix}",
            prompt_token_ids=ask.prompts[prompt],
            max_tokens=sampling.max_tokens if script is None else min(sampling.max_tokens, len(script)),
            min_tokens=sampling.min_tokens if script is None else 0,
            ignore_eos=sampling.ignore_eos or script is not None,
            seed=self.settings.seed if sampling.seed is None else sampling.seed,
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
        log.error("the engine of %s died in a step", self.settings.name, exc_info=failure)
        self.die(engine_dead(), reset=False)

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

    def terminate(self, how: str, back_after_s: float | None) -> None:
        """Do what SIGTERM without a grace time does to clients: `abort` or `silence`; then refuse.

        Args:
            back_after_s: after how long a new incarnation comes up (wall seconds); None is never.
        """
        self.up = False
        if self.listener is not None:
            self.listener.close()
            self.listener.end_connections()
        if how == "abort":
            self.abort_all()
        else:
            self.fall_silent()
        if back_after_s is not None:
            self._later(back_after_s, self.restart)

    def fall_silent(self) -> None:
        """Open streams get no further byte and no end, as vLLM was also seen to do on SIGTERM."""
        for generation, _ in self._live.values():
            generation.silent = True
        self.ticker.stop()

    def die(self, failure: Refusal | None, *, reset: bool, back_after_s: float | None = None) -> None:
        """Lose all state and go down; come back as a new incarnation after the restart delay.

        Args:
            failure: what open requests are answered with; None says nothing to them.
            reset: also end every connection the hard way.
            back_after_s: how long it stays down (wall seconds); None takes the settings' delay.
        """
        if not self.up:
            return
        self.up = False
        self.ticker.stop()
        self._drop_live(failure or ConnectionResetError("the engine process crashed"))
        if self.listener is not None:
            self.listener.close()
            if reset:
                self.listener.reset_connections()
            else:
                self.listener.end_connections()
        delay = self.settings.restart_delay_s if back_after_s is None else back_after_s
        self._later(delay, self.restart)

    def engine_death(self, back_after_s: float | None = None) -> None:
        """Die as a process does whose engine core was killed: open requests get an error, then the end."""
        self.die(engine_dead(), reset=False, back_after_s=back_after_s)

    def refuse(self, for_s: float | None) -> None:
        """Close the listener for a time, or until healed; open connections stay."""
        if self.listener is not None:
            self.listener.close()
            if for_s is not None:
                self._later(for_s, self._reopen)

    def slow(self, factor: float, for_s: float | None) -> None:
        """Make steps last longer for a time, or until healed."""
        self.ticker.slowness = factor
        if for_s is not None:
            self._later(for_s, self._full_speed)

    def heal(self) -> None:
        """End what `refuse` and `slow` did, and bring back a process that is down."""
        self._full_speed()
        if self.up:
            self._reopen()
        else:
            self.restart()

    def crash(self, fault: Fault) -> None:
        """Die as a killed process does: connections are reset, nothing is said."""
        self.die(None, reset=True, back_after_s=fault.delay_s)

    def restart(self) -> None:
        """Start anew: empty cache, zero counters, a later start time."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self.ticker.stop()
        self._drop_live(ConnectionResetError("the engine process was replaced"))
        self.incarnation += 1
        self.started_unix_s = self.unix_now()
        self._boot()
        self.up = True
        if self.listener is not None:
            self.listener.reopen()

    def close(self) -> None:
        """Stop for good: no timer of this process stays on the loop."""
        self.ticker.stop()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _drop_live(self, failure: Exception) -> None:
        live, self._live = self._live, {}
        for generation in {id(generation): generation for generation, _ in live.values()}.values():
            generation.fail(failure)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._timers = [timer for timer in self._timers if timer.when() > loop.time()]
        self._timers.append(loop.call_later(delay_s, action))

    def _reopen(self) -> None:
        if self.up and self.listener is not None:
            self.listener.reopen()

    def _full_speed(self) -> None:
        self.ticker.slowness = 1.0
