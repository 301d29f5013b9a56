"""From settings to an engine's size and speed, with what the dialect and the connector add to it.

Separate from the sizing itself, which studies share: here are the knobs that only a server has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from math import exp
from typing import Self

from engines.mock.settings import SCHEDULING_POLICIES, VLLM_VERSION, MockSettings, SettingsError
from engines.model.engine import EngineConfig
from engines.model.generation import OutputLengths
from engines.model.handover import TransferLink
from engines.model.roofline import StepClock, fitting_tensor_parallel
from engines.model.sizing import MEMORY_UTILIZATION, EngineSize, SizingError, sized
from engines.model.specs import GPUS, MODELS

__all__ = ["MEMORY_UTILIZATION", "Hardware", "tensor_parallel"]

OUTPUT_SIGMA = 0.95
"""Width of the lognormal output lengths, as in `engines.model.generation`."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What an engine is built from.

    Attributes:
        config: limits and blocks.
        clock: how long a step lasts.
        kv_bytes: size of the KV cache.
        link: how long a KV transfer takes.
    """

    config: EngineConfig
    clock: StepClock
    kv_bytes: int
    link: TransferLink
    fingerprint: str

    @classmethod
    def of(cls, settings: MockSettings) -> Self:
        """Size an engine.

        Raises:
            SettingsError: no measured step times for the pair, or a KV cache that cannot hold one request.
        """
        try:
            made = sized(_size(settings))
        except SizingError as error:
            flags = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in error.asked.items())
            raise SettingsError(f"{flags}: {error.reason}") from None
        vllm = settings.dialect == "vllm"
        config = replace(
            made.config,
            max_num_queued_reqs=settings.max_num_queued_reqs if vllm else None,
            max_num_waiting=None if vllm else settings.max_num_queued_reqs,
            record_kv_events=settings.kv_events is not None,
            output_lengths=_lengths(settings.output_tokens),
            kv_connector=settings.connector != "none",
            kv_lease_s=settings.kept_s,
            recompute_failed_loads=settings.kv_load_failure_policy == "recompute",
        )
        return cls(config, made.clock, made.kv_bytes, made.link, _fingerprint(settings))


def _size(settings: MockSettings) -> EngineSize:
    return EngineSize(
        model=settings.model,
        gpu=settings.gpu,
        step_times=settings.step_times,
        scheduling=SCHEDULING_POLICIES[settings.scheduling_policy],
        block_size=settings.block_size,
        kv_tokens=settings.kv_tokens,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        kv_bandwidth_gbps=settings.kv_bandwidth_gbps,
        kv_latency_s=settings.kv_latency_s,
    )


def tensor_parallel(settings: MockSettings) -> int:
    """GPUs that one engine takes: as few as hold the model."""
    return fitting_tensor_parallel(MODELS[settings.model], GPUS[settings.gpu])


def _lengths(mean_tokens: float) -> OutputLengths:
    """A lognormal's mean is its median times exp(sigma²/2)."""
    return OutputLengths(median_tokens=max(mean_tokens / exp(OUTPUT_SIGMA**2 / 2), 1.0), sigma=OUTPUT_SIGMA)


def _fingerprint(settings: MockSettings) -> str:
    digest = blake2b(f"{settings.model}/{settings.gpu}/{settings.seed}".encode(), digest_size=4)
    return f"vllm-{VLLM_VERSION}-{digest.hexdigest()}"
