"""An answer ends as asked, an abort leaves nothing behind, counters count what vLLM counts."""

from collections.abc import Sequence

import pytest

from engines.model.engine import (
    Engine,
    EngineBusy,
    EngineConfig,
    EngineFault,
    EngineRejects,
    Job,
    Output,
)
from engines.model.generation import OutputLengths
from engines.model.kv_cache import AllBlocksCleared, BlocksStored
from engines.model.roofline import Roofline, StepTimes
from engines.model.specs import GPUS, MODELS
from engines.model.text import EOS_TOKEN

CLOCK = StepTimes(
    base_s=0.01, per_sequence_s=1e-3, per_kv_token_s=1e-6, prefill_base_s=0.01, prefill_per_token_s=1e-3
)


def engine(**knobs: object) -> Engine:
    knobs = {"num_blocks": 201, "block_size": 4, "max_model_len": 400, **knobs}
    return Engine(EngineConfig(**knobs), CLOCK)  # type: ignore[arg-type]  # any field


def job(job_id: str = "a", prompt: int | Sequence[int] = 10, **knobs: object) -> Job:
    tokens = range(prompt) if isinstance(prompt, int) else prompt
    return Job(id=job_id, prompt_token_ids=tokens, **knobs)  # type: ignore[arg-type]  # any field


def advance(target: Engine, now: float) -> tuple[float, list[Output]]:
    step = target.begin_step(now)
    assert step is not None
    return now + step.duration_s, target.end_step(step, now + step.duration_s)


def run(target: Engine, now: float = 0.0) -> dict[str, list[Output]]:
    """All outputs by job, until the engine is idle."""
    seen: dict[str, list[Output]] = {}
    while not target.idle:
        now, outputs = advance(target, now)
        for output in outputs:
            seen.setdefault(output.job_id, []).append(output)
    return seen


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


# --- what is said --------------------------------------------------------------------------------------


def test_eos_is_the_last_token_of_an_answer_that_ends_by_itself() -> None:
    target = engine(output_lengths=OutputLengths(7, 0.0))
    target.add(job(max_tokens=50), 0.0)
    outputs = run(target)["a"]
    assert len(tokens_of(outputs)) == 7
    assert tokens_of(outputs)[-1] == EOS_TOKEN
    assert outputs[-1].finish_reason == "stop"
    assert target.counters.finished == {"stop": 1, "length": 0}


def test_eos_waits_for_min_tokens() -> None:
    target = engine(output_lengths=OutputLengths(3, 0.0))
    target.add(job(min_tokens=9, max_tokens=50), 0.0)
    tokens = tokens_of(run(target)["a"])
    assert tokens.index(EOS_TOKEN) == len(tokens) - 1 == 9


def test_ignoring_eos_runs_to_the_limit_with_the_same_words() -> None:
    answers = []
    for ignore in (False, True):
        target = engine(output_lengths=OutputLengths(7, 0.0))
        target.add(job(max_tokens=50, ignore_eos=ignore), 0.0)
        answers.append(tokens_of(run(target)["a"]))
    assert len(answers[1]) == 50
    assert answers[1][:6] == answers[0][:6]
    assert EOS_TOKEN not in answers[1]


def test_output_is_clipped_at_max_model_len() -> None:
    target = engine(max_model_len=30, output_lengths=None)
    target.add(job(prompt=20, max_tokens=25), 0.0)
    target.add(job("b", prompt=29), 0.0)
    seen = run(target)
    assert {name: len(outputs) for name, outputs in seen.items()} == {"a": 10, "b": 1}
    assert seen["a"][-1].finish_reason == "length"


def test_a_pooling_job_ends_with_its_prompt_and_without_a_token() -> None:
    target = engine(max_model_len=20)
    target.add(job(prompt=20, pooling=True), 0.0)
    (output,) = run(target)["a"]
    assert (output.token_ids, output.finish_reason) == ((), "stop")
    assert target.counters.prompt_tokens == 20
    assert target.counters.generation_tokens == 0
    assert target.counters.finished["stop"] == 1


# --- aborts --------------------------------------------------------------------------------------------


def test_an_abort_inside_a_step_yields_no_output_and_frees_at_once() -> None:
    target = engine()
    target.add(job("a"), 0.0)
    target.add(job("b", range(100, 120)), 0.0)
    step = target.begin_step(0.0)
    assert step is not None
    assert target.abort("a")
    assert target.kv_usage == pytest.approx(5 / 200)
    assert [output.job_id for output in target.end_step(step, 1.0)] == ["b"]
    assert target.counters.prompt_tokens == 20


def test_an_engine_whose_last_job_left_inside_a_step_is_idle_after_it() -> None:
    target = engine()
    target.add(job(), 0.0)
    step = target.begin_step(0.0)
    assert step is not None
    target.abort("a")
    assert target.end_step(step, 1.0) == []
    assert target.begin_step(1.0) is None


def test_the_id_of_an_aborted_job_can_be_used_again_within_the_same_step() -> None:
    target = engine()
    target.add(job(), 0.0)
    step = target.begin_step(0.0)
    assert step is not None
    target.abort("a")
    target.add(job(), 0.5)
    assert target.end_step(step, 1.0) == []
    assert len(advance(target, 1.0)[1]) == 1


def test_a_waiting_job_can_leave_the_queue() -> None:
    target = engine(max_num_seqs=1)
    for name in "abc":
        target.add(job(name, max_tokens=1), 0.0)
    assert target.abort("b")
    assert not target.abort("b")
    assert not target.abort("never here")
    assert set(run(target)) == {"a", "c"}


