"""Laws of asking without effect: who is offered, who is left out and why, and that nothing moves."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.dry_run import dry_run
from router.core.explain import Row, Table
from router.core.filtered import filtered_out
from router.core.health import Sign
from router.core.lease import Outcome
from router.core.pool import Pool
from router.core.request import Request
from router.core.worker import Role
from tests.core.fleet_examples import MODEL, FirstPair, FirstWorker, assert_idle, joined, pool, request


class Tells(FirstWorker):
    """Tells that it picks the first."""

    def explain(self, asked: Request, workers: Any, now: float) -> Table:
        rows = [Row(worker=w.name, total=float(index), reason="first") for index, w in enumerate(workers)]
        return Table(unit="places", seed=0, sequence=asked.sequence, rows=rows)


def left_out(made: Pool, asked: Request) -> dict[str, str]:
    return dict(filtered_out(made, asked))


SIGNS: list[list[Sign]] = [
    [Sign.GOOD],
    [Sign.GOOD, Sign.DRAIN],
    [Sign.GOOD, Sign.REFUSED],
    [Sign.GOOD, Sign.STALLED],
    [],
]


SERVED: list[dict[str, int | None]] = [{}, {MODEL: None}, {MODEL: 50}, {"n": 9}]


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Pool, Request]:
    made = pool(*"abcde", ready=False, slots=draw(st.none() | st.integers(1, 3)), late_binding=True)
    for worker in made.roster:
        for sign in draw(st.sampled_from(SIGNS)):
            made.roster.sign(worker.name, sign, 0.0)
        made.roster.learn_models(
            worker.name, draw(st.sampled_from([{}, {MODEL: None}, {MODEL: 50}, {"n": 9}]))
        )
        worker.role = draw(st.sampled_from([Role.BOTH, Role.DECODE]))
    for _ in range(draw(st.integers(0, 6))):
        made.place_now(request(), 1.0)
    asked = request(
        avoid=draw(st.frozensets(st.sampled_from("abcde"), max_size=2)),
        both=draw(st.booleans()),
        pinned=draw(st.none() | st.sampled_from("abcde")),
        sequences=draw(st.integers(1, 4)),
        prompt_tokens=draw(st.sampled_from([10, 100])),
    )
    return made, asked


@given(scenes())
def test_every_worker_is_either_offered_or_left_out_for_a_reason(scene: tuple[Pool, Request]) -> None:
    made, asked = scene
    offered = {worker.name for worker in made.eligible.open_to(asked)}
    out = left_out(made, asked)
    assert offered.isdisjoint(out)
    assert offered | out.keys() == set("abcde")
    assert all(out.values())


def test_each_reason_is_told() -> None:
    made = pool(*"abcdefg", slots=1, late_binding=True)
    for name, sign in (("a", Sign.DRAIN), ("b", Sign.REFUSED)):
        made.roster.sign(name, sign, 1.0)
    made.roster.learn_models("c", {"n": None})
    made.roster.learn_models("d", {MODEL: 10})
    made.roster.workers["e"].role = Role.DECODE
    lease = made.place_now(request(pinned="f"), 1.0)
    assert lease is not None
    assert left_out(made, request(both=True, avoid=frozenset("g"))) == {
        "a": "draining",
        "b": "ejected",
        "c": "model not served",
        "d": "context too small",
        "e": "cannot serve a whole request",
        "f": "no free slot",
        "g": "failed on this request before",
    }
    assert (
        left_out(made, request(pinned="f"))["g"]
        == "the response that it continues is stored at another worker"
    )
    made.release(lease, Outcome.OK, 2.0)
    assert "f" not in left_out(made, request())


def test_the_halves_of_a_pair_tell_what_keeps_them_apart() -> None:
    decode, prefill = joined(
        pool("d1", "d2", "d3", role=Role.DECODE, max_transfers=1), pool("p1", "p2", role=Role.PREFILL)
    )
    for name in ("d2", "p2"):
        roster = (decode if name == "d2" else prefill).roster
        roster.learn_revision(name, "v2" if name == "d2" else "v3", None)
    asked = request(split=True)
    alone = "no ready worker of its revision on the other side"
    assert left_out(decode, asked) == {"d2": alone}
    assert left_out(prefill, asked) == {"p2": alone}
    lease = decode.place_now(asked, 1.0)
    assert lease is not None
    assert left_out(decode, request(split=True))[lease.worker] == "too many transfers under way"
    prefill.roster.sign("p1", Sign.DRAIN, 1.0)
    assert left_out(decode, request(split=True))["d3"] == alone
    decode.release(lease, Outcome.OK, 2.0)


def test_a_saturated_producer_and_what_depends_on_it_are_told() -> None:
    decode, prefill = joined(pool("d", role=Role.DECODE), pool("p", role=Role.PREFILL))
    partners = decode.partners
    assert partners is not None
    lease = prefill.place_now(request(split=True), 1.0)
    assert lease is not None
    prefill.roster.workers["p"].configured_kv_tokens = 101
    assert left_out(prefill, request(split=True)) == {"p": "its KV is held for hand-overs beyond the budget"}
    assert left_out(decode, request(split=True)) == {"d": "no prefill worker could hand KV to it now"}
    prefill.release(lease, Outcome.OK, 2.0)


def test_a_dry_run_tells_the_pick_and_changes_nothing() -> None:
    policy = Tells()
    made = pool("a", "b", policy=policy)
    before = copy.deepcopy([repr(worker) for worker in made.roster])
    asked = request()
    run = dry_run(made, asked, 1.0)
    assert run.chosen is not None
    assert (run.policy, run.chosen.worker, run.by_batch, run.filtered) == ("", "a", False, [])
    assert dry_run(made, asked, 1.0) == run
    assert [repr(worker) for worker in made.roster] == before
    assert policy.committed_requests == []
    assert not made.chooser.counts
    assert_idle(made)


def test_a_dry_run_without_anybody_to_offer_has_no_table() -> None:
    made = pool("a", policy=Tells())
    made.roster.sign("a", Sign.DRAIN, 1.0)
    run = dry_run(made, request(), 1.0)
    assert (run.table, run.chosen, run.filtered) == (None, None, [("a", "draining")])


@pytest.mark.parametrize("policy", [FirstWorker(), FirstPair()])
def test_a_policy_that_cannot_tell_has_no_table(policy: object) -> None:
    made, _ = joined(pool("d", policy=policy), pool("p"))
    assert dry_run(made, request(split=True), 1.0).table is None


def test_a_policy_that_is_asked_for_is_asked_and_not_kept() -> None:
    made = pool("a", "b")
    made.chooser.make = lambda name: Tells() if name == "tells" else None
    run = dry_run(made, request(policy="tells"), 1.0)
    assert (run.policy, run.table is not None) == ("tells", True)
    assert made.chooser.others == []
    assert dry_run(made, request(policy="unknown"), 1.0).policy == ""
