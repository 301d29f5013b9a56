"""A few drills with every run of the tests; `make drill` runs hundreds."""

from __future__ import annotations

from functools import cache

import pytest

from tests.drill.plan import draw
from tests.drill.stage import Result, drill

SEEDS = 12


@cache
def drilled(seed: int) -> Result:
    return drill(seed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_breaks_nobody_hangs_nobody_is_lied_to_and_nothing_stays(seed: int) -> None:
    drilled(seed)


@pytest.mark.parametrize("connector", ["nixl", "mooncake", "sglang"])
def test_drills_hand_kv_over_with_each_connector(connector: str) -> None:
    seeds = [seed for seed in range(SEEDS) if draw(seed).connector == connector]
    assert sum(drilled(seed).handed_over[connector] for seed in seeds) > 0
