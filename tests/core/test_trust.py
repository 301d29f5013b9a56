"""Laws of the ladder exact, approximate, load only."""

from __future__ import annotations

import pytest

from router.core.prefix_error import PrefixError
from router.core.trust import TRUST, Trust, TrustSettings, TrustSignal, beliefs_signal, events_signal

SETTINGS = TrustSettings()


def figures(predicted: int, reported: int, samples: int = 20) -> PrefixError:
    error = PrefixError()
    for _ in range(samples):
        error.see(predicted, reported, 100)
    return error


def test_every_signal_has_a_step_from_every_rung() -> None:
    assert set(TRUST) == {(trust, signal) for trust in Trust for signal in TrustSignal}


def test_every_rung_is_reached_from_every_other() -> None:
    for start in Trust:
        reached = {start}
        for _ in Trust:
            reached |= {TRUST[trust, signal] for trust in reached for signal in TrustSignal}
        assert reached == set(Trust)


@pytest.mark.parametrize("signal", [TrustSignal.LOST, TrustSignal.SILENT, TrustSignal.EVENTS_WRONG])
def test_without_complete_events_nothing_is_exact(signal: TrustSignal) -> None:
    assert {TRUST[trust, signal] for trust in Trust} == {Trust.APPROXIMATE, Trust.LOAD_ONLY}
    assert TRUST[Trust.EXACT, signal] is Trust.APPROXIMATE


def test_wrong_beliefs_do_not_shake_the_engines_word() -> None:
    assert TRUST[Trust.EXACT, TrustSignal.BELIEFS_WRONG] is Trust.EXACT
    assert TRUST[Trust.APPROXIMATE, TrustSignal.BELIEFS_WRONG] is Trust.LOAD_ONLY


def test_a_repeated_signal_changes_nothing_more() -> None:
    for (_, signal), after in TRUST.items():
        if signal is not TrustSignal.BELIEFS_WRONG or after is Trust.LOAD_ONLY:
            assert TRUST[after, signal] is after


def test_few_samples_say_nothing() -> None:
    assert beliefs_signal(figures(100, 0, samples=19), SETTINGS) is None
    assert events_signal(figures(100, 0, samples=19), SETTINGS) is None


@pytest.mark.parametrize(
    ("predicted", "reported", "signal"),
    [
        (80, 80, TrustSignal.BELIEFS_RIGHT),
        (80, 70, TrustSignal.BELIEFS_RIGHT),
        (80, 62, None),
        (80, 55, TrustSignal.BELIEFS_WRONG),
        (0, 90, TrustSignal.BELIEFS_RIGHT),
    ],
)
def test_beliefs_are_wrong_when_what_they_promise_is_not_there(
    predicted: int, reported: int, signal: TrustSignal | None
) -> None:
    assert beliefs_signal(figures(predicted, reported), SETTINGS) is signal


@pytest.mark.parametrize(
    ("predicted", "reported", "signal"),
    [
        (80, 80, TrustSignal.EVENTS_RIGHT),
        (80, 85, TrustSignal.EVENTS_RIGHT),
        (80, 70, None),
        (60, 80, TrustSignal.EVENTS_WRONG),
        (80, 60, TrustSignal.EVENTS_WRONG),
    ],
)
def test_events_are_wrong_in_both_directions(
    predicted: int, reported: int, signal: TrustSignal | None
) -> None:
    assert events_signal(figures(predicted, reported), SETTINGS) is signal
