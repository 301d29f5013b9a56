"""From the names of a model and a GPU to an engine: batch limits, KV blocks, step clock, wire.

Separate from the engine, which takes any numbers: here are vLLM's defaults, which follow the GPU. The mock
and the studies size their engines alike, so that what is simulated is what runs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from engines.model.handover import TransferLink
from engines.model.job import EngineConfig, Scheduling
from engines.model.roofline import MEASURED, Roofline, StepClock, fitting_tensor_parallel
from engines.model.specs import GPUS, MODELS

MEMORY_UTILIZATION = 0.92
"""Share of GPU memory for weights and KV: vLLM 0.32's default."""
STEP_TIMES = ("roofline", "measured")
"""Where the length of a step comes from: computed from the specs, or taken from published fits."""
_GIB = 1 << 30


class SizingError(ValueError):
    """There is no such engine.

    Attributes:
        asked: the knobs at fault and their values.
        reason: why they do not fit, or what is known.
    """

    def __init__(self, reason: str, **asked: object) -> None:
        self.reason = reason
        self.asked = asked
        super().__init__(f"{', '.join(f'{name} {value}' for name, value in asked.items())}: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSize:
    """What decides how large and how fast an engine is.

    Attributes:
        model, gpu: names of `engines.model.specs`.
        step_times: `roofline` computes a step's length, `measured` takes it from published fits.
        block_size: tokens of one KV block.
        kv_tokens: KV capacity (tokens); None computes it from the GPU's memory.
        max_model_len: prompt and output together (tokens); None takes the model's own length.
        max_num_seqs: sequences that run at once; None takes vLLM's default for the GPU.
        max_num_batched_tokens: tokens of one step; None takes vLLM's default for the GPU.
        kv_bandwidth_gbps: what one KV transfer gets (10⁹ bits per engine second). The default is one HDR
            InfiniBand port, what NVIDIA's DGX A100 has for each GPU.
        kv_latency_s: of a transfer, beside its bytes (engine seconds). An estimate.
    """

    model: str = "qwen2.5-3b"
    gpu: str = "a40"
    step_times: str = "roofline"
    scheduling: Scheduling = "fcfs"
    block_size: int = 16
    kv_tokens: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_bandwidth_gbps: float = 200.0
    kv_latency_s: float = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedEngine:
    """What an engine is built from.

    Attributes:
        config: limits and blocks.
        clock: how long a step lasts.
        kv_bytes: size of the KV cache.
        link: how long a KV transfer to or from it takes.
    """

    config: EngineConfig
    clock: StepClock
    kv_bytes: int
    link: TransferLink


def sized(asked: EngineSize) -> SizedEngine:
    """The engine of this size.

    Raises:
        SizingError: a name that is not known, no measured step times for the pair, or a KV cache that cannot
            hold one request.
    """
    _known("model", asked.model, MODELS)
    _known("gpu", asked.gpu, GPUS)
    _known("step_times", asked.step_times, STEP_TIMES)
    model = MODELS[asked.model]
    roofline = Roofline(
        model, GPUS[asked.gpu], tensor_parallel=fitting_tensor_parallel(model, GPUS[asked.gpu])
    )
    kv_tokens = asked.kv_tokens or roofline.kv_capacity_tokens(MEMORY_UTILIZATION)
    return SizedEngine(
        config=_config(asked, kv_tokens),
        clock=_clock(asked, roofline),
        kv_bytes=kv_tokens * model.kv_bytes_per_token,
        link=TransferLink(
            block_bytes=asked.block_size * model.kv_bytes_per_token,
            bytes_per_s=asked.kv_bandwidth_gbps * 1e9 / 8,
            latency_s=asked.kv_latency_s,
        ),
    )


def _known(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise SizingError(f"not known. Known: {', '.join(sorted(known))}.", **{what: name})


def _config(asked: EngineSize, kv_tokens: int) -> EngineConfig:
    max_model_len = asked.max_model_len or min(MODELS[asked.model].context_tokens, kv_tokens)
    seqs, batched = _batch_defaults(GPUS[asked.gpu].memory_bytes)
    try:
        return EngineConfig(
            # One block more than the capacity: block 0 is never used.
            num_blocks=kv_tokens // asked.block_size + 1,
            block_size=asked.block_size,
            max_model_len=max_model_len,
            max_num_seqs=asked.max_num_seqs or seqs,
            max_num_batched_tokens=asked.max_num_batched_tokens or batched,
            scheduling=asked.scheduling,
        )
    except ValueError as error:
        raise SizingError(str(error), kv_tokens=kv_tokens, max_model_len=max_model_len) from None


def _batch_defaults(memory_bytes: float) -> tuple[int, int]:
    """vLLM's max_num_seqs and max_num_batched_tokens by GPU memory."""
    if memory_bytes >= 160 * _GIB:
        return 1024, 16384
    if memory_bytes >= 70 * _GIB:
        return 1024, 8192
    return 256, 2048


def _clock(asked: EngineSize, roofline: Roofline) -> StepClock:
    if asked.step_times == "roofline":
        return roofline
    measured = MEASURED.get((asked.model, asked.gpu))
    if measured is None:
        known = ", ".join(f"{model} on {gpu}" for model, gpu in MEASURED)
        reason = f"nothing was measured for {asked.model} on {asked.gpu}. Measured: {known}."
        raise SizingError(reason, step_times="measured")
    return measured
