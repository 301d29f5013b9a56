"""The programs that these tests talk to: a demo fleet for all of them, and a place to start more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.programs import Programs, Router, programs_in


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Starts programs for one test."""
    with programs_in(tmp_path) as started:
        yield started


@pytest.fixture(scope="session")
def fleet_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """`pointsman up` with four engines, twenty times as fast as their GPU, for tests that break nothing."""
    with programs_in(tmp_path_factory.mktemp("up")) as started:
        yield started.up({"count": 4, "time_scale": 0.05, "kv_tokens": 200_000})


@pytest.fixture
def demo(fleet_up: Router) -> Iterator[Router]:
    """The same; after each test it is whole and idle."""
    yield fleet_up
    for engine in fleet_up.engines:
        engine.heal()
    fleet_up.assert_idle()
