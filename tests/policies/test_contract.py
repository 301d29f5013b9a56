"""What holds for every registered policy that places one request at a time."""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from router.core.engine_stats import EngineStats
from router.core.policy import Commits
from router.core.worker import Role, StepModel, WorkerView
from router.policies import POLICIES, Shape
from tests.policies.examples import (
    NOW,
    FrozenWorker,
    Server,
    alike,
    idle,
    place,
    policy,
    request,
    varied,
    worker,
)

ONE_AT_A_TIME = [spec.name for spec in POLICIES.values() if spec.shape is Shape.ONE]

every_policy = pytest.mark.parametrize("name", ONE_AT_A_TIME)

STEP = StepModel(0.01, 1e-4, 0.02, 1e-4, 1e-7)

views = st.builds(
    FrozenWorker,
    name=st.text(min_size=1, max_size=8),
    in_flight=st.integers(0, 50),
    sequences=st.integers(0, 50),
    queued_tokens=st.integers(0, 10**6),
    kv_tokens=st.integers(0, 10**6),
    remaining_tokens=st.integers(0, 10**6),
    kv_capacity_tokens=st.none() | st.integers(1, 10**6),
    free_slots=st.none() | st.integers(0, 50),
    capacity=st.floats(0.1, 10),
    warmup=st.floats(1, 2),
    step=st.none() | st.just(STEP),
    stats=st.none()
    | st.builds(EngineStats, taken=st.floats(NOW - 100, NOW), waiting=st.none() | st.integers(0, 100)),
)
pools = st.lists(views, min_size=1, max_size=12, unique_by=lambda w: w.name)
calls = st.builds(
    request,
    st.integers(0, 2**70),
    prompt_tokens=st.integers(0, 10**6),
    max_tokens=st.none() | st.integers(1, 10**6),
    sequences=st.integers(1, 64),
    affinity=st.none() | st.text(max_size=8),
    attempt=st.integers(0, 2),
)


@every_policy
@settings(max_examples=40)
@given(pool=pools, call=calls, seed=st.integers(-(2**40), 2**40))
def test_an_offered_worker_is_picked_twice_in_a_row_and_nothing_moves(
    name: str, pool: list[FrozenWorker], call: object, seed: int
) -> None:
    chooser = policy(name, seed)
    before = copy.deepcopy(chooser)
    offered = tuple(pool)
    first = chooser.pick(call, offered, NOW)  # type: ignore[arg-type]  # built by hypothesis
    assert first is not None
    assert first.worker in {w.name for w in pool}
    assert first.request_id == call.id  # type: ignore[attr-defined]  # as above
    assert first.reason
    assert chooser == before
    assert chooser.pick(call, offered, NOW) == first  # type: ignore[arg-type]  # as above
    assert chooser == before


@every_policy
@pytest.mark.parametrize("what", [{}, {"affinity": "c"}, {"attempt": 1, "avoid": frozenset({"gone"})}])
def test_one_worker_is_that_worker(name: str, what: dict[str, object]) -> None:
    overloaded = worker("only", in_flight=10**6, kv_tokens=10**9, kv_capacity_tokens=1, warmup=2.0)
    assert place(policy(name), request(**what), [overloaded]) == "only"


@every_policy
def test_a_seed_gives_the_same_run_again_and_another_seed_another(name: str) -> None:
    def run(seed: int) -> list[str]:
        chooser = policy(name, seed)
        return [place(chooser, varied(n), idle(8)) for n in range(64)]

    assert run(1) == run(1)
    assert run(1) != run(2)


@every_policy
@pytest.mark.parametrize("seed", [0, 1])
def test_idle_equal_workers_are_chosen_evenly(name: str, seed: int) -> None:
    chooser, pool, picks = policy(name, seed), idle(8), 4_000
    counts = Counter(place(chooser, varied(n), pool) for n in range(picks))
    expected = picks / len(pool)
    chi_square = sum((counts[w.name] - expected) ** 2 / expected for w in pool)
    assert chi_square < 24.3  # 7 degrees of freedom, 99.9 %


@every_policy
def test_two_requests_in_a_row_do_not_favour_a_pair_of_workers(name: str) -> None:
    """First-index ties and locked phases show here and not in the counts of single picks."""
    chooser, pool = policy(name), idle(4)
    run = [place(chooser, varied(n), pool) for n in range(4_000)]
    pairs = Counter(itertools.pairwise(run))
    if name == "round_robin":
        assert {successor for (_, successor) in pairs} == {w.name for w in pool}
        return
    # preble remembers whom it sent the last request to, and spares that worker.
    allowed = [(a.name, b.name) for a in pool for b in pool if name != "preble" or a is not b]
    expected = sum(pairs[pair] for pair in allowed) / len(allowed)
    chi_square = sum((pairs[pair] - expected) ** 2 / expected for pair in allowed)
    assert chi_square < 37.7  # 15 degrees of freedom, 99.9 %


