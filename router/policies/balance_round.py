"""One round of BalanceRoute: which of the waiting requests enter which workers now, in two stages.

Separate from the two policies because they differ only in the envelope that they look at. A round is made for
one `admit` and thrown away; it changes nothing outside itself.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from router.core.policy import Choice, tie_breaks
from router.core.request import Request
from router.core.worker import WorkerView
from router.policies.ageing import Overtakings
from router.policies.barrier import Group
from router.policies.envelope import Envelope
from router.policies.round_watch import RoundWatch, Unwatched
from router.policies.subset_search import Candidate, Limits, Subset, best_single, best_subset


@dataclass(frozen=True, slots=True)
class RoundRules:
    """How a round decides.

    Attributes:
        candidates: requests looked at for a subset (R_max), and `greedy_candidates` for stage 1.
        greedy_slots_per_worker: stage 1 lasts while more free slots than this times the workers are left.
        kv_reserve: share of the KV of a worker that is left to the growth of what runs there.
        quantum_tokens: rounding of lengths in large subset searches.
        watch: told of each stage as it ends.
    """

    candidates: int
    greedy_candidates: int
    greedy_slots_per_worker: float
    kv_reserve: float
    quantum_tokens: int = 16
    watch: RoundWatch = Unwatched()  # noqa: RUF009 - it has no state


@dataclass(slots=True, eq=False)
class Place:
    """A worker that was offered, as the round fills it.

    Attributes:
        member: its index in the group of the envelope.
        load_per_token: by which a token raises its load.
        cost_per_token: the same in seconds, or in KV tokens at capacity 1.
        free: slots; infinite when nobody said how many there are.
        room: KV tokens that may still be given out; infinite when the capacity is unknown.
        capacity: all its KV tokens.
        empty: it holds nothing.
    """

    view: WorkerView
    envelope: Envelope
    member: int
    load_per_token: float
    cost_per_token: float
    tokens_per_sequence: int
    free: float
    room: float
    capacity: float
    tie: int
    empty: bool

    def takes(self, one: Candidate) -> bool:
        """Whether it has slots and KV for it. An empty worker takes more sequences than slots, and what needs
        its reserve: nobody will ever have more room."""
        return self.takes_at_once(one) or (self.empty and one[0] <= self.capacity)

    def takes_at_once(self, one: Candidate) -> bool:
        """Whether it fits beside what is there."""
        tokens, slots = one
        return slots <= self.free and tokens <= self.room

    def value(self, one: Candidate) -> float:
        """F of this one alone, in tokens of this worker."""
        tokens, slots = one
        score = self.envelope.score(self.member, self.load_per_token)
        return score.value(tokens + self.tokens_per_sequence * slots)

    def limits(self, rules: RoundRules) -> Limits:
        return Limits(self.free, self.room, self.tokens_per_sequence, rules.quantum_tokens)

    def rank(self) -> tuple[float, float, int]:
        """Most free slots first, then the lowest load, then by hash."""
        return (-self.free, self.envelope.load(self.member), self.tie)

    def take(self, one: Candidate) -> None:
        tokens, slots = one
        self.free = max(self.free - slots, 0)
        self.room -= tokens
        self.empty = False
        more = tokens + self.tokens_per_sequence * slots
        self.envelope.raise_by(self.member, more * self.load_per_token)


def places_of(
    groups: Sequence[tuple[Group, Envelope]],
    offered: Sequence[WorkerView],
    reserve: float,
    ties: Sequence[int],
) -> list[Place]:
    """The offered workers, each with its part in its group."""
    tie_of = {worker.name: tie for worker, tie in zip(offered, ties, strict=True)}
    return [
        _place(worker, envelope, member, group, reserve, tie_of[worker.name])
        for group, envelope in groups
        for member, worker in enumerate(group.members)
        if worker.name in tie_of
    ]


def _place(
    worker: WorkerView, envelope: Envelope, member: int, group: Group, reserve: float, tie: int
) -> Place:
    unit = group.units[member]
    capacity = math.inf if worker.kv_capacity_tokens is None else worker.kv_capacity_tokens
    return Place(
        view=worker,
        envelope=envelope,
        member=member,
        load_per_token=unit.per_token * worker.warmup,
        cost_per_token=unit.per_token * worker.warmup * group.scale,
        tokens_per_sequence=unit.tokens_per_sequence,
        free=math.inf if worker.free_slots is None else worker.free_slots,
        room=capacity * (1.0 - reserve) - worker.kv_tokens,
        capacity=capacity,
        tie=tie,
        empty=not (worker.in_flight or worker.kv_tokens),
    )


@dataclass(slots=True, eq=False)
class Round:
    """State: who still waits (oldest first), the heap of places with free slots, what was decided, and sums
    of what it gained and lost (see `RoundResult`)."""

    rules: RoundRules
    workers: int
    """Members of all groups, those that were not offered included."""
    largest_kv_tokens: float
    """KV capacity of the largest of them; infinite when one is unknown."""
    waiting: list[Request]
    items: list[Candidate]
    most_tokens: int
    """Of the longest request that waits; `most_slots` of the widest."""
    most_slots: int
    heap: list[tuple[float, float, int, int]] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    gained: float = 0.0
    lost: float = 0.0

    def run(self, overtakings: Overtakings, now: float) -> list[Choice]:
        stage_ended = self.rules.watch.stage_ended
        stage_ended("state")
        self._place_first(overtakings, now)
        self.heap = [(*place.rank(), index) for index, place in enumerate(self.places) if place.free > 0]
        heapq.heapify(self.heap)
        self._greedy()
        stage_ended("greedy")
        self._subsets()
        stage_ended("subset")
        return self.choices

    # --- before the stages: who must not be passed over -------------------------------------------------

    def _place_first(self, overtakings: Overtakings, now: float) -> None:
        """Places the oldest while it is aged, or fits nobody but an empty worker, or nobody at all."""
        position = 0
        while position < len(self.waiting) and self.places:
            request, one = self.waiting[position], self.items[position]
            aged = overtakings.aged(request, now)
            if one[0] > self.largest_kv_tokens:
                # Nobody will ever have room. The engine refuses it at once, and says its exact length.
                self._admit(max(self.places, key=_roominess), [position], 0.0, "oversized")
                continue
            able = [place for place in self.places if place.takes(one)]
            if not aged and not self._needs_all(one, able):
                return
            if able:
                place = max(able, key=_roominess)
                self._admit(place, [position], place.value(one), "aged" if aged else "whole_worker")
            elif aged:
                self._keep_room(one)
                position += 1
            else:
                return

    def _keep_room(self, one: Candidate) -> None:
        """The worker nearest to having room for it takes nobody else until it has. One that is too small
        would be kept from the others for nothing."""
        large = [place for place in self.places if one[0] <= place.capacity]
        if large:
            self.places.remove(max(large, key=_roominess))

    @staticmethod
    def _needs_all(one: Candidate, able: Sequence[Place]) -> bool:
        """Whether it fits only because a worker is empty; no stage would place it."""
        return bool(able) and not any(place.takes_at_once(one) for place in able)

    # --- the two stages ---------------------------------------------------------------------------------

    def _greedy(self) -> None:
        """Stage 1, while slots are many: the worker with most of them takes the best single request."""
        left = sum(place.free for place in self.places)
        enough = self.rules.greedy_slots_per_worker * self.workers
        while self.waiting and self.heap and left > enough:
            index = self.heap[0][-1]
            place = self.places[index]
            positions = self._window(place, self.rules.greedy_candidates)
            if positions:
                left -= self._take_single(place, positions)
            else:
                place.free = 0  # nobody who waits fits: it is out of this round
                left = sum(place.free for place in self.places)
            self._put_back(place, index)

    def _subsets(self) -> None:
        """Stage 2, when slots are few: the best subset of the oldest that fit, and at least one of them."""
        while self.waiting and self.heap:
            index = self.heap[0][-1]
            place = self.places[index]
            positions = self._window(place, self.rules.candidates)
            if positions:
                self._take_subset(place, positions)
            else:
                place.free = 0
            self._put_back(place, index)

    def _put_back(self, place: Place, index: int) -> None:
        """Puts the place on top of the heap back where it belongs now."""
        if place.free > 0:
            heapq.heapreplace(self.heap, (*place.rank(), index))
        else:
            heapq.heappop(self.heap)

    def _window(self, place: Place, count: int) -> Sequence[int]:
        """Positions of the oldest requests that fit the worker, each by itself."""
        free, room = place.free, place.room
        if free >= self.most_slots and room >= self.most_tokens:
            return range(min(count, len(self.items)))
        positions: list[int] = []
        for position, (tokens, slots) in enumerate(self.items):
            if slots <= free and tokens <= room:
                positions.append(position)
                if len(positions) == count:
                    break
        return positions

    def _take_subset(self, place: Place, positions: Sequence[int]) -> None:
        score = place.envelope.score(place.member, place.load_per_token)
        limits = place.limits(self.rules)
        candidates = [self.items[position] for position in positions]
        found = best_subset(candidates, limits, score)
        if found.value <= 0.0:
            self._take(place, positions, best_single(candidates, limits, score), "guard")
        else:
            self._take(place, positions, found, "subset")

    def _take_single(self, place: Place, positions: Sequence[int]) -> int:
        """Admits the best one; returns the slots that it takes."""
        score = place.envelope.score(place.member, place.load_per_token)
        candidates = [self.items[position] for position in positions]
        single = best_single(candidates, place.limits(self.rules), score)
        self._take(place, positions, single, "greedy")
        return candidates[single.picked[0]][1]

    def _take(self, place: Place, positions: Sequence[int], subset: Subset, reason: str) -> None:
        self._admit(place, [positions[index] for index in subset.picked], subset.value, reason)

    def _admit(self, place: Place, positions: Sequence[int], value: float, reason: str) -> None:
        """Takes requests out of the waiting ones; `positions` ascend."""
        name, cost = place.view.name, -value * place.cost_per_token
        if cost < 0.0:
            self.gained -= cost
        else:
            self.lost += cost
        for position in positions:
            self.choices.append(Choice(self.waiting[position].id, name, cost=cost, reason=reason))
            place.take(self.items[position])
        for position in reversed(positions):
            del self.waiting[position], self.items[position]


def _roominess(place: Place) -> tuple[float, float, int]:
    """Orders by free KV, then by how little is to be done there."""
    return (place.room, -place.envelope.load(place.member), -place.tie)


def new_round(
    rules: RoundRules,
    groups: Sequence[tuple[Group, Envelope]],
    waiting: Sequence[Request],
    workers: Sequence[WorkerView],
    seed: int,
) -> Round:
    """A round over the requests that wait (at least one) and the workers offered (at least one)."""
    ties = tie_breaks(seed, waiting[0].sequence, [worker.name for worker in workers])
    capacities = [member.kv_capacity_tokens for group, _ in groups for member in group.members]
    tokens = [request.prompt_tokens for request in waiting]
    slots = [request.sequences for request in waiting]
    return Round(
        rules=rules,
        workers=len(capacities),
        largest_kv_tokens=max([math.inf if known is None else known for known in capacities]),
        waiting=list(waiting),
        items=list(zip(tokens, slots, strict=True)),
        most_tokens=max(tokens),
        most_slots=max(slots),
        places=places_of(groups, workers, rules.kv_reserve, ties),
    )
