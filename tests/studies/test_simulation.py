"""A run ends with every call accounted for, an idle fleet, and the same result for the same seed."""

from collections.abc import Sequence

import pytest

from engines.model.parts import Part
from router.core.binding import Mode
from router.core.errors import InternalError
from router.core.policy import Choice
from router.core.request import Request
from router.core.worker import WorkerView
from router.policies import POLICIES, Shape
from router.policies.round_robin import RoundRobin
from router.studies.simulation.call import Call, Texts, answer_key
from router.studies.simulation.fleet import Delays, Trouble
from router.studies.simulation.run import RunResult, Simulation
from router.studies.simulation.timeline import Timeline
from tests.studies.simulation_examples import CLOCK, calls, fleet, run, split_fleet

SINGLE = sorted(name for name, spec in POLICIES.items() if spec.shape is Shape.ONE)
BATCH = sorted(name for name, spec in POLICIES.items() if spec.shape is Shape.BATCH)


def ok(result: RunResult) -> int:
    return sum(record.outcome == "ok" for record in result.calls)


# --- one pool ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", SINGLE)
def test_every_call_is_answered_whole_under_every_policy(policy: str) -> None:
    made = calls(60, shared=64, session=None)
    result = run(fleet(policy=policy), made)
    assert ok(result) == 60
    for record, call in zip(result.calls, made, strict=True):
        assert record.tokens == call.output_tokens
        assert record.first is not None
        assert record.done is not None
        assert call.at < record.first <= record.done
    assert sum(engine.generation_tokens for engine in result.engines.values()) == sum(
        call.output_tokens for call in made
    )


@pytest.mark.parametrize("policy", BATCH)
def test_batch_policies_place_in_rounds(policy: str) -> None:
    plan = fleet(policy=policy, mode=Mode.LATE, slots=16, group="g")
    assert ok(run(plan, calls(80, rate=200.0))) == 80


def test_equal_seeds_give_equal_runs_to_the_last_bit() -> None:
    one = run(fleet(policy="power_of_two"), calls(80), seed=3)
    other = run(fleet(policy="power_of_two"), calls(80), seed=3)
    third = run(fleet(policy="power_of_two"), calls(80), seed=4)
    assert one == other
    assert [record.worker for record in one.calls] != [record.worker for record in third.calls]


