"""Laws of what follows from a calibration: who reads KV most of the time, and what may be promised."""

from __future__ import annotations

import pytest

from router.settings.calibration_file import KvShare, StepErrorsLaw, StepLaw
from router.studies.calibrate.laws import Route, Timed, prefill_law, step_law, transfer_law
from router.studies.calibrate.plateau import StepSample
from router.studies.calibrate.verdict import OperatingPoint, kv_share, says_of_balance_route, slo_of


def law(base_s: float = 0.012, per_sequence_s: float = 0.0, per_kv_token_s: float = 6e-8) -> StepLaw:
    return StepLaw(base_s=base_s, per_sequence_s=per_sequence_s, per_kv_token_s=per_kv_token_s)


def share(value: float, unsure: float = 0.0) -> KvShare:
    return KvShare(
        worker="w",
        sequences=64,
        context_tokens=1000,
        share=value,
        least=max(value - unsure, 0.0),
        most=min(value + unsure, 1.0),
    )


def test_the_share_of_kv_by_hand() -> None:
    """12 ms and 6.4 ms for 64,000 tokens at 0.1 µs each."""
    found = kv_share("w", law(0.012, 0.0, 1e-7), 64, 1000)
    assert found.share == pytest.approx(6.4 / 18.4)


def test_the_share_is_as_uncertain_as_its_slope() -> None:
    unsure = law(0.012, 0.0, 1e-7).model_copy(update={"errors": StepErrorsLaw(per_kv_token_s=2e-8)})
    found = kv_share("w", unsure, 64, 1000)
    assert found.least == pytest.approx(3.84 / 15.84)
    assert found.most == pytest.approx(8.96 / 20.96)


def test_a_slope_that_was_left_out_says_nothing() -> None:
    found = kv_share("w", law(0.012, 1e-4, 0.0), 64, 1000)
    assert (found.share, found.least, found.most) == (0.0, 0.0, 1.0)
    assert "not surely" in says_of_balance_route([found])


def test_an_engine_that_takes_no_time_reads_no_kv() -> None:
    assert kv_share("w", law(0.0, 0.0, 0.0), 64, 1000).share == 0.0


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        (
            (0.6, 0.7),
            "60% to 70% of a step of a full engine (64 sequences of 1,000 tokens): BalanceRoute pays",
        ),
        ((0.4, 0.7), "on some workers only: BalanceRoute may pay"),
        ((0.2, 0.3), "BalanceRoute is not for this fleet"),
        ((0.5,), "BalanceRoute is not for this fleet"),
    ],
)
def test_balance_route_is_for_fleets_whose_steps_are_mostly_kv(shares: tuple[float, ...], said: str) -> None:
    assert said in says_of_balance_route([share(value) for value in shares])


@pytest.mark.parametrize("value", [0.45, 0.55])
def test_what_may_be_on_either_side_of_a_half_is_no_verdict(value: float) -> None:
    assert "measure again before choosing BalanceRoute" in says_of_balance_route([share(value, unsure=0.1)])


def test_tight_is_two_and_a_half_times_the_median_and_loose_three_times_that() -> None:
    slo = slo_of(OperatingPoint(32, 1227, 2735), ttft_p50_s=0.1, tpot_p50_s=0.016)
    assert slo.tight.ttft_s == pytest.approx(0.25)
    assert slo.tight.tpot_s == pytest.approx(0.04)
    assert slo.loose.ttft_s == pytest.approx(0.75)
    assert slo.loose.tpot_s == pytest.approx(0.12)
    assert (slo.sequences, slo.context_tokens, slo.prompt_tokens) == (32, 1227, 2735)


def test_laws_carry_their_units_errors_and_bounds() -> None:
    prefill = prefill_law([Timed(p, 0.01 + 5e-5 * p + 1e-9 * p * p) for p in (128, 512, 2048, 8192)])
    assert prefill.seconds(1000) == pytest.approx(0.061)
    assert (prefill.samples, prefill.longest_tokens) == (4, 8192)
    assert prefill.errors.per_token_s is not None
    points = [(1, 128.0), (16, 2048.0), (1, 8192.0), (16, 131_072.0)]
    step = step_law([StepSample(n, kv, 0.01 + 1e-5 * n + 1e-7 * kv, 0.01, 2.0, 40) for n, kv in points])
    assert step.seconds(16, 131_072) == pytest.approx(0.01 + 1.6e-4 + 0.0131072)
    assert (step.most_sequences, step.most_kv_tokens, step.tokens_per_step) == (16, 131_072, 2.0)
    transfer = transfer_law(
        Route("p", "d", "nixl"), [Timed(p, 0.002 + 1e-6 * p) for p in (256, 4096, 8192)], 3.0
    )
    assert transfer.model.transfer_s(1000) == pytest.approx(0.003)
    assert (transfer.prefill, transfer.decode, transfer.first_s) == ("p", "d", 3.0)


def test_a_hand_over_that_seems_to_take_less_than_nothing_is_free() -> None:
    found = transfer_law(Route("p", "d", "nixl"), [Timed(p, -0.001) for p in (256, 4096, 8192)], -1.0)
    assert found.base_s < 1e-5
    assert found.first_s == 0.0


def test_an_engine_of_one_slot_has_its_sequence_in_the_base() -> None:
    points = [(1, 128.0), (1, 2048.0), (1, 8192.0)]
    found = step_law([StepSample(n, kv, 0.01 + 1e-7 * kv, 0.01, 1.0, 40) for n, kv in points])
    assert found.per_sequence_s == 0.0
    assert found.errors.per_sequence_s is None
    assert found.seconds(1, 2048) == pytest.approx(0.01 + 2.048e-4)
