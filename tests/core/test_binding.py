"""Laws of binding: what each mode does, and how long the load must ask for a change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.binding import Binding, Mode
from router.core.errors import InternalError

WORKERS = 4
CALM = (0, 100)
BUSY = (20, 0)


def after(binding: Binding, load: tuple[int, int | None], now: float) -> bool:
    return binding.update(load[0], load[1], WORKERS, now)


@pytest.mark.parametrize(("mode", "late"), [(Mode.EARLY, False), (Mode.LATE, True)])
@pytest.mark.parametrize("load", [CALM, BUSY, (20, None)])
def test_a_fixed_mode_ignores_the_load(mode: Mode, late: bool, load: tuple[int, int | None]) -> None:
    binding = Binding(mode)
    assert [after(binding, load, float(now)) for now in range(0, 100, 10)] == [late] * 10
    assert binding.switches == 0
    assert not binding.adaptive


def test_an_adaptive_pool_begins_early() -> None:
    binding = Binding(Mode.ADAPTIVE)
    assert binding.adaptive
    assert not binding.late
    assert not after(binding, BUSY, 0.0)


@pytest.mark.parametrize(
    ("depth", "free_slots", "late"),
    [
        (0, WORKERS + 1, False),
        (1, WORKERS + 1, False),
        (2, WORKERS + 1, True),
        (0, WORKERS, True),
        (0, 0, True),
    ],
)
def test_the_load_asks_for_late_binding_when_requests_wait_or_slots_are_few(
    depth: int, free_slots: int, late: bool
) -> None:
    binding = Binding(Mode.ADAPTIVE)
    after(binding, (depth, free_slots), 0.0)
    assert after(binding, (depth, free_slots), 5.0) is late


def test_a_change_needs_the_other_condition_for_five_seconds_either_way() -> None:
    binding = Binding(Mode.ADAPTIVE)
    assert [after(binding, BUSY, now) for now in (0.0, 4.9, 5.0)] == [False, False, True]
    assert repr(binding) == "<Binding adaptive [late | 1 switches]>"
    assert [after(binding, CALM, now) for now in (6.0, 10.9, 11.0)] == [True, True, False]
    assert binding.switches == 2


def test_a_moment_of_the_present_condition_starts_the_five_seconds_anew() -> None:
    binding = Binding(Mode.ADAPTIVE)
    after(binding, BUSY, 0.0)
    assert "the load asks for the other" in repr(binding)
    after(binding, CALM, 4.0)
    assert "the load asks for the other" not in repr(binding)
    assert not after(binding, BUSY, 5.0)
    assert not after(binding, BUSY, 9.9)
    assert after(binding, BUSY, 10.0)


def test_slots_that_become_unknown_end_late_binding_at_once() -> None:
    binding = Binding(Mode.ADAPTIVE)
    for now in (0.0, 5.0):
        after(binding, BUSY, now)
    assert not after(binding, (20, None), 5.1)
    assert binding.switches == 2
    assert not after(binding, BUSY, 6.0), "and their return counts from then"
    assert after(binding, BUSY, 11.0)


@pytest.mark.parametrize("load", [(-1, 3), (3, -1)])
def test_a_load_below_zero_is_a_bug(load: tuple[int, int]) -> None:
    with pytest.raises(InternalError, match="cannot hold"):
        after(Binding(Mode.ADAPTIVE), load, 0.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 8), st.floats(0.01, 4, allow_nan=False)), max_size=60
    )
)
def test_binding_never_changes_twice_within_the_hold(loads: list[tuple[int, int, float]]) -> None:
    binding, now, late = Binding(Mode.ADAPTIVE, hold_s=5.0), 0.0, False
    changes = [float("-inf")]
    for depth, free_slots, wait_s in loads:
        now += wait_s
        if binding.update(depth, free_slots, WORKERS, now) is not late:
            late = not late
            assert now - changes[-1] >= 5.0
            assert late is (depth > 1 or free_slots <= WORKERS)
            changes.append(now)
    assert binding.switches == len(changes) - 1
