"""Laws of the bits that stand for workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import InternalError
from router.core.prefix_slots import Slots


def test_a_mask_names_its_owners() -> None:
    slots = Slots()
    one, two, three = (slots.take(name) for name in ("one", "two", "three"))
    assert slots.live == one | two | three == 0b111
    assert slots.names(one | three) == ["one", "three"]
    assert slots.names(0) == []


def test_a_bit_waits_for_the_sweep_before_somebody_else_has_it() -> None:
    slots = Slots()
    gone = slots.take("gone")
    slots.retire(gone)
    assert slots.live == 0
    assert slots.take("next") != gone
    slots.free(gone)
    assert slots.take("last") == gone
    assert slots.names(gone) == ["last"]


def test_retiring_and_freeing_out_of_turn_is_a_bug() -> None:
    slots = Slots()
    bit = slots.take("one")
    with pytest.raises(InternalError, match="not waiting to be freed"):
        slots.free(bit)
    slots.retire(bit)
    with pytest.raises(InternalError, match="retired twice"):
        slots.retire(bit)
    assert repr(slots) == "<Slots [0 live | 1 to be swept]>"
    slots.free(bit)
    with pytest.raises(InternalError, match="not waiting to be freed"):
        slots.free(bit)


@given(st.lists(st.integers(0, 2), max_size=60))
def test_no_two_owners_share_a_bit(moves: list[int]) -> None:
    slots = Slots()
    live: dict[int, str] = {}
    retired: list[int] = []
    for number, move in enumerate(moves):
        if move == 0:
            bit = slots.take(f"worker {number}")
            assert bit not in live
            assert bit not in retired
            live[bit] = f"worker {number}"
        elif move == 1 and live:
            bit = min(live)
            del live[bit]
            slots.retire(bit)
            retired.append(bit)
        elif move == 2 and retired:
            slots.free(retired.pop())
        assert slots.live == sum(live)
        assert set(slots.names(slots.live)) == set(live.values())


def test_the_table_of_names_is_no_larger_than_bytes_are() -> None:
    slots = Slots()
    for number in range(12):
        slots.take(f"{number}")
    for mask in range(4_096):
        assert slots.names(mask) == [f"{n}" for n in range(12) if mask >> n & 1]
    assert len(slots._decoded) == 255 + 15
