"""Laws of the calibrated cost, with the sums done by hand."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.calibration import Calibration, CalibrationState
from router.core.engine_stats import EngineStats
from router.core.explain import Row, decide
from router.core.handover import Handover
from router.core.lease import Outcome
from router.core.request import Request
from router.core.step_model import StepModel, TransferModel
from router.core.worker import Role
from router.policies import build
from router.policies.calibrated import Calibrated
from router.policies.calibrated_price import operating_token_s
from tests.policies.calibrated_examples import A40, KnownWorker, chat, known, resident
from tests.policies.examples import NOW, place, worker

_P, _O = 1_000, 200
_DECODE = chat(prompt_tokens=_P, split=True)
"""Only its decode is priced."""
_WHOLE = chat(prompt_tokens=_P)


def calibrated(**params: object) -> Calibrated:
    return cast(Calibrated, build("calibrated", params, 1))


def row_of(policy: Calibrated, call: Request, one: KnownWorker) -> Row:
    """How a worker is priced, in a pool that is wide enough for costs to decide."""
    pool = [one, *(known(f"other {n}") for n in range(3))]
    return policy.explain(call, pool, NOW).rows[0]


def total(policy: Calibrated, call: Request, one: KnownWorker) -> float:
    """What it costs."""
    return row_of(policy, call, one).total


# --- the physical form -----------------------------------------------------------------------------------


def test_a_decode_costs_its_own_steps_and_what_they_grow_for_others() -> None:
    there = [resident(500, 150, 200), resident(2_000, 0, 1_000)]
    one = known("w", *there)
    growth = 0.12e-3 + 0.12e-6 * (_P + _O / 2)
    after = 15.5e-3 + 0.12e-3 * 2 + 0.12e-6 * 2_650 + growth
    expected = _O * after + growth * (50 + _O)
    assert total(calibrated(), _DECODE, one) == pytest.approx(expected)


def test_a_worker_of_both_roles_is_charged_prefill_and_decode() -> None:
    queued = resident(2_000, prefilled=False, granted=NOW - 0.02)
    one = known("w", resident(500, 100, 200), queued)
    growth = 0.12e-3 + 0.12e-6 * (_P + _O / 2)
    after = 15.5e-3 + 0.12e-3 * 2 + 0.12e-6 * 2_600 + growth
    prefill = 0.004 + 60e-6 * _P
    backlog = 0.004 + 60e-6 * 2_000 - 0.02
    others = growth * (100 + 200)
    expected = backlog + prefill + _O * after + others
    row = row_of(calibrated(), _WHOLE, one)
    assert row.total == pytest.approx(expected)
    assert row.terms["backlog_s"] == pytest.approx(backlog)


def test_a_prefill_worker_is_charged_the_prefill_alone() -> None:
    one = known("p", resident(2_000, prefilled=False), role=Role.PREFILL)
    pool = [one, *(known(f"q{n}", role=Role.PREFILL) for n in range(3))]
    table = calibrated().explain(_DECODE, pool, NOW)
    assert table.rows[0].total == pytest.approx(0.004 + 60e-6 * 2_000 + 0.004 + 60e-6 * _P)
    assert table.rows[1].total == pytest.approx(0.004 + 60e-6 * _P)


def test_kv_that_is_taken_is_waited_for() -> None:
    there = [resident(3_000, 100, 200), resident(6_000, 100, 1_100)]
    one, roomy = known("w", *there, kv_capacity_tokens=10_100), known("w", *there)
    after = 15.5e-3 + 0.12e-3 * 3 + 0.12e-6 * (9_200 + _P + _O / 2)
    # 9,200 of 10,100 are taken: 100 are lacking, and the first to end has 100 tokens left.
    waited = total(calibrated(), _DECODE, one) - total(calibrated(), _DECODE, roomy)
    assert waited == pytest.approx(100 * after)


def test_a_slot_that_is_taken_is_waited_for() -> None:
    there = [resident(500, 0, 300), resident(500, 0, 80)]
    full, roomy = known("w", *there, free_slots=0), known("w", *there, free_slots=1)
    after = 15.5e-3 + 0.12e-3 * 3 + 0.12e-6 * (1_000 + _P + _O / 2)
    waited = total(calibrated(), _DECODE, full) - total(calibrated(), _DECODE, roomy)
    assert waited == pytest.approx(80 * after)


def test_kv_is_fetched_from_where_that_is_quick() -> None:
    prefill = resident(_P, prefilled=True)
    prefill.worker = "producer"
    handed = chat(prompt_tokens=_P, split=True, handover=Handover(prefill, "", NOW, NOW + 10, NOW + 25))
    near = known("near", transfers={"producer": TransferModel(0.001, 1e-6)})
    far = known("far", transfers={"producer": TransferModel(0.101, 1e-6)})
    unmeasured = known("unmeasured")
    rows = calibrated().explain(handed, [far, near, unmeasured, known("too")], NOW).rows
    assert [row.terms.get("transfer_s") for row in rows] == pytest.approx([0.102, 0.002, 0.052, 0.052])
    assert place(calibrated(), handed, [far, near, unmeasured, known("too")]) == "near"


def test_a_tight_class_weighs_its_own_seconds_twice_and_those_of_others_once() -> None:
    one = known("w", resident(500, 0, 1_000))
    row = row_of(calibrated(), _DECODE, one)
    own, others = row.terms["decode_s"], row.terms.get("slowdown_s", 0.0)
    tight = chat(prompt_tokens=_P, split=True, slo="tight")
    assert total(calibrated(), tight, one) == pytest.approx(2 * own + others)
    assert total(calibrated(tight_sigma=5), tight, one) == pytest.approx(5 * own + others)
    assert total(calibrated(), chat(prompt_tokens=_P, split=True, slo="loose"), one) == row.total


def test_who_else_waits_in_the_engine_is_taken_for_one_like_this() -> None:
    stats = EngineStats(taken=NOW - 1, waiting=3)
    strangers = total(calibrated(), _WHOLE, known("w", stats=stats))
    stale = total(calibrated(), _WHOLE, known("w", stats=EngineStats(taken=NOW - 9, waiting=3)))
    assert strangers - stale == pytest.approx(3 * (0.004 + 60e-6 * _P))


def test_a_faster_worker_is_known_by_its_coefficients_alone() -> None:
    half = StepModel(2e-3, 30e-6, 7.75e-3, 0.06e-3, 0.06e-6)
    slow, fast = known("slow"), known("fast", step=half, capacity=1.0)
    assert total(calibrated(), _WHOLE, slow) == pytest.approx(2 * total(calibrated(), _WHOLE, fast))


# --- the paper's form ------------------------------------------------------------------------------------


def test_the_papers_sum_is_that_of_its_terms() -> None:
    one = known("w", resident(500, 0, 300), resident(500, 0, 500), kv_capacity_tokens=60_000)
    token_s = 15.5e-3 + 0.12e-3 * 100 + 0.12e-6 * 42_000
    backlog = token_s * 800 / 100
    policy = calibrated(form="paper")
    assert total(policy, _DECODE, one) == pytest.approx(backlog + _O * token_s + 0.15 * 2)
    assert row_of(policy, _DECODE, one).reason == "paper"


def test_pressure_counts_above_seven_tenths() -> None:
    def cost(kv_tokens: int, **params: object) -> float:
        one = known("w", kv_tokens=kv_tokens, kv_capacity_tokens=10_000)
        return total(calibrated(form="paper", **params), _DECODE, one)

    calm = cost(0)
    assert cost(5_700) == pytest.approx(calm)  # 0.69 once the prompt and its output are there
    token_s = operating_token_s(A40, 10_000, 100)
    assert cost(7_800) - calm == pytest.approx(_O * token_s * 0.2)  # 0.9
    assert cost(7_800, pressure_weight=3) - calm == pytest.approx(_O * token_s * 0.6)


def test_the_backlog_is_over_the_operating_concurrency_whatever_runs() -> None:
    """Over the current batch it would be a mean, and send everything to the fullest."""
    few = known("w", remaining_tokens=1_000, sequences=2)
    many = known("w", remaining_tokens=1_000, sequences=50)
    policy = calibrated(form="paper", queue_weight_s=0.001)
    assert total(policy, _DECODE, few) == total(policy, _DECODE, many)
    none = total(policy, _DECODE, known("w"))
    ten_times = calibrated(form="paper", queue_weight_s=0.001, operating_concurrency=10)
    ratio = (total(ten_times, _DECODE, few) - total(ten_times, _DECODE, known("w"))) / (
        total(policy, _DECODE, few) - none
    )
    step_ratio = operating_token_s(A40, None, 10) / operating_token_s(A40, None, 100)
    assert ratio == pytest.approx(10 * step_ratio)


def test_sigma_weighs_backlog_and_size_but_not_the_queue() -> None:
    one = known("w", resident(500, 0, 300))
    loose = total(calibrated(form="paper"), _DECODE, one)
    tight = total(calibrated(form="paper"), chat(prompt_tokens=_P, split=True, slo="tight"), one)
    assert tight == pytest.approx(2 * (loose - 0.15) + 0.15)


def test_the_operating_time_of_a_token_divides_by_what_speculation_gives() -> None:
    twice = StepModel(0, 0, 0.02, 1e-4, 1e-7, tokens_per_step=2.0)
    assert operating_token_s(twice, 10_000, 50) == pytest.approx((0.02 + 50e-4 + 7e-4) / 2)


# --- properties of both ----------------------------------------------------------------------------------

loads = st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 500), st.integers(1, 2_000)), max_size=12)
forms = st.sampled_from(["physical", "paper"])


@given(form=forms, load=loads, prompt=st.integers(0, 50_000), output=st.integers(1, 5_000))
def test_a_cost_is_above_zero_and_never_falls_with_load_or_length(
    form: str, load: list[tuple[int, int, int]], prompt: int, output: int
) -> None:
    policy = calibrated(form=form)
    there = [resident(*one) for one in load]
    call = chat(prompt_tokens=prompt, max_tokens=output, split=True)
    here = total(policy, call, known("w", *there))
    assert here > 0
    assert total(policy, call, known("w", *there, resident(100, 0, 100))) >= here
    assert (
        total(policy, chat(prompt_tokens=prompt + 50, max_tokens=output, split=True), known("w", *there))
        >= here
    )
    longer = chat(prompt_tokens=prompt, max_tokens=output + 50, split=True)
    assert total(policy, longer, known("w", *there)) >= here
    assert total(policy, call, known("w", *there, warmup=1.5)) >= here


@given(form=forms, load=loads, factor=st.floats(1, 50))
def test_a_tighter_class_never_costs_less(form: str, load: list[tuple[int, int, int]], factor: float) -> None:
    one = known("w", *[resident(*held) for held in load])
    tight = chat(prompt_tokens=_P, slo="tight")
    loose = total(calibrated(form=form), _WHOLE, one)
    assert loose <= total(calibrated(form=form, tight_sigma=factor), tight, one) <= factor * loose * 1.000001


@given(load=loads)
def test_sums_stand_in_for_residents_and_never_understate_them(load: list[tuple[int, int, int]]) -> None:
    there = [resident(*one) for one in load]
    exact = row_of(calibrated(), _DECODE, known("w", *there)).terms.get("slowdown_s", 0.0)
    summed = row_of(calibrated(), _DECODE, known("w", *there, residents=())).terms.get("slowdown_s", 0.0)
    assert summed >= exact * (1 - 1e-9)


# --- who may be chosen -----------------------------------------------------------------------------------


def test_a_worker_whose_kv_would_overflow_is_left_out() -> None:
    full = known("full", kv_tokens=9_000, kv_capacity_tokens=10_000)
    busy = [known(f"busy {n}", *[resident(500, 0, 2_000)] * 30) for n in range(3)]
    policy = calibrated()
    assert place(policy, _DECODE, [*busy, full]) != "full"
    table = policy.explain(_DECODE, [*busy, full], NOW)
    assert [row.tier for row in table.rows] == [0, 0, 0, None]
    assert table.rows[3].reason == "no room"
    assert table.rows[3].terms["pressure"] == pytest.approx(1.02)


def test_when_all_overflow_the_less_loaded_of_two_drawn_is_taken() -> None:
    pool = [known(f"w{n}", kv_tokens=9_900, kv_capacity_tokens=10_000, in_flight=n) for n in range(6)]
    policy = calibrated()
    choices = [policy.pick(chat(n, prompt_tokens=_P), pool, NOW) for n in range(200)]
    assert {choice.reason for choice in choices} == {"fallback:scarcity"}
    counts = Counter(choice.worker for choice in choices)
    assert counts["w5"] == 0
    assert counts["w0"] > counts["w3"] > 0


def test_scarcity_is_remembered_for_a_while() -> None:
    crowded = [known(f"w{n}", kv_tokens=9_900, kv_capacity_tokens=10_000) for n in range(4)]
    free = [known(f"w{n}", kv_capacity_tokens=10_000) for n in range(4)]
    policy = calibrated()
    place(policy, _DECODE, crowded)
    assert policy.pick(_DECODE, free, NOW + 29).reason == "fallback:scarcity_lately"
    assert policy.pick(_DECODE, free, NOW + 30).reason == "physical"


def test_a_wait_beyond_the_tight_target_everywhere_is_scarcity() -> None:
    slow = [known(f"w{n}", resident(50_000, prefilled=False), kv_capacity_tokens=10**6) for n in range(4)]
    assert calibrated(tight_ttft_s=0.5).pick(_WHOLE, slow, NOW).reason == "fallback:scarcity"
    assert calibrated(tight_ttft_s=5).pick(_WHOLE, slow, NOW).reason == "physical"
    one_is_free = [*slow[:3], known("w9")]
    assert calibrated(tight_ttft_s=0.5).pick(_WHOLE, one_is_free, NOW).reason == "physical"


def test_the_tight_target_follows_from_the_prompts_of_the_last_minutes() -> None:
    policy = calibrated()
    slow = [known(f"w{n}", resident(10_000, prefilled=False), kv_capacity_tokens=10**6) for n in range(4)]
    free = [known(f"w{n}") for n in range(4)]
    for n in range(64):
        place(policy, chat(n, prompt_tokens=2_000 if n % 2 else 200), free)
    # 2.5 times 0.124 s, the prefill of 2,000 tokens; the queue takes 0.604 s.
    assert policy.pick(_WHOLE, slow, NOW).reason == "fallback:scarcity"


# --- the other rungs -------------------------------------------------------------------------------------


def test_without_coefficients_the_fewest_requests_win() -> None:
    pool = [known(f"w{n}", in_flight=n + 1, step=None if n == 3 else A40) for n in range(4)]
    choice = calibrated().pick(_WHOLE, pool, NOW)
    assert (choice.worker, choice.reason) == ("w0", "fallback:uncalibrated")


def test_coefficients_that_were_given_up_are_named() -> None:
    drifted = Calibration(state=CalibrationState.DRIFTED, step=A40)
    pool = [known(f"w{n}", step=None, calibration=drifted) for n in range(4)]
    assert calibrated().pick(_WHOLE, pool, NOW).reason == "fallback:wrong_constants"


def test_a_narrow_pool_counts_and_tells_equals_by_their_prefills() -> None:
    long_queue = known("a", resident(9_000, prefilled=False))
    short_queue = known("b", resident(100, prefilled=False))
    policy = calibrated()
    choice = policy.pick(_WHOLE, [long_queue, short_queue], NOW)
    assert (choice.worker, choice.reason) == ("b", "fallback:narrow_pool")
    idle = known("c")
    assert policy.pick(_WHOLE, [long_queue, short_queue, idle], NOW).worker == "c"
    four = [long_queue, short_queue, idle, known("d")]
    assert policy.pick(_WHOLE, four, NOW).reason == "physical"


def test_prefill_workers_are_chosen_by_size_in_a_narrow_pool_too() -> None:
    one_long = known("a", resident(9_000, prefilled=False), role=Role.PREFILL)
    three_short = known("b", *[resident(100, prefilled=False)] * 3, role=Role.PREFILL)
    choice = calibrated().pick(_DECODE, [one_long, three_short], NOW)
    assert (choice.worker, choice.reason) == ("b", "physical")


def test_traffic_of_one_kind_is_counted() -> None:
    policy, pool = calibrated(), [known(f"w{n}") for n in range(4)]
    reasons = []
    for n in range(40):
        choice = policy.pick(chat(n, prompt_tokens=1_000 + n), pool, NOW)
        reasons.append(choice.reason)
        policy.committed(chat(n, prompt_tokens=1_000 + n), choice, NOW, retry=False)
    assert reasons[0] == "physical"
    assert reasons[-1] == "fallback:homogeneous"
    assert policy.pick(_WHOLE, pool, NOW + 301).reason == "physical"


def test_who_had_too_many_of_the_last_picks_competes_with_one_drawn() -> None:
    """The cheapest by its coefficients gets everything, until it has a quarter of the picks."""
    cheap = known("cheap", step=StepModel(1e-3, 1e-6, 1e-3, 1e-6, 1e-9))
    pool = [cheap, *(known(f"w{n}") for n in range(7))]
    policy = calibrated()
    reasons: Counter[str] = Counter()
    for n in range(300):
        call = chat(n, prompt_tokens=10 + n * 37 % 5_000)
        choice = policy.pick(call, pool, NOW)
        reasons[choice.reason] += 1
        policy.committed(call, choice, NOW, retry=False)
    counts = Counter(policy.ladder._picks)
    assert counts["cheap"] <= 20
    assert reasons["fallback:concentration"] > 100


# --- what it learns --------------------------------------------------------------------------------------


def test_outputs_are_expected_as_long_as_those_of_requests_like_it() -> None:
    policy = calibrated()
    for n in range(10):
        done = resident(_P, 1_000, 1_000)
        done.generated_tokens = 1_000
        policy.settled(done, Outcome.OK, NOW + n)
        policy.settled(resident(_P, 7, 100), Outcome.FAILED, NOW + n)
    row = row_of(policy, _DECODE, known("w"))
    after = 15.5e-3 + 0.12e-3 + 0.12e-6 * (_P + 500)
    assert row.terms["decode_s"] == pytest.approx(1_000 * after)


def test_prefixes_are_asked_about_only_when_told_to() -> None:
    assert not hasattr(calibrated(), "bind")
    assert hasattr(calibrated(prefixes="yes"), "bind")


# --- the table -------------------------------------------------------------------------------------------


@given(
    pool=st.lists(
        st.tuples(loads, st.sampled_from([None, 20_000, 200_000]), st.integers(0, 3)), min_size=1, max_size=8
    ),
    params=st.fixed_dictionaries({"form": forms, "narrow_workers": st.sampled_from([0, 3])}),
    sequence=st.integers(0, 10**6),
)
def test_the_table_yields_the_pick(
    pool: list[tuple[list[tuple[int, int, int]], int | None, int]], params: dict[str, object], sequence: int
) -> None:
    workers = [
        known(
            f"w{n}",
            *[resident(*one) for one in load],
            *[resident(400, prefilled=False)] * queued,
            kv_capacity_tokens=capacity,
        )
        for n, (load, capacity, queued) in enumerate(pool)
    ]
    policy = calibrated(**params)
    call = chat(sequence, prompt_tokens=1_500)
    choice = policy.pick(call, workers, NOW)
    row = decide(policy.explain(call, workers, NOW))
    assert row is not None
    assert (row.worker, row.total, row.reason) == (choice.worker, choice.cost, choice.reason)


def test_workers_without_accounts_of_their_residents_are_priced_too() -> None:
    pool = [worker(f"w{n}", step=A40, sequences=3, remaining_tokens=90, kv_tokens=900) for n in range(4)]
    assert calibrated().pick(_WHOLE, pool, NOW).cost > 0
