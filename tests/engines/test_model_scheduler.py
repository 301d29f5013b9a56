"""What enters a step, in which order, and who gives way: vLLM V1's rules."""

from dataclasses import dataclass, field

import pytest

from engines.model.engine import Engine, EngineConfig, Job, Output, Step
from engines.model.roofline import StepTimes

CLOCK = StepTimes(
    base_s=0.01, per_sequence_s=0.0, per_kv_token_s=0.0, prefill_base_s=0.01, prefill_per_token_s=0.001
)


@dataclass
class Bench:
    """One engine, stepped by hand; every step takes a second."""

    engine: Engine
    now: float = 0.0
    outputs: list[Output] = field(default_factory=list)

    def step(self) -> Step:
        step = self.engine.begin_step(self.now)
        assert step is not None
        self.now += 1.0
        self.outputs = self.engine.end_step(step, self.now)
        return step

    def plan(self) -> list[tuple[str, int]]:
        """The next step as (job, new tokens)."""
        return [(sequence.id, new) for sequence, new in self.step().scheduled]

    def add(self, job_id: str, prompt: int | range, **knobs: object) -> None:
        tokens = range(prompt) if isinstance(prompt, int) else prompt
        knobs = {"ignore_eos": True, **knobs}
        self.engine.add(Job(id=job_id, prompt_token_ids=tokens, **knobs), self.now)  # type: ignore[arg-type]  # any field


def bench(**knobs: object) -> Bench:
    knobs = {"num_blocks": 101, "block_size": 4, "max_model_len": 200, **knobs}
    return Bench(Engine(EngineConfig(**knobs), CLOCK))  # type: ignore[arg-type]  # any field


def test_prefills_and_decodes_share_a_step() -> None:
    b = bench()
    b.add("a", 10)
    assert b.plan() == [("a", 10)]
    b.add("b", range(100, 120))
    assert b.plan() == [("a", 1), ("b", 20)]
    assert b.plan() == [("a", 1), ("b", 1)]


def test_a_prompt_of_one_token_is_a_prefill_and_its_second_token_a_decode() -> None:
    b = bench()
    b.add("a", 1)
    loads = [b.step().load, b.step().load]
    assert [(load.prefill_sequences, load.decode_sequences) for load in loads] == [(1, 0), (0, 1)]
    assert loads[1].decode_kv_tokens == 2


def test_a_prefill_longer_than_the_budget_is_chunked_and_stays_running() -> None:
    b = bench(max_num_batched_tokens=16)
    b.add("a", 40)
    assert b.plan() == [("a", 16)]
    assert (b.engine.running, b.engine.waiting, b.outputs) == (1, 0, [])
    assert b.plan() == [("a", 16)]
    assert b.plan() == [("a", 8)]
    assert [output.job_id for output in b.outputs] == ["a"]


def test_running_sequences_take_the_budget_before_waiting_ones() -> None:
    b = bench(max_num_batched_tokens=16)
    b.add("a", 10)
    b.step()
    b.add("b", range(100, 140))
    assert b.plan() == [("a", 1), ("b", 15)]
    b.add("c", range(200, 220))
    assert b.plan() == [("a", 1), ("b", 15)]
    assert b.plan() == [("a", 1), ("b", 10), ("c", 5)]


def test_the_long_prefill_threshold_bounds_each_chunk() -> None:
    b = bench(max_num_batched_tokens=32, long_prefill_token_threshold=8)
    b.add("a", 20)
    b.add("b", range(100, 120))
    assert b.plan() == [("a", 8), ("b", 8)]
    assert b.plan() == [("a", 8), ("b", 8)]
    assert b.plan() == [("a", 4), ("b", 4)]


def test_the_batch_is_never_wider_than_max_num_seqs() -> None:
    b = bench(max_num_seqs=2)
    for name in "abc":
        b.add(name, 4, max_tokens=2)
    assert [name for name, _ in b.plan()] == ["a", "b"]
    assert b.engine.waiting == 1
    b.step()
    assert [name for name, _ in b.plan()] == ["c"]


