"""Who is passed over too long goes first; who merely waits does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.core.handover import Handover
from router.core.lease import Lease
from router.core.request import Request
from router.policies.ageing import Overtakings, waits_since
from tests.policies.examples import request


def came(at: float) -> Request:
    return request(arrived=at)


def test_waiting_alone_does_not_age() -> None:
    overtakings = Overtakings(2.0, 16)
    for n in range(50):
        overtakings.record(came(n / 100), 1.0)
    assert not overtakings.aged(came(0.6), 10_000.0)


def test_who_was_overtaken_long_ago_is_aged() -> None:
    overtakings = Overtakings(2.0, 16)
    overtakings.record(came(1.5), 10.0)
    assert not overtakings.aged(came(1.0), 11.9)
    assert overtakings.aged(came(1.0), 12.0)
    assert not overtakings.aged(came(1.5), 12.0), "it came no earlier"


def test_who_was_overtaken_by_many_is_aged_at_once() -> None:
    overtakings = Overtakings(2.0, 16)
    for n in range(15):
        overtakings.record(came(2.0 + n), 20.0)
    assert not overtakings.aged(came(1.0), 20.0)
    overtakings.record(came(20.0), 20.0)
    assert overtakings.aged(came(1.0), 20.0)


@given(st.lists(st.floats(0, 100), max_size=300), st.integers(1, 20))
def test_what_is_remembered_is_bounded(arrivals: list[float], most: int) -> None:
    overtakings = Overtakings(2.0, most)
    for at in arrivals:
        overtakings.record(came(at), 100.0)
    assert len(overtakings.placed) <= 4 * most


def test_a_prefilled_request_waits_since_its_prefill_ended() -> None:
    prefill = Lease(came(1.0), "p", 0, granted=1.0, prompt_tokens=1, expected_tokens=1)
    handed_over = Handover(prefill, revision="", ready=7.0, overdue=9.0, dispatch_by=20.0)
    assert waits_since(request(arrived=1.0, handover=handed_over)) == 7.0
    assert waits_since(came(1.0)) == 1.0
