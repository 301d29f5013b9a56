"""How evenly the policies that follow prefixes load four workers, and how much they find in the caches.

A closed loop of 32 requests at a time. A: one system prompt of 4,500 characters before unique questions;
B: 60 conversations of 5 turns; C: both at once; D: unique prompts.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

import pytest

from router.core.lease import Lease
from tests.policies.examples import NOW
from tests.policies.prefix_examples import Fleet, asking

LETTERS = "abcdefghijklmnopqrstuvwxyz "
AT_ONCE = 32


@dataclass
class Talk:
    """A conversation: the text so far, the turns left, and where the last one went."""

    text: str
    turns: int
    home: str | None = None


@dataclass
class Run:
    """One run of a scenario, and what is counted of it."""

    fleet: Fleet
    source: random.Random
    waiting: deque[Talk]
    picks: Counter[str] = field(default_factory=Counter)
    stayed: list[bool] = field(default_factory=list)
    cached: int = 0
    asked: int = 0
    _events: list[tuple[float, int, bool, Lease, Talk]] = field(default_factory=list)
    _number: int = 0

    def words(self, count: int) -> str:
        return "".join(self.source.choices(LETTERS, k=count))

    def go(self) -> Run:
        for _ in range(AT_ONCE):
            self._next(NOW)
        while self._events:
            now, _, first, lease, talk = heappop(self._events)
            if first:
                self.fleet.start(lease, now)
                continue
            self.fleet.end(lease, now, generated_tokens=20)
            talk.turns -= 1
            if talk.turns:
                talk.text += self.words(300)
                self.waiting.append(talk)
            self._next(now)
        return self

    def _next(self, now: float) -> None:
        if not self.waiting:
            return
        talk = self.waiting.popleft()
        self._number += 1
        one = asking(talk.text, self._number)
        name = self.fleet.send(one, now).worker
        cached = self.fleet.prefixes.matched(one).on(name)
        self.picks[name] += 1
        self.cached += cached
        self.asked += one.prompt_tokens
        if talk.home is not None:
            self.stayed.append(talk.home == name)
        talk.home = name
        lease = self.fleet.running[-1]
        service_s = 0.1 + (one.prompt_tokens - cached) * 60e-6 + self.source.random() * 0.05
        for first, at in ((True, now + service_s / 2), (False, now + service_s)):
            heappush(self._events, (at, 2 * self._number + first, first, lease, talk))

    @property
    def busiest(self) -> float:
        """Requests of the busiest worker over the mean."""
        return max(self.picks.values()) * 4 / sum(self.picks.values())


def run(name: str, scenario: str, count: int, seed: int = 1) -> Run:
    source = random.Random(seed)
    one = Run(Fleet(name, 4, seed=seed), source, deque())
    before = "S" * 4_500 if scenario in "AC" else ""
    turns, length = (5, 300) if scenario in "BC" else (1, 200 if scenario == "A" else 2_000)
    length = 800 if scenario == "B" else length  # each turn adds less than half of what is there
    one.waiting.extend(Talk(before + one.words(length), turns) for _ in range(count // turns))
    return one.go()


prefix_policies = pytest.mark.parametrize("name", ["cache_aware", "preble"])


@prefix_policies
@pytest.mark.parametrize(
    ("scenario", "count", "most"), [("A", 200, 1.15), ("A", 400, 1.15), ("B", 300, 1.15), ("C", 300, 1.15)]
)
def test_what_is_shared_is_found_and_no_worker_is_far_above_the_mean(
    name: str, scenario: str, count: int, most: float
) -> None:
    done = run(name, scenario, count)
    assert sum(done.picks.values()) == count
    assert done.busiest <= most
    # The best that can be: all but the first of its kind is cached somewhere.
    best = {"A": 0.955, "B": 0.72, "C": 0.96}[scenario]
    assert done.cached / done.asked >= 0.9 * best


@prefix_policies
@pytest.mark.parametrize("scenario", ["B", "C"])
def test_a_conversation_stays_where_it_is(name: str, scenario: str) -> None:
    stayed = run(name, scenario, 300).stayed
    assert len(stayed) == 240
    assert sum(stayed) >= 0.98 * len(stayed)


@prefix_policies
@pytest.mark.parametrize("count", [200, 400])
def test_prompts_that_share_nothing_are_spread_evenly(name: str, count: int) -> None:
    assert run(name, "D", count).busiest <= 1.1


@prefix_policies
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    assert run(name, "C", 100, seed=4).picks == run(name, "C", 100, seed=4).picks
