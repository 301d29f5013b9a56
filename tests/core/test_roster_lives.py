"""Workers that restart, sleep, leave and come back, who is told of it, and what of them is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.engine_stats import EngineStats
from router.core.health import Sign, State
from router.core.lives import Verdict
from router.core.pool import Pool
from router.core.roster import Change, Roster
from router.core.worker import Worker
from tests.core.fleet_examples import MODEL, pool, request
from tests.core.roster_examples import join, names, roster, states

# --- incarnations ----------------------------------------------------------------------------------------


def test_a_restart_is_a_new_incarnation_with_an_empty_mirror_that_warms_up() -> None:
    made = pool("a")
    made.submit(request(), 1.0)
    made.assign(1.0)
    worker = made.roster.workers["a"]
    made.roster.observe("a", EngineStats(taken=2.0, process_start=1.0), 2.0)
    assert worker.in_flight == 1
    made.roster.observe("a", EngineStats(taken=3.0, process_start=9.0), 3.0)
    assert (worker.incarnation, worker.in_flight, worker.health.returned) == (1, 0, 3.0)


def test_a_sleeping_worker_is_out_and_wakes_as_a_new_incarnation() -> None:
    made = roster("a", "b")
    made.observe("a", EngineStats(taken=1.0, asleep=True), 1.0)
    assert names(made) == ["b"]
    made.probed("a", 2.0)
    assert names(made) == ["b"], "a sleeping engine answers probes"
    made.observe("a", EngineStats(taken=3.0, asleep=False), 3.0)
    assert names(made) == ["a", "b"]
    assert made.workers["a"].incarnation == 1


def test_a_sleeper_that_was_ejected_meanwhile_is_a_new_incarnation_too() -> None:
    made = roster("a", "b")
    made.sign("a", Sign.SLEEP, 1.0)
    made.sign("a", Sign.BAD, 2.0)
    made.probed("a", 3.0)
    assert made.workers["a"].state is State.READY
    assert made.workers["a"].incarnation == 1
    made.sign("a", Sign.REFUSED, 4.0)
    made.probed("a", 5.0)
    assert made.workers["a"].incarnation == 1, "it did not sleep again"


def test_a_draining_worker_does_not_leave_for_a_nap() -> None:
    made = roster("a")
    made.sign("a", Sign.DRAIN, 1.0)
    made.observe("a", EngineStats(taken=2.0, asleep=True), 2.0)
    assert states(made) == [State.DRAINING]


def test_an_address_that_several_processes_share_is_noticed_and_its_metrics_are_dropped() -> None:
    made = roster("a")
    worker = made.workers["a"]
    verdicts = [
        made.observe("a", EngineStats(taken=float(n), process_start=start, running=1), float(n))
        for n, start in enumerate((1.0, 2.0, 1.0, 2.0, 3.0))
    ]
    assert verdicts == [Verdict.SAME, Verdict.RESTARTED, Verdict.SHARED, Verdict.SHARED, Verdict.SHARED]
    assert worker.shared_address
    assert worker.stats is None
    assert worker.incarnation == 1, "what cannot be told apart is not taken for a restart"


@pytest.mark.parametrize("counter", ["generation_tokens", "prompt_tokens"])
def test_a_counter_that_moved_clears_a_suspect(counter: str) -> None:
    made = roster("a", "b")
    made.observe("a", EngineStats(taken=1.0, **{counter: 5.0}), 1.0)  # type: ignore[arg-type]
    made.sign("a", Sign.STALLED, 2.0)
    made.observe("a", EngineStats(taken=3.0, **{counter: 5.0}), 3.0)  # type: ignore[arg-type]
    assert names(made) == ["b"]
    made.observe("a", EngineStats(taken=4.0, **{counter: 6.0}), 4.0)  # type: ignore[arg-type]
    assert names(made) == ["a", "b"]


def test_a_name_that_comes_back_is_another_worker() -> None:
    made = roster("a")
    made.observe("a", EngineStats(taken=1.0, process_start=1.0), 1.0)
    made.remove("a", 2.0)
    assert [worker.name for worker in made.forget_gone()] == ["a"]
    made.add(Worker(name="a", models=frozenset({MODEL})), 3.0)
    worker = made.workers["a"]
    assert (worker.incarnation, worker.state) == (1, State.STARTING)
    assert made.observe("a", EngineStats(taken=4.0, process_start=5.0), 4.0) is Verdict.SAME


@given(st.lists(st.sampled_from(["add", "remove", "forget", "restart"]), max_size=30))
def test_no_two_lives_under_one_name_share_a_number(story: list[str]) -> None:
    made = Roster()
    seen: set[int] = set()
    start = 0.0
    for step in story:
        before = made.workers["a"].incarnation if "a" in made.workers else None
        if step == "add":
            made.add(Worker(name="a"), 0.0)
        elif step == "remove":
            made.remove("a", 0.0)
        elif step == "forget":
            made.forget_gone()
        else:
            start += 1.0
            made.observe("a", EngineStats(taken=0.0, process_start=start), 0.0)
        after = made.workers["a"].incarnation if "a" in made.workers else None
        if after is not None and (after != before or step == "add"):
            assert after not in seen
            seen.add(after)


def test_a_drained_worker_is_removed_and_forgotten() -> None:
    made = roster("a", "b")
    made.sign("a", Sign.DRAIN, 1.0)
    made.remove("a", 2.0)
    assert [worker.name for worker in made.forget_gone()] == ["a"]
    assert list(made.workers) == ["b"]


# --- who is told -----------------------------------------------------------------------------------------


def told(sign: Sign, *before: Sign) -> list[Change]:
    heard: list[Change] = []
    made = Roster(on_change=heard.append)
    join(made, "a", "b")
    for one in before:
        made.sign("a", one, 1.0)
    heard.clear()
    made.sign("a", sign, 2.0, "why")
    return heard


def test_a_change_is_told_once_with_its_reason() -> None:
    assert told(Sign.DRAIN) == [Change("a", State.READY, State.DRAINING, "why", 0)]
    assert told(Sign.DRAIN, Sign.DRAIN) == []


@pytest.mark.parametrize("before", [Sign.BAD, Sign.DRAIN, Sign.STALLED])
def test_a_port_that_closes_is_told_in_every_state_for_the_streams_that_are_left(before: Sign) -> None:
    (change,) = told(Sign.REFUSED, before)
    assert change.lost
    assert told(Sign.REFUSED, before, Sign.REFUSED) == [], "once is enough"


def test_a_worker_that_wakes_or_restarts_has_lost_its_streams() -> None:
    assert [change.lost for change in told(Sign.WAKE, Sign.SLEEP)] == [True, False]


def test_a_roster_shows_how_its_workers_are() -> None:
    made = roster("a", "b", "c")
    made.sign("a", Sign.DRAIN, 1.0)
    assert repr(made) == "<Roster [3 workers, 1 draining]>"


# --- revisions -------------------------------------------------------------------------------------------


def of_revision(made: Roster, revision: str) -> str:
    return "".join(worker.name for worker in made.of_revision(MODEL, revision))


def test_kv_of_a_revision_is_read_by_ready_workers_else_by_those_that_drain() -> None:
    made = roster("a", "b", "c")
    for name, revision in zip("abc", "112", strict=True):
        made.learn_revision(name, None, revision)
    assert (of_revision(made, "1"), of_revision(made, "2"), of_revision(made, "3")) == ("ab", "c", "")
    made.sign("a", Sign.DRAIN, 1.0)
    assert of_revision(made, "1") == "b"
    made.sign("b", Sign.DRAIN, 1.0)
    assert of_revision(made, "1") == "ab"
    made.sign("a", Sign.REMOVE, 1.0)
    assert of_revision(made, "1") == "b"
    made.lose_model("b", MODEL)
    assert of_revision(made, "1") == ""


def test_revisions_that_nobody_has_are_not_remembered() -> None:
    made = roster("a")
    for number in range(100):
        assert of_revision(made, f"made up {number}") == ""
    assert made._of_revision == {}


# --- somebody else's load --------------------------------------------------------------------------------


def loaded() -> Pool:
    """A worker of which its engine has said again and again that it holds more than is known here."""
    made = pool("a")
    made.roster.workers["a"].configured_kv_tokens = 1000
    for second in range(4):
        made.observe("a", EngineStats(taken=float(second), kv_usage=0.5, process_start=1.0), float(second))
    assert made.roster.workers["a"].kv_tokens == 500
    return made


def test_a_new_process_has_none_of_the_load_of_the_old_one() -> None:
    made = loaded()
    made.observe("a", EngineStats(taken=5.0, kv_usage=0.5, process_start=2.0), 5.0)
    assert made.roster.workers["a"].kv_tokens == 0


def test_the_metrics_of_several_processes_say_nothing_of_load() -> None:
    made = loaded()
    for start in (2.0, 1.0):
        made.observe("a", EngineStats(taken=5.0, kv_usage=0.5, process_start=start), 5.0)
    assert made.roster.workers["a"].shared_address
    assert made.roster.workers["a"].kv_tokens == 0
