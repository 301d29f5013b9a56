"""The plain data that goes into an engine and comes out of it, and the two ways it refuses.

Separate from the engine so that a server can be read, and tested, against these shapes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from engines.model.generation import OutputLengths
from engines.model.handover import Kept
from engines.model.kv_cache import blocks_for

FinishReason = Literal["stop", "length", "abort"]
Scheduling = Literal["fcfs", "priority", "priority_groups", "longest_prefix"]
SCHEDULINGS: tuple[Scheduling, ...] = get_args(Scheduling)
_ADMISSION_BOUNDS = ("max_num_queued_reqs", "max_num_queued_tokens", "max_num_waiting")


class EngineBusy(Exception):
    """A bound of the engine is reached. Nothing was queued; another engine may have room.

    Attributes:
        reason: the name of the bound, as the rejection counter labels it.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class EngineRejects(ValueError):
    """The job can never run here; sending it again will not help.

    Attributes:
        param: the field at fault.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class EngineFault(RuntimeError):
    """The driver broke the protocol of steps, or the model has a bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The knobs of one engine, with vLLM's names and defaults.

    Attributes:
        num_blocks: KV blocks, the null block included.
        max_model_len: longest sequence, prompt and output together (tokens).
        max_num_seqs: sequences in the running batch.
        max_num_batched_tokens: tokens computed in one step; longer prefills are chunked.
        long_prefill_token_threshold: longest chunk of one prefill in one step; None for no such bound.
        scheduling: the order in which jobs start. "fcfs"; "priority" (lower value first, ties by arrival);
            "priority_groups" (Preble's: by the cached share of the prompt, with a share for every group);
            "longest_prefix" (SGLang's: the most cached tokens first).
        max_num_queued_reqs: bound of all sequences here. vLLM 0.32 counts the running ones with the waiting
            ones, whatever the name says. None for unbounded.
        max_num_queued_tokens: bound of the prompt tokens of sequences without output yet; None for unbounded.
        max_num_waiting: bound of the waiting queue alone, as SGLang counts; None for unbounded.
        max_loras: distinct adapters in one step; jobs beyond are deferred. None for no bound.
        output_lengths: where an answer ends by itself; None: only at its token limit.
        record_kv_events: keep KV events for `drain_kv_events`.
        kv_connector: whether KV can be handed over; every admission then counts as an external look-up.
        kv_lease_s: how long a finished prefill's blocks wait for their reader.
        recompute_failed_loads: a job whose KV could not be fetched computes its prompt here; otherwise it is
            lost (vLLM's `kv_load_failure_policy`, which is `fail` by default).

    Raises:
        ValueError: when a knob is out of range, or one sequence of `max_model_len` would not fit.
    """

    num_blocks: int
    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2_048
    long_prefill_token_threshold: int | None = None
    scheduling: Scheduling = "fcfs"
    enable_prefix_caching: bool = True
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_num_waiting: int | None = None
    max_loras: int | None = None
    output_lengths: OutputLengths | None = field(default_factory=OutputLengths)
    record_kv_events: bool = False
    kv_connector: bool = False
    kv_lease_s: float = 30.0
    recompute_failed_loads: bool = False

    @property
    def goes_by_cache(self) -> bool:
        """Whether the order in which jobs start changes with what is cached."""
        return self.scheduling in {"priority_groups", "longest_prefix"}

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        for name in (
            "long_prefill_token_threshold",
            "max_num_queued_reqs",
            "max_num_queued_tokens",
            "max_num_waiting",
            "max_loras",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: at least 1, or None for no bound")
        if self.kv_lease_s <= 0:
            raise ValueError(f"kv_lease_s is {self.kv_lease_s}: a lease lasts longer than nothing")
        if self.scheduling not in SCHEDULINGS:
            raise ValueError(f"scheduling is {self.scheduling!r}: known are {', '.join(SCHEDULINGS)}")
        if blocks_for(self.max_model_len, self.block_size) > self.num_blocks - 1:
            raise ValueError(
                f"one sequence of max_model_len {self.max_model_len} tokens does not fit in "
                f"{(self.num_blocks - 1) * self.block_size} KV tokens: lower it or raise num_blocks"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One sequence to run. A request with n > 1 is n jobs that differ in `id` and `sequence`.

    Attributes:
        max_tokens: bound on output tokens; None: until `max_model_len`.
        min_tokens: output tokens before EOS may come.
        seed: together with the prompt and `sequence` it decides every output token.
        priority: lower first, under priority scheduling.
        lora: adapter name; separates cached prefixes.
        cache_salt: separates cached prefixes of tenants.
        pooling: compute the prompt only (embeddings, scores); ends with "stop" and no token.
        skip_cache: compute the whole prompt, whatever is cached or could be fetched, as the log-probabilities
            of a prompt need it.
        retain: keep the blocks at the end, for a decode engine to read.
        fetch: the prompt's KV is with a prefill engine and is read from there.
        remote_cached_tokens: cached tokens as the prefill engine counted them; reported in place of ours.
        arrival: seconds; None: the `now` of `add`.
    """

    id: str
    prompt_token_ids: Sequence[int]
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int = 0
    sequence: int = 0
    priority: int = 0
    lora: str | None = None
    cache_salt: str | None = None
    pooling: bool = False
    skip_cache: bool = False
    retain: bool = False
    fetch: bool = False
    remote_cached_tokens: int | None = None
    arrival: float | None = None


@dataclass(slots=True)
class Timing:
    """When what happened to one job (s), and what it cost; None: not yet.

    Attributes:
        queued: entered the waiting queue. scheduled: first in the batch.
        cached_tokens: prompt tokens found in the prefix cache at first admission.
        external_tokens: prompt tokens that a prefill engine had, at first admission.
        remote_cached_tokens: of the job.
        garbled: computed over KV of something else: the answer is wrong, and no error says so.
    """

    arrival: float
    queued: float
    prompt_tokens: int
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    cached_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    looked_up: bool = False
    external_tokens: int = 0
    remote_cached_tokens: int | None = None
    garbled: bool = False

    @property
    def reported_cached_tokens(self) -> int:
        """Cached prompt tokens as the answer's usage gives them."""
        if self.remote_cached_tokens is not None:
            return self.remote_cached_tokens
        return self.cached_tokens + self.external_tokens

    def created_cache_tokens(self, block_size: int) -> int:
        """Prompt tokens computed here and put into the prefix cache: whole blocks, as vLLM counts them."""
        whole = self.prompt_tokens // block_size * block_size
        return max(0, whole - self.cached_tokens - self.external_tokens)


@dataclass(slots=True)
class Output:
    """What one step produced for one job; the driver sends one event for it.

    Attributes:
        token_ids: new tokens, EOS included when the answer ends by itself.
        finish_reason: None while the job goes on.
        since_last_s: seconds since the job's previous output, None for the first: one sample of inter-token
            latency per output, as vLLM observes it.
        timing: of the whole job; the engine goes on writing to it until the job is finished.
        kept: the blocks that wait for a decode engine, of a finished job that retains them.
    """

    job_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    since_last_s: float | None
    timing: Timing
    kept: Kept | None = None


@dataclass(slots=True)
class Counters:
    """Running totals, counted when vLLM counts them.

    Attributes:
        prompt_tokens: whole prompts, cached part included, at their first output; never twice.
        prompt_tokens_cached: the part of those that came from the prefix cache.
        prompt_tokens_external: the part of those that came from a prefill engine.
        generation_tokens: sampled tokens, also those of jobs aborted later.
        prefix_queries_tokens, prefix_hits_tokens: at first admission.
        external_queries_tokens, external_hits_tokens: likewise, of what the prefix cache did not have; 0
            without a KV connector. A hit counts when it is claimed, also when the transfer fails later.
        finished: jobs that ended by themselves, by reason; aborts are not among them.
        rejected: requests refused for want of room, by bound.
    """

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_tokens_external: int = 0
    generation_tokens: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    external_queries_tokens: int = 0
    external_hits_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0})
    rejected: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ADMISSION_BOUNDS, 0))
