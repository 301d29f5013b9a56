"""Numbers, times and bytes tell what a message is; the table tells what the index hears of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.kv_event import KvEvent
from router.core.prefix_ledger import Fit
from router.core.trust import TRUST, Trust, TrustSignal
from router.kv_events.framing import Message
from router.kv_events.knowledge import KNOWLEDGE, Knowledge, Known, Learned
from router.kv_events.position import Position, Step


def after(*taken: tuple[int, float]) -> Position:
    position = Position()
    for sequence, ts in taken:
        position.take(message(sequence), ts)
    return position


def message(sequence: int, payload: bytes = b"") -> Message:
    return Message(sequence, payload or b"payload %d" % sequence)


@given(st.integers(0, 2**63))
def test_the_first_message_may_have_any_number(sequence: int) -> None:
    assert Position().judge(message(sequence), 1.0) is Step.NEXT


@given(st.integers(0, 2**62), st.integers(1, 2**31))
def test_the_next_number_is_next_and_a_later_one_leaves_a_gap(sequence: int, more: int) -> None:
    position = after((sequence, 1.0))
    assert position.judge(message(sequence + 1), 2.0) is Step.NEXT
    assert position.judge(message(sequence + 1 + more), 2.0) is Step.GAP


@given(st.integers(0, 2**62), st.integers(2**31 + 2, 2**62))
def test_a_number_that_no_engine_can_have_come_to_is_another_count(sequence: int, more: int) -> None:
    assert after((sequence, 1.0)).judge(message(sequence + more), 2.0) is Step.RESTART


@given(st.integers(0, 5), st.floats(0, 9))
def test_what_was_replayed_is_a_duplicate_when_it_comes_live(sequence: int, ts: float) -> None:
    assert after((5, 9.0)).judge(message(sequence), ts) is Step.DUPLICATE


def test_a_low_number_at_a_later_time_is_a_restart() -> None:
    assert after((5, 9.0)).judge(message(5, b"other"), 9.5) is Step.RESTART
    assert after((5, 9.0)).judge(message(0), 9.5) is Step.RESTART


def test_the_last_message_once_more_is_a_duplicate_whatever_its_time() -> None:
    position = after((5, 9.0))
    position.seen(message(5))
    assert position.judge(message(5), 99.0) is Step.DUPLICATE


def test_numbers_that_fall_on_the_live_line_are_a_restart_even_if_the_clock_fell_too() -> None:
    position = after((5, 9.0))
    position.seen(message(5))
    assert position.judge(message(3), 1.0) is Step.RESTART
    assert position.judge(message(3), None) is Step.RESTART


def test_nothing_published_expects_number_zero() -> None:
    position = Position()
    position.from_start()
    assert position.judge(message(0), 1.0) is Step.NEXT
    assert position.judge(message(1), 1.0) is Step.GAP


class Heard:
    """Stands for the index."""

    def __init__(self) -> None:
        self.trust = Trust.APPROXIMATE
        self.listening = False
        self.records = 0

    def follow(self, worker: str, *, counts_only: bool = False) -> None:
        self.records += 1
        self.listening = True
        self.trust = TRUST[self.trust, TrustSignal.LOST]

    def apply(self, worker: str, event: KvEvent) -> Fit:
        return Fit.WELL

    def stream(self, worker: str, signal: TrustSignal) -> None:
        assert signal is not TrustSignal.LOST
        self.listening = signal is TrustSignal.COMPLETE
        self.trust = TRUST[self.trust, signal]


def test_the_table_knows_every_case() -> None:
    assert set(KNOWLEDGE) == {(known, learned) for known in Known for learned in Learned}


@given(st.lists(st.sampled_from(Learned)))
def test_the_index_believes_exactly_what_is_wholly_known_and_arrives(learned: list[Learned]) -> None:
    index = Heard()
    knowledge = Knowledge(index, "one")
    for one in [Learned.LOST, *learned]:
        knowledge.learn(one)
        if knowledge.known is Known.WHOLLY:
            assert (index.trust, index.listening) == (Trust.EXACT, True)
        elif not knowledge.absent:
            assert index.trust is Trust.APPROXIMATE
            assert index.listening is (knowledge.known is Known.PARTLY)


@pytest.mark.parametrize("known", [Known.PARTLY, Known.WHOLLY, Known.PARTLY_STALE, Known.WHOLLY_STALE])
def test_lost_events_always_begin_a_new_record(known: Known) -> None:
    index = Heard()
    knowledge = Knowledge(index, "one")
    knowledge.known = known
    knowledge.learn(Learned.LOST)
    assert (knowledge.known, index.records) == (Known.PARTLY, 1)
