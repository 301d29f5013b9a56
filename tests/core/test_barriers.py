"""Laws of who steps together, and of the ranks that share a process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.engine_stats import EngineStats
from router.core.health import Sign, State
from router.core.lease import Outcome
from router.core.lives import Verdict
from router.core.roster import Change, Roster
from router.core.worker import Worker
from router.policies import build
from tests.core.fleet_examples import MODEL, FirstWorker, pool, request


def roster(*workers: Worker) -> Roster:
    made = Roster()
    for worker in workers:
        made.add(worker, 0.0)
        made.sign(worker.name, Sign.GOOD, 0.0)
    return made


def member(name: str, group: str | None = "g", process: str | None = None) -> Worker:
    return Worker(name=name, barrier_group=group, process=process, models=frozenset({MODEL}), slots=1)


def peers(made: Roster, name: str) -> list[str]:
    return [peer.name for peer in made.workers[name].barrier_peers]


# --- groups --------------------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([None, "g", "h"]), min_size=1))
def test_peers_are_the_workers_of_the_same_declared_group(groups: dict[str, str | None]) -> None:
    made = roster(*[member(name, group) for name, group in groups.items()])
    for name, group in groups.items():
        same = sorted(other for other, its in groups.items() if its == group)
        assert peers(made, name) == ([] if group is None else same)


def test_a_late_member_joins_its_group_and_a_worker_that_comes_again_replaces_itself() -> None:
    made = roster(member("a"))
    made.add(member("b"), 1.0)
    assert peers(made, "a") == peers(made, "b") == ["a", "b"]
    again = member("a")
    made.add(again, 2.0)
    assert made.workers["b"].barrier_peers[0] is again


@pytest.mark.parametrize("sign", [Sign.DRAIN, Sign.BAD, Sign.SLEEP, Sign.STALLED])
def test_nobody_leaves_its_group_for_the_state_it_is_in(sign: Sign) -> None:
    made = roster(member("a"), member("b"))
    made.sign("b", sign, 1.0)
    assert peers(made, "a") == ["a", "b"]


def test_one_that_was_removed_is_waited_for_until_its_streams_have_ended() -> None:
    made = pool(policy=FirstWorker())
    made.roster.remove("a", 0.0)
    made.roster.forget_gone()
    for name in "bc":
        made.roster.add(member(name), 0.0)
        made.roster.sign(name, Sign.GOOD, 0.0)
    lease = made.place_now(request(), 0.0)
    assert lease is not None
    made.roster.remove("b", 1.0)
    made.roster.forget_gone()
    assert peers(made.roster, "c") == ["b", "c"]
    made.release(lease, Outcome.OK, 2.0)
    made.roster.forget_gone()
    assert peers(made.roster, "c") == ["c"]


def test_a_policy_that_balances_steps_sees_the_whole_pool_where_no_group_is_declared() -> None:
    made = pool("a", "b", policy=build("balance_route_0", {}, 0), slots=1, late_binding=True)
    assert peers(made.roster, "a") == ["a", "b"]
    made.use(FirstWorker(), "first")
    assert peers(made.roster, "a") == []
    made.use(build("balance_route_h", {}, 0), "balance_route_h")
    assert peers(made.roster, "b") == ["a", "b"]


# --- ranks of one process --------------------------------------------------------------------------------


def ranks(changes: list[Change] | None = None) -> Roster:
    made = Roster(on_change=None if changes is None else changes.append)
    for worker in (member("e@0", process="e"), member("e@1", process="e"), member("other")):
        made.add(worker, 0.0)
        made.sign(worker.name, Sign.GOOD, 0.0)
    return made


def states(made: Roster) -> list[State]:
    return [worker.state for worker in made]


def test_a_port_that_refuses_one_rank_refuses_all_of_them() -> None:
    changes: list[Change] = []
    made = ranks(changes)
    changes.clear()
    assert made.sign("e@1", Sign.REFUSED, 1.0)
    assert states(made) == [State.EJECTED, State.EJECTED, State.READY]
    assert [(change.worker, change.lost) for change in changes] == [("e@0", True), ("e@1", True)]


def test_what_fails_at_one_rank_is_that_ranks_alone() -> None:
    made = ranks()
    made.sign("e@1", Sign.STALLED, 1.0)
    assert states(made) == [State.READY, State.SUSPECT, State.READY]


@pytest.mark.parametrize(
    ("before", "after"),
    [({"process_start": 1.0}, {"process_start": 9.0}), ({"generation_tokens": 9}, {"generation_tokens": 1})],
)
def test_ranks_are_born_anew_together_and_once(before: dict[str, float], after: dict[str, float]) -> None:
    made = ranks()
    assert made.see("e@0", EngineStats(taken=1.0, **before), 1.0) is Verdict.SAME  # type: ignore[arg-type]
    assert made.see("e@1", EngineStats(taken=2.0, **after), 2.0) is Verdict.RESTARTED  # type: ignore[arg-type]
    for name in ("e@0", "e@1"):
        assert made.observe(name, EngineStats(taken=2.0, generation_tokens=0), 2.0) is Verdict.SAME
    assert [worker.incarnation for worker in made] == [1, 1, 0]


def test_a_rank_that_did_nothing_is_not_taken_for_one_that_restarted() -> None:
    made = ranks()
    for second, tokens in enumerate((9.0, 0.0)):
        made.observe("e@0", EngineStats(taken=float(second), generation_tokens=tokens), float(second))
    assert made.workers["e@0"].incarnation == 0


def test_an_address_that_several_processes_share_says_nothing_of_any_rank() -> None:
    made = ranks()
    for second, start in enumerate((1.0, 2.0, 1.0)):
        made.see("e@0", EngineStats(taken=float(second), process_start=start), float(second))
    assert made.observe("e@1", EngineStats(taken=3.0, running=1), 3.0) is Verdict.SHARED
    assert made.workers["e@1"].stats is None
    assert not made.workers["other"].shared_address


def test_of_a_worker_that_is_not_there_nothing_is_seen() -> None:
    assert ranks().see("x", EngineStats(taken=1.0, process_start=1.0), 1.0) is Verdict.SAME
