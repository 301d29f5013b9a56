"""Whatever happens to workers, every call comes to its end, and an idle fleet shows zero."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.binding import Mode
from router.core.local_queue import LocalQueueRules, Order
from router.studies.simulation.fleet import Patience, Trouble
from tests.studies.simulation_examples import calls, fleet, run, split_fleet

PATIENCE = Patience(first_event_s=6.0, idle_s=4.0, stall_min_s=1.0, stall_max_s=3.0)
OUTCOMES = {"ok", "broken", "failed", "no_worker_available", "queue_full"}

LOCAL = st.none() | st.builds(
    LocalQueueRules,
    order=st.sampled_from([Order.FCFS, Order.PRIORITY_GROUPS]),
    max_dispatched=st.integers(1, 4),
    max_held=st.sampled_from([1, 256]),
)


def troubles(names: list[str]) -> st.SearchStrategy[list[Trouble]]:
    """Some, and at the end everybody is well again."""
    one = st.builds(
        Trouble,
        st.floats(0.0, 4.0),
        st.sampled_from(names),
        st.sampled_from(["crash", "restart", "freeze", "thaw", "slow"]),
        st.sampled_from([0.5, 1.0, 8.0]),
    )
    well = [Trouble(20.0, name, "thaw") for name in names] + [
        Trouble(21.0, name, "restart") for name in names
    ]
    return st.lists(one, max_size=6).map(lambda some: [*some, *well])


@settings(max_examples=25, deadline=None)
@given(
    troubles=troubles(["w0", "w1", "w2"]),
    local=LOCAL,
    late=st.booleans(),
    group=st.sampled_from([None, "g"]),
    seed=st.integers(0, 9),
)
def test_nothing_is_left_of_a_pool_whatever_happened(
    troubles: list[Trouble], local: LocalQueueRules | None, late: bool, group: str | None, seed: int
) -> None:
    plan = fleet(
        3,
        "cache_aware",
        mode=Mode.LATE if late else Mode.EARLY,
        slots=4,
        troubles=troubles,
        local=local,
        patience=PATIENCE,
        group=group,
    )
    result = run(plan, calls(40, rate=15.0, seed=seed, shared=64))
    assert {record.outcome for record in result.calls} <= OUTCOMES


@settings(max_examples=25, deadline=None)
@given(
    troubles=troubles(["p0", "p1", "d0", "d1"]),
    local=LOCAL,
    concurrent=st.booleans(),
    seed=st.integers(0, 9),
)
def test_nothing_is_left_of_a_pair_whatever_happened(
    troubles: list[Trouble], local: LocalQueueRules | None, concurrent: bool, seed: int
) -> None:
    plan = split_fleet(
        "cache_aware", concurrent=concurrent, troubles=troubles, local=local, patience=PATIENCE
    )
    result = run(plan, calls(40, rate=15.0, seed=seed, shared=64))
    assert {record.outcome for record in result.calls} <= OUTCOMES


def test_calls_without_any_worker_end_with_the_code_that_their_clients_get() -> None:
    plan = fleet(1, "cache_aware", troubles=[Trouble(0.0, "w0", "crash")], patience=PATIENCE)
    outcomes = [record.outcome for record in run(plan, calls(20, rate=2.0)).calls]
    assert set(outcomes[1:]) == {"no_worker_available"}
