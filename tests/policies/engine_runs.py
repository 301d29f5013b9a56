"""Traffic over model engines in virtual time, placed by a real pool: what the laws about whole runs rest on.

Small on purpose: no sockets, no scrapes, and every token is seen as it is made. The engines step alone, or
all at once where they are ranks of a barrier group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import cast

from engines.model.engine import Engine, EngineConfig, Job, Step
from engines.model.roofline import StepTimes
from engines.model.text import encode
from router.core.binding import Mode
from router.core.budget import Budget
from router.core.health import Sign
from router.core.lease import Lease, Outcome
from router.core.policy import Policy
from router.core.pool import Pool, PoolBudgets, PoolRules
from router.core.prompt_key import PromptKey
from router.core.request import Api, Request
from router.core.worker import StepModel, Worker
from router.policies import build

A40 = StepTimes(
    base_s=15.5e-3, per_sequence_s=0.12e-3, per_kv_token_s=0.12e-6, prefill_base_s=4e-3,
    prefill_per_token_s=60e-6,
)  # fmt: skip
"""Qwen2.5-3B on an A40 under vLLM, as the mock engine has it."""


def measured(times: StepTimes) -> StepModel:
    """What calibration finds of such an engine."""
    return StepModel(
        times.prefill_base_s, times.prefill_per_token_s, times.base_s, times.per_sequence_s,
        times.per_kv_token_s,
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class Call:
    """One request of a run, or one turn of a conversation.

    Attributes:
        at: when it comes (s); None: as soon as a place in the closed loop, or the turn before it, is over.
        talk: the conversation that it belongs to.
    """

    text: str
    output_tokens: int
    at: float | None = None
    talk: int | None = None
    worker: str = ""
    came: float = 0.0
    first: float = 0.0
    done: float = 0.0
    cached_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        return max(-(-len(self.text) // 4), 1)

    @property
    def e2e_s(self) -> float:
        return self.done - self.came

    @property
    def ttft_s(self) -> float:
        return self.first - self.came

    @property
    def tpot_s(self) -> float:
        return (self.done - self.first) / max(self.output_tokens - 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Engines and their pool.

    Attributes:
        slow: by worker, how many times as long its steps last; infinite for one that hangs.
        calibrated: whether the router knows the coefficients.
        slots: of each engine; with late binding nobody is placed beyond them.
        group: the engines step together.
        at_once: requests in a closed loop; those of an open one come when they come.
    """

    workers: int = 4
    times: StepTimes = A40
    kv_tokens: int = 60_000
    slow: Mapping[str, float] = field(default_factory=dict)
    calibrated: bool = False
    slots: int | None = None
    group: bool = False
    at_once: int = 32


