"""Step times reproduce the quoted figures and behave like times."""

from dataclasses import replace
from math import hypot

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.model.roofline import MEASURED, Roofline, StepClock, StepLoad, StepTimes, fitting_tensor_parallel
from engines.model.specs import GPUS, MODELS

PAPER_GPU = Roofline(MODELS["mistral-7b"], GPUS["a6000"])

prefills = st.lists(st.tuples(st.integers(1, 8_192), st.integers(0, 32_000)), max_size=6)
decodes = st.lists(st.integers(1, 32_000), max_size=64)


def on(model: str, gpu: str, tensor_parallel: int = 1) -> Roofline:
    return Roofline(MODELS[model], GPUS[gpu], tensor_parallel=tensor_parallel)


def printed(value: float, quoted: str) -> bool:
    """Whether `value`, printed with as many decimals as `quoted`, is `quoted`."""
    decimals = len(quoted.partition(".")[2])
    return f"{value:.{decimals}f}" == quoted


def test_the_paper_gpu_reproduces_the_lecture() -> None:
    assert PAPER_GPU.kv_capacity_tokens() == 219_089
    assert printed(PAPER_GPU.step_s([(2_100, 0)], []), "0.2817")
    assert printed(PAPER_GPU.step_s([(21_000, 0)], []), "3.773")
    assert printed(PAPER_GPU.step_s([(2_000, 0)], []), "0.268")
    assert printed(1e3 * PAPER_GPU.step_s([], [2_000]), "24.07")
    assert printed(43 * PAPER_GPU.step_s([], [2_000]), "1.035")


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "capacity", "prefill_1k_ms", "decode_ms", "kv_slope_us", "token_us"),
    [
        ("mistral-7b", "a6000", 1, 219_089, "131.7", "24.1", "213", "129"),
        ("mistral-7b", "a40", 1, 219_089, "136.2", "26.5", "235", "133"),
        ("mistral-7b", "a100", 1, 438_816, "65.6", "9.4", "80", "64"),
        ("mistral-7b", "h100", 1, 438_816, "21.0", "5.9", "49", "20"),
        ("qwen2.5-3b", "a40", 1, None, "54.9", "11.7", "66", "53"),
        ("llama-3-8b", "a100", 1, 426_784, "65.6", "9.9", "80", "64"),
        ("llama-3-70b", "h100", 4, 448_280, "50.4", "13.5", "31", "49"),
        ("llama-3-70b", "a100", 4, 448_280, "158.7", "21.9", "50", "157"),
    ],
)
def test_the_table_of_constants_holds_to_its_printed_precision(
    model: str,
    gpu: str,
    gpus: int,
    capacity: int | None,
    prefill_1k_ms: str,
    decode_ms: str,
    kv_slope_us: str,
    token_us: str,
) -> None:
    roofline = on(model, gpu, gpus)
    if capacity is not None:
        assert roofline.kv_capacity_tokens() == capacity
    assert printed(1e3 * roofline.step_s([(1_000, 0)], []), prefill_1k_ms)
    assert printed(1e3 * roofline.step_s([], [2_000]), decode_ms)
    slope = roofline.step_s([], [3_000]) - roofline.step_s([], [2_000])
    assert printed(1e6 * slope, kv_slope_us)
    # What one more token costs a prefill without its attention: the weights' arithmetic.
    per_token = roofline.compute_s(StepLoad(prefill_tokens=1))
    assert printed(1e6 * per_token, token_us)


