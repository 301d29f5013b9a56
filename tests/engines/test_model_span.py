"""A span of decode steps is nothing but its single steps: same times, tokens, blocks and cached prefixes."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.model.engine import Engine, EngineConfig, EngineFault, Job, Output
from engines.model.job import SCHEDULINGS, Scheduling
from engines.model.parts import Part, PromptParts
from engines.model.roofline import Roofline, StepClock, StepLoad, StepTimes
from engines.model.span import Span
from engines.model.specs import GPUS, MODELS

AFFINE = StepTimes(
    base_s=0.01, per_sequence_s=1e-3, per_kv_token_s=1e-6, prefill_base_s=0.01, prefill_per_token_s=1e-3
)
ROOFLINE = Roofline(MODELS["qwen2.5-3b"], GPUS["a40"])

Arrival = tuple[float, Job]


def engine(clock: Roofline | StepTimes, blocks: int, slots: int, scheduling: Scheduling = "fcfs") -> Engine:
    config = EngineConfig(
        num_blocks=blocks, block_size=4, max_model_len=120, max_num_seqs=slots, scheduling=scheduling
    )
    return Engine(config, clock)


def by_steps(target: Engine, arrivals: list[Arrival], *, news: bool = False) -> list[Output]:
    """What comes out when each step is looked at."""
    now, seen, left = 0.0, [], list(arrivals)
    while left or not target.idle:
        while left and left[0][0] <= now:
            target.add(left.pop(0)[1], now)
        step = target.begin_step(now)
        if step is None:
            now = left[0][0]
            continue
        now += step.duration_s
        seen += target.end_step(step, now, news=news)
    return seen


def ends_of(span: Span, clock: StepClock, now: float) -> list[float]:
    """When each step of a span ends, if the first begins now."""
    count = len(span.sequences)
    loads = [
        StepLoad(decode_sequences=count, decode_kv_tokens=span.kv_tokens + count * step)
        for step in range(span.steps)
    ]
    return list(accumulate(map(clock.step_from_totals, loads), initial=now))[1:]


def by_spans(target: Engine, arrivals: list[Arrival], clock: Roofline | StepTimes, most: int) -> list[Output]:
    """The same with as many spans as there can be, cut short where a job arrives."""
    now, seen, left = 0.0, [], list(arrivals)
    while left or not target.idle:
        while left and left[0][0] <= now:
            target.add(left.pop(0)[1], now)
        span = target.begin_span(most)
        if span is not None:
            ends = ends_of(span, clock, now)
            if left:
                before = sum(end < left[0][0] for end in ends)
                ends = ends[: before + 1]
            now = ends[-1]
            seen += target.end_span(span, ends)
            continue
        step = target.begin_step(now)
        if step is None:
            now = left[0][0]
            continue
        now += step.duration_s
        seen += target.end_step(step, now)
    return seen


def state(target: Engine) -> tuple[object, ...]:
    return (target.counters, target.kv_usage, repr(target))


JOBS = st.lists(
    st.tuples(st.floats(0, 2), st.integers(1, 60), st.integers(1, 60), st.integers(0, 3), st.booleans()),
    min_size=1,
    max_size=14,
)


def arrivals_of(drawn: list[tuple[float, int, int, int, bool]]) -> list[Arrival]:
    jobs = []
    for number, (at, prompt, tokens, shared, known) in enumerate(sorted(drawn)):
        if known:
            ids: object = [shared] * prompt
        else:
            ids = PromptParts([Part(shared, prompt // 2), Part(100 + number, prompt - prompt // 2)], number)
        jobs.append((at, Job(id=str(number), prompt_token_ids=ids, max_tokens=tokens)))  # type: ignore[arg-type]  # both are sequences
    return jobs


@settings(deadline=None, max_examples=150)
@given(
    drawn=JOBS,
    blocks=st.integers(31, 120),
    slots=st.integers(1, 6),
    most=st.integers(2, 50),
    scheduling=st.sampled_from(SCHEDULINGS),
)
@pytest.mark.parametrize("clock", [AFFINE, ROOFLINE], ids=["affine", "roofline"])
def test_spans_yield_what_single_steps_yield(
    clock: Roofline | StepTimes,
    drawn: list[tuple[float, int, int, int, bool]],
    blocks: int,
    slots: int,
    most: int,
    scheduling: Scheduling,
) -> None:
    one, other = engine(clock, blocks, slots, scheduling), engine(clock, blocks, slots, scheduling)
    steps = by_steps(one, arrivals_of(drawn))
    spans = by_spans(other, arrivals_of(drawn), clock, most)
    ended = {output.job_id: output for output in steps if output.finish_reason}
    for output in spans:
        if output.finish_reason:
            twin = ended.pop(output.job_id)
            assert output.finish_reason == twin.finish_reason
            assert output.token_ids == twin.token_ids
            assert output.timing.first_token == pytest.approx(twin.timing.first_token, abs=1e-9)
            assert output.timing.last_token == pytest.approx(twin.timing.last_token, abs=1e-9)
            assert output.timing.cached_tokens == twin.timing.cached_tokens
            assert output.timing.preemptions == twin.timing.preemptions
            assert output.since_last_s == pytest.approx(twin.since_last_s, abs=1e-9)
    assert not ended
    assert state(one) == state(other)


@settings(deadline=None, max_examples=50)
@given(drawn=JOBS, blocks=st.integers(31, 120), slots=st.integers(1, 6))
def test_news_leave_out_nothing_but_what_is_between_the_first_and_the_last_token(
    drawn: list[tuple[float, int, int, int, bool]], blocks: int, slots: int
) -> None:
    one, other = engine(AFFINE, blocks, slots), engine(AFFINE, blocks, slots)
    everything = by_steps(one, arrivals_of(drawn))
    news = by_steps(other, arrivals_of(drawn), news=True)
    wanted = [each for each in everything if each.since_last_s is None or each.finish_reason is not None]
    assert news == wanted
    assert state(one) == state(other)


def test_a_span_ends_where_the_first_sequence_does() -> None:
    target = engine(AFFINE, 100, 4)
    target.add(Job(id="short", prompt_token_ids=[1] * 8, max_tokens=9, ignore_eos=True), 0.0)
    target.add(Job(id="long", prompt_token_ids=[2] * 8, max_tokens=30, ignore_eos=True), 0.0)
    step = target.begin_step(0.0)
    assert step is not None
    target.end_step(step, 1.0)
    span = target.begin_span(1_000)
    assert span is not None
    assert span.steps == 8
    outputs = target.end_span(span, ends_of(span, AFFINE, 1.0))
    assert [output.finish_reason for output in outputs] == ["length"]


def test_a_prompt_that_can_begin_leaves_no_room_for_a_span() -> None:
    target = engine(AFFINE, 100, 4)
    target.add(Job(id="a", prompt_token_ids=[1] * 8, max_tokens=90, ignore_eos=True), 0.0)
    assert target.begin_span(10) is None
    step = target.begin_step(0.0)
    assert step is not None
    target.end_step(step, 1.0)
    assert target.begin_span(10) is not None
    target.add(Job(id="b", prompt_token_ids=[2] * 8, max_tokens=90), 1.0)
    assert target.begin_span(10) is None


def test_a_job_that_left_in_the_middle_of_a_span_is_a_fault_of_the_driver() -> None:
    target = engine(AFFINE, 100, 4)
    target.add(Job(id="a", prompt_token_ids=[1] * 8, max_tokens=90, ignore_eos=True), 0.0)
    step = target.begin_step(0.0)
    assert step is not None
    target.end_step(step, 1.0)
    span = target.begin_span(10)
    assert span is not None
    target.abort("a")
    with pytest.raises(EngineFault, match="left in the middle"):
        target.end_span(span, [2.0])


def test_what_a_batch_writes_may_bring_another_prompt_to_the_front() -> None:
    prompt = list(range(8))
    running = Job(id="running", prompt_token_ids=prompt, max_tokens=60, ignore_eos=True)
    alone = by_steps(engine(AFFINE, 100, 4), [(0.0, running)])
    written = [token for output in alone for token in output.token_ids]
    # "big" came first and does not fit; "small" fits, and goes on where the running one will have been.
    big = Job(id="big", prompt_token_ids=[*prompt, *range(1_000, 1_109)], max_tokens=2)
    small = Job(id="small", prompt_token_ids=[*prompt, *written[:20]], max_tokens=2)
    arrivals = [(0.0, running), (0.04, big), (0.04, small)]
    singly = by_steps(engine(AFFINE, 31, 4, "longest_prefix"), list(arrivals))
    spans = by_spans(engine(AFFINE, 31, 4, "longest_prefix"), list(arrivals), AFFINE, 50)
    began, again = (
        {one.job_id: one.timing.first_token or 0.0 for one in outputs if one.finish_reason}
        for outputs in (singly, spans)
    )
    assert began == pytest.approx(again)
    assert 0.0 < began["small"] < 0.2 < began["big"]
