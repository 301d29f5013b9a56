"""How long one engine step takes, and how many KV tokens fit.

Separate from the scheduler because it is the only place where time comes from: the scheduler says what a
step holds, a clock says how long that lasts. Two clocks stand behind one interface: the roofline of a named
(model, GPU) pair, and an affine law with measured coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from math import hypot
from types import MappingProxyType
from typing import Literal, Protocol

from engines.model.specs import GpuSpec, ModelSpec


@dataclass(slots=True)
class StepLoad:
    """What one step holds, in sums; all that a clock needs to know.

    Attributes:
        prefill_tokens: prompt tokens computed in this step.
        prefill_positions: positions these tokens attend; n new tokens over c cached attend n·c + n(n+1)/2.
        prefill_kv_tokens: KV tokens the prefill chunks read: new and cached ones.
        prefill_sequences: sequences with a prefill chunk.
        decode_sequences: sequences that compute one token each.
        decode_kv_tokens: sum of their contexts, which is also the sum of positions attended.
    """

    prefill_tokens: int = 0
    prefill_positions: int = 0
    prefill_kv_tokens: int = 0
    prefill_sequences: int = 0
    decode_sequences: int = 0
    decode_kv_tokens: int = 0

    def add_prefill(self, new: int, before: int) -> None:
        """Add a chunk of `new` tokens over `before` tokens already in the KV cache."""
        self.prefill_tokens += new
        self.prefill_positions += new * before + new * (new + 1) // 2
        self.prefill_kv_tokens += new + before
        self.prefill_sequences += 1

    @classmethod
    def of(cls, prefills: Sequence[tuple[int, int]], decodes: Sequence[int]) -> StepLoad:
        """Sum up prefill chunks (new tokens, context before) and decodes (contexts)."""
        load = cls(decode_sequences=len(decodes), decode_kv_tokens=sum(decodes))
        for new, before in prefills:
            load.add_prefill(new, before)
        return load


class StepClock(Protocol):
    """Turns a step's load into seconds. An empty step is never asked for."""

    def step_from_totals(self, load: StepLoad) -> float: ...

    def decode_steps(self, sequences: int, kv_tokens: int, steps: int) -> list[float]:
        """Seconds of so many steps in a row in which all decode, to the bit as `step_from_totals` says.

        Args:
            kv_tokens: sum of their contexts in the first step; each step adds one per sequence.
        """


