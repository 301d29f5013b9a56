"""Whether the mock engine keeps its own time: 64 streams at once, steps of 20 ms.

Two views. The engine says how late its steps ended against plan; a client sees how long a token took beside
what the roofline says. The second includes the writing of the events.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import httpx

from benchmarks.client import Load, Outcome
from benchmarks.processes import Child, answers, drive, free_port, python
from benchmarks.verdict import Verdict, print_verdicts
from engines.model.roofline import Roofline
from engines.model.specs import GPUS, MODELS

BOUND = 0.10
"""Share of a step by which steps may be late."""

_MODEL = "qwen2.5-3b"
_GPU = "a40"
_STREAMS = 64
_STEP_S = 0.020
_EVENTS = 250
_QUICK_EVENTS = 60
_PROMPT_TOKENS = 40
"""About what the client's message is in tokens; a step hardly depends on it."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """The engine's own account: how many steps, and the sum of their delays (s)."""

    count: int
    lag_s: float

    def since(self, before: _Steps) -> _Steps:
        return _Steps(self.count - before.count, self.lag_s - before.lag_s)


def step_s(events: int) -> float:
    """A decode step of all streams in engine seconds, halfway through the answers."""
    contexts = [_PROMPT_TOKENS + events // 2] * _STREAMS
    return Roofline(MODELS[_MODEL], GPUS[_GPU]).step_s([], contexts)


def measure(*, quick: bool = False) -> list[Verdict]:
    """Lateness as a share of a step, as the engine and as a client sees it."""
    events = _QUICK_EVENTS if quick else _EVENTS
    port = free_port()
    scale = _STEP_S / step_s(events)
    flags = ("--port", port, "--model", _MODEL, "--gpu", _GPU, "--served-model-name", "bench")
    with Child("mock engine", python("engines.mock", *flags, "--time-scale", scale)) as mock:
        mock.wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"))
        before = _steps(port)
        cpu_before = mock.cpu_s()
        outcome = drive(Load(port, _STREAMS, _STREAMS, events, ignore_eos=True))
        steps = _steps(port).since(before)
        cpu_s = mock.cpu_s() - cpu_before
    return [
        Verdict("mock engine, mean lag of a step", steps.lag_s / steps.count / _STEP_S, "x 20 ms", BOUND),
        Verdict("mock engine, a token beyond its step", _seen_late(outcome, events), "x 20 ms", BOUND),
        Verdict("mock engine, CPU of a token", cpu_s / outcome.events * 1e6, "µs"),
    ]


def _seen_late(outcome: Outcome, events: int) -> float:
    """Mean time of a token after the first, against a step, for the median stream."""
    per_token_s = (outcome.latency.p50 - outcome.first_bytes.p50) / (events - 1)
    return per_token_s / _STEP_S - 1.0


def _steps(port: int) -> _Steps:
    state = httpx.get(f"http://127.0.0.1:{port}/mock/state", params={"requests": False}).json()
    return _Steps(int(state["steps"]), float(state["total_lag_s"]))


def main() -> int:
    verdicts = measure(quick="--quick" in sys.argv)
    print_verdicts(verdicts)
    return 0 if all(verdict.holds for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
