"""What an engine says of itself in one scrape.

Separate from the worker, which is the router's own account of it: the two are compared, never mixed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """One scrape of an engine's metrics. A signal that the engine does not export is None, never 0.

    Attributes:
        taken: when the scrape was answered (s).
        kv_usage: share of KV blocks in use, 0 to 1; cached blocks that nobody refers to are free.
        kv_capacity_tokens: usable KV tokens, from `cache_config_info` or `max_total_num_tokens`.
        generation_tokens: counter of sampled tokens; its movement is the progress signal.
        tokens_per_step: output tokens that a step gives each sequence, on average since its start; None where
            the engine does not speculate.
        process_start: start time of the engine's process (Unix seconds), its incarnation.
    """

    taken: float
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    block_size: int | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    preemptions: float | None = None
    tokens_per_step: float | None = None
    asleep: bool | None = None
    process_start: float | None = None
