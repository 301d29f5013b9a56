"""Whatever happens and in whatever order: answers are the same, bounds hold, accounts return to zero."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engines.model.engine import Engine, EngineConfig, Job, Step
from engines.model.generation import Answer, OutputLengths, prompt_key
from engines.model.job import SCHEDULINGS
from engines.model.text import EOS_TOKEN
from tests.engines.engine_examples import CLOCK, engine, job, run, tokens_of


def expected(asked: Job, config: EngineConfig) -> tuple[list[int], str]:
    """Tokens and finish reason by the definition, without an engine."""
    key = prompt_key(asked.prompt_token_ids, asked.seed, asked.sequence)
    room = config.max_model_len - len(asked.prompt_token_ids)
    limit = room if asked.max_tokens is None else min(asked.max_tokens, room)
    natural = limit + 1
    if config.output_lengths is not None and not asked.ignore_eos:
        natural = max(config.output_lengths.draw(key), asked.min_tokens + 1)
    answer = [Answer(key).token(index) for index in range(min(natural, limit))]
    if natural > limit:
        return answer, "length"
    return [*answer[:-1], EOS_TOKEN], "stop"


jobs = st.lists(
    st.builds(
        lambda start, length, **knobs: job("", range(start, start + length), **knobs),
        start=st.sampled_from([0, 0, 500]),
        length=st.integers(1, 40),
        max_tokens=st.integers(5, 30) | st.none(),
        min_tokens=st.integers(0, 5),
        ignore_eos=st.booleans(),
        seed=st.integers(0, 2),
        sequence=st.integers(0, 2),
        priority=st.integers(0, 2),
        lora=st.sampled_from([None, None, "x", "y"]),
    ),
    max_size=12,
)
configs = st.builds(
    EngineConfig,
    num_blocks=st.integers(17, 60),
    block_size=st.just(4),
    max_model_len=st.just(64),
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(1, 64),
    long_prefill_token_threshold=st.none() | st.integers(1, 16),
    scheduling=st.sampled_from(SCHEDULINGS),
    enable_prefix_caching=st.booleans(),
    max_loras=st.none() | st.just(1),
    output_lengths=st.none() | st.just(OutputLengths(12, 0.7)),
)


def named(asked: list[Job]) -> list[Job]:
    return [
        Job(**{field: getattr(one, field) for field in Job.__dataclass_fields__} | {"id": str(index)})
        for index, one in enumerate(asked)
    ]


@settings(max_examples=150, deadline=None)
@given(jobs, configs)
def test_an_answer_depends_on_nothing_but_prompt_seed_and_sequence(
    asked: list[Job], config: EngineConfig
) -> None:
    target = Engine(config, CLOCK)
    asked = named(asked)
    for one in asked:
        target.add(one, 0.0)
    seen = run(target)
    for one in asked:
        outputs = seen[one.id]
        assert (tokens_of(outputs), outputs[-1].finish_reason) == expected(one, config)
        assert all(output.finish_reason is None for output in outputs[:-1])
    assert target.kv_usage == 0.0
    assert (target.running, target.waiting) == (0, 0)


class Life(RuleBasedStateMachine):
    """Clients come and go at any moment; the engine keeps its bounds and its word."""

    @initialize(config=configs)
    def start(self, config: EngineConfig) -> None:
        self.engine = Engine(config, CLOCK)
        self.config = config
        self.now = 0.0
        self.step: Step | None = None
        self.here: dict[str, Job] = {}
        self.said: dict[str, list[int]] = {}
        self.count = Counter[str]()

    @rule(length=st.integers(1, 60), start=st.sampled_from([0, 500]), priority=st.integers(0, 2))
    def come(self, length: int, start: int, priority: int) -> None:
        self.count["come"] += 1
        new = job(str(self.count["come"]), range(start, start + length), priority=priority)
        self.engine.add(new, self.now)
        self.here[new.id] = new
        self.said[new.id] = []

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(sorted(self.here)))
        assert self.engine.abort(gone)
        del self.here[gone]

    @precondition(lambda self: self.step is None)
    @rule()
    def begin(self) -> None:
        before = self.engine.counters.preemptions
        self.step = self.engine.begin_step(self.now)
        assert (self.step is None) is (not self.here)
        if self.step is not None:
            assert 1 <= self.step.tokens <= self.config.max_num_batched_tokens
            assert self.step.duration_s > 0
            assert len(self.step.preempted) == self.engine.counters.preemptions - before

    @precondition(lambda self: self.step is not None)
    @rule()
    def end(self) -> None:
        assert self.step is not None
        self.now += self.step.duration_s
        for output in self.engine.end_step(self.step, self.now):
            self.said[output.job_id] += output.token_ids
            self.count["generated"] += len(output.token_ids)
            if output.finish_reason is not None:
                self.count["finished"] += 1
                done = self.here.pop(output.job_id)
                assert (self.said[done.id], output.finish_reason) == expected(done, self.config)
        self.step = None

    @invariant()
    def everybody_is_somewhere(self) -> None:
        assert self.engine.running + self.engine.waiting == len(self.here)
        assert self.engine.running <= self.config.max_num_seqs
        assert sum(self.engine.waiting_by_reason.values()) == self.engine.waiting

    @invariant()
    def blocks_belong_to_running_sequences(self) -> None:
        scheduler = self.engine._scheduler
        held = {block for sequence in scheduler.running for block in sequence.blocks}
        assert scheduler.kv.used_blocks == len(held)
        assert all(sequence.computed <= sequence.room for sequence in scheduler.running)

    @invariant()
    def of_a_chain_a_prefix_is_cached(self) -> None:
        scheduler = self.engine._scheduler
        for sequence in self.engine._jobs.values():
            hashes = sequence.chain.hash_full_blocks()
            known = [block_hash in scheduler.kv._cached for block_hash in hashes]
            assert known == sorted(known, reverse=True)
            assert scheduler.kv.prefix_blocks(hashes, 7) == len(scheduler.kv.find(hashes, 7))

    @invariant()
    def counters_agree_with_what_was_seen(self) -> None:
        assert self.engine.counters.generation_tokens == self.count["generated"]
        assert sum(self.engine.counters.finished.values()) == self.count["finished"]

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        while self.here:
            if self.step is None:
                self.begin()
            self.end()
        assert self.engine.kv_usage == 0.0
        assert self.engine.idle


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
def test_the_same_jobs_give_the_same_run(scheduling: str) -> None:
    runs = []
    for _ in range(2):
        target = engine(scheduling=scheduling)
        for index in range(20):
            target.add(job(str(index), range(index, index + 30), priority=index % 3), 0.0)
        runs.append(run(target))
    assert runs[0] == runs[1]