def test_a_bug_of_a_policy_ends_the_run_and_is_no_outcome_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(self: RoundRobin, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        return Choice(request.id, "nobody", cost=0.0, reason="wrong")

    monkeypatch.setattr(RoundRobin, "pick", nobody)
    with pytest.raises(InternalError):
        run(fleet(policy="round_robin"), calls(3))


def test_an_idle_engine_answers_in_the_time_of_its_own_steps() -> None:
    call = Call(number=0, at=1.0, parts=(Part(1, 400),), output_tokens=3)
    plan = fleet(1, delays=Delays(router_s=0.5, event_s=0.25))
    [record] = run(plan, [call]).calls
    prefill = CLOCK.step_s([(400, 0)], [])
    assert record.first == pytest.approx(1.0 + 0.5 + prefill + 0.25)
    assert record.done == pytest.approx(record.first + CLOCK.step_s([], [401]) + CLOCK.step_s([], [402]))


def test_steps_of_a_barrier_group_last_as_long_as_the_longest() -> None:
    made = [
        Call(number=0, at=0.0, parts=(Part(1, 100),), output_tokens=10),
        Call(number=1, at=0.0, parts=(Part(2, 3_000),), output_tokens=10),
    ]
    alone = run(fleet(2, "round_robin"), made).calls
    together = run(fleet(2, "round_robin", group="g"), made).calls
    assert alone[0].worker != alone[1].worker
    assert alone[0].done is not None
    assert alone[1].done is not None
    assert alone[0].done < alone[1].done
    assert together[1].done == pytest.approx(alone[1].done, rel=0.05)
    assert together[0].done is not None
    assert together[0].done > 1.5 * alone[0].done


def test_a_shared_prompt_is_found_in_the_cache_of_the_same_engine() -> None:
    result = run(fleet(1), calls(20, shared=320))
    assert [record.hit_tokens for record in result.calls[:1]] == [0]
    assert all(record.hit_tokens == 320 for record in result.calls[1:])


def test_a_follower_comes_after_the_answer_that_it_goes_on_from_and_finds_it_cached() -> None:
    first = Call(number=0, at=0.0, parts=(Part(1, 160),), output_tokens=33)
    second = Call(
        number=1, at=2.0, after=0, parts=(Part(1, 160), Part(answer_key(0), 33), Part(2, 40)), output_tokens=5
    )
    one, other = run(fleet(1), [first, second]).calls
    assert one.done is not None
    assert other.arrived == pytest.approx(one.done + 2.0)
    # The last token of an answer is sampled and not computed, so its block is whole 16 tokens later.
    assert other.hit_tokens == 192


def test_several_sequences_of_one_call_are_one_answer() -> None:
    [record] = run(
        fleet(1), [Call(number=0, at=0.0, parts=(Part(1, 50),), output_tokens=7, sequences=3)]
    ).calls
    assert record.tokens == 21


def test_a_call_that_no_engine_can_hold_is_refused_and_nothing_else_is() -> None:
    made = [Call(number=9, at=0.0, parts=(Part(5, 9_000),), output_tokens=5), *calls(5)]
    made[0] = Call(number=9, at=0.0, parts=(Part(5, 9_000),), output_tokens=5)
    result = run(fleet(2), made)
    assert {record.number: record.outcome for record in result.calls}[9] == "too_long"
    assert ok(result) == 5


# --- split ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrent", [False, True], ids=["one_after_the_other", "at_the_same_time"])
def test_split_calls_are_prefilled_here_and_decoded_there(concurrent: bool) -> None:
    made = calls(60)
    result = run(split_fleet(concurrent=concurrent), made)
    assert ok(result) == 60
    assert {record.prefill_worker for record in result.calls} == {"p0", "p1"}
    assert {record.worker for record in result.calls} == {"d0", "d1", "d2"}
    assert [record.tokens for record in result.calls] == [call.output_tokens for call in made]


def test_a_hand_over_costs_the_transfer() -> None:
    made = [Call(number=0, at=0.0, parts=(Part(1, 800),), output_tokens=2)]
    [split] = run(split_fleet(), made).calls
    [whole] = run(fleet(1), made).calls
    assert split.first is not None
    assert whole.first is not None
    transfer_s = 0.002 + 50 * 1_000 / 1e6
    assert split.first - whole.first > transfer_s


def test_short_prompts_are_not_split() -> None:
    result = run(split_fleet(min_tokens=300), calls(60))
    assert ok(result) == 60
    for record in result.calls:
        assert bool(record.prefill_worker) is (record.prompt_tokens >= 300)


# --- troubles ------------------------------------------------------------------------------------------


def test_what_a_crash_takes_is_tried_again_unless_it_was_seen() -> None:
    troubles = [Trouble(1.0, "w1", "crash"), Trouble(4.0, "w1", "restart")]
    result = run(fleet(3, troubles=troubles), calls(200, rate=40.0))
    outcomes = {record.outcome for record in result.calls}
    assert outcomes <= {"ok", "broken"}
    assert ok(result) >= 180
    again = [record for record in result.calls if record.worker == "w1" and record.arrived > 4.5]
    assert again, "load returns to a worker that is back"
    assert not [r for r in result.calls if r.worker == "w1" and 1.1 < (r.placed or 0) < 4.0]


@pytest.mark.parametrize("name", ["p0", "d1"])
def test_a_crash_on_either_side_of_a_pair_leaves_nothing_behind(name: str) -> None:
    troubles = [Trouble(1.0, name, "crash"), Trouble(3.0, name, "restart")]
    result = run(split_fleet(troubles=troubles), calls(150, rate=40.0))
    assert {record.outcome for record in result.calls} <= {"ok", "broken"}
    assert ok(result) >= 140


def test_a_slow_worker_gets_less() -> None:
    troubles = [Trouble(0.0, "w0", "slow", 4.0)]
    result = run(fleet(2, "least_requests", troubles=troubles), calls(400, rate=35.0))
    counts = [sum(record.worker == name for record in result.calls) for name in ("w0", "w1")]
    assert ok(result) == 400
    assert counts[0] < 0.6 * counts[1]


def test_what_waits_at_a_frozen_worker_goes_on_when_it_thaws() -> None:
    troubles = [Trouble(0.5, "w0", "freeze"), Trouble(60.0, "w0", "thaw")]
    result = run(fleet(2, troubles=troubles), calls(100, rate=30.0))
    assert ok(result) == 100
    late = [record for record in result.calls if (record.done or 0) > 60.0]
    assert late
    assert all(record.worker == "w0" for record in late)


def test_an_unknown_trouble_is_named() -> None:
    with pytest.raises(ValueError, match="'flood' is unknown"):
        Simulation(fleet(1, troubles=[Trouble(0.0, "w0", "flood")]), calls(1), 0).run()


# --- the pieces ----------------------------------------------------------------------------------------


def test_what_is_due_at_one_instant_happens_in_the_order_asked_for() -> None:
    timeline, seen = Timeline(), []
    timeline.at(2.0, lambda: seen.append("c"))
    timeline.at(1.0, lambda: seen.append("a"))
    timeline.at(1.0, lambda: seen.append("b"))
    gone = timeline.at(1.5, lambda: seen.append("never"))
    gone.cancel()
    while timeline.step():
        pass
    assert seen == ["a", "b", "c"]
    assert timeline.now == 2.0


def test_texts_begin_alike_as_far_as_parts_do_and_stay_within_their_bound() -> None:
    texts = Texts(bound_bytes=1_000)
    long, short = texts.of([Part(1, 100)]), texts.of([Part(1, 40)])
    assert len(long) == 400
    assert long.startswith(short)
    assert texts.of([Part(2, 40)]) != short
    for key in range(3, 30):
        texts.of([Part(key, 100)])
    assert texts._bytes <= 1_000
    assert texts.of([Part(1, 100)]) == long
    assert texts.of([Part(1, 100)]).isascii()