@dataclass(eq=False, repr=False)
class Roofline:
    """Step time as the larger of compute and memory time, plus a fixed overhead.

        compute = (2·P·tokens + 2·P_head·sequences + attention FLOP) / (mfu · peak · tensor_parallel)
        memory  = (weights read + KV read) / (bandwidth_efficiency · bandwidth · tensor_parallel)
        step    = max(compute, memory) + overhead

    P is the body without embedding and head (for experts: what one token activates); one row of logits per
    sequence. Weights read are body and head; of the routed experts, the share that the step's tokens are
    expected to touch when routing is uniform, an estimate. The defaults for efficiency come from measured
    GEMM tables (Vidur, A40 and A100) and from the figures of the Preble paper, which they reproduce. The
    coefficients are derived once, at construction.

    Attributes:
        tensor_parallel: GPUs that share every layer, at no cost for the exchange.
        knee: "max" is the textbook roofline; "hypot" rounds the corner where compute and memory are close,
            which fits measured steps of 64 to 256 tokens better.

    Raises:
        ValueError: for an efficiency outside (0, 1], a negative overhead or no GPU.
    """

    model: ModelSpec
    gpu: GpuSpec
    _: KW_ONLY
    tensor_parallel: int = 1
    mfu: float = 0.70
    bandwidth_efficiency: float = 0.80
    overhead_s: float = 5e-4
    knee: Literal["max", "hypot"] = "max"

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1:
            raise ValueError(f"tensor_parallel is {self.tensor_parallel}: at least one GPU is needed")
        if not (0 < self.mfu <= 1 and 0 < self.bandwidth_efficiency <= 1):
            raise ValueError("mfu and bandwidth_efficiency are shares of the peak, above 0 and at most 1")
        if self.overhead_s < 0:
            raise ValueError(f"overhead_s is {self.overhead_s}: a step cannot start before it is scheduled")
        model, gpu = self.model, self.gpu
        self._flop_s = 1 / (self.mfu * gpu.flops_per_s(model.bytes_per_weight) * self.tensor_parallel)
        self._byte_s = 1 / (self.bandwidth_efficiency * gpu.bandwidth_bytes_per_s * self.tensor_parallel)
        attention = model.attention
        self._token_s = 2 * model.active_body_parameters * self._flop_s
        self._logits_s = 2 * model.head_parameters * self._flop_s
        self._prefill_position_s = model.layers * attention.flops_per_position_prefill * self._flop_s
        self._decode_position_s = model.layers * attention.flops_per_position_decode * self._flop_s
        always_read = model.body_parameters - model.routed_parameters + model.head_parameters
        self._weights_s = always_read * model.bytes_per_weight * self._byte_s
        self._routed_s = model.routed_parameters * model.bytes_per_weight * self._byte_s
        experts = model.experts
        self._untouched = 1 - experts.active / experts.routed if experts else 1.0
        self._kv_s = model.kv_bytes_per_token * self._byte_s

    def step_s(self, prefills: Sequence[tuple[int, int]], decodes: Sequence[int]) -> float:
        """Seconds of a step with these prefill chunks (new tokens, context before) and decode contexts."""
        return self.step_from_totals(StepLoad.of(prefills, decodes))

    def step_from_totals(self, load: StepLoad) -> float:
        """Seconds of a step of which the sums are known."""
        compute, memory = self.compute_s(load), self.memory_s(load)
        longest = max(compute, memory) if self.knee == "max" else hypot(compute, memory)
        return longest + self.overhead_s

    def decode_steps(self, sequences: int, kv_tokens: int, steps: int) -> list[float]:
        """Seconds of so many steps in a row in which all decode."""
        compute = self._token_s * sequences + self._logits_s * sequences
        position_s, kv_s, overhead = self._decode_position_s, self._kv_s, self.overhead_s
        weights, longest = self._weights_read_s(sequences), max if self.knee == "max" else hypot
        return [
            longest(compute + position_s * kv, weights + kv_s * kv) + overhead
            for kv in range(kv_tokens, kv_tokens + sequences * steps, sequences)
        ]

    def compute_s(self, load: StepLoad) -> float:
        """Seconds the arithmetic of a step takes."""
        return (
            self._token_s * (load.prefill_tokens + load.decode_sequences)
            + self._logits_s * (load.prefill_sequences + load.decode_sequences)
            + self._prefill_position_s * load.prefill_positions
            + self._decode_position_s * load.decode_kv_tokens
        )

    def memory_s(self, load: StepLoad) -> float:
        """Seconds the weights and the KV cache take to be read once."""
        weights = self._weights_read_s(load.prefill_tokens + load.decode_sequences)
        return weights + self._kv_s * (load.prefill_kv_tokens + load.decode_kv_tokens)

    def _weights_read_s(self, tokens: int) -> float:
        if not self._routed_s:
            return self._weights_s
        return self._weights_s + self._routed_s * (1 - self._untouched**tokens)

    def kv_capacity_tokens(self, memory_utilization: float = 0.9) -> int:
        """KV tokens that fit beside the weights; nothing is set aside for activations.

        Raises:
            ValueError: when the weights alone are larger than the memory.
        """
        memory = memory_utilization * self.gpu.memory_bytes * self.tensor_parallel
        room = memory - self.model.weight_bytes
        if room < self.model.kv_bytes_per_token:
            raise ValueError(
                f"{self.model.name} has {self.model.weight_bytes / 1e9:.1f} GB of weights and "
                f"{self.tensor_parallel} x {self.gpu.name} lend {memory / 1e9:.1f} GB: "
                "use more tensor parallel GPUs"
            )
        return int(room // self.model.kv_bytes_per_token)

    def __repr__(self) -> str:
        return f"<Roofline {self.model.name} on {self.tensor_parallel} x {self.gpu.name} ({self.knee})>"


def fitting_tensor_parallel(model: ModelSpec, gpu: GpuSpec, memory_utilization: float = 0.9) -> int:
    """The smallest power of two of GPUs that holds the weights and leaves a quarter of them free for KV."""
    gpus = 1
    while model.weight_bytes > 0.75 * memory_utilization * gpu.memory_bytes * gpus:
        gpus *= 2
    return gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """An affine step law with measured coefficients; the other clock.

        decode part  = base_s + per_sequence_s · sequences + per_kv_token_s · KV tokens   (if any decodes)
        prefill part = prefill_base_s + prefill_per_token_s · new tokens                 (if any prefills)

    A mixed step takes both. Cached tokens of a prefill cost nothing.
    """

    base_s: float
    per_sequence_s: float
    per_kv_token_s: float
    prefill_base_s: float
    prefill_per_token_s: float

    def step_s(self, prefills: Sequence[tuple[int, int]], decodes: Sequence[int]) -> float:
        """Seconds of a step with these prefill chunks (new tokens, context before) and decode contexts."""
        return self.step_from_totals(StepLoad.of(prefills, decodes))

    def step_from_totals(self, load: StepLoad) -> float:
        """Seconds of a step of which the sums are known."""
        seconds = 0.0
        if load.decode_sequences:
            seconds += (
                self.base_s
                + self.per_sequence_s * load.decode_sequences
                + self.per_kv_token_s * load.decode_kv_tokens
            )
        if load.prefill_sequences:
            seconds += self.prefill_base_s + self.prefill_per_token_s * load.prefill_tokens
        return seconds

    def decode_steps(self, sequences: int, kv_tokens: int, steps: int) -> list[float]:
        """Seconds of so many steps in a row in which all decode."""
        always, per_token = self.base_s + self.per_sequence_s * sequences, self.per_kv_token_s
        return [always + per_token * kv for kv in range(kv_tokens, kv_tokens + sequences * steps, sequences)]


MEASURED: Mapping[tuple[str, str], StepTimes] = MappingProxyType(
    {
        # Estimate: Qwen2.5-3B on an A40 under vLLM 0.12 is slower than its roofline, because Python and the
        # KV connector take their share of each step. Chosen to meet the published latency regime.
        ("qwen2.5-3b", "a40"): StepTimes(
            base_s=15.5e-3,
            per_sequence_s=0.12e-3,
            per_kv_token_s=0.12e-6,
            prefill_base_s=4e-3,
            prefill_per_token_s=60e-6,
        ),
        # Base and KV slope are fitted to the published BalanceRoute throughput (decode on four dies, expert
        # parallel over the group). The prefill terms are an estimate: 37.6 B active parameters at 70 % of
        # the int8 peak of four dies, and the base of the decode step.
        ("deepseek-v3", "ascend-910c"): StepTimes(
            base_s=5e-3,
            per_sequence_s=0.0,
            per_kv_token_s=0.20e-6,
            prefill_base_s=5e-3,
            prefill_per_token_s=34e-6,
        ),
    }
)
"""Affine laws for pairs where the roofline is known to be off, by (model name, GPU name)."""