class EngineRun:
    """One policy, one scene, one list of calls."""

    def __init__(self, policy: str, scene: Scene, calls: Iterable[Call], seed: int = 1) -> None:
        self.scene = scene
        self.calls: list[Call] = []
        late = scene.group and scene.slots is not None
        rules = PoolRules(
            name="pool", policy=policy, mode=Mode.LATE if late else Mode.EARLY, max_queued=10_000
        )
        budgets = PoolBudgets(Budget("in flight", 10_000), Budget("bytes", 1 << 40))
        self.pool = Pool(rules, cast(Policy, build(policy, {}, seed)), budgets, self._expect)
        self.engines: dict[str, Engine] = {}
        for number in range(scene.workers):
            self._add_worker(f"w{number}")
        self._later = [call for call in calls if call.at is None]
        self._later.reverse()
        self._running: dict[str, tuple[Call, Lease]] = {}
        self._calls_by_id: dict[str, Call] = {}
        self._stepping: dict[str, Step] = {}
        self._events: list[tuple[float, int, object]] = []
        self._order = itertools.count()
        self._timed = [call for call in calls if call.at is not None]
        self._outputs: list[int] = []
        self.now = 0.0

    def _expect(self, _request: Request) -> int:
        """As the router learns it: the mean of what has ended."""
        return sum(self._outputs) // len(self._outputs) if self._outputs else 211

    def _add_worker(self, name: str) -> None:
        scene = self.scene
        config = EngineConfig(
            num_blocks=scene.kv_tokens // 16 + 1, max_model_len=scene.kv_tokens, output_lengths=None,
            max_num_seqs=scene.slots or 256,
        )  # fmt: skip
        self.engines[name] = Engine(config, scene.times)
        worker = Worker(
            name=name, models=frozenset({"model"}), configured_kv_tokens=scene.kv_tokens, slots=scene.slots,
            barrier_group="g" if scene.group else None,
            step=measured(scene.times) if scene.calibrated else None,
        )  # fmt: skip
        self.pool.roster.add(worker, 0.0)
        self.pool.roster.sign(name, Sign.GOOD, 0.0)

    # --- the run ---------------------------------------------------------------------------------------

    def go(self) -> EngineRun:
        """Until the last call is done; in a closed loop a call that hangs is given up at the end."""
        for call in self._timed:
            self._at(call.at or 0.0, call)
        for _ in range(self.scene.at_once):
            self._next()
        self._go_on()
        while self._events:
            self.now, _, event = heappop(self._events)
            if isinstance(event, Call):
                self._arrive(event)
            else:
                self._end_steps(cast(Sequence[str], event))
            self._go_on()
        return self

    def _go_on(self) -> None:
        for lease in self.pool.assign(self.now):
            self._send(lease)
        self._step_all()

    def _at(self, when: float, event: object) -> None:
        heappush(self._events, (when, next(self._order), event))

    def _next(self) -> None:
        if self._later:
            self._arrive(self._later.pop())

    def _arrive(self, call: Call) -> None:
        number = len(self.calls)
        call.came = self.now
        self.calls.append(call)
        request = Request(
            id=f"r{number}", sequence=number, model="model", arrived=self.now, api=Api.COMPLETIONS,
            stream=True, prompt_tokens=call.prompt_tokens, max_tokens=4_096,
            key=PromptKey.of_text("model", call.text),
        )  # fmt: skip
        self._calls_by_id[request.id] = call
        lease = self.pool.place_now(request, self.now)
        if lease is None:
            self.pool.submit(request, self.now)
        else:
            self._send(lease)

    def _send(self, lease: Lease) -> None:
        call = self._calls_by_id[lease.request.id]
        call.worker = lease.worker
        self._running[lease.request.id] = (call, lease)
        job = Job(
            id=lease.request.id, prompt_token_ids=encode(call.text), max_tokens=call.output_tokens,
            ignore_eos=True,
        )  # fmt: skip
        self.engines[lease.worker].add(job, self.now)

    # --- engines ---------------------------------------------------------------------------------------

    def _step_all(self) -> None:
        if self.scene.group:
            if not self._stepping:
                self._begin(list(self.engines))
            return
        for name in self.engines:
            if name not in self._stepping:
                self._begin([name])

    def _begin(self, names: Sequence[str]) -> None:
        """Begins a step at each of these engines that has something to do; the slowest is waited for."""
        longest, begun = 0.0, []
        for name in names:
            slow = self.scene.slow.get(name, 1.0)
            step = None if slow == float("inf") else self.engines[name].begin_step(self.now)
            if step is not None:
                self._stepping[name] = step
                begun.append(name)
                longest = max(longest, step.duration_s * slow)
        if begun:
            self._at(self.now + longest, begun)

    def _end_steps(self, names: Sequence[str]) -> None:
        for name in names:
            for output in self.engines[name].end_step(self._stepping.pop(name), self.now):
                self._see(output.job_id, output.timing.generation_tokens, output.timing.cached_tokens,
                          ended=output.finish_reason is not None)  # fmt: skip

    def _see(self, request_id: str, generated: int, cached: int, *, ended: bool) -> None:
        call, lease = self._running[request_id]
        if generated == 1:
            call.first, call.cached_tokens = self.now, cached
            self.pool.progress(
                lease, self.now, generated_tokens=1, prompt_tokens=call.prompt_tokens, cached_tokens=cached
            )
        else:
            self.pool.progress(lease, self.now, generated_tokens=generated)
        if ended:
            del self._running[request_id]
            call.done = self.now
            self._outputs.append(generated)
            self.pool.release(lease, Outcome.OK, self.now)
            self._next()

    # --- what came of it -------------------------------------------------------------------------------

    @property
    def served(self) -> list[Call]:
        return [call for call in self.calls if call.done]

    @property
    def mean_e2e_s(self) -> float:
        return sum(call.e2e_s for call in self.served) / len(self.served)

    @property
    def mean_ttft_s(self) -> float:
        return sum(call.ttft_s for call in self.served) / len(self.served)

    @property
    def tokens_per_s(self) -> float:
        return sum(call.output_tokens for call in self.served) / self.now

    @property
    def busiest(self) -> float:
        """Requests of the busiest worker over the mean."""
        counts = [sum(call.worker == name for call in self.calls) for name in self.engines]
        return max(counts) * len(counts) / sum(counts)

    @property
    def hit_share(self) -> float:
        return sum(c.cached_tokens for c in self.served) / sum(c.prompt_tokens for c in self.served)

    @property
    def stickiness(self) -> float:
        """Share of turns at the worker of the turn before."""
        homes: dict[int, str] = {}
        stayed: list[bool] = []
        for call in self.calls:
            if call.talk is not None:
                if call.talk in homes:
                    stayed.append(homes[call.talk] == call.worker)
                homes[call.talk] = call.worker
        return sum(stayed) / len(stayed) if stayed else 1.0

    def goodput(self, ttft_s: float, tpot_s: float) -> float:
        """Share of calls within both bounds."""
        return sum(c.ttft_s <= ttft_s and c.tpot_s <= tpot_s for c in self.served) / len(self.calls)
