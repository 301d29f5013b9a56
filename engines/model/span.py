"""Many decode steps in one go, for drivers that need not see each token.

Separate from the scheduler, whose plan is for one step. While every running sequence decodes and nobody can
be admitted, the steps to come are alike: each adds one token to each. A span is as many of them as are alike,
with the same results as single steps would have: the same times, tokens, blocks and cached prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.model.kv_cache import KvCache, blocks_for
from engines.model.scheduler import Scheduler
from engines.model.sequence import Sequence as Running


@dataclass(slots=True)
class Span:
    """Decode steps in a row between their begin and their end.

    Attributes:
        steps: how many there may be; the last of them may be the last of some sequences.
        sequences: that decode, in batch order.
        kv_tokens: sum of their contexts in the first step.
    """

    steps: int
    sequences: tuple[Running, ...]
    kv_tokens: int


def plan_span(scheduler: Scheduler, most: int) -> Span | None:
    """The decode steps that are alike from here on, at most `most`; None when the next one is not."""
    running = scheduler.running
    if not running or not scheduler.admits_nobody():
        return None
    steps, kv_tokens = most, 0
    for sequence in running:
        computed = sequence.computed
        if sequence.length - computed != 1 or computed < sequence.prompt_tokens:
            return None
        left = sequence.last_index - sequence.timing.generation_tokens + 1
        steps = min(steps, left)
        kv_tokens += computed
    while steps > 1 and not _fits(running, steps, scheduler.kv):
        steps //= 2
    return Span(steps, tuple(running), kv_tokens + len(running)) if steps > 1 else None


def advance(scheduler: Scheduler, span: Span, ends: Sequence[float]) -> list[Running]:
    """Computes the first steps of a span, which ended at these times; returns the sequences whose last token
    is still to be sampled."""
    kv, size, steps = scheduler.kv, scheduler.kv.block_size, len(ends)
    last, before = ends[-1], ends[-2] if steps > 1 else None
    ending: list[Running] = []
    for sequence in span.sequences:
        timing = sequence.timing
        written = timing.generation_tokens + steps
        goes_on = written <= sequence.last_index
        sequence.grow(steps if goes_on else steps - 1)
        if goes_on:
            timing.generation_tokens, timing.last_token = written, last
        else:
            timing.generation_tokens, timing.last_token = written - 1, before or timing.last_token
            ending.append(sequence)
        computed = sequence.computed + steps
        if computed > sequence.room:
            sequence.extend(kv.allocate(blocks_for(computed - sequence.room, size)))
        sequence.computed = computed
        if computed >= sequence.fills_at:
            scheduler.store(sequence)
    return ending


def _fits(running: list[Running], steps: int, kv: KvCache) -> bool:
    """Whether the blocks that so many steps need are free."""
    size, free = kv.block_size, kv.free_blocks
    if len(running) * blocks_for(steps, size) <= free:
        return True
    missing = [sequence.computed + steps - sequence.room for sequence in running]
    return sum(blocks_for(tokens, size) for tokens in missing if tokens > 0) <= free
