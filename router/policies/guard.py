"""How far a worker may be ahead of the least loaded one and still be sent what it holds a prefix of.

Separate because every policy that follows prefixes needs the same guard, judged per request: one hot worker
must not switch affinity off for all others.
"""

from __future__ import annotations

from collections.abc import Sequence

BLOCK_TOKENS = 16
"""Engines cache whole blocks of this many tokens (vLLM's default). Less is no reason to prefer a worker: two
questions that begin with the same word would else be drawn to one."""


def highest_load(loads: Sequence[float], abs_threshold: float, rel_threshold: float) -> float:
    """The load up to which a worker is within the guard: so far above the least, or so many times it.

    It takes both to be outside, so neither a few requests on a quiet pool nor a small share of a large load
    breaks affinity.
    """
    least = min(loads)
    return max(least + abs_threshold, least * rel_threshold)
