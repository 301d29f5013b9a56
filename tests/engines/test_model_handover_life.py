"""Whatever becomes of jobs, fetches and leases, and in whatever order: no block stays held."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engines.model.job import SCHEDULINGS
from tests.engines.bench import bench


class Handovers(RuleBasedStateMachine):
    """Jobs that keep, fetch and neither, dropped at any time, and every end of a fetch and of a lease."""

    @initialize(
        blocks=st.integers(11, 30),
        seqs=st.integers(1, 4),
        recompute=st.booleans(),
        batched=st.integers(4, 40),
        scheduling=st.sampled_from(SCHEDULINGS),
    )
    def begin(self, blocks: int, seqs: int, recompute: bool, batched: int, scheduling: str) -> None:
        self.b = bench(
            num_blocks=blocks, max_model_len=40, max_num_seqs=seqs, recompute_failed_loads=recompute,
            max_num_batched_tokens=batched, kv_lease_s=12.0, scheduling=scheduling,
        )  # fmt: skip
        self.names = 0
        self.open: list[str] = []
        self.kept: list[str] = []
        self.alive: set[str] = set()

    @rule(
        start=st.sampled_from([0, 0, 500]),
        length=st.integers(1, 38),
        limit=st.integers(1, 12),
        kind=st.sampled_from(["plain", "retain", "fetch", "fetch", "logprobs"]),
        priority=st.integers(0, 1),
    )
    def add(self, start: int, length: int, limit: int, kind: str, priority: int) -> None:
        self.names += 1
        name = f"{kind}{self.names}"
        self.b.add(
            name, range(start, start + length), max_tokens=limit, retain=kind == "retain", priority=priority,
            fetch=kind in {"fetch", "logprobs"}, skip_cache=kind == "logprobs",
        )  # fmt: skip
        self.alive.add(name)

    @rule()
    def step(self) -> None:
        seen = len(self.b.outputs)
        self.b.step()
        self._look()
        for one in self.b.outputs[seen:]:
            if one.finish_reason is not None:
                self.alive.discard(one.job_id)
            if one.kept is not None:
                self.kept.append(one.job_id)

    @rule(data=st.data(), right=st.booleans())
    def end_fetch(self, data: st.DataObject, right: bool) -> None:
        if self.open:
            name = data.draw(st.sampled_from(self.open))
            self.open.remove(name)
            if data.draw(st.booleans()):
                self.b.engine.fetched(name, right=right)
            elif self.b.engine.fetch_failed(name):
                self.alive.discard(name)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.alive:
            name = data.draw(st.sampled_from(sorted(self.alive)))
            assert self.b.engine.abort(name)
            self.alive.discard(name)
            self._look()

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.kept:
            self.b.engine.kept.release(data.draw(st.sampled_from(self.kept)), self.b.now)

    @rule(seconds=st.integers(1, 15))
    def wait(self, seconds: int) -> None:
        self.b.now += seconds
        self.b.engine.kept.expire(self.b.now)

    def _look(self) -> None:
        self.open += [fetch.job_id for fetch in self.b.engine.drain_fetches() if not fetch.tells_only]

    @invariant()
    def counts_agree(self) -> None:
        engine = self.b.engine
        assert sum(engine.waiting_by_reason.values()) == engine.waiting
        assert engine.running + engine.waiting == len(self.alive)
        assert engine.kv_fetch_by_stage["in_progress"] <= len(self.open)

    def teardown(self) -> None:
        engine = self.b.engine
        for _ in range(2000):
            self.step()
            self.wait(2)
            for name in self.open:
                engine.fetched(name)
            self.open.clear()
            if engine.idle and not engine.kept:
                break
        assert engine.idle, engine
        assert (self.b.used, engine.kv_usage, len(engine.kept)) == (0, 0.0, 0)
        assert engine._scheduler.orphans == {}


TestHandovers = Handovers.TestCase
TestHandovers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
