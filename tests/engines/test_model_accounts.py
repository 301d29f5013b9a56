"""Counters count what vLLM counts, and times tell what vLLM tells."""

from engines.model.engine import (
    Engine,
    EngineConfig,
    Output,
)
from engines.model.kv_cache import AllBlocksCleared, BlocksStored
from engines.model.roofline import Roofline
from engines.model.specs import GPUS, MODELS
from tests.engines.engine_examples import advance, engine, job, run


def test_prompt_tokens_are_counted_whole_and_at_the_first_output() -> None:
    target = engine(max_num_batched_tokens=10, max_num_seqs=4)
    target.add(job(prompt=25, ignore_eos=True), 0.0)
    now = 0.0
    for counted in (0, 0, 25, 25):
        now, _ = advance(target, now)
        assert target.counters.prompt_tokens == counted
    target.add(job("b", prompt=25, ignore_eos=True), now)
    now, _ = advance(target, now)
    assert target.counters.prompt_tokens == 50
    assert target.counters.prompt_tokens_cached == 24


def test_prefix_queries_are_counted_at_admission_and_not_for_a_look_up_that_found_no_room() -> None:
    target = engine(num_blocks=11, max_model_len=40)
    target.add(job(prompt=20, max_tokens=3, ignore_eos=True), 0.0)
    target.add(job("b", range(100, 130), max_tokens=1), 0.0)
    now, _ = advance(target, 0.0)
    now, _ = advance(target, now)
    assert target.counters.prefix_queries_tokens == 20
    run(target, now)
    assert target.counters.prefix_queries_tokens == 50
    assert target.counters.prefix_hits_tokens == 0


def test_a_resumed_job_is_counted_once() -> None:
    target = engine(num_blocks=11, max_model_len=40)
    for start in (0, 100):
        target.add(job(f"{start}", range(start, start + 16), max_tokens=20, ignore_eos=True), 0.0)
    run(target)
    counters = target.counters
    assert counters.preemptions >= 1
    assert counters.prompt_tokens == counters.prefix_queries_tokens == 32
    assert counters.prefix_hits_tokens == counters.prompt_tokens_cached == 0
    assert counters.generation_tokens == 40


def test_times_tell_when_a_job_was_queued_scheduled_and_served() -> None:
    target = engine(max_num_seqs=1)
    target.add(job(max_tokens=2, ignore_eos=True), 1.0)
    target.add(job("b", max_tokens=2, ignore_eos=True, arrival=0.5), 1.5)
    now, outputs = 2.0, list[Output]()
    while not target.idle:
        step = target.begin_step(now)
        assert step is not None
        outputs += target.end_step(step, now + 1)
        now += 1
    first, second = outputs[0].timing, outputs[2].timing
    assert (first.arrival, first.queued, first.scheduled) == (1.0, 1.0, 2.0)
    assert (first.first_token, first.last_token) == (3.0, 4.0)
    assert (second.arrival, second.queued, second.scheduled) == (0.5, 1.5, 4.0)
    assert [output.since_last_s for output in outputs] == [None, 1.0, None, 1.0]
    assert first.generation_tokens == 2


def test_a_step_lasts_as_long_as_the_clock_says() -> None:
    roofline = Roofline(MODELS["llama-3-8b"], GPUS["a100"])
    target = Engine(EngineConfig(num_blocks=2_000, max_model_len=8_192), roofline)
    target.add(job(prompt=1_000, ignore_eos=True), 0.0)
    step = target.begin_step(0.0)
    assert step is not None
    assert step.duration_s == roofline.step_s([(1_000, 0)], [])
    target.end_step(step, 1.0)
    target.add(job("b", range(5_000, 6_500), ignore_eos=True), 1.0)
    step = target.begin_step(1.0)
    assert step is not None
    assert step.duration_s == roofline.step_s([(1_500, 0)], [1_001])
    assert step.tokens == 1_501


def test_kv_events_follow_the_prompt_the_chunks_and_the_decode() -> None:
    target = engine(record_kv_events=True, max_num_batched_tokens=8, max_num_seqs=4)
    target.add(job(prompt=14, max_tokens=4, ignore_eos=True), 0.0)
    batches, now = [], 0.0
    while not target.idle:
        now, _ = advance(target, now)
        batches.append(target.drain_kv_events())
    stored = [[event for event in batch if isinstance(event, BlocksStored)] for batch in batches]
    # Two blocks per chunk of eight; the third and fourth chunk complete one each; 17 tokens fill four blocks.
    assert [[len(event.hashes) for event in batch] for batch in stored] == [[2], [1], [], [1], []]
    chain = [event for batch in stored for event in batch]
    assert [event.parent for event in chain] == [None, chain[0].hashes[-1], chain[1].hashes[-1]]
    target.add(job("b", prompt=13, max_tokens=1), now)
    advance(target, now)
    assert target.drain_kv_events() == []
    assert target.reset_prefix_cache()
    assert target.drain_kv_events() == [AllBlocksCleared()]


def test_a_last_block_that_was_recomputed_is_stored_once_more() -> None:
    # As vLLM was seen to publish the same hash twice for a prompt that ends on a block boundary.
    target = engine(record_kv_events=True)
    batches = []
    for name in "ab":
        target.add(job(name, prompt=12, max_tokens=1), 0.0)
        advance(target, 0.0)
        batches.append(target.drain_kv_events())
    (first,), (second,) = batches
    assert isinstance(first, BlocksStored)
    assert isinstance(second, BlocksStored)
    assert second.hashes == first.hashes[-1:]


def test_the_prefix_cache_is_reset_only_while_nothing_is_held() -> None:
    target = engine()
    target.add(job(ignore_eos=True), 0.0)
    advance(target, 0.0)
    assert not target.reset_prefix_cache()
    target.abort("a")
    assert target.reset_prefix_cache()
    target.add(job(), 1.0)
    _, (output,) = advance(target, 1.0)
    assert output.timing.cached_tokens == 0
