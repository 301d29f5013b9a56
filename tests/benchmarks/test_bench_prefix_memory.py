"""Laws of the measuring of the index's memory: it is full when it is measured, and never more than full."""

from __future__ import annotations

import pytest

from benchmarks import prefix_memory


@pytest.mark.parametrize(("kind", "share"), [("text", 1.0), ("blocks", 1.0), ("events", 0.5)])
def test_the_index_is_full_when_it_is_measured(kind: str, share: float) -> None:
    may = int(2**20 * share)
    _, used = prefix_memory.fill(kind, 2**20, evicted=10)
    assert 0.9 * may < used < 1.05 * may
