"""Barrier groups of workers for the laws of the batch policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from hypothesis import strategies as st

from router.core.policy import BatchPolicy, Choice, Commits
from router.core.request import Request
from router.core.worker import StepModel
from router.policies import build
from router.policies.round_watch import RoundResult
from tests.policies.examples import NOW, FrozenWorker, request

STEP = StepModel(0.01, 1e-4, 0.02, 1e-4, 1e-7)


FrozenRank = FrozenWorker
"""A member of a barrier group: it knows its peers and its residents."""


def rank(name: str = "w", **what: object) -> FrozenRank:
    return FrozenRank(name=name, **what)  # type: ignore[arg-type]  # an example names only what it is about


def group(*loads: int, free: int = 1, **what: object) -> list[FrozenRank]:
    """A declared group whose members hold so many KV tokens and have `free` slots each."""
    members: list[FrozenRank] = []
    for index, kv_tokens in enumerate(loads):
        fields = {"kv_tokens": kv_tokens, "in_flight": 1, "sequences": 1, "free_slots": free} | what
        members.append(rank(f"w{index}", barrier_group="g", barrier_peers=members, **fields))
    return members


class Watch:
    """Remembers what it was told of rounds."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.results: list[RoundResult] = []

    def began(self) -> None:
        self.stages.append("began")

    def stage_ended(self, stage: str) -> None:
        self.stages.append(stage)

    def ended(self, result: RoundResult) -> None:
        self.results.append(result)


def prompts(*tokens: int, first: int = 0, **what: object) -> list[Request]:
    """Waiting requests of these lengths, oldest first, a millisecond apart."""
    return [
        request(first + n, prompt_tokens=length, arrived=NOW - 0.5 + (first + n) / 1000, **what)
        for n, length in enumerate(tokens)
    ]


def batch(name: str, seed: int = 1, /, **params: object) -> BatchPolicy:
    return cast(BatchPolicy, build(name, params, seed))


def admitted(choices: Sequence[Choice]) -> list[tuple[str, str]]:
    return [(choice.request_id, choice.worker) for choice in choices]


def commit(policy: BatchPolicy, waiting: Sequence[Request], choices: Sequence[Choice], now: float) -> None:
    """Tells the policy of its choices, as the pool does."""
    by_id = {one.id: one for one in waiting}
    if isinstance(policy, Commits):
        for choice in choices:
            one = by_id[choice.request_id]
            policy.committed(one, choice, now, retry=one.attempt > 0)


ranks = st.builds(
    FrozenRank,
    name=st.text(min_size=1, max_size=8),
    barrier_group=st.sampled_from([None, "g", "h"]),
    in_flight=st.integers(0, 50),
    sequences=st.integers(0, 50),
    kv_tokens=st.integers(0, 10**5),
    kv_capacity_tokens=st.none() | st.integers(1, 2 * 10**5),
    free_slots=st.none() | st.integers(1, 8),
    capacity=st.floats(0.1, 10),
    warmup=st.floats(1, 2),
    step=st.none() | st.just(STEP),
)
fleets = st.lists(ranks, min_size=1, max_size=6, unique_by=lambda w: w.name)


@st.composite
def queues(draw: st.DrawFn) -> list[Request]:
    lengths = draw(st.lists(st.integers(0, 60_000), min_size=1, max_size=24))
    widths = draw(
        st.lists(st.sampled_from([1, 1, 1, 2, 3, 12]), min_size=len(lengths), max_size=len(lengths))
    )
    start = draw(st.integers(0, 2**60))
    return [
        request(start + n, prompt_tokens=length, sequences=width, arrived=NOW - 1 + n / 1000)
        for n, (length, width) in enumerate(zip(lengths, widths, strict=True))
    ]
