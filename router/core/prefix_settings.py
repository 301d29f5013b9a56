"""Bounds of the prefix index. Separate because the index, its store and its holders all read them."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.core.trust import TrustSettings


@dataclass(frozen=True, slots=True)
class TreeBound:
    """How much text one worker is believed to hold at most, whatever fits into its KV.

    Attributes:
        max_bytes: of text; the default is that of SGLang's router.
        interval_s: between two evictions down to it; in between there may be more.
    """

    max_bytes: int = 2**26
    interval_s: float = 120.0


@dataclass(frozen=True, slots=True)
class PrefixSettings:
    """Bounds and shares.

    Attributes:
        max_bytes: memory of the whole index.
        ttl_s: what a worker was not asked for so long is held no more.
        predicted_ttl_s: how long a dispatch counts before the worker's events speak of it.
        capacity_share: of a worker's KV capacity, what LRU leaves to cached prefixes; the rest is output and
            fragments.
        block_tokens: tokens of one of our blocks.
        lost_share: a confirmed prefix of which less than this is reported as cached was lost.
    """

    max_bytes: int = 256 * 2**20
    ttl_s: float = 1_800.0
    predicted_ttl_s: float = 5.0
    capacity_share: float = 0.8
    block_tokens: int = 16
    lost_share: float = 0.5
    trust: TrustSettings = field(default_factory=TrustSettings)