@pytest.mark.parametrize(
    ("roofline", "step", "measured_s", "tolerance"),
    [
        # Regression over measured A6000 steps (Preble): prefills of 2,100 and 21,000, decodes at 2k context.
        (PAPER_GPU, ([(2_100, 0)], []), 0.276, 0.03),
        (PAPER_GPU, ([(21_000, 0)], []), 3.68, 0.03),
        (PAPER_GPU, ([], [2_000] * 1), 25.0e-3, 0.04),
        (PAPER_GPU, ([], [2_000] * 8), 27.9e-3, 0.04),
        (PAPER_GPU, ([], [2_000] * 32), 37.9e-3, 0.04),
        (PAPER_GPU, ([], [2_000] * 64), 51.1e-3, 0.04),
        (on("mistral-7b", "a100"), ([(2_100, 0)], []), 0.140, 0.01),
        (on("mistral-7b", "a100"), ([(21_000, 0)], []), 1.98, 0.06),
        (on("llama-3-70b", "h100", 2), ([(2_000, 0)], []), 0.187, 0.09),
        (on("llama-3-70b", "h100", 2), ([(8_000, 0)], []), 0.727, 0.18),
    ],
)
def test_measured_steps_are_met_within_the_stated_tolerance(
    roofline: Roofline,
    step: tuple[list[tuple[int, int]], list[int]],
    measured_s: float,
    tolerance: float,
) -> None:
    assert roofline.step_s(*step) == pytest.approx(measured_s, rel=tolerance)


def test_the_rounded_knee_meets_measured_steps_that_the_hard_one_underrates() -> None:
    # A40, 64 to 256 tokens of a 7B model: measured 30 to 45 ms.
    hard, rounded = on("mistral-7b", "a40"), Roofline(MODELS["mistral-7b"], GPUS["a40"], knee="hypot")
    assert hard.step_s([(128, 0)], []) < 0.030 < rounded.step_s([(128, 0)], []) < 0.045


@given(prefills, decodes)
def test_the_rounded_knee_is_the_hypotenuse_and_never_faster(
    chunks: list[tuple[int, int]], contexts: list[int]
) -> None:
    rounded = Roofline(MODELS["mistral-7b"], GPUS["a6000"], knee="hypot")
    load = StepLoad.of(chunks, contexts)
    legs = PAPER_GPU.compute_s(load), PAPER_GPU.memory_s(load)
    assert rounded.step_from_totals(load) == pytest.approx(hypot(*legs) + rounded.overhead_s)
    assert rounded.step_from_totals(load) >= PAPER_GPU.step_from_totals(load)


@given(prefills, decodes, st.sampled_from(sorted(MODELS)))
def test_more_work_never_takes_less_time(
    chunks: list[tuple[int, int]], contexts: list[int], model: str
) -> None:
    roofline = on(model, "h200", 8)
    before = roofline.step_s(chunks, contexts)
    assert roofline.step_s([*chunks, (1, 0)], contexts) >= before
    assert roofline.step_s(chunks, [*contexts, 1]) >= before
    assert roofline.step_s([(new, context + 1) for new, context in chunks], contexts) >= before


@given(prefills, decodes)
def test_a_step_equals_the_formula_written_out(chunks: list[tuple[int, int]], contexts: list[int]) -> None:
    model = MODELS["mistral-7b"]
    tokens = len(contexts) + sum(new for new, _ in chunks)
    positions = sum(contexts) + sum(new * before + new * (new + 1) / 2 for new, before in chunks)
    flop = (
        2 * model.body_parameters * tokens
        + 2 * model.head_parameters * (len(contexts) + len(chunks))
        + 4 * 32 * 32 * 128 * positions
    )
    weights = 2 * (model.body_parameters + model.head_parameters)
    kv = 131_072 * (sum(contexts) + sum(new + before for new, before in chunks))
    expected = max(flop / (0.7 * 154.8e12), (weights + kv) / (0.8 * 768e9)) + 0.5e-3
    assert PAPER_GPU.step_s(chunks, contexts) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20))
def test_chunks_of_a_prefill_attend_as_many_positions_as_the_whole(chunks: list[int]) -> None:
    parts = StepLoad()
    for index, chunk in enumerate(chunks):
        parts.add_prefill(chunk, sum(chunks[:index]))
    whole = StepLoad.of([(sum(chunks), 0)], [])
    assert parts.prefill_positions == whole.prefill_positions
    assert parts.prefill_tokens == whole.prefill_tokens


