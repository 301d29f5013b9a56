"""The fleet of mock engines that `pointsman up` starts.

Separate from the pools: the router knows nothing of what a worker is made of. Names of models and GPUs are
checked by the mock itself, which the router never imports.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from router.settings.pools import ConnectorName
from router.settings.section import Section

FlagValue = str | int | float | bool
_FLAG: Final = re.compile(r"[a-z][a-z0-9-]*")
Count = Annotated[int, Field(ge=1, le=256)]


class MockGroup(Section):
    """Mock engines that are alike, on consecutive ports of this machine, in one process."""

    port: Annotated[int, Field(ge=1, le=65535)] = 9001
    """Port of the first engine."""
    count: Count = 1
    """How many, each on the next port."""
    model: str = "qwen2.5-3b"
    """Model that it pretends to serve: qwen2.5-3b, mistral-7b, llama-3-8b, llama-3-70b, qwen3-30b-a3b,
    deepseek-v3."""
    gpu: str = "a40"
    """GPU that it pretends to have: a40, a6000, a100, h100, h200, ascend-910c."""
    dialect: Literal["vllm", "sglang"] = "vllm"
    """Whose API and metrics it shows."""
    role: Literal["both", "prefill", "decode"] = "both"
    """What it is for; engines of one role hand KV over."""
    kv_connector: ConnectorName | None = None
    """How it hands KV over; null: as the mock has it, nixl for a vLLM engine of one role."""
    kv_lease_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """How long a prefill engine holds KV that nobody fetches; null: as the mock has it."""
    kv_bandwidth_gbps: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """Gigabits that one KV transfer moves in an engine second; null: as the mock has it."""
    kv_load_failure_policy: Literal["fail", "recompute"] | None = None
    """What a decode engine does with a request whose KV does not come; null: as the mock has it."""
    max_num_seqs: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Sequences that run at once; null: as the mock has it."""
    kv_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens that fit its KV cache; null: as model and GPU allow."""
    time_scale: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Speed of its clock; 2 is twice as slow as the GPU, 0.5 twice as fast."""
    seed: int | None = None
    """Seed of its answers; null: as the mock has it."""
    flags: dict[str, FlagValue] = Field(default_factory=dict)
    """More flags of `pointsman mock`, without their dashes: `{max-model-len: 8192}`; true is the flag alone,
    false the flag with `no-` before it."""

    @field_validator("flags")
    @classmethod
    def _without_dashes(cls, value: dict[str, FlagValue]) -> dict[str, FlagValue]:
        flags = {name.replace("_", "-"): item for name, item in value.items()}
        for name in flags:
            if not _FLAG.fullmatch(name):
                raise ValueError(f"{name!r} is no flag; write it without the dashes in front")
        return flags

    @model_validator(mode="after")
    def _ports_exist(self) -> Self:
        if self.port + self.count - 1 > 65535:
            raise ValueError(f"{self.count} engines from port {self.port} on end above 65535")
        return self

    @property
    def arguments(self) -> list[str]:
        """The flags of `pointsman mock` that say all this, except where it listens."""
        named = {
            "model": self.model,
            "gpu": self.gpu,
            "dialect": self.dialect,
            "role": self.role if self.role != "both" else None,
            "kv-connector": self.kv_connector,
            "kv-lease-s": self.kv_lease_s,
            "kv-bandwidth-gbps": self.kv_bandwidth_gbps,
            "kv-load-failure-policy": self.kv_load_failure_policy,
            "max-num-seqs": self.max_num_seqs,
            "kv-tokens": self.kv_tokens,
            "time-scale": self.time_scale,
            "seed": self.seed,
            **self.flags,
        }
        words: list[str] = []
        for name, value in named.items():
            if isinstance(value, bool):
                words.append(f"--{name}" if value else f"--no-{name}")
            elif value is not None:
                words += [f"--{name}", str(value)]
        return words

    @property
    def ports(self) -> range:
        """The ports its engines listen on."""
        return range(self.port, self.port + self.count)


class MockSettings(Section):
    """What `pointsman up` starts beside the router; `pointsman serve` does not look at it."""

    host: str = "127.0.0.1"
    """Address that the engines listen on."""
    ready_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """The engines answer `/health` within, or `pointsman up` gives up."""
    fleet: tuple[MockGroup, ...] = ()
    """Groups of engines."""

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        taken: set[int] = set()
        for group in self.fleet:
            twice = taken.intersection(group.ports)
            if twice:
                raise ValueError(f"two groups of mock.fleet want port {min(twice)}")
            taken.update(group.ports)
        return self