def test_aborts_are_not_finished_requests() -> None:
    target = engine()
    target.add(job(ignore_eos=True), 0.0)
    now, _ = advance(target, 0.0)
    advance(target, now)
    target.abort("a")
    assert sum(target.counters.finished.values()) == 0
    assert target.counters.generation_tokens == 2
    assert target.kv_usage == 0.0


def test_full_blocks_of_an_aborted_job_stay_cached() -> None:
    target = engine()
    target.add(job(prompt=20), 0.0)
    advance(target, 0.0)
    target.abort("a")
    target.add(job("b", prompt=20), 1.0)
    _, (output,) = advance(target, 1.0)
    assert output.timing.cached_tokens == 16


# --- counters and times ----------------------------------------------------------------------------------


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


# --- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (job(prompt=[]), "prompt"),
        (job(prompt=[-1]), "prompt"),
        (job(prompt=[1 << 32]), "prompt"),
        (job(prompt=400), "input_tokens"),
        (job(prompt=401, pooling=True), "input_tokens"),
        (job(max_tokens=0), "max_tokens"),
        (job(max_tokens=401), "max_tokens"),
        (job(max_tokens=3, min_tokens=4), "min_tokens"),
        (job(min_tokens=-1), "min_tokens"),
    ],
)
def test_a_job_that_can_never_run_is_refused_and_names_the_field(asked: Job, param: str) -> None:
    target = engine()
    with pytest.raises(EngineRejects) as refusal:
        target.add(asked, 0.0)
    assert refusal.value.param == param
    assert target.idle


def test_an_id_can_be_here_only_once() -> None:
    target = engine()
    target.add(job(), 0.0)
    with pytest.raises(EngineRejects, match="here already"):
        target.add(job(), 0.0)
    with pytest.raises(EngineRejects, match="here already"):
        target.add_all([job("b"), job("b")], 0.0)
    assert target.waiting == 1


@pytest.mark.parametrize(
    ("bound", "fits"),
    [({"max_num_queued_reqs": 2}, 2), ({"max_num_queued_tokens": 25}, 3), ({"max_num_waiting": 2}, 2)],
)
def test_a_full_engine_refuses_and_counts_it(bound: dict[str, int], fits: int) -> None:
    target = engine(**bound)
    (reason,) = bound
    for index in range(fits):
        target.add(job(str(index)), 0.0)
    with pytest.raises(EngineBusy) as refusal:
        target.add(job("one too many"), 0.0)
    assert refusal.value.reason == reason
    assert target.counters.rejected[reason] == 1
    assert target.waiting == fits


@pytest.mark.parametrize(
    ("bound", "takes"),
    [
        ({"max_num_queued_reqs": 2}, False),
        ({"max_num_queued_tokens": 25}, True),
        ({"max_num_waiting": 2}, True),
    ],
)
def test_only_the_bound_of_requests_counts_those_that_run(bound: dict[str, int], takes: bool) -> None:
    target = engine(**bound)
    for index in range(2):
        target.add(job(str(index), ignore_eos=True), 0.0)
    advance(target, 0.0)
    assert (target.running, target.waiting) == (2, 0)
    if takes:
        target.add(job("now"), 0.0)
    else:
        with pytest.raises(EngineBusy):
            target.add(job("now"), 0.0)


def test_all_sequences_of_a_request_need_room() -> None:
    target = engine(max_num_queued_reqs=2)
    target.add(job("a"), 0.0)
    with pytest.raises(EngineBusy):
        target.add_all([job("b", sequence=0), job("c", sequence=1)], 0.0)
    assert target.waiting == 1


def test_the_sequences_of_one_request_are_queued_together_or_not_at_all() -> None:
    target = engine()
    with pytest.raises(EngineRejects):
        target.add_all([job("a"), job("b", prompt=400)], 0.0)
    assert target.idle
    target.add_all([job("a", sequence=0), job("b", sequence=1)], 0.0)
    seen = run(target)
    assert tokens_of(seen["a"]) != tokens_of(seen["b"])


def test_steps_cannot_overlap_or_end_twice() -> None:
    target = engine()
    target.add(job(ignore_eos=True), 0.0)
    step = target.begin_step(0.0)
    assert step is not None
    with pytest.raises(EngineFault, match="has not ended"):
        target.begin_step(0.0)
    target.end_step(step, 1.0)
    with pytest.raises(EngineFault, match="not the open one"):
        target.end_step(step, 1.0)


@pytest.mark.parametrize(
    "knobs",
    [
        {"block_size": 0},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 0},
        {"max_model_len": 0},
        {"max_num_queued_reqs": 0},
        {"max_loras": 0},
        {"scheduling": "lifo"},
        {"max_model_len": 801},
    ],
)
def test_a_configuration_that_cannot_work_is_refused(knobs: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|known are fcfs, priority|does not fit"):
        engine(**knobs)


def test_an_idle_engine_has_no_step() -> None:
    assert engine().begin_step(0.0) is None


def test_repr_shows_the_account() -> None:
    target = engine(max_num_seqs=1)
    assert repr(target).startswith("<Engine idle | 0 running, 0 waiting | <KvCache 0/200")
    target.add(job(), 0.0)
    target.add(job("b"), 0.0)
    target.begin_step(0.0)
    assert repr(target).startswith("<Engine in a step | 1 running, 1 waiting | <KvCache 3/200")
