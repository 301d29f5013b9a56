"""A small engine in virtual time that reports its streams to a pool, as a live router would hear of them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from router.core.calibration_fit import OnlineSettings
from router.core.calibration_online import OnlineCalibration
from router.core.lease import Lease, Outcome
from router.core.pool import Pool
from router.core.worker import Worker
from tests.core.fleet_examples import pool, request

REPORT_S = 0.05

StepTime = Callable[[list[tuple[int, int]], list[int]], float]
"""Seconds of a step with these prefills (new tokens, cached before) and decode contexts."""


class Engine:
    """One worker of a pool of its own, whose steps last as long as `step_s` says, with jitter.

    It prefills one prompt a step, before it decodes, and reports each stream every 50 ms of its own time.
    """

    def __init__(self, step_s: StepTime, seed: int = 1, *, jitter: float = 0.03) -> None:
        self.pool: Pool = pool("w")
        self.online = OnlineCalibration(OnlineSettings())
        self.pool.ledger.online = self.online
        self.step_s = step_s
        self.jitter = jitter
        self.now = 1_000.0
        self.source = random.Random(seed)
        self.waiting: deque[tuple[Lease, int, int]] = deque()
        self.running: dict[Lease, tuple[int, int]] = {}
        self.reported: dict[Lease, float] = {}

    @property
    def worker(self) -> Worker:
        return self.pool.roster.workers["w"]

    def send(self, prompt: int, output: int, cached: int = 0, **what: Any) -> Lease:
        """A request that will write `output` tokens."""
        wanted = request(**({"stream": True, "prompt_tokens": prompt} | what))
        lease = self.pool.place_now(wanted, self.now)
        assert lease is not None
        self.waiting.append((lease, output, cached))
        return lease

    def step(self) -> None:
        """One step of the engine."""
        prefill = self.waiting.popleft() if self.waiting else None
        prompts = [] if prefill is None else [(prefill[0].prompt_tokens - prefill[2], prefill[2])]
        contexts = [lease.prompt_tokens + written for lease, (written, _) in self.running.items()]
        self.now += self.step_s(prompts, contexts) * max(self.source.gauss(1.0, self.jitter), 0.2)
        for lease, (written, output) in list(self.running.items()):
            self._wrote(lease, written + 1, output)
        if prefill is not None:
            lease, output, cached = prefill
            self.pool.progress(
                lease,
                self.now,
                generated_tokens=1,
                prompt_tokens=lease.prompt_tokens,
                cached_tokens=cached,
            )
            self.reported[lease] = self.now
            self.running[lease] = (1, output)

    def _wrote(self, lease: Lease, written: int, output: int) -> None:
        self.running[lease] = (written, output)
        if written >= output or self.now >= self.reported[lease] + REPORT_S:
            self.reported[lease] = self.now
            self.pool.progress(lease, self.now, generated_tokens=written)
        if written >= output:
            del self.running[lease]
            self.pool.release(lease, Outcome.OK, self.now)

    def serve(self, seconds: float, *, rate: float, output: int = 150) -> None:
        """Mixed traffic at random times."""
        end, due = self.now + seconds, self.now
        while self.now < end:
            while due <= self.now:
                prompt = int(self.source.lognormvariate(6.5, 0.8))
                self.send(max(prompt, 10), max(int(self.source.expovariate(1 / output)), 5))
                due += self.source.expovariate(rate)
            if self.waiting or self.running:
                self.step()
            else:
                self.now = due