def test_a_small_step_of_an_expert_model_reads_few_experts_and_a_large_one_all() -> None:
    roofline = on("qwen3-30b-a3b", "h100")
    model = MODELS["qwen3-30b-a3b"]
    byte_s = 1 / (0.8 * 3_350e9)
    one, many = (roofline.memory_s(StepLoad(prefill_tokens=n)) / byte_s for n in (1, 4_096))
    assert one == pytest.approx(2 * (model.active_body_parameters + model.head_parameters))
    assert many == pytest.approx(2 * (model.body_parameters + model.head_parameters))


def test_tensor_parallel_divides_everything_but_the_overhead() -> None:
    one, four = on("llama-3-8b", "a100"), on("llama-3-8b", "a100", 4)
    step = ([(300, 10)], [4_000] * 40)
    assert four.step_s(*step) - four.overhead_s == pytest.approx((one.step_s(*step) - one.overhead_s) / 4)


def test_weights_that_do_not_fit_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="use more tensor parallel GPUs"):
        on("llama-3-70b", "h100").kv_capacity_tokens()


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("model", MODELS)
def test_the_fitting_number_of_gpus_holds_a_full_context(model: str, gpu: str) -> None:
    spec = MODELS[model]
    gpus = fitting_tensor_parallel(spec, GPUS[gpu])
    assert on(model, gpu, gpus).kv_capacity_tokens() >= min(spec.context_tokens, 32_768)
    if gpus > 1:
        assert spec.weight_bytes > 0.75 * 0.9 * GPUS[gpu].memory_bytes * gpus / 2


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("tensor_parallel", 0),
        ("mfu", 0.0),
        ("mfu", 1.1),
        ("bandwidth_efficiency", 0.0),
        ("overhead_s", -1e-9),
    ],
)
def test_impossible_knobs_are_refused(knob: str, value: float) -> None:
    with pytest.raises(ValueError, match=r"tensor_parallel|peak|overhead_s"):
        Roofline(MODELS["mistral-7b"], GPUS["a40"], **{knob: value})  # type: ignore[arg-type]  # any knob


def test_measured_qwen_on_a40_follows_its_affine_law() -> None:
    times = MEASURED["qwen2.5-3b", "a40"]
    assert times.step_s([], [1_000] * 10) == pytest.approx(15.5e-3 + 10 * 0.12e-3 + 10_000 * 0.12e-6)
    assert times.step_s([(1_000, 5_000)], []) == pytest.approx(4e-3 + 1_000 * 60e-6)


def test_measured_deepseek_on_ascend_has_the_fitted_slope_and_base() -> None:
    times = MEASURED["deepseek-v3", "ascend-910c"]
    assert times.step_s([], [1_000]) - times.step_s([], [0]) == pytest.approx(200e-6)
    assert times.step_s([], [0]) == pytest.approx(5e-3)


def test_a_mixed_step_takes_both_parts_of_the_affine_law() -> None:
    times = StepTimes(
        base_s=1.0, per_sequence_s=0.1, per_kv_token_s=0.01, prefill_base_s=5.0, prefill_per_token_s=0.5
    )
    assert times.step_s([(4, 0)], [10]) == pytest.approx(times.step_s([(4, 0)], []) + times.step_s([], [10]))


def test_every_measured_pair_names_known_specs() -> None:
    for model, gpu in MEASURED:
        assert model in MODELS
        assert gpu in GPUS


def test_repr_names_the_pair() -> None:
    assert repr(on("llama-3-70b", "h100", 4)) == "<Roofline llama-3-70b on 4 x h100 (max)>"


CLOCKS: list[StepClock] = [PAPER_GPU, on("deepseek-v3", "h200", 16), *MEASURED.values()]


@given(sequences=st.integers(1, 256), context=st.integers(1, 32_000), steps=st.integers(0, 40))
@pytest.mark.parametrize("clock", [*CLOCKS, replace(PAPER_GPU, knee="hypot")])
def test_decode_steps_in_a_row_last_to_the_bit_what_each_lasts(
    clock: StepClock, sequences: int, context: int, steps: int
) -> None:
    first = sequences * context
    loads = [
        StepLoad(decode_sequences=sequences, decode_kv_tokens=first + sequences * step)
        for step in range(steps)
    ]
    assert clock.decode_steps(sequences, first, steps) == [clock.step_from_totals(load) for load in loads]
