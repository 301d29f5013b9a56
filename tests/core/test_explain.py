"""Laws of the table of a decision: its own rule picks from it, and nothing else is needed."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.explain import Row, Table, best_others, decide, joined, without

rows = st.lists(
    st.builds(
        Row,
        worker=st.text(min_size=1, max_size=4),
        total=st.floats(-3, 3).map(round),
        prefill_worker=st.none() | st.just("p"),
        tier=st.none() | st.integers(0, 2),
        order=st.integers(0, 2).map(float),
    ),
    max_size=8,
    unique_by=lambda row: row.worker,
)
tables = st.builds(
    Table,
    unit=st.just("coins"),
    seed=st.integers(0, 9),
    sequence=st.integers(0, 2**40),
    rows=rows,
    drawn=st.booleans(),
)


def table(*these: Row, drawn: bool = False, sequence: int = 0) -> Table:
    return Table(unit="coins", seed=1, sequence=sequence, rows=list(these), drawn=drawn)


@given(tables)
def test_the_pick_is_among_the_first_by_tier_then_total_then_order(made: Table) -> None:
    picked = decide(made)
    open_rows = [row for row in made.rows if row.tier is not None]
    if picked is None:
        assert not open_rows
        return
    assert (picked.tier, picked.total, picked.order) == min((r.tier, r.total, r.order) for r in open_rows)


@given(tables)
def test_a_table_that_was_written_down_picks_the_same(made: Table) -> None:
    again = msgspec.json.decode(msgspec.json.encode(made), type=Table)
    assert again == made
    assert decide(again) == decide(made)


@pytest.mark.parametrize("drawn", [False, True])
def test_equals_are_picked_evenly(drawn: bool) -> None:
    these = [Row(worker=name, total=1.0) for name in "abcd"]
    counts = Counter(decide(table(*these, drawn=drawn, sequence=n)).worker for n in range(4000))  # type: ignore[union-attr]  # all rows are open
    assert all(850 < counts[name] < 1150 for name in "abcd")


@given(tables, st.integers(0, 4))
def test_the_others_come_in_order_and_without_the_chosen_one(made: Table, count: int) -> None:
    picked = decide(made)
    if picked is None:
        return
    others = best_others(made, picked, count)
    assert len(others) == min(count, sum(row.tier is not None for row in made.rows) - 1)
    assert picked not in others
    ranks = [(row.tier, row.total, row.order) for row in others]
    assert ranks == sorted(ranks)


def test_a_pair_that_is_barred_is_never_picked() -> None:
    made = table(
        Row(worker="d1", prefill_worker="p", total=1.0), Row(worker="d2", prefill_worker="p", total=2.0)
    )
    left = decide(without(made, {("p", "d1")}))
    assert left is not None
    assert left.worker == "d2"
    assert without(made, ()) is made


def test_of_joined_tables_the_cheapest_pick_counts() -> None:
    dear = table(Row(worker="a", total=2.0, tier=0), Row(worker="b", total=0.0, tier=1))
    cheap = table(Row(worker="c", total=1.0, tier=3), Row(worker="d", total=9.0, tier=3))
    both = joined([dear, cheap])
    assert both is not None
    picked = decide(both)
    assert picked is not None
    assert picked.worker == "c"
    assert [row.worker for row in both.rows] == ["a", "b", "c", "d"]
    assert joined([]) is None
    empty = joined([table(), table()])
    assert empty is not None
    assert decide(empty) is None
