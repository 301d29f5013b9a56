"""Laws of not splitting: the whole table, its order, and who takes a request whole."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from router.core.errors import BadRequest, NoWorker
from router.core.split_rule import (
    OF_THE_BODY,
    RULES,
    Fallback,
    Refusal,
    SplitFacts,
    SplitRule,
    Unsplit,
    Where,
    Whole,
)

LONG = 2048
SGLANG = {"sequences_on_handle": True, "prefill_takes_whole": False, "decode_takes_whole": False}


def facts(**fields: Any) -> SplitFacts:
    return SplitFacts(**({"generates": True, "prompt_tokens": LONG} | fields))


any_facts = st.builds(
    SplitFacts,
    generates=st.booleans(),
    prompt_tokens=st.integers(0, 2000),
    max_tokens=st.one_of(st.none(), st.integers(0, 3)),
    sequences=st.integers(1, 3),
    traits=st.frozensets(st.sampled_from(OF_THE_BODY)),
    pinned=st.one_of(st.none(), st.sampled_from(Where)),
    handle_missing=st.booleans(),
    prefill_ready=st.booleans(),
    decode_ready=st.booleans(),
    producer_ready=st.booleans(),
    may_do_both=st.booleans(),
    sequences_on_handle=st.booleans(),
    prefill_takes_whole=st.booleans(),
    decode_takes_whole=st.booleans(),
)
any_rule = st.builds(SplitRule, st.integers(0, 1000), st.sampled_from(Fallback))


def test_a_long_prompt_of_one_sequence_is_split() -> None:
    assert SplitRule().decide(facts()) is None
    assert SplitRule().decide(facts(may_do_both=True)) is None


_CASES = [
    ({"pinned": Where.DECODE}, Unsplit.STORED, Where.DECODE),
    ({"pinned": Where.PREFILL, "generates": False}, Unsplit.STORED, Where.PREFILL),
    ({"pinned": Where.BOTH_CAPABLE}, Unsplit.STORED, Where.BOTH_CAPABLE),
    ({"generates": False}, Unsplit.NOT_GENERATED, Where.PREFILL),
    ({"generates": False, "may_do_both": True}, Unsplit.NOT_GENERATED, Where.BOTH_CAPABLE),
    ({"generates": False, "prefill_ready": False}, Unsplit.NOT_GENERATED, Where.DECODE),
    ({"handle_missing": True}, Unsplit.NO_HANDLE, Where.DECODE),
    ({"handle_missing": True, "may_do_both": True}, Unsplit.NO_HANDLE, Where.BOTH_CAPABLE),
    ({"max_tokens": 1}, Unsplit.ONE_TOKEN, Where.PREFILL),
    ({"max_tokens": 0}, Unsplit.ONE_TOKEN, Where.PREFILL),
    ({"max_tokens": 1, "sequences": 4}, Unsplit.ONE_TOKEN, Where.PREFILL),
    ({"max_tokens": 1, "producer_ready": False}, Unsplit.ONE_TOKEN, Where.PREFILL),
    ({"max_tokens": 1, "prefill_ready": False, "producer_ready": False}, Unsplit.NO_PREFILL, Where.DECODE),
    ({"sequences": 2}, Unsplit.SEQUENCES, Where.DECODE),
    ({"sequences": 2, "may_do_both": True}, Unsplit.SEQUENCES, Where.BOTH_CAPABLE),
    *(({"traits": frozenset({trait})}, trait, Where.DECODE) for trait in OF_THE_BODY),
    ({"prompt_tokens": 511, "may_do_both": True}, Unsplit.SHORT, Where.BOTH_CAPABLE),
    ({"producer_ready": False}, Unsplit.NO_PREFILL, Where.DECODE),
    ({"producer_ready": False, "may_do_both": True}, Unsplit.NO_PREFILL, Where.BOTH_CAPABLE),
]


@pytest.mark.parametrize(("fields", "why", "where"), _CASES)
def test_each_reason_sends_a_request_whole_to_who_can_take_it(
    fields: dict[str, Any], why: Unsplit, where: Where
) -> None:
    assert SplitRule().decide(facts(**fields)) == Whole(why, where)


def test_every_reason_has_exactly_one_rule_and_an_example_here() -> None:
    assert [why for why, _, _ in RULES] == list(Unsplit)
    assert {why for _, why, _ in _CASES} == set(Unsplit)


@pytest.mark.parametrize("prompt_tokens", [511, 512])
def test_a_short_prompt_is_split_where_nobody_may_do_both(prompt_tokens: int) -> None:
    assert SplitRule().decide(facts(prompt_tokens=prompt_tokens)) is None


def test_a_prompt_at_the_bound_is_split() -> None:
    assert SplitRule().decide(facts(prompt_tokens=512, may_do_both=True)) is None


def test_a_bound_of_zero_splits_every_prompt() -> None:
    assert SplitRule(min_tokens=0).decide(facts(prompt_tokens=0, may_do_both=True)) is None


def test_without_a_bound_on_the_output_it_is_not_taken_for_one_token() -> None:
    assert SplitRule().decide(facts(max_tokens=None)) is None
    assert SplitRule().decide(facts(max_tokens=2)) is None


@pytest.mark.parametrize("fields", [{"sequences": 8}, {"max_tokens": 1}])
def test_a_connector_of_rooms_splits_what_its_engines_cannot_serve_whole(fields: dict[str, Any]) -> None:
    assert SplitRule().decide(facts(**SGLANG, **fields)) is None


def test_strict_mode_refuses_what_needs_a_prefill_worker_and_nothing_else() -> None:
    strict = SplitRule(fallback=Fallback.STRICT)
    refusal = strict.decide(facts(producer_ready=False, may_do_both=True))
    assert refusal == Refusal(Unsplit.NO_PREFILL, lasting=False)
    assert isinstance(refusal.error(), NoWorker)
    assert refusal.error().retry_after_s is not None
    assert refusal.error().message == (
        "No prefill worker can hand KV over now, and no worker may serve the request whole."
    )
    assert strict.decide(facts(handle_missing=True)) == Refusal(Unsplit.NO_HANDLE, lasting=False)
    for fields in ({"sequences": 2}, {"generates": False}, {"prompt_tokens": 5, "may_do_both": True}):
        assert isinstance(strict.decide(facts(producer_ready=False, **fields)), Whole)


def test_a_fleet_that_serves_nothing_whole_says_so_when_its_prefill_workers_are_gone() -> None:
    refusal = SplitRule().decide(facts(**SGLANG, producer_ready=False))
    assert refusal == Refusal(Unsplit.NO_PREFILL, lasting=False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"traits": frozenset({Unsplit.PROMPT_LOGPROBS})}, "log probabilities"),
        ({"sequences": 2, "sequences_on_handle": False}, "several sequences"),
        ({"pinned": Where.DECODE}, "stored response"),
    ],
)
def test_what_can_neither_be_split_nor_served_whole_is_the_requests_own_fault(
    fields: dict[str, Any], words: str
) -> None:
    refusal = SplitRule().decide(facts(**(SGLANG | fields)))
    assert isinstance(refusal, Refusal)
    assert refusal.lasting
    error = refusal.error()
    assert isinstance(error, BadRequest)
    assert words in error.message


def test_a_stored_answer_is_fetched_from_an_engine_that_decodes_nothing_whole() -> None:
    asked = facts(**SGLANG, pinned=Where.DECODE, generates=False)
    assert SplitRule().decide(asked) == Whole(Unsplit.STORED, Where.DECODE)


@given(asked=any_facts, rule=any_rule)
def test_a_whole_request_never_goes_to_an_engine_that_cannot_take_it(
    asked: SplitFacts, rule: SplitRule
) -> None:
    decision = rule.decide(asked)
    if not isinstance(decision, Whole):
        return
    if asked.pinned is not None:
        assert decision.where is asked.pinned
    if decision.where is Where.BOTH_CAPABLE:
        assert asked.may_do_both or asked.pinned is Where.BOTH_CAPABLE
    elif asked.generates:
        assert asked.decode_takes_whole if decision.where is Where.DECODE else asked.prefill_takes_whole


@given(asked=any_facts, rule=any_rule)
def test_what_is_split_has_a_prefill_worker_and_one_reader_of_its_handle(
    asked: SplitFacts, rule: SplitRule
) -> None:
    if rule.decide(asked) is None:
        assert asked.producer_ready
        assert asked.generates
        assert asked.pinned is None
        assert not asked.handle_missing
        assert asked.sequences == 1 or asked.sequences_on_handle


@given(asked=any_facts, rule=any_rule)
def test_a_worker_that_may_do_both_is_never_a_reason_to_refuse_unless_strict_or_pinned(
    asked: SplitFacts, rule: SplitRule
) -> None:
    able = structs.replace(asked, may_do_both=True, pinned=None)
    lenient = dataclasses.replace(rule, fallback=Fallback.AGGREGATED)
    assert not isinstance(lenient.decide(able), Refusal)


@given(asked=any_facts, rule=any_rule)
def test_a_place_whose_workers_are_alive_is_preferred(asked: SplitFacts, rule: SplitRule) -> None:
    decision = rule.decide(asked)
    if isinstance(decision, Whole) and decision.why is Unsplit.NOT_GENERATED and not asked.may_do_both:
        alive = asked.prefill_ready if decision.where is Where.PREFILL else asked.decode_ready
        assert alive or not (asked.prefill_ready or asked.decode_ready)
