"""Whatever clients, engines and faults do, in whatever order: no block stays held, no text is wrong."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.errors import RouterError
from router.virtual.transport import LinkSettings
from tests.engines.mock_stage import Reply
from tests.engines.pd_stage import ASK, COMPLETIONS, PROMPT, Pair, play, prefill_body


@dataclass(frozen=True)
class Visit:
    """One client of the pair: when it comes, what it asks, when it loses patience in which leg."""

    at: float
    prompt: int
    stream: bool
    max_tokens: int
    leaves_prefill_after: float | None
    decodes_after: float
    leaves_decode_after: float | None


@dataclass(frozen=True)
class Trouble:
    """Something that happens to an engine."""

    at: float
    kind: str
    prefill: bool


moments = st.floats(0.0, 3.0)
patience = st.none() | st.none() | st.floats(0.0, 1.0)
visits = st.builds(
    Visit,
    at=moments,
    prompt=st.integers(0, 3),
    stream=st.booleans(),
    max_tokens=st.sampled_from([1, 5, 60, 9999]),
    leaves_prefill_after=patience,
    decodes_after=st.sampled_from([0.0, 0.0, 0.0, 1.0]),
    leaves_decode_after=patience,
)
troubles = st.builds(
    Trouble,
    at=moments,
    kind=st.sampled_from(
        ["crash", "engine_death", "refuse", "slow", "lose_handle", "transfer_slow", "transfer_failed"]
    ),
    prefill=st.booleans(),
)


class Play:
    """Runs visits and troubles, and keeps what was answered."""

    def __init__(self, act: Pair) -> None:
        self.act = act
        self.answered: list[tuple[dict[str, Any], Reply]] = []

    async def visit(self, visit: Visit) -> None:
        await asyncio.sleep(visit.at)
        body = {**ASK, "prompt": PROMPT[visit.prompt :], "max_tokens": visit.max_tokens}
        first = await self._ask(visit.leaves_prefill_after, True, prefill_body(body))
        handle = None if first is None or first.status != 200 else first.json()["kv_transfer_params"]
        if handle is None:
            return
        await asyncio.sleep(visit.decodes_after)
        asked = {**body, "stream": visit.stream, "kv_transfer_params": handle}
        reply = await self._ask(visit.leaves_decode_after, False, asked)
        if reply is not None and reply.status == 200 and b'"error"' not in reply.body:
            self.answered.append((body, reply))

    async def _ask(self, patience_s: float | None, prefill: bool, body: dict[str, Any]) -> Reply | None:
        stage = self.act.prefill if prefill else self.act.decode
        try:
            async with asyncio.timeout(patience_s):
                return await stage.ask(COMPLETIONS, body)
        except (TimeoutError, RouterError):
            return None

    async def trouble(self, trouble: Trouble) -> None:
        await asyncio.sleep(trouble.at)
        stage = self.act.prefill if trouble.prefill else self.act.decode
        if trouble.kind == "crash":
            self.act.crash(stage, 0.5)
        elif trouble.kind == "engine_death":
            stage.process.engine_death(0.5)
        else:
            try:
                await stage.fault(trouble.kind, count=1, delay_s=0.5)
            except RouterError:
                return  # it is down

    async def check(self) -> None:
        """What was answered in the end is what an engine alone says; the prefill kept it all the time."""
        for stage in (self.act.prefill, self.act.decode):
            stage.process.heal()
            assert stage.process.engine.reset_prefix_cache()
        for body, reply in self.answered:
            alone = (await self.act.prefill.ask(COMPLETIONS, body)).json()["choices"][0]
            text = reply.text() if reply.headers["content-type"].startswith("text/event") else None
            assert (text if text is not None else reply.json()["choices"][0]["text"]) == alone["text"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(visits, max_size=8),
    st.lists(troubles, max_size=4),
    st.sampled_from([0.0, 0.001]),
    st.sampled_from(["fail", "recompute"]),
)
def test_nothing_stays_held_and_no_text_is_wrong(
    coming: list[Visit], happening: list[Trouble], latency_s: float, policy: str
) -> None:
    async def scene(act: Pair) -> None:
        run = Play(act)
        await asyncio.gather(
            *(run.visit(visit) for visit in coming), *(run.trouble(trouble) for trouble in happening)
        )
        await asyncio.sleep(40.0)
        await run.check()

    play(
        scene,
        link=LinkSettings(latency_s=latency_s),
        kv_load_failure_policy=policy,
        kv_latency_s=0.2,
        decode={"max_num_seqs": 2},
    )