# joint counts those who are there, and nobody tells it here that they leave; test_joint has its own law.
@pytest.mark.parametrize("name", [name for name in ONE_AT_A_TIME if name != "joint"])
def test_twice_the_capacity_gets_about_twice_the_load(name: str) -> None:
    """Closed: 120 requests in flight, each ends after the same mean time wherever it runs."""
    chooser, source = policy(name), random.Random(5)
    # preble shares out seconds and not requests, of which a fast worker gets the longer ones.
    made = alike if name == "preble" else varied
    servers = [Server(name=f"s{n}", capacity=2.0 if n % 2 else 1.0) for n in range(8)]
    by_name = {s.name: s for s in servers}
    running: list[str] = []
    fast = slow = 0
    for n in range(3_000):
        chosen = by_name[place(chooser, made(n), servers)]
        _add(chosen, 1)
        running.append(chosen.name)
        if len(running) > 120:
            gone = source.randrange(len(running))
            running[gone], running[-1] = running[-1], running[gone]
            _add(by_name[running.pop()], -1)
        if n > 600:
            fast += sum(s.in_flight for s in servers if s.capacity == 2.0)
            slow += sum(s.in_flight for s in servers if s.capacity == 1.0)
    assert 1.6 < fast / slow < 2.4


def _add(server: Server, sign: int) -> None:
    server.in_flight += sign
    server.sequences += sign
    server.kv_tokens += sign * 1_000
    server.queued_tokens += sign * 800
    server.remaining_tokens += sign * 200


LOAD_POLICIES = [
    "cache_aware",
    "calibrated",
    "least_requests",
    "least_tokens",
    "least_work",
    "length_threshold",
    "power_of_two",
    "preble",
]


@pytest.mark.parametrize("name", LOAD_POLICIES)
@pytest.mark.parametrize("step", [None, STEP])
def test_a_worker_that_came_back_lately_looks_busier(name: str, step: StepModel | None) -> None:
    load = {"in_flight": 3, "sequences": 3, "kv_tokens": 900, "remaining_tokens": 300, "step": step}
    pool = [worker("back", warmup=2.0, **load), worker("steady", **load)]
    assert {place(policy(name), varied(n), pool) for n in range(50) if name != "length_threshold"} <= {
        "steady"
    }
    # Sides of one worker each choose by length alone, so the sides get a fellow each.
    if name == "length_threshold":
        four = [worker(f"{w.name} {n}", warmup=w.warmup, **load) for n in range(4) for w in pool]
        picked = Counter(place(policy(name), varied(n), four) for n in range(200))
        assert all(n.startswith("steady") for n in picked)


@every_policy
@pytest.mark.parametrize("stats", [None, EngineStats(taken=NOW), EngineStats(taken=0.0, waiting=9)])
def test_absent_data_is_no_bias(name: str, stats: EngineStats | None) -> None:
    """Step, KV capacity, slots and affinity unknown, and a scrape that is missing, empty or old."""
    chooser, pool = policy(name), [worker(f"w{n}", stats=stats if n % 2 else None) for n in range(4)]
    lengths = [0, 5_000]
    counts = Counter(place(chooser, request(n, prompt_tokens=lengths[n * 7 % 2]), pool) for n in range(2_000))
    assert min(counts[w.name] for w in pool) > 400


@every_policy
def test_a_retry_moves_no_state(name: str) -> None:
    with_retries, without = policy(name), policy(name)
    pool = idle(5)
    for n in range(200):
        first = place(with_retries, varied(n), pool)
        others = [w for w in pool if w.name != first]
        again = structs.replace(varied(n), attempt=1, avoid=frozenset({first}))
        assert place(with_retries, again, others) != first
        assert place(without, varied(n), pool) == first
    assert with_retries == without


@pytest.mark.parametrize("name", [name for name in ONE_AT_A_TIME if name != "length_threshold"])
def test_what_one_worker_fails_is_spread_over_all_others(name: str) -> None:
    """A rotation that a retry follows would send it all to the successor."""
    chooser, pool = policy(name), idle(5)
    bad, retried = pool[2].name, Counter[str]()
    for n in range(3_000):
        if place(chooser, varied(n), pool) != bad:
            continue
        again = structs.replace(varied(n), attempt=1, avoid=frozenset({bad}))
        retried[place(chooser, again, [w for w in pool if w.name != bad])] += 1
    share = sum(retried.values()) / 4
    assert all(0.6 * share < retried[w.name] < 1.4 * share for w in pool if w.name != bad)


@every_policy
def test_the_registry_tells_what_a_policy_is(name: str) -> None:
    spec = POLICIES[name]
    chooser = spec.factory(spec.check({}), 1)
    assert spec.name == name
    assert spec.shape is Shape.ONE
    assert hasattr(chooser, "pick")
    assert spec.roles <= frozenset(Role)
    assert spec.roles
    assert spec.cost_unit
    assert "seed=1" in repr(chooser)
    assert isinstance(chooser, Commits) == (
        name in {"cache_aware", "calibrated", "joint", "preble", "round_robin"}
    )


def test_session_affinity_is_not_for_decode_pools() -> None:
    assert Role.DECODE not in POLICIES["session_affinity"].roles


def _takes_a_view(view: WorkerView) -> None:
    """The stand-ins are views to the type checker."""


def test_the_stand_ins_are_views() -> None:
    _takes_a_view(worker())
    _takes_a_view(Server(name="s"))
