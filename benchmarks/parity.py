"""The simulation against the wall clock: the same calls through real sockets, and in virtual time.

In virtual time the two agree to a microsecond (the tests say so). Here the router, the engines and the client
are processes that share this machine's cores. The calls are those of ToolBench on the GPUs of its paper, at a
rate that leaves most of the CPU idle: engines that take ten times as long as all Python beside them show
whether the model is right; faster ones would show how fast Python is.

Times are compared as distributions, placements call by call. A policy that goes by the prompt places alike
whatever a call takes on its way. One that goes by load decides between near equals: a millisecond turns a
choice, and that choice turns later ones. How many calls that are, the simulation says when its own arrivals
are moved a little; there is no bound for them.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import fmean

import msgspec
import uvloop

from benchmarks.engine_bytes import MODEL
from benchmarks.processes import Child, answers, free_port, python
from benchmarks.timed_calls import Seen, play
from benchmarks.verdict import Verdict
from engines.mock.hardware import Hardware
from engines.mock.settings import MockSettings
from router.core.calibration_fit import OnlineSettings
from router.studies.simulation.call import Call
from router.studies.simulation.fleet import Delays, FleetPlan, PoolPlan, WorkerPlan
from router.studies.simulation.run import simulate
from router.studies.traces.trace import distribution
from router.studies.workloads import WORKLOADS

_WORKERS = ("w0", "w1", "w2", "w3")
_MOCK = MockSettings(model="mistral-7b", gpu="a6000")
_RATE = 4.0
_BAND = 0.15
"""Means and percentiles of both ways may differ by this share."""
_ELSEWHERE = 0.01
"""Share of the calls that may go to another worker, or hit otherwise, where the prompt decides."""
_JITTER_S = 0.002
_JITTERS = 12
_POLICIES = {"cache_aware": _ELSEWHERE, "least_tokens": None}
"""One that goes by the prompt, and one that goes by load; the bound of each."""
_WAY_S = 0.002
"""From the client to the engine, and from the engine to the client: medians of 2.3 and 1.8 ms were measured
hop by hop (docs/benchmarks.md). The simulation's own 1 ms begins at the decision and ends at the router."""
_LATE_MS = 1.0
"""A client whose own timers come later than this on average runs on a busy machine, which makes calls take
longer wherever they are."""


def measure(*, quick: bool) -> list[Verdict]:
    """How far the two are apart, under a policy of either kind."""
    made = WORKLOADS["toolbench"].calls(40 if quick else 160, _RATE, 1)
    calls = [msgspec.structs.replace(call, max_tokens=call.output_tokens, ignore_eos=True) for call in made]
    return [verdict for policy, bound in _POLICIES.items() for verdict in _verdicts(policy, calls, bound)]


def _verdicts(policy: str, calls: Sequence[Call], bound: float | None) -> list[Verdict]:
    real, virtual = through_sockets(policy, calls), simulated(policy, calls)
    moved = most_moved(policy, calls, virtual)
    late_s = fmean(seen.late_s for seen in real)
    return [
        *compared(f"{policy}, TTFT", [seen.ttft_s for seen in real], [seen.ttft_s for seen in virtual]),
        *compared(f"{policy}, e2e", [seen.e2e_s for seen in real], [seen.e2e_s for seen in virtual]),
        Verdict(f"{policy}, calls that arrivals ±1 ms move, simulated", moved, f"share, most of {_JITTERS}"),
        Verdict(
            f"{policy}, calls at another worker than simulated", elsewhere(real, virtual), "share", bound
        ),
        Verdict(f"{policy}, calls that hit otherwise", hit_otherwise(real, virtual), "share", bound),
        Verdict(f"{policy}, the client's own timers late", 1e3 * late_s, "ms, mean", _LATE_MS),
    ]


