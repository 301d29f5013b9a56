"""A few drills with every run of the tests; `make drill` runs hundreds."""

from __future__ import annotations

import pytest

from tests.drill.stage import drill

SEEDS = 12


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_breaks_nobody_hangs_nobody_is_lied_to_and_nothing_stays(seed: int) -> None:
    drill(seed)


def test_drills_hand_kv_over() -> None:
    assert sum(drill(seed).transfers for seed in range(3)) > 0
