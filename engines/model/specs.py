"""What is known of models and GPUs: the numbers that step times and KV capacity follow from.

Separate from the roofline so that each number stands beside its source. Parameter counts are computed from
the public configuration of the named checkpoint rather than typed in, so that body, head and experts add up
to the published totals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQuery:
    """Attention with `kv_heads` shared by `query_heads` (all of the Llama and Qwen families)."""

    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def parameters(self) -> int:
        """Weights of one layer's attention."""
        query, key_value = self.query_heads * self.head_dim, self.kv_heads * self.head_dim
        matrices = 2 * self.hidden * query + 2 * self.hidden * key_value
        bias = query + 2 * key_value if self.qkv_bias else 0
        norms = 2 * self.head_dim if self.qk_norm else 0
        return matrices + bias + norms

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token leaves in one layer's KV cache."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def flops_per_position_prefill(self) -> int:
        """FLOP of one layer for one query over one key: scores and weighted values, all heads."""
        return 4 * self.query_heads * self.head_dim

    @property
    def flops_per_position_decode(self) -> int:
        return self.flops_per_position_prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """DeepSeek's multi-head latent attention: the cache holds one latent and one rotary key per token.

    A prefill expands the latent to full heads; a decode keeps it folded into the query and output
    projections and attends in the latent space, with more FLOP and far fewer bytes per position.
    """

    hidden: int
    query_heads: int
    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def parameters(self) -> int:
        """Weights of one layer's attention."""
        query = self.hidden * self.query_rank + self.query_rank * self.query_heads * (
            self.nope_dim + self.rope_dim
        )
        down = self.hidden * (self.kv_rank + self.rope_dim)
        up = self.kv_rank * self.query_heads * (self.nope_dim + self.value_dim)
        output = self.query_heads * self.value_dim * self.hidden
        return query + down + up + output + self.query_rank + self.kv_rank

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token leaves in one layer's KV cache."""
        return self.kv_rank + self.rope_dim

    @property
    def flops_per_position_prefill(self) -> int:
        """FLOP of one layer for one query over one key in expanded heads."""
        return 2 * self.query_heads * (self.nope_dim + self.rope_dim + self.value_dim)

    @property
    def flops_per_position_decode(self) -> int:
        """FLOP of one layer for one query over one key in the latent space."""
        return 2 * self.query_heads * (2 * self.kv_rank + self.rope_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture-of-experts layers of a model.

    Attributes:
        layers: layers that have experts; the others keep the dense MLP.
        routed, active: experts per layer, and how many of them a token is sent to.
        shared: experts per layer that every token passes.
        intermediate: width of one expert.
        routing_bias: one bias per routed expert for balancing (DeepSeek-V3).
    """

    layers: int
    routed: int
    active: int
    intermediate: int
    shared: int = 0
    routing_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model as it is served.

    Attributes:
        name: as `--model` knows it.
        checkpoint: the public checkpoint whose configuration the numbers come from.
        intermediate: width of the dense MLP (gate, up and down matrices).
        tied_head: whether the LM head is the embedding matrix.
        bytes_per_weight, bytes_per_kv_value: 2 for bf16, 1 for fp8 and int8.
        context_tokens: longest sequence the checkpoint was trained for.
    """

    name: str
    checkpoint: str
    vocabulary: int
    hidden: int
    layers: int
    intermediate: int
    attention: GroupedQuery | LatentAttention
    experts: Experts | None = None
    tied_head: bool = False
    dtype: str = "bfloat16"
    bytes_per_weight: int = 2
    bytes_per_kv_value: int = 2
    context_tokens: int

    @property
    def head_parameters(self) -> int:
        """Weights of the LM head, as many as of the input embedding."""
        return self.vocabulary * self.hidden

    @property
    def routed_parameters(self) -> int:
        """Weights of all routed experts: the part of which a small step reads only a share."""
        if self.experts is None:
            return 0
        return self.experts.layers * self.experts.routed * self._expert_parameters

    @property
    def body_parameters(self) -> int:
        """All weights without input embedding and LM head."""
        return self._dense_body_parameters + self.routed_parameters

    @property
    def active_body_parameters(self) -> int:
        """Weights of the body that one token is multiplied with."""
        if self.experts is None:
            return self.body_parameters
        active = self.experts.layers * self.experts.active * self._expert_parameters
        return self._dense_body_parameters + active

    @property
    def parameters(self) -> int:
        """All weights; a tied head counts once."""
        return self.body_parameters + self.head_parameters * (1 if self.tied_head else 2)

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take, over all GPUs of the engine."""
        return self.parameters * self.bytes_per_weight

    @property
    def kv_bytes_per_token(self) -> int:
        """Memory of one token in the KV cache, all layers together."""
        return self.layers * self.attention.kv_values_per_token * self.bytes_per_kv_value

    @property
    def _expert_parameters(self) -> int:
        return 3 * self.hidden * self.experts.intermediate if self.experts is not None else 0

    @property
    def _dense_body_parameters(self) -> int:
        """The body less the routed experts: attention, norms, dense MLPs, shared experts, routers."""
        per_layer = self.attention.parameters + 2 * self.hidden
        total = self.layers * per_layer + self.hidden
        experts = self.experts
        dense_layers = self.layers - (experts.layers if experts else 0)
        total += dense_layers * 3 * self.hidden * self.intermediate
        if experts is not None:
            router = self.hidden * experts.routed + (experts.routed if experts.routing_bias else 0)
            total += experts.layers * (experts.shared * self._expert_parameters + router)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One accelerator, by its data sheet: dense arithmetic without sparsity, decimal bytes.

    Attributes:
        flops_16bit_per_s: peak of bf16/fp16 with 32-bit accumulation on the matrix units.
        flops_8bit_per_s: peak of fp8 or int8; None where 8-bit weights gain nothing in arithmetic.
    """

    name: str
    product: str
    flops_16bit_per_s: float
    flops_8bit_per_s: float | None
    bandwidth_bytes_per_s: float
    memory_bytes: float

    def flops_per_s(self, bytes_per_weight: int) -> float:
        """Peak for weights of that width; 8-bit weights fall back to the 16-bit units where need be."""
        if bytes_per_weight == 1 and self.flops_8bit_per_s is not None:
            return self.flops_8bit_per_s
        return self.flops_16bit_per_s


def _llama_like(hidden: int, query_heads: int, kv_heads: int = 8) -> GroupedQuery:
    return GroupedQuery(hidden=hidden, query_heads=query_heads, kv_heads=kv_heads, head_dim=128)


_MODELS = (
    # Qwen/Qwen2.5-3B-Instruct config.json. Published as 3.09 B, 2.77 B without embedding.
    ModelSpec(
        name="qwen2.5-3b",
        checkpoint="Qwen/Qwen2.5-3B-Instruct",
        vocabulary=151_936,
        hidden=2_048,
        layers=36,
        intermediate=11_008,
        attention=GroupedQuery(hidden=2_048, query_heads=16, kv_heads=2, head_dim=128, qkv_bias=True),
        tied_head=True,
        context_tokens=32_768,
    ),
    # mistralai/Mistral-7B-Instruct-v0.2 config.json. Published as 7.24 B.
    ModelSpec(
        name="mistral-7b",
        checkpoint="mistralai/Mistral-7B-Instruct-v0.2",
        vocabulary=32_000,
        hidden=4_096,
        layers=32,
        intermediate=14_336,
        attention=_llama_like(4_096, 32),
        context_tokens=32_768,
    ),
    # meta-llama/Meta-Llama-3-8B-Instruct config.json. Published as 8.03 B.
    ModelSpec(
        name="llama-3-8b",
        checkpoint="meta-llama/Meta-Llama-3-8B-Instruct",
        vocabulary=128_256,
        hidden=4_096,
        layers=32,
        intermediate=14_336,
        attention=_llama_like(4_096, 32),
        context_tokens=8_192,
    ),
    # meta-llama/Meta-Llama-3-70B-Instruct config.json. Published as 70.6 B.
    ModelSpec(
        name="llama-3-70b",
        checkpoint="meta-llama/Meta-Llama-3-70B-Instruct",
        vocabulary=128_256,
        hidden=8_192,
        layers=80,
        intermediate=28_672,
        attention=_llama_like(8_192, 64),
        context_tokens=8_192,
    ),
    # Qwen/Qwen3-30B-A3B config.json. Published as 30.5 B, 3.3 B active. Every layer has experts, so the
    # width of the dense MLP plays no part.
    ModelSpec(
        name="qwen3-30b-a3b",
        checkpoint="Qwen/Qwen3-30B-A3B",
        vocabulary=151_936,
        hidden=2_048,
        layers=48,
        intermediate=6_144,
        attention=GroupedQuery(hidden=2_048, query_heads=32, kv_heads=4, head_dim=128, qk_norm=True),
        experts=Experts(layers=48, routed=128, active=8, intermediate=768),
        context_tokens=40_960,
    ),
    # deepseek-ai/DeepSeek-V3 config.json and technical report (671 B, 37 B active). The multi-token
    # prediction module is left out. Weights are fp8, or int8 on Ascend; the latent cache is bf16:
    # 576 values x 61 layers x 2 bytes = 70,272 bytes a token.
    ModelSpec(
        name="deepseek-v3",
        checkpoint="deepseek-ai/DeepSeek-V3",
        vocabulary=129_280,
        hidden=7_168,
        layers=61,
        intermediate=18_432,
        attention=LatentAttention(
            hidden=7_168,
            query_heads=128,
            query_rank=1_536,
            kv_rank=512,
            nope_dim=128,
            rope_dim=64,
            value_dim=128,
        ),
        experts=Experts(layers=58, routed=256, active=8, shared=1, intermediate=2_048, routing_bias=True),
        dtype="float8",
        bytes_per_weight=1,
        context_tokens=163_840,
    ),
)

_GPUS = (
    # NVIDIA A40 data sheet: 149.7 TFLOPS dense bf16, 299.3 TOPS dense int8, 696 GB/s, 48 GB.
    GpuSpec(
        name="a40",
        product="NVIDIA A40",
        flops_16bit_per_s=149.7e12,
        flops_8bit_per_s=299.3e12,
        bandwidth_bytes_per_s=696e9,
        memory_bytes=48e9,
    ),
    # NVIDIA RTX A6000 data sheet and GA102 whitepaper: 154.8 TFLOPS dense bf16, 309.7 TOPS dense int8,
    # 768 GB/s, 48 GB.
    GpuSpec(
        name="a6000",
        product="NVIDIA RTX A6000",
        flops_16bit_per_s=154.8e12,
        flops_8bit_per_s=309.7e12,
        bandwidth_bytes_per_s=768e9,
        memory_bytes=48e9,
    ),
    # NVIDIA A100 80 GB SXM data sheet: 312 TFLOPS dense bf16, 624 TOPS dense int8, 2,039 GB/s.
    GpuSpec(
        name="a100",
        product="NVIDIA A100 80GB SXM",
        flops_16bit_per_s=312e12,
        flops_8bit_per_s=624e12,
        bandwidth_bytes_per_s=2_039e9,
        memory_bytes=80e9,
    ),
    # NVIDIA H100 SXM data sheet: 989 TFLOPS dense bf16, 1,979 dense fp8, 3,350 GB/s, 80 GB.
    GpuSpec(
        name="h100",
        product="NVIDIA H100 SXM",
        flops_16bit_per_s=989e12,
        flops_8bit_per_s=1_979e12,
        bandwidth_bytes_per_s=3_350e9,
        memory_bytes=80e9,
    ),
    # NVIDIA H200 SXM data sheet: arithmetic of the H100, 4,800 GB/s, 141 GB.
    GpuSpec(
        name="h200",
        product="NVIDIA H200 SXM",
        flops_16bit_per_s=989e12,
        flops_8bit_per_s=1_979e12,
        bandwidth_bytes_per_s=4_800e9,
        memory_bytes=141e9,
    ),
    # Estimate. One die of the two in a package, which is what the system shows as one NPU: half of the
    # 780 TFLOPS bf16, 3.2 TB/s and 128 GB that the trade press gives for a package; int8 as twice bf16.
    # Huawei publishes no data sheet.
    GpuSpec(
        name="ascend-910c",
        product="Huawei Ascend 910C (one die)",
        flops_16bit_per_s=390e12,
        flops_8bit_per_s=780e12,
        bandwidth_bytes_per_s=1_600e9,
        memory_bytes=64e9,
    ),
)

MODELS: Mapping[str, ModelSpec] = MappingProxyType({spec.name: spec for spec in _MODELS})
"""Models by the name that `--model` takes."""

GPUS: Mapping[str, GpuSpec] = MappingProxyType({spec.name: spec for spec in _GPUS})
"""GPUs by the name that `--gpu` takes."""
