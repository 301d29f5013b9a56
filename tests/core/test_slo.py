"""Laws of what a class of service is promised, and when that was kept."""

from __future__ import annotations

import pytest

from router.core.request import Api
from router.core.slo import LOOSE, TIGHT, Served, Slos, Targets
from tests.core.fleet_examples import MODEL, request

FAST = Targets(0.2, 0.04)
ON_TIME = Served(200, 0.1, 0.03, 50)


@pytest.mark.parametrize(
    ("served", "met"),
    [
        (ON_TIME, True),
        (Served(200, 0.2, 0.04, 50), True),
        (Served(200, 0.3, 0.03, 50), False),
        (Served(200, 0.1, 0.05, 50), False),
        (Served(200, 0.1, None, 1), True),  # one token has no second
        (Served(200, None, None, None), False),
        (Served(502, 0.1, 0.03, 50), False),
    ],
)
def test_a_stream_keeps_both_or_breaks_its_promise(served: Served, met: bool) -> None:
    assert FAST.met(served, streamed=True) is met


@pytest.mark.parametrize(("whole_s", "met"), [(0.2 + 9 * 0.04, True), (0.57, False)])
def test_an_answer_in_one_piece_may_take_as_long_as_all_of_its_tokens(whole_s: float, met: bool) -> None:
    assert FAST.met(Served(200, whole_s, None, 10), streamed=False) is met


def test_half_a_promise_is_judged_by_that_half() -> None:
    late = Served(200, 9.0, 0.03, 50)
    assert Targets(tpot_s=0.04).met(late, streamed=True)
    assert not Targets(ttft_s=1.0).met(late, streamed=True)
    assert Targets(ttft_s=1.0).met(late, streamed=False)  # nobody knows when its first token was


def test_configured_targets_go_before_measured_ones() -> None:
    measured = {MODEL: {TIGHT: Targets(0.5, 0.1), LOOSE: Targets(1.4, 0.3)}}
    slos = Slos({TIGHT: FAST}, measured)
    assert slos.targets(MODEL, TIGHT) == FAST
    assert slos.targets(MODEL, LOOSE) == FAST.times(3)
    assert Slos({}, measured).targets(MODEL, LOOSE) == Targets(1.4, 0.3)
    assert not Slos({}, measured).targets("other", TIGHT)


def test_loose_is_three_times_tight_unless_said() -> None:
    assert Slos({TIGHT: FAST}).targets(MODEL, LOOSE) == Targets(pytest.approx(0.6), pytest.approx(0.12))
    assert Slos({TIGHT: Targets(ttft_s=0.2)}).targets(MODEL, LOOSE).tpot_s is None
    assert Slos({TIGHT: FAST, LOOSE: Targets(9, 9)}).targets(MODEL, LOOSE) == Targets(9, 9)


@pytest.mark.parametrize(
    ("named", "default", "expected"), [("tight", LOOSE, TIGHT), ("", TIGHT, TIGHT), ("batch", LOOSE, LOOSE)]
)
def test_who_names_no_class_that_is_known_has_the_default_one(
    named: str, default: str, expected: str
) -> None:
    call = request(slo=named, stream=True)
    judged = Slos({TIGHT: FAST}, default_class=default).judge(call, ON_TIME)
    assert judged == (expected, True)


@pytest.mark.parametrize("status", [400, 404, 429, 499])
def test_what_the_client_got_wrong_or_ended_is_not_judged(status: int) -> None:
    assert Slos({TIGHT: FAST}).judge(request(slo="tight"), Served(status, 0.1, None, None)) is None


def test_where_nothing_is_promised_nothing_is_judged() -> None:
    assert Slos().judge(request(slo="tight"), ON_TIME) is None
    assert Slos({TIGHT: FAST}).judge(request(api=Api.OTHER), ON_TIME) is None
