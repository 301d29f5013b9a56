"""The barrier of data-parallel ranks: all begin together, and the slowest says when they end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.model.engine import Engine, EngineConfig, EngineFault, Job
from engines.model.lockstep import BarrierGroup, JointStep
from engines.model.roofline import StepTimes

CLOCK = StepTimes(
    base_s=0.01, per_sequence_s=0.001, per_kv_token_s=1e-6, prefill_base_s=0.01, prefill_per_token_s=1e-4
)


def engine(num_blocks: int = 101) -> Engine:
    config = EngineConfig(num_blocks=num_blocks, block_size=4, max_model_len=200, output_lengths=None)
    return Engine(config, CLOCK)


def group(ranks: int) -> BarrierGroup:
    return BarrierGroup([engine() for _ in range(ranks)])


def job(name: str, prompt: int = 10, output: int = 3) -> Job:
    return Job(id=name, prompt_token_ids=range(prompt), max_tokens=output)


def begun(ranks: BarrierGroup, now: float = 0.0) -> JointStep:
    step = ranks.begin_step(now)
    assert step is not None
    return step


def test_a_step_lasts_as_long_as_the_longest_of_them() -> None:
    ranks = group(3)
    ranks.engines[0].add(job("short", 10), 0.0)
    ranks.engines[1].add(job("long", 100), 0.0)
    step = begun(ranks)
    short, long, nothing = step.steps
    assert short is not None
    assert long is not None
    assert nothing is None
    assert step.duration_s == long.duration_s > short.duration_s
    assert step.waste_s == pytest.approx(long.duration_s - short.duration_s + long.duration_s)


def test_outputs_come_by_rank_and_all_at_once() -> None:
    ranks = group(2)
    for rank, one in enumerate(ranks.engines):
        one.add(job(f"of-{rank}"), 0.0)
    outputs = ranks.end_step(begun(ranks), 1.0)
    assert [[output.job_id for output in of_rank] for of_rank in outputs] == [["of-0"], ["of-1"]]


def test_an_idle_rank_keeps_company_with_dummy_steps_that_count_nothing() -> None:
    ranks = group(2)
    ranks.engines[0].add(job("one", output=5), 0.0)
    now = 0.0
    while (step := ranks.begin_step(now)) is not None:
        now += step.duration_s
        outputs = ranks.end_step(step, now)
        assert outputs[1] == []
    assert ranks.engines[0].counters.steps == 5
    assert ranks.engines[1].counters.steps == 0


def test_a_dummy_step_may_be_the_longest_where_ranks_differ() -> None:
    slow = StepTimes(base_s=9.0, per_sequence_s=0, per_kv_token_s=0, prefill_base_s=0, prefill_per_token_s=0)
    ranks = BarrierGroup([engine(), Engine(engine().config, slow)])
    ranks.engines[0].add(job("one"), 0.0)
    assert begun(ranks).duration_s == 9.0


def test_a_job_that_comes_inside_a_step_waits_for_its_end_on_an_idle_rank_too() -> None:
    ranks = group(2)
    ranks.engines[0].add(job("first"), 0.0)
    step = begun(ranks)
    ranks.engines[1].add(job("second"), 0.5)
    assert ranks.engines[1].waiting == 1
    assert ranks.end_step(step, 1.0)[1] == []
    assert begun(ranks, 1.0).steps[1] is not None


def test_nothing_to_do_is_no_step() -> None:
    ranks = group(2)
    assert ranks.begin_step(0.0) is None
    assert ranks.idle
    assert "of 2 idle" in repr(ranks)


def test_the_protocol_of_steps_is_kept() -> None:
    ranks = group(2)
    ranks.engines[0].add(job("one"), 0.0)
    step = begun(ranks)
    with pytest.raises(EngineFault, match="has not ended"):
        ranks.begin_step(0.0)
    with pytest.raises(EngineFault, match="not the open one"):
        ranks.end_step(JointStep(1.0, (None, None)), 1.0)
    ranks.end_step(step, 1.0)
    with pytest.raises(EngineFault, match="not the open one"):
        ranks.end_step(step, 1.0)


def test_a_group_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one engine"):
        BarrierGroup([])


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(1, 6), st.integers(0, 12)), max_size=12
    )
)
def test_what_the_ranks_say_does_not_depend_on_the_barrier(jobs: list[tuple[int, int, int, int]]) -> None:
    """Ranks that step together and engines that step alone give every job the same tokens."""
    together = group(3)
    spoken: dict[str, list[int]] = {}
    pending = sorted(enumerate(jobs), key=lambda entry: entry[1][3])
    turn, now = 0, 0.0
    while pending or not together.idle:
        while pending and pending[0][1][3] <= turn:
            name, (rank, prompt, output, _) = pending.pop(0)
            together.engines[rank].add(job(str(name), prompt, output), now)
        turn += 1
        step = together.begin_step(now)
        if step is None:
            continue
        now += step.duration_s
        for of_rank in together.end_step(step, now):
            for one in of_rank:
                spoken.setdefault(one.job_id, []).extend(one.token_ids)
    for name, (_, prompt, output, _) in enumerate(jobs):
        alone = engine()
        alone.add(job(str(name), prompt, output), 0.0)
        tokens: list[int] = []
        while (single := alone.begin_step(0.0)) is not None:
            tokens += [token for one in alone.end_step(single, 0.0) for token in one.token_ids]
        assert spoken[str(name)] == tokens
