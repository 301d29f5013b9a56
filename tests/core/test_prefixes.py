"""Laws of a pool's prefixes: one walk per request, and what every outcome of a lease leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from router.core.answer import Usage
from router.core.health import Sign
from router.core.lease import Lease, Outcome
from router.core.prefix_index import PrefixIndex, Prompt
from router.core.prefix_match import Match
from router.core.prefixes import Binds, PoolPrefixes
from router.core.prompt_key import Partition, PromptKey
from router.core.request import Request
from router.core.trust import Trust
from router.core.worker import Worker

TEXT = "All the rules of the house, one after another. " * 20


def request(text: str = TEXT, sequence: int = 0) -> Request:
    key = PromptKey.of_text("model", text)
    return Request(
        id=f"r{sequence}", sequence=sequence, model="model", arrived=0.0, prompt_tokens=200, key=key
    )


def lease(one: Request, worker: Worker) -> Lease:
    return Lease(
        request=one,
        worker=worker.name,
        incarnation=worker.incarnation,
        granted=0.0,
        prompt_tokens=one.prompt_tokens,
        expected_tokens=10,
    )


def answer(held: Lease, *, cached_tokens: int | None) -> None:
    """What the ledger writes when an engine has told its usage."""
    held.prefilled = held.prompt_known = True
    held.prompt_tokens, held.cached_tokens = 200, cached_tokens


@dataclass
class Scene:
    """Two workers and what is known of them."""

    prefixes: PoolPrefixes
    a: Worker
    b: Worker

    def charge(self, one: Request, worker: Worker) -> Lease:
        held = lease(one, worker)
        self.prefixes.charged(held, worker, 0.0)
        return held

    def settle(self, held: Lease, outcome: Outcome = Outcome.OK) -> None:
        held.outcome = outcome
        self.prefixes.settled(held, 1.0)

    def on(self, worker: Worker, text: str = TEXT) -> int:
        return self.prefixes.matched(request(text)).on(worker.name)


@pytest.fixture
def scene() -> Scene:
    scene = Scene(PoolPrefixes(), Worker(name="a"), Worker(name="b"))
    scene.prefixes.sweep([scene.a, scene.b], 0.0)
    return scene


def test_a_prompt_is_believed_from_its_dispatch_on(scene: Scene) -> None:
    scene.charge(request(), scene.a)
    assert (scene.on(scene.a), scene.on(scene.b)) == (199, 0)


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("started", [False, True])
def test_what_was_never_computed_is_held_no_more_and_the_rest_is(
    scene: Scene, outcome: Outcome, started: bool
) -> None:
    held = scene.charge(request(), scene.a)
    if started:
        scene.prefixes.started(held, 0.5)
        held.prefilled = True
    scene.settle(held, outcome)
    assert scene.on(scene.a) == (199 if started or outcome is Outcome.OK else 0)
    assert scene.prefixes.claims == 0


def test_a_request_is_walked_once_until_something_changes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[Prompt] = []
    walk = PrefixIndex.match

    def counted(self: PrefixIndex, partition: Partition, prompt: Prompt, prompt_tokens: int) -> Match:
        walks.append(prompt)
        return walk(self, partition, prompt, prompt_tokens)

    monkeypatch.setattr(PrefixIndex, "match", counted)
    one, other = request(), request("Another beginning altogether.", 1)
    held = scene.charge(one, scene.a)
    assert scene.prefixes.matched(one) is scene.prefixes.matched(one)
    assert len(walks) == 1
    scene.prefixes.matched(other)
    scene.prefixes.matched(one)
    assert len(walks) == 3
    scene.settle(held)
    scene.prefixes.matched(one)
    assert len(walks) == 4


def test_a_request_that_was_just_charged_sees_what_was_true_before(scene: Scene) -> None:
    first, second = request(), request(sequence=1)
    scene.charge(first, scene.a)
    assert scene.prefixes.matched(first).tokens == {}
    scene.charge(second, scene.b)
    assert scene.prefixes.matched(second).tokens == {"a": 199}
    # And a retry, which is another object, sees what is true now.
    again = structs.replace(second, attempt=1)
    assert scene.prefixes.matched(again).tokens == {"a": 199, "b": 199}


def test_the_key_portion_is_the_same_before_and_after_the_charge(scene: Scene) -> None:
    scene.settle(scene.charge(request(TEXT + "one"), scene.a))
    second = request(TEXT + "two", 1)
    before = scene.prefixes.portion(second)
    scene.charge(second, scene.b)
    assert before is not None
    assert scene.prefixes.portion(structs.replace(second, attempt=1)) == before


def test_calls_without_a_prompt_cost_nothing_and_hold_nothing(scene: Scene) -> None:
    one = structs.replace(request(), key=None)
    scene.settle(scene.charge(one, scene.a))
    assert scene.prefixes.matched(one) == Match(200, {})
    assert scene.prefixes.portion(one) is None
    assert scene.prefixes.held_tokens([scene.a]) == [0.0]


def test_a_new_incarnation_holds_nothing_and_old_leases_change_nothing_at_it(scene: Scene) -> None:
    old = scene.charge(request(), scene.a)
    scene.a.incarnation += 1
    scene.prefixes.joined(scene.a)
    assert scene.on(scene.a) == 0
    scene.settle(old)
    assert scene.on(scene.a) == 0


def test_a_charge_to_an_incarnation_that_nobody_told_of_is_believed_of_it_alone(scene: Scene) -> None:
    scene.settle(scene.charge(request("Something old and long enough."), scene.a))
    scene.a.incarnation += 1
    scene.charge(request(), scene.a)
    assert scene.on(scene.a) == 199
    # Prompts of one kind begin alike in canonical form, however different their text is.
    assert scene.on(scene.a, "Something old and long enough.") < 20


def test_who_left_or_is_gone_holds_nothing(scene: Scene) -> None:
    for worker in (scene.a, scene.b):
        scene.settle(scene.charge(request(), worker))
    scene.prefixes.left("a")
    scene.b.health.take(Sign.REMOVE, 1.0, "removed")
    scene.prefixes.sweep([scene.b], 1.0)
    assert scene.prefixes.matched(request()).tokens == {}
    assert scene.prefixes.index.workers == frozenset()


def test_a_capacity_that_becomes_known_bounds_what_is_believed(scene: Scene) -> None:
    scene.settle(scene.charge(request(), scene.a))
    assert scene.prefixes.held_tokens([scene.a, scene.b])[0] > 100
    scene.a.configured_kv_tokens = 100
    scene.prefixes.sweep([scene.a, scene.b], 1.0)
    assert scene.prefixes.held_tokens([scene.a, scene.b]) == [0.0, 0.0]


def test_reported_tokens_reach_the_trust_of_a_worker(scene: Scene) -> None:
    for number in range(60):
        held = scene.charge(request(sequence=number), scene.a)
        answer(held, cached_tokens=0)
        scene.settle(held)
    assert scene.prefixes.index.trust("a", text=True) is Trust.LOAD_ONLY
    assert scene.on(scene.a) == 0


def test_without_counts_or_with_kv_of_another_worker_nothing_is_learned_of_the_cache(scene: Scene) -> None:
    silent, uncounted, fetched = (scene.charge(request(sequence=n), scene.a) for n in range(3))
    answer(uncounted, cached_tokens=None)
    answer(fetched, cached_tokens=199)
    fetched.prefill = silent
    for held in (silent, uncounted, fetched):
        scene.settle(held)
    holder = scene.prefixes.index.holder("a")
    assert holder is not None
    assert holder.beliefs.samples == 0


def test_the_usage_of_a_stream_is_learned_once_though_it_comes_after_the_end(scene: Scene) -> None:
    scene.settle(scene.charge(request(), scene.a))
    held = scene.charge(request(sequence=1), scene.a)
    scene.prefixes.reported(held, Usage(prompt_tokens=200, cached_tokens=150))  # it will be told at the end
    scene.settle(held)
    for _ in range(2):
        scene.prefixes.reported(held, Usage(prompt_tokens=200, cached_tokens=150))
    holder = scene.prefixes.index.holder("a")
    assert holder is not None
    assert holder.beliefs.samples == 1


def test_streams_whose_usage_never_comes_are_forgotten(scene: Scene) -> None:
    first = scene.charge(request(), scene.a)
    scene.settle(first)
    for number in range(1_024):
        scene.settle(scene.charge(request(sequence=number), scene.a))
    scene.prefixes.reported(first, Usage(prompt_tokens=200, cached_tokens=0))
    scene.prefixes.reported(first, Usage())
    assert len(scene.prefixes._unreported) == 1_024


def test_a_worker_to_which_the_kv_never_came_holds_nothing(scene: Scene) -> None:
    held = scene.charge(request(), scene.a)
    held.prefilled = held.transferring = True
    scene.settle(held, Outcome.HANDOVER)
    assert scene.on(scene.a) == 0


def test_closing_takes_the_index_apart(scene: Scene) -> None:
    scene.charge(request(), scene.a)
    scene.prefixes.close()
    assert scene.prefixes.index.used_bytes == 0
    assert scene.prefixes.claims == 0


def test_only_who_asks_is_bound() -> None:
    class Asking:
        def bind(self, prefixes: object) -> None: ...

    assert isinstance(Asking(), Binds)
    assert not isinstance(object(), Binds)


class AnyOrder(RuleBasedStateMachine):
    """Charges, first outputs, ends, restarts and departures in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.prefixes = PoolPrefixes()
        self.workers = {name: Worker(name=name) for name in "abc"}
        self.held: list[Lease] = []
        self.now = 0.0
        self.count = 0

    @rule(worker=st.sampled_from("abc"), length=st.integers(1, 60))
    def charge(self, worker: str, length: int) -> None:
        self.count += 1
        one = request(TEXT[:length], self.count)
        self.held.append(lease(one, self.workers[worker]))
        self.prefixes.charged(self.held[-1], self.workers[worker], self.now)

    @precondition(lambda self: self.held)
    @rule(which=st.randoms(use_true_random=False), cached=st.none() | st.integers(0, 200))
    def start(self, which: object, cached: int | None) -> None:
        held = which.choice(self.held)  # type: ignore[attr-defined]  # a random.Random
        answer(held, cached_tokens=cached)
        self.prefixes.started(held, self.now)

    @precondition(lambda self: self.held)
    @rule(which=st.randoms(use_true_random=False), outcome=st.sampled_from(list(Outcome)))
    def end(self, which: object, outcome: Outcome) -> None:
        held = which.choice(self.held)  # type: ignore[attr-defined]  # as above
        self.held.remove(held)
        held.outcome = outcome
        self.prefixes.settled(held, self.now)
        self.prefixes.settled(held, self.now)

    @rule(worker=st.sampled_from("abc"))
    def restart(self, worker: str) -> None:
        self.workers[worker].incarnation += 1
        self.prefixes.joined(self.workers[worker])
        assert self.prefixes.matched(request()).on(worker) == 0

    @rule(worker=st.sampled_from("abc"))
    def leave(self, worker: str) -> None:
        self.prefixes.left(worker)
        assert self.prefixes.matched(request()).on(worker) == 0

    @rule()
    def sweep(self) -> None:
        self.now += 1.0
        self.prefixes.sweep(self.workers.values(), self.now)

    @invariant()
    def there_is_at_most_a_claim_per_lease(self) -> None:
        assert self.prefixes.claims <= len(self.held)

    def teardown(self) -> None:
        for held in self.held:
            held.outcome = Outcome.CANCELLED
            self.prefixes.settled(held, self.now)
        assert self.prefixes.claims == 0
        for name in self.prefixes.index.workers:
            holder = self.prefixes.index.holder(name)
            assert holder is not None
            assert holder.pending_tokens == 0
        self.prefixes.close()
        assert self.prefixes.index.used_bytes == 0


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=30)


def test_a_model_of_several_names_has_one_cache() -> None:
    scene = Scene(PoolPrefixes(), Worker(name="a"), Worker(name="b"))
    assert scene.prefixes.same_weights({"model", "alias"}) == "alias"
    scene.settle(scene.charge(request(), scene.a))
    for name, held in (("model", True), ("alias", True), ("another", False)):
        asked = structs.replace(request(), key=PromptKey.of_text(name, TEXT))
        assert (scene.prefixes.matched(asked).on("a") > 0) is held


def test_of_a_worker_that_is_several_processes_nothing_is_believed() -> None:
    scene = Scene(PoolPrefixes(), Worker(name="a"), Worker(name="b"))
    scene.settle(scene.charge(request(), scene.a))
    scene.a.shared_address = True
    scene.prefixes.joined(scene.a)
    assert scene.prefixes.matched(request()).on("a") == 0
    scene.settle(scene.charge(request(), scene.a))
    assert "a" not in scene.prefixes.index.workers
    assert scene.prefixes.matched(request()).on("a") == 0