def most_moved(policy: str, calls: Sequence[Call], virtual: Sequence[Seen]) -> float:
    """Share of the calls that go elsewhere in the simulation when each comes up to 1 ms sooner or later; the
    most of some runs."""
    return max(elsewhere(simulated(policy, jittered(calls, number)), virtual) for number in range(_JITTERS))


def jittered(calls: Sequence[Call], number: int) -> list[Call]:
    """The same calls, a little sooner or later; each number is another draw."""
    chance = random.Random(f"jitter/{number}")
    return [
        msgspec.structs.replace(call, at=max(call.at + _JITTER_S * (chance.random() - 0.5), 0.0))
        for call in calls
    ]


def compared(what: str, real: Sequence[float], virtual: Sequence[float]) -> list[Verdict]:
    """Mean and 90th percentile of times (s) of both ways."""
    one, other = distribution(real), distribution(virtual)
    if one is None or other is None:
        raise RuntimeError("no calls, so nothing to compare")
    pairs = (("mean", one.mean, other.mean), ("p90", one.p90, other.p90))
    return [
        Verdict(
            f"{what} {name}, sockets against simulation ({1e3 * real_s:.1f} and {1e3 * virtual_s:.1f} ms)",
            abs(real_s / virtual_s - 1.0),
            "off by this share",
            _BAND,
        )
        for name, real_s, virtual_s in pairs
    ]


def elsewhere(left: Sequence[Seen], right: Sequence[Seen]) -> float:
    """Share of the calls that went to different workers."""
    return fmean(one.worker != other.worker for one, other in zip(left, right, strict=True))


def hit_otherwise(left: Sequence[Seen], right: Sequence[Seen]) -> float:
    """Share of the calls whose cache hits differ."""
    return fmean(one.hit_tokens != other.hit_tokens for one, other in zip(left, right, strict=True))


def simulated(policy: str, calls: Sequence[Call]) -> list[Seen]:
    """Through the simulation, which hears of tokens as often as a live router does."""
    hardware = Hardware.of(_MOCK)
    workers = tuple(WorkerPlan(name=name, engine=hardware.config, clock=hardware.clock) for name in _WORKERS)
    plan = FleetPlan(
        pools=(PoolPlan(name="default", workers=workers, policy=policy),),
        model=MODEL,
        delays=Delays(router_s=_WAY_S, event_s=_WAY_S, progress_s=0.05, stretch_s=0.0),
        online=OnlineSettings(),
    )
    records = simulate(plan, calls).calls
    return [Seen(each.worker, each.ttft_s or 0.0, each.e2e_s or 0.0, each.hit_tokens) for each in records]


def through_sockets(policy: str, calls: Sequence[Call]) -> list[Seen]:
    """Through real ones."""
    with ExitStack() as stack:
        ports = [free_port() for _ in _WORKERS]
        for port in ports:
            flags = ("--port", port, "--served-model-name", MODEL, "--model", _MOCK.model, "--gpu", _MOCK.gpu)
            engine = stack.enter_context(Child(f"engine {port}", python("engines.mock", *flags)))
            engine.wait_for(partial(answers, f"http://127.0.0.1:{port}/health"))
        door = free_port()
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        config = _write_config(Path(folder), policy, ports)
        serve = python("router", "serve", "--config", config, "--port", door, "--admin-port", 0)
        router = stack.enter_context(Child("router", serve))
        router.wait_for(partial(answers, f"http://127.0.0.1:{door}/readiness"))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(play(door, calls))


def _write_config(folder: Path, policy: str, ports: Sequence[int]) -> Path:
    """Workers have the names of the simulated ones: ties are broken by a hash of them."""
    workers = [
        {"url": f"http://127.0.0.1:{port}", "name": name} for name, port in zip(_WORKERS, ports, strict=True)
    ]
    settings = {
        "server": {"expose_routing_headers": True},
        "pools": {"default": {"policy": policy, "workers": workers}},
    }
    path = folder / "parity.yaml"
    path.write_bytes(msgspec.json.encode(settings))
    return path
