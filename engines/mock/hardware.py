"""From settings to an engine's size and speed: batch limits, KV blocks, step clock.

Separate because the defaults follow the GPU, as vLLM's do, and the exposition prints the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from math import exp
from typing import Self

from engines.mock.settings import SCHEDULING_POLICIES, VLLM_VERSION, MockSettings, SettingsError
from engines.model.engine import EngineConfig
from engines.model.generation import OutputLengths
from engines.model.handover import TransferLink
from engines.model.roofline import MEASURED, Roofline, StepClock, fitting_tensor_parallel
from engines.model.specs import GPUS, MODELS

MEMORY_UTILIZATION = 0.92
"""Share of GPU memory for weights and KV: vLLM 0.32's default."""
OUTPUT_SIGMA = 0.95
"""Width of the lognormal output lengths, as in `engines.model.generation`."""
_GIB = 1 << 30


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
        model, gpu = MODELS[settings.model], GPUS[settings.gpu]
        roofline = Roofline(model, gpu, tensor_parallel=tensor_parallel(settings))
        kv_tokens = settings.kv_tokens or roofline.kv_capacity_tokens(MEMORY_UTILIZATION)
        max_model_len = settings.max_model_len or min(model.context_tokens, kv_tokens)
        seqs, batched = _batch_defaults(gpu.memory_bytes)
        vllm = settings.dialect == "vllm"
        try:
            config = EngineConfig(
                # One block more than the capacity: block 0 is never used.
                num_blocks=kv_tokens // settings.block_size + 1,
                block_size=settings.block_size,
                max_model_len=max_model_len,
                max_num_seqs=settings.max_num_seqs or seqs,
                max_num_batched_tokens=settings.max_num_batched_tokens or batched,
                scheduling=SCHEDULING_POLICIES[settings.scheduling_policy],
                max_num_queued_reqs=settings.max_num_queued_reqs if vllm else None,
                max_num_waiting=None if vllm else settings.max_num_queued_reqs,
                record_kv_events=settings.kv_events is not None,
                output_lengths=_lengths(settings.output_tokens),
                kv_connector=settings.connector != "none",
                kv_lease_s=settings.kept_s,
                recompute_failed_loads=settings.kv_load_failure_policy == "recompute",
            )
        except ValueError as error:
            asked = f"--kv-tokens {kv_tokens}, --max-model-len {max_model_len}"
            raise SettingsError(f"{asked}: {error}") from None
        link = TransferLink(
            block_bytes=settings.block_size * model.kv_bytes_per_token,
            bytes_per_s=settings.kv_bandwidth_gbps * 1e9 / 8,
            latency_s=settings.kv_latency_s,
        )
        kv_bytes = kv_tokens * model.kv_bytes_per_token
        return cls(config, _clock(settings, roofline), kv_bytes, link, _fingerprint(settings))


def tensor_parallel(settings: MockSettings) -> int:
    """GPUs that one engine takes: as few as hold the model."""
    return fitting_tensor_parallel(MODELS[settings.model], GPUS[settings.gpu])


def _batch_defaults(memory_bytes: float) -> tuple[int, int]:
    """vLLM's max_num_seqs and max_num_batched_tokens by GPU memory."""
    if memory_bytes >= 160 * _GIB:
        return 1024, 16384
    if memory_bytes >= 70 * _GIB:
        return 1024, 8192
    return 256, 2048


def _clock(settings: MockSettings, roofline: Roofline) -> StepClock:
    if settings.step_times == "roofline":
        return roofline
    measured = MEASURED.get((settings.model, settings.gpu))
    if measured is None:
        known = ", ".join(f"{model} on {gpu}" for model, gpu in MEASURED)
        raise SettingsError(
            f"--step-times measured: nothing was measured for {settings.model} on {settings.gpu}. "
            f"Measured: {known}."
        )
    return measured


def _lengths(mean_tokens: float) -> OutputLengths:
    """A lognormal's mean is its median times exp(sigma²/2)."""
    return OutputLengths(median_tokens=max(mean_tokens / exp(OUTPUT_SIGMA**2 / 2), 1.0), sigma=OUTPUT_SIGMA)


def _fingerprint(settings: MockSettings) -> str:
    digest = blake2b(f"{settings.model}/{settings.gpu}/{settings.seed}".encode(), digest_size=4)
    return f"vllm-{VLLM_VERSION}-{digest.hexdigest()}"
