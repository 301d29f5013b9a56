"""The same calls through the simulation, and through the whole live router with mock engines on a virtual
network: two ways to run in virtual time that must tell the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engines.mock.hardware import Hardware
from engines.mock.settings import MockSettings
from router.core.binding import Mode
from router.core.calibration_fit import OnlineSettings
from router.core.worker import Role
from router.studies.simulation.call import Call, Texts
from router.studies.simulation.fleet import Delays, FleetPlan, PoolPlan, SplitPlan, WorkerPlan
from router.studies.simulation.run import Simulation
from router.virtual.clock import run
from tests.shell.live import Live, live
from tests.shell.puppet import MODEL

COMPLETIONS = "/v1/completions"
SETTLED_S = 3.0


@dataclass(frozen=True)
class Seen:
    """What a client saw of one call; times from its arrival (s)."""

    worker: str
    ttft_s: float
    e2e_s: float
    hit_tokens: int


@dataclass(frozen=True)
class Stage:
    """Workers alike, and how they are chosen.

    Attributes:
        prefills: the first so many workers prefill for the others; 0: all do everything.
    """

    policy: str
    workers: int = 3
    prefills: int = 0
    slots: int | None = None
    batch: bool = False
    kv_tokens: int = 60_000

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


def simulated(stage: Stage, calls: Sequence[Call], seed: int = 0) -> list[Seen]:
    """Through the simulation. The live router knows at once and hears of each token, so it has no delays."""
    calls = [msgspec.structs.replace(call, max_tokens=call.output_tokens, ignore_eos=True) for call in calls]
    sides = [(Role.BOTH, "both", stage.names)]
    if stage.prefills:
        sides = [
            (Role.PREFILL, "prefill", stage.names[: stage.prefills]),
            (Role.DECODE, "decode", stage.names[stage.prefills :]),
        ]
    pools, hardware = [], Hardware.of(stage.mock())
    for role, word, names in sides:
        hardware = Hardware.of(stage.mock(word))
        workers = tuple(
            WorkerPlan(name=name, engine=hardware.config, clock=hardware.clock, slots=stage.slots)
            for name in names
        )
        pools.append(
            PoolPlan(
                name=word,
                workers=workers,
                policy=stage.policy,
                role=role,
                mode=Mode.LATE if stage.batch else Mode.EARLY,
            )
        )
    plan = FleetPlan(
        pools=tuple(pools),
        model=MODEL,
        split=SplitPlan(link=hardware.link) if stage.prefills else None,
        delays=Delays(router_s=0.0, event_s=0.0, progress_s=0.05, stretch_s=0.0),
        online=OnlineSettings(),
    )
    made = Simulation(plan, calls, seed).run().calls
    assert all(record.outcome == "ok" for record in made), made
    return [
        Seen(record.worker, record.ttft_s or 0.0, record.e2e_s or 0.0, record.hit_tokens) for record in made
    ]


def lived(stage: Stage, calls: Sequence[Call], seed: int = 0) -> list[Seen]:
    """Through the live router."""
    texts = Texts()

    async def one(act: Live, call: Call) -> Seen:
        await asyncio.sleep(call.at)
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
        assert reply.status == 200, reply.body
        worker = reply.header("x-pointsman-worker")
        assert worker is not None
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

    async def main() -> list[Seen]:
        async with live(**_live(stage, seed)) as act:
            seen = await asyncio.gather(*(one(act, call) for call in calls))
            await asyncio.sleep(SETTLED_S)
            act.assert_zero()
            await act.aclose()
        return seen

    return run(main())


def _live(stage: Stage, seed: int) -> Mapping[str, Any]:
    """The live router's side of a stage; as in the simulation, every prompt is split."""
    common: dict[str, Any] = {"policy": stage.policy}
    if stage.slots is not None:
        common["slots"] = stage.slots
    options: dict[str, Any] = {"server": {"expose_routing_headers": True}, "seed": seed}
    if not stage.prefills:
        return {"workers": {name: stage.mock() for name in stage.names}, "pool": common, **options}
    prefills, decodes = stage.names[: stage.prefills], stage.names[stage.prefills :]
    mocks = {name: stage.mock("prefill") for name in prefills}
    mocks |= {name: stage.mock("decode") for name in decodes}
    pools = {
        "prefill": {"role": "prefill", "workers": _written(prefills), **common},
        "decode": {"role": "decode", "pd_split_min_tokens": 0, "workers": _written(decodes), **common},
    }
    return {"workers": mocks, "pools": pools, **options}


def _written(names: Sequence[str]) -> list[dict[str, str]]:
    return [{"url": f"http://{name}:8000", "name": name} for name in names]
