"""Laws of the bounds of the prefix index."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.kv_event import BlocksRemoved, BlocksStored
from router.core.prefix_holder import Claim
from router.core.prefix_index import PrefixIndex, Prompt
from router.core.prefix_settings import PrefixSettings
from router.core.prompt_key import Partition
from router.core.trust import TrustSignal

PART = Partition("model", "", "")


def text(number: int, size: int = 100) -> bytes:
    return number.to_bytes(4, "little") + bytes(size - 4)


def ids(number: int, blocks: int = 4) -> tuple[int, ...]:
    return tuple(range(number * 1_000, number * 1_000 + 16 * blocks))


def serve(index: PrefixIndex, prompt: Prompt, worker: str = "a", now: float = 0.0) -> None:
    claim = index.insert(PART, prompt, worker, now, prompt_tokens=25)
    if claim is not None:
        index.confirm(claim, now)


def kept(index: PrefixIndex, prompts: list[Prompt], worker: str = "a") -> list[int]:
    return [n for n, prompt in enumerate(prompts) if index.match(PART, prompt, 25).on(worker)]


def test_a_worker_is_believed_to_hold_four_fifths_of_its_capacity_the_youngest_first() -> None:
    index = PrefixIndex()
    index.admit("a", 0, 125)  # 100 tokens: 400 bytes of text
    prompts: list[Prompt] = [text(number) for number in range(10)]
    for number, prompt in enumerate(prompts):
        serve(index, prompt, now=float(number))
    assert kept(index, prompts) == [6, 7, 8, 9]


def test_text_and_token_ids_share_the_capacity() -> None:
    index = PrefixIndex()
    index.admit("a", 0, 125)
    prompts: list[Prompt] = [text(0), ids(1), text(2), ids(3)]
    for number, prompt in enumerate(prompts):
        serve(index, prompt, now=float(number))
    assert kept(index, prompts) == [2, 3]  # 25 + 64 of 100 tokens


def test_a_prompt_that_is_longer_than_its_worker_is_believed_as_far_as_it_fits() -> None:
    index = PrefixIndex()
    index.admit("a", 0, 125)
    serve(index, text(1, 1_000))
    assert index.match(PART, text(1, 1_000), 1_000).tokens == {"a": 400}
    serve(index, ids(2, 60))
    assert index.match(PART, ids(2, 60), 1).tokens == {"a": 96}


def test_a_capacity_that_shrank_is_reached_step_by_step() -> None:
    index = PrefixIndex()
    index.admit("a", 0)
    for number in range(300):
        serve(index, text(number), now=float(number))
    index.admit("a", 0, 125)
    serve(index, text(300), now=300.0)
    holder = index.holder("a")
    assert holder is not None
    assert len(holder.text.ends) == 301 - 64
    while index.sweep(300.0, 50):
        pass
    assert len(holder.text.ends) == 4


def test_the_byte_bound_drops_what_was_used_longest_ago_whoever_held_it() -> None:
    index = PrefixIndex(PrefixSettings(max_bytes=20_000))
    for worker in "abc":
        index.admit(worker, 0)
    prompts: list[Prompt] = [text(number) for number in range(60)]
    for number, prompt in enumerate(prompts):
        serve(index, prompt, "abc"[number % 3], float(number))
        assert index.used_bytes <= 20_000
    held = [n for n in range(60) if index.match(PART, prompts[n], 25).on("abc"[n % 3]) > 20]
    assert held == list(range(60 - len(held), 60))
    assert len(held) > 20


def test_who_is_gone_makes_room_before_anybody_else() -> None:
    index = PrefixIndex(PrefixSettings(max_bytes=20_000))
    index.admit("old", 0)
    index.admit("gone", 0)
    serve(index, text(0), "old", 0.0)
    for number in range(1, 20):
        serve(index, text(number), "gone", float(number))
    index.remove("gone")
    for number in range(20, 40):
        serve(index, text(number), "old", float(number))
    assert index.match(PART, text(0), 25).tokens == {"old": 24}


def test_removing_a_worker_costs_no_more_when_it_holds_much() -> None:
    index = PrefixIndex()
    index.admit("a", 0)
    for number in range(500):
        serve(index, text(number))
    before = index.store.text.nodes
    index.remove("a")
    assert index.store.text.nodes == before
    assert index.match(PART, text(3), 25).tokens == {}
    assert index.sweep(0.0, 100) == 100
    assert 0 < index.store.text.nodes < before


def test_what_nobody_asked_for_in_half_an_hour_is_forgotten() -> None:
    index = PrefixIndex()
    index.admit("a", 0)
    index.admit("b", 0)
    serve(index, text(1), "a", 0.0)
    serve(index, text(2), "b", 0.0)
    serve(index, ids(1), "b", 0.0)
    serve(index, text(1), "a", 1_000.0)
    index.sweep(1_799.0)
    assert index.match(PART, text(2), 25).tokens == {"b": 24}
    index.sweep(1_801.0)
    assert index.match(PART, text(2), 25).on("b") < 10
    assert index.match(PART, ids(1), 1).tokens == {}
    assert index.match(PART, text(1), 25).tokens == {"a": 24}


def test_a_prompt_in_flight_does_not_age() -> None:
    index = PrefixIndex()
    index.admit("a", 0)
    claim = index.insert(PART, text(1), "a", 0.0, prompt_tokens=25)
    index.sweep(2_000.0)
    assert claim is not None
    index.confirm(claim, 3_000.0)
    index.sweep(4_000.0)
    assert index.match(PART, text(1), 25).tokens == {"a": 24}


def test_a_sweep_leaves_room_so_that_requests_need_not_evict() -> None:
    index = PrefixIndex(PrefixSettings(max_bytes=100_000))
    index.admit("a", 0)
    for number in range(400):
        serve(index, text(number), now=float(number))
    assert index.used_bytes > 93_750
    while index.sweep(400.0, 7):
        pass
    assert index.used_bytes <= 93_750


def test_nothing_to_do_takes_no_step() -> None:
    index = PrefixIndex()
    index.admit("a", 0, 1_000)
    serve(index, text(1))
    assert index.sweep(1.0) == 0


class Bounds(RuleBasedStateMachine):
    """Any order of everything, under small bounds."""

    MAX = 12_000

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(PrefixSettings(max_bytes=self.MAX, ttl_s=60.0))
        self.now = 0.0
        self.incarnation = 0
        self.claims: list[Claim] = []
        self.names: dict[str, list[int]] = {}
        self.name = 0

    @rule(worker=st.sampled_from("abc"), capacity=st.sampled_from([None, 40, 200]), again=st.booleans())
    def admit(self, worker: str, capacity: int | None, again: bool) -> None:
        self.incarnation += not again
        self.index.admit(worker, self.incarnation, capacity)
        self.names.pop(worker, None)

    @rule(worker=st.sampled_from("abc"))
    def remove(self, worker: str) -> None:
        self.index.remove(worker)
        self.names.pop(worker, None)

    @rule(
        worker=st.sampled_from("abcd"),
        number=st.integers(0, 9),
        length=st.integers(7, 300),
        step=st.integers(0, 9),
    )
    def dispatch_text(self, worker: str, number: int, length: int, step: int) -> None:
        self.now += step
        self.take(self.index.insert(PART, text(number, length), worker, self.now, prompt_tokens=25))

    @rule(worker=st.sampled_from("abcd"), number=st.integers(0, 9), blocks=st.integers(0, 9))
    def dispatch_ids(self, worker: str, number: int, blocks: int) -> None:
        self.take(self.index.insert(PART, ids(number, blocks), worker, self.now, prompt_tokens=1))

    def take(self, claim: Claim | None) -> None:
        if claim is not None:
            self.claims.append(claim)
        assert self.index.used_bytes <= self.MAX

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), well=st.booleans(), cached=st.integers(0, 100))
    def settle(self, data: st.DataObject, well: bool, cached: int) -> None:
        claim = self.claims.pop(data.draw(st.integers(0, len(self.claims) - 1)))
        if well:
            self.index.confirm(claim, self.now)
            self.index.report(claim, 100, cached)
            self.index.extend(claim, b"answer", self.now)
        else:
            self.index.withdraw(claim)

    @rule(worker=st.sampled_from("abc"), number=st.integers(0, 9), counts_only=st.booleans())
    def follow(self, worker: str, number: int, counts_only: bool) -> None:
        if self.index.holder(worker) is None:
            return
        self.index.follow(worker, counts_only=counts_only)
        self.names[worker] = []
        if number:
            self.index.stream(worker, TrustSignal.COMPLETE)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), number=st.integers(0, 9), blocks=st.integers(1, 4), remove=st.booleans())
    def event(self, data: st.DataObject, number: int, blocks: int, remove: bool) -> None:
        worker = data.draw(st.sampled_from(sorted(self.names)))
        if remove and self.names[worker]:
            self.index.apply(worker, BlocksRemoved((self.names[worker].pop(),)))
            return
        self.name += blocks
        names = tuple(range(self.name - blocks, self.name))
        self.index.apply(worker, BlocksStored(PART, names, None, ids(number, blocks), 16))
        self.names[worker].extend(names)

    @rule(step=st.integers(0, 40), most=st.integers(1, 20))
    def sweep(self, step: int, most: int) -> None:
        self.now += step
        assert self.index.sweep(self.now, most) <= most

    @invariant()
    def nobody_who_is_gone_is_named(self) -> None:
        known = {worker for worker in "abc" if self.index.holder(worker)}
        for number in range(10):
            assert set(self.index.match(PART, text(number), 25).tokens) <= known
            assert set(self.index.match(PART, ids(number), 1).tokens) <= known

    def teardown(self) -> None:
        while self.index.sweep(self.now, 100):
            pass
        for worker in "abc":
            holder = self.index.holder(worker)
            capacity = None if holder is None else self.index.store.capacity_tokens(holder)
            if holder is not None and capacity is not None:
                assert self.index.store.held_tokens(holder) <= capacity
            self.index.remove(worker)
        while self.index.store.to_sweep:
            self.index.sweep(self.now, 100)
        assert self.index.used_bytes == 0
        for claim in self.claims:
            self.index.confirm(claim, self.now)
        assert self.index.used_bytes == 0


Bounds.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestBounds = Bounds.TestCase


def test_a_ledger_cannot_take_the_room_of_beliefs() -> None:
    index = PrefixIndex(PrefixSettings(max_bytes=40_000))
    index.admit("a", 0)
    index.follow("a")
    for number in range(100):
        names = tuple(range(number * 4, number * 4 + 4))
        index.apply("a", BlocksStored(PART, names, None, ids(number), 16))
        assert index.store.event_blocks.used_bytes <= 40_000 * 0.5 + 4 * 400
    serve(index, text(1))
    assert index.match(PART, text(1), 25).tokens == {"a": 24}
