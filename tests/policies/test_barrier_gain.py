"""What BalanceRoute is for: where all step together, loads stay level and the tokens come faster.

The model of arXiv 2605.06113 in discrete steps: a step lasts a max L + b, with L the KV tokens of a worker;
every resident writes a token in it; nobody migrates; more requests wait than there are slots.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from router.core.lease import Lease, Outcome
from router.core.policy import BatchPolicy, Choice, Commits, Settles
from router.core.request import Request
from tests.policies.examples import Server, request
from tests.policies.rank_examples import batch

WORKERS, SLOTS, WAITING, STEPS, WARM_UP = 8, 16, 24, 1_500, 500
PER_TOKEN_S, BASE_S = 2e-7, 2e-3


@dataclass(slots=True, kw_only=True)
class Rank(Server):
    residents: list[Lease] = field(default_factory=list)
    barrier_peers: list[Rank] = field(default_factory=list, repr=False)


class FewestRequests:
    """Join the shortest queue, oldest first: the baseline of the paper."""

    def admit(self, waiting: list[Request], workers: list[Rank], now: float) -> list[Choice]:
        free = {w.name: w.free_slots or 0 for w in workers}
        choices = []
        for one in waiting:
            name = max(free, key=lambda known: free[known])
            if not free[name]:
                break
            free[name] -= 1
            choices.append(Choice(one.id, name))
        return choices


class BarrierGroup:
    """A closed group: as many requests wait at each step as at the one before."""

    def __init__(self, policy: BatchPolicy | FewestRequests) -> None:
        self.policy = policy
        self.source = random.Random(11)
        self.ranks: list[Rank] = []
        for n in range(WORKERS):
            rank = Rank(name=f"w{n}", free_slots=SLOTS, barrier_group="g", barrier_peers=self.ranks)
            self.ranks.append(rank)
        self.outputs: dict[str, int] = {}
        self.waiting: list[Request] = []
        self.now = 0.0

    def run(self) -> tuple[float, float]:
        """Tokens a second, and the mean of max L − min L, after a warm-up."""
        tokens, gaps, began = 0, 0.0, 0.0
        for step in range(STEPS):
            if step == WARM_UP:
                tokens, gaps, began = 0, 0.0, self.now
            self._admit()
            loads = [rank.kv_tokens for rank in self.ranks]
            gaps += max(loads) - min(loads)
            tokens += sum(rank.sequences for rank in self.ranks)
            self.now += PER_TOKEN_S * max(loads) + BASE_S
            for rank in self.ranks:
                self._write(rank)
        return tokens / (self.now - began), gaps / (STEPS - WARM_UP)

    def _admit(self) -> None:
        while len(self.waiting) < WAITING:
            number = len(self.outputs)
            prompt = min(32_000, max(16, round(self.source.lognormvariate(7.57, 1.0))))
            one = request(number, prompt_tokens=prompt, arrived=self.now + number * 1e-9)
            self.outputs[one.id] = min(2_000, max(2, round(self.source.lognormvariate(4.8, 0.8))))
            self.waiting.append(one)
        offered = [rank for rank in self.ranks if rank.free_slots]
        choices = self.policy.admit(self.waiting, offered, self.now) if offered else ()
        by_name, by_id = {rank.name: rank for rank in self.ranks}, {one.id: one for one in self.waiting}
        for choice in choices:
            self._place(by_id.pop(choice.request_id), by_name[choice.worker], choice)
        self.waiting = list(by_id.values())

    def _place(self, one: Request, rank: Rank, choice: Choice) -> None:
        rank.residents.append(Lease(one, rank.name, 0, self.now, one.prompt_tokens, 100))
        self._charge(rank, one.prompt_tokens, 1)
        if isinstance(self.policy, Commits):
            self.policy.committed(one, choice, self.now, retry=False)

    def _write(self, rank: Rank) -> None:
        for lease in list(rank.residents):
            lease.generated_tokens += 1
            rank.kv_tokens += 1
            if lease.generated_tokens == self.outputs[lease.request.id]:
                rank.residents.remove(lease)
                self._charge(rank, -lease.kv_tokens, -1)
                if isinstance(self.policy, Settles):
                    self.policy.settled(lease, Outcome.OK, self.now)

    @staticmethod
    def _charge(rank: Rank, tokens: int, sequences: int) -> None:
        rank.kv_tokens += tokens
        rank.sequences += sequences
        rank.in_flight += sequences
        rank.free_slots = SLOTS - rank.sequences


def test_the_group_is_more_even_and_faster_than_with_the_shortest_queue() -> None:
    """The paper: throughput 1.09 to 1.15 times, max − min a half to a sixth, at 8 workers."""
    baseline, baseline_gap = BarrierGroup(FewestRequests()).run()
    for name in ("balance_route_0", "balance_route_h"):
        throughput, gap = BarrierGroup(batch(name)).run()
        assert throughput > 1.08 * baseline, name
        assert gap < 0.65 * baseline_gap, name


def test_ageing_costs_little_of_the_gain() -> None:
    throughput, gap = BarrierGroup(batch("balance_route_0")).run()
    patient, patient_gap = BarrierGroup(batch("balance_route_0", 1, age_s=3_600, max_overtaken=256)).run()
    assert throughput > 0.95 * patient
    assert gap < 1.4 * patient_gap