def test_a_prompt_is_admitted_only_when_all_of_it_would_fit() -> None:
    b = bench(num_blocks=11, max_model_len=40, max_num_batched_tokens=8, max_num_seqs=4)
    b.add("a", 20, max_tokens=4)
    b.add("b", range(100, 130))
    # The first chunk of b would fit in the five free blocks; the whole of b does not.
    while not b.engine.counters.finished["length"]:
        assert {name for name, _ in b.plan()} == {"a"}
    assert b.plan() == [("b", 8)]


def test_a_head_that_does_not_fit_holds_up_those_behind_it() -> None:
    b = bench(num_blocks=11, max_model_len=40)
    b.add("a", 20)
    b.add("big", range(100, 130))
    b.add("small", range(200, 204))
    assert b.plan() == [("a", 20)]
    assert b.engine.waiting == 2


def test_a_fully_cached_prompt_computes_its_last_block_again() -> None:
    # As vLLM was seen to: 100 tokens in blocks of 32, 96 of them cached; 96 tokens, 64 of them.
    b = bench(block_size=32, num_blocks=20)
    b.add("a", 100, max_tokens=1)
    b.step()
    b.add("b", 100, max_tokens=1)
    assert b.plan() == [("b", 4)]
    assert b.outputs[0].timing.cached_tokens == 96
    b.add("c", 96, max_tokens=1)
    assert b.plan() == [("c", 32)]


def test_twins_of_one_step_share_the_prefix_of_the_first() -> None:
    b = bench()
    b.add("a", 20)
    b.add("b", 20)
    assert b.plan() == [("a", 20), ("b", 4)]
    assert b.engine.kv_usage == pytest.approx((5 + 1) / 100)


def test_blocks_that_fill_while_decoding_are_cached_too() -> None:
    b = bench()
    b.add("a", 6, max_tokens=10)
    tokens: list[int] = list(range(6))
    while not b.engine.idle:
        b.step()
        tokens += b.outputs[0].token_ids
    b.engine.add(Job(id="next", prompt_token_ids=[*tokens, 1, 2, 3], max_tokens=1), b.now)
    b.step()
    # 15 tokens were computed: the last one was sampled and never fed back.
    assert b.outputs[0].timing.cached_tokens == 12


def test_without_prefix_caching_nothing_is_found_or_counted() -> None:
    b = bench(enable_prefix_caching=False)
    for name in "ab":
        b.add(name, 20, max_tokens=1)
        assert b.plan() == [(name, 20)]
    assert b.engine.counters.prefix_queries_tokens == 0


@pytest.mark.parametrize("key", ["lora", "cache_salt"])
def test_adapters_and_salts_do_not_share_a_prefix(key: str) -> None:
    b = bench()
    for name, value in (("a", None), ("b", "x"), ("c", "y"), ("d", "x")):
        b.add(name, 20, max_tokens=1, **{key: value})
    assert b.plan() == [("a", 20), ("b", 20), ("c", 20), ("d", 4)]


def test_the_last_running_sequence_gives_way_and_is_next_in_line() -> None:
    b = bench(num_blocks=11, max_model_len=40)
    b.add("a", 16)
    b.add("b", range(100, 116))
    b.step()
    b.add("c", range(200, 210))
    plans = [b.plan()]
    while not b.engine.counters.preemptions:
        plans.append(b.plan())
    # Ten blocks hold two sequences of 20 tokens; at the 21st of a, b is preempted and c is not admitted.
    assert plans[-1] == [("a", 1)]
    assert len(plans) == 5
    assert (b.engine.running, b.engine.waiting) == (1, 2)
    assert b.engine.abort("a")
    assert [name for name, _ in b.plan()] == ["b", "c"]


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    b = bench(num_blocks=11, max_model_len=40, max_num_seqs=2, scheduling="priority")
    b.add("better", 16)
    b.add("worse", range(100, 116), priority=2)
    b.step()
    b.add("tiny", range(200, 201), priority=1)
    while not b.engine.counters.preemptions:
        step = b.step()
    # There is a free place in the batch now, and room for one more block.
    assert step.preempted == ("worse",)
    assert [sequence.id for sequence, _ in step.scheduled] == ["better"]
    assert b.plan() == [("better", 1), ("tiny", 1)]


