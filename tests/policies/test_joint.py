"""Laws of joint: its terms one by one, what they decide together, and what it remembers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.cost import Demand, decode_own_s, prefill_own_s, slowdown_bound_s
from router.core.engine_stats import EngineStats
from router.core.explain import Row
from router.core.handover import Handover
from router.core.lease import Lease, Outcome
from router.core.request import Api, Request
from router.core.worker import Role, StepModel, TransferModel, Worker
from router.policies import build
from router.policies.joint import Joint
from router.policies.least_work import PRIOR
from tests.policies.examples import NOW, FrozenWorker, request, worker
from tests.policies.prefix_examples import Fleet, again, asking, tokens
from tests.policies.rank_examples import group

STEP = StepModel(0.01, 1e-4, 0.02, 1e-4, 1e-7, 2e-9)
OUTPUT = 100


def joint(seed: int = 1, **params: object) -> Joint:
    made = build("joint", params, seed)
    assert isinstance(made, Joint)
    return made


def chat(sequence: int = 0, **what: object) -> Request:
    """A streamed chat of 1,000 tokens with an answer of known length."""
    fields = {
        "prompt_tokens": 1_000,
        "max_tokens": OUTPUT,
        "ignore_eos": True,
        "api": Api.CHAT,
        "stream": True,
    }
    return request(sequence, **(fields | what))


def rows(one: Request, workers: Sequence[FrozenWorker], policy: Joint | None = None) -> dict[str, Row]:
    return {row.worker: row for row in (policy or joint()).explain(one, workers, NOW).rows}


def of(fleet: Fleet) -> Joint:
    assert isinstance(fleet.policy, Joint)
    return fleet.policy


# --- each term -------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    prompt=st.integers(0, 50_000),
    output=st.integers(1, 3_000),
    sequences=st.integers(1, 8),
    residents=st.integers(0, 60),
    kv_tokens=st.integers(0, 10**6),
    remaining=st.integers(0, 10**5),
    step=st.sampled_from([STEP, None]),
)
def test_own_times_and_slowdown_are_those_of_the_cost_model(
    prompt: int, output: int, sequences: int, residents: int, kv_tokens: int, remaining: int,
    step: StepModel | None,
) -> None:  # fmt: skip
    one = chat(prompt_tokens=prompt, max_tokens=output, sequences=sequences)
    busy = worker("w", sequences=residents, kv_tokens=kv_tokens, remaining_tokens=remaining, step=step)
    terms = rows(one, [busy])["w"].terms
    demand, known = Demand(prompt, output, sequences), step or PRIOR
    assert terms["prefill_s"] == pytest.approx(prefill_own_s(known, prompt))
    own_s = terms["decode_s"] + terms["company_s"]
    assert own_s == pytest.approx(decode_own_s(known, residents, kv_tokens, demand))
    slowdown_s = slowdown_bound_s(known, demand, residents, remaining) if residents else 0.0
    assert terms["slowdown_s"] == pytest.approx(slowdown_s)


@settings(max_examples=60)
@given(
    warmup=st.floats(1, 2),
    residents=st.integers(0, 60),
    queued=st.integers(0, 10**5),
    capacity=st.none() | st.integers(1, 10**5),
)
def test_the_total_is_the_sum_of_the_terms_and_warmup_is_for_what_load_costs(
    warmup: float, residents: int, queued: int, capacity: int | None
) -> None:
    busy = worker(
        "w", warmup=warmup, sequences=residents, in_flight=residents, queued_tokens=queued, kv_tokens=queued,
        remaining_tokens=50 * residents, kv_capacity_tokens=capacity,
    )  # fmt: skip
    row = rows(chat(deadline=NOW + 1), [busy])["w"]
    seconds = {name: value for name, value in row.terms.items() if name.endswith("_s")}
    alone_s = seconds.pop("decode_s")
    assert row.total == pytest.approx(alone_s + sum(seconds.values()) * warmup)
    assert min(seconds.values()) >= 0.0


def test_a_prefill_costs_half_those_who_are_there_and_half_the_mean() -> None:
    pool = [worker("few", sequences=2, step=STEP), worker("many", sequences=10, step=STEP)]
    found = rows(chat(), pool)
    own_s = prefill_own_s(STEP, 1_000)
    assert found["few"].terms["stall_s"] == pytest.approx(own_s * (2 + 6) / 2)
    assert found["many"].terms["stall_s"] == pytest.approx(own_s * (10 + 6) / 2)


def test_prompts_before_it_are_waited_for_each_by_its_length() -> None:
    """Four of 2,000 tokens: attention is paid within each, not over all of them."""
    busy = worker("w", sequences=4, in_flight=4, queued_tokens=8_000, kv_tokens=8_000, step=STEP)
    wait_s = rows(chat(), [busy])["w"].terms["wait_s"]
    assert wait_s == pytest.approx(4 * prefill_own_s(STEP, 2_000))


def test_requests_of_others_that_wait_in_the_engine_are_waited_for_while_the_scrape_is_fresh() -> None:
    fresh = worker("fresh", in_flight=1, stats=EngineStats(taken=NOW - 1, waiting=3), step=STEP)
    old = worker("old", in_flight=1, stats=EngineStats(taken=NOW - 9, waiting=3), step=STEP)
    found = rows(chat(), [fresh, old])
    assert found["fresh"].terms["wait_s"] == pytest.approx(2 * prefill_own_s(STEP, 1_000))
    assert found["old"].terms["wait_s"] == 0.0


def test_where_slots_or_kv_are_short_residents_have_to_end_first() -> None:
    busy = {"sequences": 10, "in_flight": 10, "kv_tokens": 10_000, "remaining_tokens": 500, "step": STEP}
    pool = [
        worker("room", free_slots=3, kv_capacity_tokens=200_000, **busy),
        worker("slots", free_slots=0, kv_capacity_tokens=200_000, **busy),
        worker("kv", free_slots=3, kv_capacity_tokens=10_000, **busy),
        worker("soon", free_slots=3, kv_capacity_tokens=14_000, **busy),
        worker("unknown", **busy),
    ]
    found = rows(chat(), pool)
    step_s = STEP.step_s(10, 10_000)
    assert found["room"].terms["crowding_s"] == pytest.approx(0.0, abs=1e-9)
    assert found["unknown"].terms["crowding_s"] == 0.0
    assert found["slots"].terms["crowding_s"] == pytest.approx(0.1 * 2 * 50 * step_s)
    # Above the capacity what is over has to go at least, and below it what may be over by chance.
    assert found["kv"].terms["crowding_s"] > 0.1 * 2 * 50 * step_s
    assert 0.0 < found["soon"].terms["crowding_s"] < found["kv"].terms["crowding_s"]


def test_time_beyond_the_deadline_counts_twice() -> None:
    first_s = prefill_own_s(STEP, 1_000)
    in_time = rows(chat(deadline=NOW + first_s + 0.01), [worker("w", step=STEP)])["w"]
    late = rows(chat(deadline=NOW + first_s - 0.03), [worker("w", step=STEP)])["w"]
    assert in_time.terms["lateness_s"] == 0.0
    assert late.terms["lateness_s"] == pytest.approx(0.03)


def test_coefficients_are_the_prior_for_all_until_all_are_calibrated() -> None:
    mixed = [worker("known", step=STEP), worker("unknown", capacity=2.0)]
    found = rows(chat(), mixed)
    assert found["known"].terms["prefill_s"] == pytest.approx(prefill_own_s(PRIOR, 1_000))
    assert found["unknown"].terms["prefill_s"] == pytest.approx(prefill_own_s(PRIOR, 1_000) / 2)
    assert {row.reason for row in found.values()} == {"uncalibrated:least_cost"}
    assert rows(chat(), [worker("known", step=STEP)])["known"].reason == "least_cost"


def test_a_worker_of_twice_the_speed_gets_more_than_twice_the_load_and_the_others_some() -> None:
    """Its answers also take half as long: what an idle worker takes for one is part of the cost."""
    fleet = Fleet("joint", 4)
    for number, one in enumerate(fleet.workers):
        one.capacity = 2.0 if number % 2 else 1.0
    now = NOW
    for number in range(600):
        now += 0.01
        fleet.send(asking(tokens(chr(1_000 + number), 50), number, api=Api.CHAT, max_tokens=20), now)
        if len(fleet.running) > 200:
            fleet.end(fleet.running[number * 7 % 200], now, generated_tokens=20)
    slow, fast = (sum(one.in_flight for one in fleet.workers[first::2]) for first in (0, 1))
    assert 0 < 2 * slow < fast


# --- prefill and decode pools ------------------------------------------------------------------------------


def test_a_prefill_worker_is_charged_no_output() -> None:
    pool = [worker("w", role=Role.PREFILL, sequences=4, kv_tokens=9_000, remaining_tokens=400, step=STEP)]
    terms = rows(chat(split=True), pool)["w"].terms
    assert terms["prefill_s"] == pytest.approx(prefill_own_s(STEP, 1_000))
    assert terms["decode_s"] == terms["company_s"] == terms["slowdown_s"] == 0.0


def test_on_a_prefill_worker_the_prompts_that_wait_stand_still() -> None:
    policy = joint()
    pool = [worker(f"p{n}", role=Role.PREFILL, in_flight=5, step=STEP) for n in range(2)]
    for number in range(4):
        one = chat(number, split=True)
        policy.committed(one, policy.pick(one, pool[:1], NOW), NOW, retry=False)
    found = rows(chat(9, split=True), pool, policy)
    own_s = prefill_own_s(STEP, 1_000)
    assert found["p0"].terms["stall_s"] == pytest.approx(own_s * (4 + 2) / 2)
    assert found["p1"].terms["stall_s"] == pytest.approx(own_s * (0 + 2) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeWorker(FrozenWorker):
    transfers: dict[str, TransferModel] = field(default_factory=dict)


def prefilled() -> Request:
    """A request whose KV waits at worker p."""
    lease = Lease(chat(split=True), "p", 0, NOW, 1_000, 1, prefilled=True, prefill_only=True)
    return chat(split=True, handover=Handover(lease, "", NOW, NOW + 10, NOW + 20))


def decode_worker(name: str, **transfers: TransferModel) -> DecodeWorker:
    return DecodeWorker(name=name, role=Role.DECODE, step=STEP, transfers=transfers)


def test_a_decode_worker_is_charged_the_transfer_and_no_prefill() -> None:
    pool = [
        decode_worker("near", p=TransferModel(0.01, 1e-6)),
        decode_worker("far", p=TransferModel(0.05, 1e-5)),
        decode_worker("new", q=TransferModel(9.0, 0.0)),
    ]
    found = rows(prefilled(), pool)
    assert all(row.terms["prefill_s"] == row.terms["stall_s"] == 0.0 for row in found.values())
    assert found["near"].terms["transfer_s"] == pytest.approx(0.011)
    assert found["far"].terms["transfer_s"] == pytest.approx(0.060)
    assert found["new"].terms["transfer_s"] == pytest.approx((0.011 + 0.060) / 2)
    assert joint().pick(prefilled(), pool, NOW).worker == "near"


def test_a_transfer_that_nobody_measured_decides_nothing() -> None:
    found = rows(prefilled(), [decode_worker("a"), decode_worker("b")])
    assert [row.terms["transfer_s"] for row in found.values()] == [0.0, 0.0]


# --- barrier groups ----------------------------------------------------------------------------------------


def test_in_a_barrier_group_only_what_exceeds_the_slowest_step_holds_others_up() -> None:
    pool = group(50_000, 50_000, 40_000, step=STEP, sequences=4, in_flight=4)
    found = rows(chat(max_tokens=40, prompt_tokens=8_000), pool)
    growth_s = STEP.step_per_sequence_s + STEP.step_per_kv_token_s * 8_000
    assert found["w0"].terms["overflow_s"] == pytest.approx(12 * growth_s * 40)
    assert found["w2"].terms["overflow_s"] == 0.0
    assert all(row.terms["slowdown_s"] == 0.0 for row in found.values())
    assert joint().pick(chat(max_tokens=40, prompt_tokens=8_000), pool, NOW).worker == "w2"


def test_a_prefill_in_a_barrier_group_holds_up_all_of_it() -> None:
    pool = group(50_000, 10_000, step=STEP, sequences=4, in_flight=4)
    found = rows(chat(), pool)
    assert found["w1"].terms["stall_s"] == pytest.approx(8 * prefill_own_s(STEP, 1_000))


def test_members_that_are_not_offered_count() -> None:
    pool = group(50_000, 10_000, step=STEP, sequences=4, in_flight=4)
    assert rows(chat(), pool[1:])["w1"].terms == rows(chat(), pool)["w1"].terms


def test_an_overflow_is_paid_for_no_longer_than_the_horizon() -> None:
    pool = group(50_000, 10_000, step=STEP, sequences=4, in_flight=4)
    one = chat(max_tokens=5_000)
    short, long = (rows(one, pool, joint(1, horizon_steps=h))["w0"].terms["overflow_s"] for h in (80, 160))
    assert long == pytest.approx(2 * short)


# --- prefixes ----------------------------------------------------------------------------------------------


def question(letter: str, sequence: int, **what: object) -> Request:
    """About a document of 4,000 tokens."""
    text = tokens("d", 4_000) + tokens(letter, 100)
    return asking(text, sequence, **({"api": Api.CHAT, "stream": True, "max_tokens": 8} | what))


def unlike(number: int) -> Request:
    """Shares nothing with anything."""
    return asking(tokens(chr(1_000 + number), 2_000), number, api=Api.CHAT, stream=True, max_tokens=8)


def test_a_prompt_follows_its_prefix_while_that_saves_more_than_it_waits() -> None:
    fleet = Fleet("joint", 4, step=STEP)
    fleet.serve(question("a", 0), to=2)
    choice = fleet.pick(question("b", 1))
    assert (choice.worker, choice.reason) == ("w2", "prefix")
    for number in range(30):
        fleet.send(unlike(10 + number), to=2)
    choice = fleet.pick(question("b", 1))
    assert (choice.worker != "w2", choice.reason) == (True, "copy")


def test_prompts_that_are_cached_are_no_work_to_wait_for() -> None:
    fleet = Fleet("joint", 2, step=STEP)
    fleet.serve(question("a", 0), to=0)
    for number in range(5):
        fleet.send(question(chr(98 + number), 1 + number), to=0)
    table = of(fleet).explain(question("z", 9), fleet.workers, NOW)
    assert table.rows[0].terms["wait_s"] < 6 * prefill_own_s(STEP, 110)


def test_a_worker_that_shows_nothing_for_long_is_left_alone() -> None:
    fleet = Fleet("joint", 2, step=STEP)
    fleet.serve(question("a", 0), to=0)
    fleet.send(question("b", 1), to=0)
    assert fleet.pick(question("c", 2), NOW).worker == "w0"
    # Its prompt should have been prefilled within a tenth of a second.
    assert fleet.pick(question("c", 2), NOW + 5.0).worker == "w1"
    waits = [
        row.terms["wait_s"] for row in of(fleet).explain(question("c", 2), fleet.workers, NOW + 5.0).rows
    ]
    assert waits[0] == pytest.approx(5.0, abs=0.2)
    fleet.start(fleet.running[-1], NOW + 5.0)
    assert fleet.pick(question("c", 2), NOW + 5.0).worker == "w0"


def test_a_prefix_in_demand_is_copied_earlier_than_one_that_nobody_else_asks_for() -> None:
    def copy_s(askers: int) -> float:
        fleet = Fleet("joint", 2, step=STEP)
        now = NOW
        fleet.serve(unlike(99), now, to=1)  # from here on the prompts part where they will part later
        for number in range(askers):
            now += 0.5
            fleet.serve(question(chr(97 + number), number), now, to=0)
        for number in range(10):
            fleet.send(unlike(100 + number), now, to=0)
        holder, other = of(fleet).explain(question("z", 99), fleet.workers, now).rows
        assert other.terms["copy_s"] == 0.0
        return holder.terms["copy_s"]

    assert copy_s(1) == 0.0
    assert 0.0 < copy_s(4) < copy_s(12)


def test_what_has_to_go_for_a_copy_is_paid_for_as_far_as_prompts_are_found_cached() -> None:
    fleet = Fleet("joint", 2, step=STEP)
    for one in fleet.workers:
        one.configured_kv_tokens = 6_000
    fleet.prefixes.sweep(fleet.workers, NOW)
    fleet.serve(question("a", 0), to=0)
    fleet.serve(asking(tokens("o", 4_500), 1), to=1)
    before = of(fleet).explain(question("b", 2), fleet.workers, NOW).rows
    assert [row.terms["eviction_s"] for row in before] == [0.0, 0.0]
    for number in range(100):
        fleet.serve(question("a", 10 + number), to=0)
    holder, other = of(fleet).explain(question("b", 2), fleet.workers, NOW).rows
    reuse = of(fleet).memory.reuse
    assert 0.2 < reuse < 0.5
    assert other.terms["eviction_s"] == pytest.approx(reuse * 1e-4 * 3_800, rel=0.05)
    assert holder.terms["eviction_s"] < 0.01


# --- memory ------------------------------------------------------------------------------------------------


def test_nothing_is_kept_of_requests_that_are_over() -> None:
    fleet = Fleet("joint", 3, step=STEP)
    memory = of(fleet).memory
    for number in range(30):
        fleet.send(question("qrs"[number % 3], number))
    assert not memory.idle
    for number, lease in enumerate(list(fleet.running)):
        if number % 2:
            fleet.start(lease, NOW)
        fleet.end(lease, NOW, Outcome.OK if number % 3 else Outcome.CANCELLED, generated_tokens=number % 3)
    assert memory.idle


def test_answers_are_expected_to_be_as_long_as_those_about_the_same_document() -> None:
    fleet = Fleet("joint", 2, step=STEP)
    for number in range(6):
        fleet.serve(question(chr(97 + number), number, max_tokens=None), generated_tokens=40)
        fleet.serve(asking(tokens("o", 4_000), 100 + number, api=Api.CHAT), generated_tokens=900)
    row = of(fleet).explain(question("z", 9, max_tokens=None), fleet.workers, NOW).rows[0]
    assert row.terms["decode_s"] == pytest.approx(40 * STEP.step_base_s)
    short = of(fleet).explain(question("z", 9, max_tokens=10), fleet.workers, NOW).rows[0]
    assert short.terms["decode_s"] == pytest.approx(10 * STEP.step_base_s)


def test_a_request_that_is_tried_again_counts_once() -> None:
    fleet = Fleet("joint", 2, step=STEP)
    fleet.serve(question("a", 0), to=0)
    one = question("b", 1)
    fleet.send(one, to=0)
    rate = of(fleet).memory.portions.rate_per_s
    portion = fleet.prefixes.portion(one)
    assert portion is not None
    before = rate(portion.key, NOW)
    fleet.end(fleet.running[-1], outcome=Outcome.FAILED)
    fleet.send(again(one, "w0"), to=1)
    assert rate(portion.key, NOW) == before


def test_a_worker_may_leave_with_what_it_was_sent() -> None:
    fleet = Fleet("joint", 2, step=STEP)
    fleet.send(question("a", 0), to=0)
    fleet.workers[0] = Worker(name="w0", models=frozenset({"model"}), step=STEP, incarnation=1)
    terms = of(fleet).explain(question("b", 1), fleet.workers, NOW + 60).rows[0].terms
    assert terms["wait_s"] == 0.0
