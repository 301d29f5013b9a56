"""An answer ends as asked, an abort leaves nothing behind, and what cannot be is refused."""

import pytest

from engines.model.engine import (
    EngineBusy,
    EngineFault,
    EngineRejects,
    Job,
)
from engines.model.generation import OutputLengths
from engines.model.text import EOS_TOKEN
from tests.engines.engine_examples import advance, engine, job, run, tokens_of

# --- what is said ----------------------------------------------------------------------------------------


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


# --- aborts ----------------------------------------------------------------------------------------------


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


# --- refusals --------------------------------------------------------------------------------------------


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