def test_a_preempted_sequence_is_recomputed_from_what_the_cache_still_has() -> None:
    b = bench(num_blocks=11, max_model_len=40)
    b.add("a", 16)
    b.add("b", range(100, 116))
    while not b.engine.counters.preemptions:
        b.step()
    b.engine.abort("a")
    # b had 16 prompt tokens and five outputs, the last of which was not computed; 20 tokens are cached, less
    # the tail block that a took.
    assert b.plan() == [("b", 21 - 16)]
    assert b.outputs[0].timing.preemptions == 1


def test_a_sequence_that_is_alone_and_last_preempts_itself_never() -> None:
    b = bench(num_blocks=11, max_model_len=40)
    b.add("a", 16, max_tokens=24)
    while not b.engine.idle:
        b.step()
    assert b.engine.counters.preemptions == 0
    assert b.engine.counters.generation_tokens == 24


def test_under_priority_the_most_urgent_waits_least() -> None:
    b = bench(max_num_seqs=1, scheduling="priority")
    for name, priority in (("late", 2), ("soon", 0), ("mid", 1), ("soon2", 0)):
        b.add(name, 4, max_tokens=1, priority=priority)
    assert [b.plan()[0][0] for _ in range(4)] == ["soon", "soon2", "mid", "late"]


def test_under_priority_the_worst_running_sequence_gives_way() -> None:
    b = bench(num_blocks=11, max_model_len=40, scheduling="priority")
    b.add("worse", 16, priority=1)
    b.step()
    b.add("better", range(100, 116), priority=0)
    while not b.engine.counters.preemptions:
        step = b.step()
    # "worse" comes first in the batch and was scheduled already when "better" needs its block.
    assert step.preempted == ("worse",)
    assert [sequence.id for sequence, _ in step.scheduled] == ["better"]
    assert step.tokens == 1


def test_what_a_preempted_sequence_gives_back_of_the_budget_is_used_in_the_same_step() -> None:
    b = bench(num_blocks=11, max_model_len=40, scheduling="priority", max_num_batched_tokens=3)
    b.add("worse", range(1), priority=1)
    b.step()
    b.add("better", range(100, 101))
    b.step()
    b.add("long", range(200, 230))
    plans = [b.plan()]
    while not b.engine.counters.preemptions:
        plans.append(b.plan())
    assert plans[-2] == [("worse", 1), ("better", 1), ("long", 1)]
    assert plans[-1] == [("better", 1), ("long", 2)]


def test_under_priority_others_go_on_when_the_worst_preempts_itself() -> None:
    b = bench(num_blocks=11, max_model_len=40, scheduling="priority")
    b.add("worse", 17, priority=1)
    b.step()
    b.add("better", range(100, 114), priority=0)
    while not b.engine.counters.preemptions:
        step = b.step()
    assert step.preempted == ("worse",)
    assert [sequence.id for sequence, _ in step.scheduled] == ["better"]


def test_adapters_beyond_the_bound_are_deferred_and_others_pass_them() -> None:
    b = bench(max_loras=1)
    b.add("a", 4, lora="x")
    b.add("b", 4, lora="y")
    b.add("c", 4, lora="x")
    b.add("d", 4)
    b.add("e", 4, lora="z")
    assert [name for name, _ in b.plan()] == ["a", "c", "d"]
    assert b.engine.waiting_by_reason == {"capacity": 0, "deferred": 2}
    b.engine.abort("a")
    b.engine.abort("c")
    assert [name for name, _ in b.plan()] == ["d", "b"]


def test_waiting_for_room_and_deferred_are_told_apart() -> None:
    b = bench(max_num_seqs=2, max_loras=1)
    b.add("a", 4, lora="x")
    b.add("b", 4, lora="y")
    b.add("c", 4)
    b.add("d", 4)
    b.step()
    assert b.engine.waiting_by_reason == {"capacity": 1, "deferred": 1}
