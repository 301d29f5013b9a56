"""The same calls through the simulation, and through the whole live router with mock engines on a virtual
network: two ways to run in virtual time that must tell the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from engines.mock.hardware import Hardware
from engines.mock.settings import MockSettings
from router.core.binding import Mode
from router.core.calibration_fit import OnlineSettings
from router.core.deadlines import SplitDeadlines
from router.core.local_queue import LocalQueueRules, Order
from router.core.worker import Role
from router.settings import Settings
from router.studies.scenario_rules import delays, patience
from router.studies.simulation.call import Call, Texts
from router.studies.simulation.fleet import (
    FleetPlan,
    PoolPlan,
    SplitPlan,
    Trouble,
    WorkerPlan,
)
from router.studies.simulation.record import CallRecord
from router.studies.simulation.run import Simulation
from router.virtual.clock import run
from tests.shell.live import Live, live
from tests.shell.puppet import MODEL

COMPLETIONS = "/v1/completions"
SETTLED_S = 3.0
LEASE_S = 30.0
LEAD_S = 1.1
"""Both sides begin to watch their workers so long before the first call may come."""
EVEN: dict[str, Any] = {"polling": {"jitter": 0.0}, "health": {"jitter": 0.0, "interval_s": 2.0}}
"""Settings of a router whose probes and scrapes come at even times, as simulated ones do."""


@dataclass(frozen=True)
class Seen:
    """What a client saw of one call; times from its arrival (s), and none of an answer that is not whole."""

    worker: str
    ttft_s: float
    e2e_s: float
    hit_tokens: int
    outcome: str = "ok"


@dataclass(frozen=True)
class Crash:
    """The process of a worker dies (s after the first call may come), and is back so much later."""

    at: float
    worker: str
    back_s: float


@dataclass(frozen=True)
class Stage:
    """Workers alike, and how they are chosen.

    Attributes:
        prefills: the first so many workers prefill for the others; 0: all do everything.
        local: the order of a local queue, which sends `max_dispatched` to each worker.
        budget: high and low mark of prefill workers.
    """

    policy: str
    workers: int = 3
    prefills: int = 0
    slots: int | None = None
    batch: bool = False
    kv_tokens: int = 60_000
    local: Order = Order.OFF
    max_dispatched: int | None = None
    budget: tuple[float, float] = (0.85, 0.75)
    crashes: tuple[Crash, ...] = ()
    sections: Mapping[str, Any] = field(default_factory=dict)

    def mock(self, role: str = "both") -> MockSettings:
        return MockSettings(
            served_model_name=MODEL,
            kv_tokens=self.kv_tokens,
            max_num_seqs=self.slots,
            role=role,  # type: ignore[arg-type]  # one of three words
        )

    @property
    def names(self) -> list[str]:
        return [f"w{n}" for n in range(self.workers)]

    @property
    def settings(self) -> Settings:
        """What the live router is configured with beside its pools."""
        return Settings(**{**EVEN, **self.sections})


# --- simulated ------------------------------------------------------------------------------------------


def simulated(stage: Stage, calls: Sequence[Call], seed: int = 0) -> list[Seen]:
    """Through the simulation. The live router knows at once and hears of each token, so it has no delays."""
    calls = [
        msgspec.structs.replace(call, at=call.at + LEAD_S, max_tokens=call.output_tokens, ignore_eos=True)
        for call in calls
    ]
    return [_seen(record) for record in Simulation(planned(stage), calls, seed).run().calls]


def _seen(record: CallRecord) -> Seen:
    if record.outcome == "broken":
        return Seen(record.worker, 0.0, 0.0, 0, "broken")
    if record.outcome != "ok":
        return Seen("", 0.0, 0.0, 0, "refused")
    return Seen(record.worker, record.ttft_s or 0.0, record.e2e_s or 0.0, record.hit_tokens)


def planned(stage: Stage) -> FleetPlan:
    """The fleet of a stage, as the simulation has it."""
    sides = [(Role.BOTH, "both", stage.names)]
    if stage.prefills:
        sides = [
            (Role.PREFILL, "prefill", stage.names[: stage.prefills]),
            (Role.DECODE, "decode", stage.names[stage.prefills :]),
        ]
    settings = stage.settings
    return FleetPlan(
        pools=tuple(_pool(stage, role, word, names) for role, word, names in sides),
        model=MODEL,
        split=_split(stage) if stage.prefills else None,
        delays=replace(delays(settings), router_s=0.0, event_s=0.0, progress_s=0.05, stretch_s=0.0),
        online=OnlineSettings(),
        patience=patience(settings),
        max_queued=settings.limits.queue_size,
        max_wait_s=settings.limits.queue_timeout_s,
        troubles=tuple(_troubles(stage)),
    )


def _split(stage: Stage) -> SplitPlan:
    timeouts = stage.settings.timeouts
    high, low = stage.budget
    return SplitPlan(
        link=Hardware.of(stage.mock("decode")).link,
        budget_high=high,
        budget_low=low,
        deadlines=SplitDeadlines(
            timeouts.prefill_s, timeouts.decode_first_event_s, LEASE_S, timeouts.lease_margin_s
        ),
    )


def _pool(stage: Stage, role: Role, word: str, names: Sequence[str]) -> PoolPlan:
    hardware = Hardware.of(stage.mock(word))
    return PoolPlan(
        name=word,
        workers=tuple(
            WorkerPlan(
                name=name,
                engine=hardware.config,
                clock=hardware.clock,
                slots=stage.slots,
                may_prefill=False,
            )
            for name in names
        ),
        policy=stage.policy,
        role=role,
        mode=Mode.LATE if stage.batch else Mode.EARLY,
        local=LocalQueueRules(
            Order.OFF if role is Role.DECODE else stage.local,
            stage.max_dispatched,
            max_held=stage.settings.limits.queue_size,
        ),
    )


def _troubles(stage: Stage) -> Iterator[Trouble]:
    for crash in stage.crashes:
        yield Trouble(LEAD_S + crash.at, crash.worker, "crash")
        yield Trouble(LEAD_S + crash.at + crash.back_s, crash.worker, "restart")


# --- live -----------------------------------------------------------------------------------------------


def lived(stage: Stage, calls: Sequence[Call], seed: int = 0) -> list[Seen]:
    """Through the live router."""
    texts = Texts()

    async def one(act: Live, call: Call) -> Seen:
        await asyncio.sleep(LEAD_S + call.at - act.now)
        body = {
            "model": MODEL,
            "prompt": texts.of(call.parts).decode(),
            "max_tokens": call.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began = act.loop.time()
        visit = await act.open(COMPLETIONS, body)
        reply = await visit.rest()
        worker = reply.header("x-pointsman-worker") or ""
        if reply.status != 200 or reply.broken is not None:
            return Seen(worker, 0.0, 0.0, 0, "refused" if reply.status != 200 else "broken")
        events = [json.loads(line[6:]) for line in reply.body.split(b"\n") if line.startswith(b"data: {")]
        usage = events[-1]["usage"]
        assert usage["completion_tokens"] == call.output_tokens
        assert usage["prompt_tokens"] == call.prompt_tokens
        details = usage.get("prompt_tokens_details") or {}
        return Seen(
            worker,
            reply.pieces[0][0] - began,
            reply.pieces[-1][0] - began,
            details.get("cached_tokens") or 0,
        )

    async def fall(act: Live, crash: Crash) -> None:
        await asyncio.sleep(LEAD_S + crash.at - act.now)
        act.mocks[crash.worker].process.die(None, reset=True, back_after_s=crash.back_s)

    async def main() -> list[Seen]:
        async with live(**_live(stage, seed)) as act:
            troubles = asyncio.gather(*(fall(act, crash) for crash in stage.crashes))
            seen = await asyncio.gather(*(one(act, call) for call in calls))
            await troubles
            # KV that a crash has left at its producer is held to the end of its lease.
            await asyncio.sleep(SETTLED_S + (LEASE_S if stage.crashes and stage.prefills else 0.0))
            act.assert_zero()
            await act.aclose()
        return seen

    return run(main())


def _live(stage: Stage, seed: int) -> Mapping[str, Any]:
    """The live router's side of a stage; as in the simulation, every prompt is split."""
    common: dict[str, Any] = {"policy": stage.policy}
    if stage.slots is not None:
        common["slots"] = stage.slots
    held = {"local_queue": stage.local.value}
    if stage.max_dispatched is not None:
        held["max_dispatched"] = stage.max_dispatched
    options: dict[str, Any] = {
        "server": {"expose_routing_headers": True},
        "seed": seed,
        **EVEN,
        **stage.sections,
    }
    if not stage.prefills:
        return {"workers": {name: stage.mock() for name in stage.names}, "pool": common | held, **options}
    prefills, decodes = stage.names[: stage.prefills], stage.names[stage.prefills :]
    mocks = {name: stage.mock("prefill") for name in prefills}
    mocks |= {name: stage.mock("decode") for name in decodes}
    high, low = stage.budget
    budget = {"prefill_budget_high": high, "prefill_budget_low": low}
    pools = {
        "prefill": {"role": "prefill", "workers": _written(prefills), **common, **held, **budget},
        "decode": {"role": "decode", "pd_split_min_tokens": 0, "workers": _written(decodes), **common},
    }
    return {"workers": mocks, "pools": pools, **options}


def _written(names: Sequence[str]) -> list[dict[str, str]]:
    return [{"url": f"http://{name}:8000", "name": name} for name in names]
