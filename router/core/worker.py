"""What a policy may look at: roles, the last scrape, and the read-only view of a worker."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class Role(enum.Enum):
    """What a worker does in its pool."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """One scrape of an engine's metrics. A signal that the engine does not export is None, never 0.

    Attributes:
        taken: when the scrape was answered (s).
        kv_usage: share of KV blocks in use, 0 to 1; cached blocks that nobody refers to are free.
        kv_capacity_tokens: usable KV tokens, from `cache_config_info` or `max_total_num_tokens`.
        generation_tokens: counter of sampled tokens; its movement is the progress signal.
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
    asleep: bool | None = None
    process_start: float | None = None


@dataclass(frozen=True, slots=True)
class StepModel:
    """Calibrated coefficients of one worker (`reference`: T_step = base + per_seq·n + per_kv·KV).

    Attributes:
        prefill_base_s, prefill_per_token_s: time of an uncached prefill, affine in its tokens.
        step_base_s, step_per_sequence_s, step_per_kv_token_s: time of one decode step.
    """

    prefill_base_s: float
    prefill_per_token_s: float
    step_base_s: float
    step_per_sequence_s: float
    step_per_kv_token_s: float

    def prefill_s(self, tokens: int) -> float:
        """Seconds to prefill `tokens` uncached tokens on an idle worker."""
        return self.prefill_base_s + self.prefill_per_token_s * tokens

    def step_s(self, sequences: int, kv_tokens: int) -> float:
        """Seconds of one decode step with `sequences` running over `kv_tokens` of context."""
        return self.step_base_s + self.step_per_sequence_s * sequences + self.step_per_kv_token_s * kv_tokens


class WorkerView(Protocol):
    """Everything a policy may know about a worker; read-only to the type checker.

    Absent data is None. Loads are the router's own ledger, true at this instant; `stats` is what the engine
    last said, with its age in `stats.taken`.
    """

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> Role: ...
    @property
    def model(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def barrier_group(self) -> str | None: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def in_flight(self) -> int:
        """Leases held."""
        ...

    @property
    def sequences(self) -> int:
        """Output sequences of those leases (n > 1 counts n times)."""
        ...

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens charged and not yet known to be prefilled."""
        ...

    @property
    def kv_tokens(self) -> int:
        """Prompt and generated tokens of all leases: the router's belief of KV in use."""
        ...

    @property
    def remaining_tokens(self) -> int:
        """Output tokens still expected of all leases, by their predicted length less what was seen."""
        ...

    @property
    def kv_capacity_tokens(self) -> int | None: ...
    @property
    def free_slots(self) -> int | None: ...
    @property
    def capacity(self) -> float:
        """Relative speed: 1.0 is the mean of the pool. Loads are divided by it."""
        ...

    @property
    def warmup(self) -> float:
        """Extra load factor of a worker that came back lately: 1.0 normally, up to 2.0 just after (§4)."""
        ...

    @property
    def step(self) -> StepModel | None: ...
    @property
    def stats(self) -> EngineStats | None: ...
