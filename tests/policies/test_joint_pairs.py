"""Laws of joint where it chooses both ends of a request."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.explain import decide
from router.core.lease import Lease, Outcome
from router.core.policy import Choice, PairPolicy
from router.core.prefixes import PoolPrefixes
from router.core.request import Api, Request
from router.core.worker import Role, StepModel, TransferModel, Worker
from router.policies.joint import Joint, Parameters
from tests.policies.examples import NOW
from tests.policies.prefix_examples import asking, tokens

STEP = StepModel(0.01, 1e-4, 0.02, 1e-4, 1e-7)


def side(letter: str, loads: list[int], role: Role) -> list[Worker]:
    """Workers that hold so many KV tokens."""
    made = []
    for number, load in enumerate(loads):
        one = Worker(name=f"{letter}{number}", role=role, step=STEP)
        one.mirror.kv_tokens, one.mirror.sequences = load, load // 500
        one.mirror.queued_tokens = load if role is Role.PREFILL else 0
        one.mirror.in_flight = one.mirror.sequences
        made.append(one)
    return made


def call(sequence: int = 0, **what: object) -> Request:
    fields = {"api": Api.CHAT, "stream": True, "split": True, "max_tokens": 50, "ignore_eos": True}
    return asking(tokens("p", 1_000), sequence, **(fields | what))


loads = st.lists(st.integers(0, 60_000), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(prefills=loads, decodes=loads, seed=st.integers(0, 99), candidates=st.integers(1, 4))
def test_the_table_picks_the_pair_that_the_policy_picks(
    prefills: list[int], decodes: list[int], seed: int, candidates: int
) -> None:
    policy = Joint(Parameters(pair_candidates=candidates), seed)
    both = side("p", prefills, Role.PREFILL), side("d", decodes, Role.DECODE)
    choice = policy.pick_pair(call(seed), *both, NOW)
    assert policy.pick_pair(call(seed), *both, NOW) == choice
    table = policy.explain_pair(call(seed), *both, NOW)
    row = decide(table)
    assert row is not None
    assert (row.prefill_worker, row.worker, row.total) == (choice.prefill_worker, choice.worker, choice.cost)
    assert len(table.rows) <= (2 * candidates) ** 2


def test_it_is_a_policy_of_pairs() -> None:
    assert isinstance(Joint(Parameters(), 1), PairPolicy)


def test_the_transfer_decides_between_ends_that_are_alike() -> None:
    prefills, decodes = side("p", [0, 0], Role.PREFILL), side("d", [0, 0], Role.DECODE)
    for n, decode in enumerate(decodes):
        decode.transfers = {one.name: TransferModel(0.5, 0.0) for one in prefills}
        decode.transfers = {**decode.transfers, f"p{1 - n}": TransferModel(0.01, 0.0)}
    policy = Joint(Parameters(), 1)
    for number in range(20):
        choice = policy.pick_pair(call(number), prefills, decodes, NOW)
        assert (choice.prefill_worker, choice.worker) in {("p0", "d1"), ("p1", "d0")}


def test_a_request_that_is_served_whole_has_both_ends_at_one_worker() -> None:
    workers = side("d", [5_000, 0, 9_000], Role.DECODE)
    choice = Joint(Parameters(), 1).pick_pair(call(split=False), workers, workers, NOW)
    assert (choice.prefill_worker, choice.worker) == ("d1", "d1")
    row = decide(Joint(Parameters(), 1).explain_pair(call(split=False), workers, workers, NOW))
    assert row is not None
    assert (row.prefill_worker, row.worker) == ("d1", "d1")


def test_the_prefill_goes_where_its_prefix_is_though_others_are_cheaper() -> None:
    policy, producers = Joint(Parameters(pair_candidates=1), 1), PoolPrefixes()
    prefills, decodes = side("p", [500, 0, 0, 0], Role.PREFILL), side("d", [0], Role.DECODE)
    producers.sweep(prefills, NOW)
    key = call().key
    assert key is not None
    claim = producers.index.insert(key.partition, key.canonical, "p0", NOW, prompt_tokens=1_000)
    assert claim is not None
    producers.index.confirm(claim, NOW)
    policy.bind_producers(producers)
    choice = policy.pick_pair(call(), prefills, decodes, NOW)
    assert (choice.prefill_worker, choice.reason) == ("p0", "prefix")


def test_prompts_that_wait_at_the_prefill_end_are_forgotten_when_the_decode_end_has_begun() -> None:
    policy = Joint(Parameters(), 1)
    one = call()
    policy.committed(one, Choice(one.id, "d0", prefill_worker="p0"), NOW, retry=False)
    assert len(policy.memory.silence) == 1
    prefill = Lease(one, "p0", 0, NOW, 1_000, 1, prefill_only=True)
    lease = Lease(one, "d0", 0, NOW, 1_000, 50, prefill=prefill)
    policy.started(lease, NOW + 1)
    assert len(policy.memory.silence) == 0
    policy.settled(lease, Outcome.OK, NOW + 2)
    assert policy.memory.idle
