"""Every knob of one mock engine, with its default, unit and bound.

Separate so that the command line, the tests and the virtual-time runs build an engine from one object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from engines.mock.kv_events_config import KvEventsConfig
from engines.model.job import SCHEDULINGS, Scheduling
from engines.model.specs import GPUS, MODELS

VLLM_VERSION = "0.32.0"
"""The version whose wire behaviour was recorded and is imitated."""

SGLANG_VERSION = "0.5.23"

KV_CONNECTORS = ("nixl", "mooncake", "sglang", "none")
"""Ways to hand KV over: two of vLLM's, and SGLang's. `none` hands nothing over: prefill and decode meet in
shared storage, if at all."""

SCHEDULING_POLICIES: Mapping[str, Scheduling] = {name.replace("_", "-"): name for name in SCHEDULINGS}
"""Orders in which waiting requests start, as flags name them."""

RANKED_CONNECTORS = ("nixl", "none")
"""Those of them that data-parallel ranks can have."""

MOST_RANKS = 256


class SettingsError(ValueError):
    """A knob has a value that the mock cannot work with; the sentence names it and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MockSettings:
    """What one mock engine is.

    Attributes:
        model, gpu: names of `engines.model.specs`; they decide how long a step lasts.
        served_model_name: the name on the wire; None is `model`.
        dialect: whose routes, metric names and shapes are spoken.
        role: what the engine is for. It serves every request wholly, as a real engine does: who sends what is
            the router's business. Decides which series it exposes.
        kv_connector: how KV is handed over; None: `nixl`, or `sglang` in that dialect, for an engine of one
            role, `none` for `both`.
        kv_lease_s: how long a prefill's blocks wait for a decode engine with `nixl` (wall seconds).
        kv_abort_timeout_s: the same with `mooncake`, and how long a decode engine waits for a prefill
            (`VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT`, wall seconds).
        disaggregation_timeout_s: how long either engine waits for the other with `sglang`
            (`SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT` and `..._WAITING_TIMEOUT`, wall seconds).
        disaggregation_bootstrap_port: of a prefill engine's bootstrap server, with `mooncake` and `sglang`;
            0 takes a free one.
        kv_load_failure_policy: what becomes of a request whose KV cannot be had: `fail` or `recompute`.
        kv_bandwidth_gbps: what one transfer gets (10⁹ bits per engine second). The default is one HDR
            InfiniBand port, what NVIDIA's DGX A100 has for each GPU.
        kv_latency_s: of a transfer, beside its bytes (engine seconds). An estimate.
        kv_side_channel_host: host that a prefill's answer names for its peers; None: where it listens.
        dp_size: data-parallel ranks, each an engine of its own behind the one port; they step together, as
            those that share experts do (in vLLM, ranks of a dense model do not wait for each other).
        kv_events: where events of the KV cache are published; None: nowhere. Each rank adds its number to the
            ports.
        max_num_seqs: sequences that run at once; None takes vLLM's default for the GPU.
        max_num_batched_tokens: tokens of one step; None takes vLLM's default for the GPU.
        max_model_len: prompt and output together (tokens); None takes the model's own length.
        block_size: tokens of one KV block.
        kv_tokens: KV capacity (tokens); None computes it from the GPU's memory.
        time_scale: wall seconds of one engine second: 0.1 runs ten times as fast, 2 half as fast.
        seed: decides every text and output length that no request decides.
        step_times: `roofline` computes a step's length, `measured` takes it from published fits.
        scheduling_policy: the order in which waiting requests start: vLLM's `fcfs` and `priority`, Preble's
            `priority-groups` (by the cached share of the prompt), SGLang's `longest-prefix`.
        output_tokens: mean of the seeded output lengths (tokens); a request's own limits cut it.
        api_key: asked on /v1 when set, as vLLM does.
        max_num_queued_reqs: beyond so many requests 503; None is unbounded. Running ones count in vLLM's
            dialect (as vLLM 0.32 was seen to count), not in SGLang's (`max_queued_requests`).
        sse_keep_alive_interval_s: silence after which a comment is sent; 0 is never.
        shutdown_timeout_s: how long SIGTERM lets open streams finish; 0 ends them at once.
        sigterm: what open streams see when SIGTERM does not wait: an `abort` end, or `silence`.
        restart_delay_s: how long a crashed engine stays down (wall seconds).
    """

    model: str = "qwen2.5-3b"
    gpu: str = "a40"
    served_model_name: str | None = None
    dialect: Literal["vllm", "sglang"] = "vllm"
    role: Literal["both", "prefill", "decode"] = "both"
    kv_connector: str | None = None
    kv_lease_s: float = 30.0
    kv_abort_timeout_s: float = 480.0
    disaggregation_timeout_s: float = 300.0
    disaggregation_bootstrap_port: int = 8998
    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"
    kv_bandwidth_gbps: float = 200.0
    kv_latency_s: float = 0.002
    kv_side_channel_host: str | None = None
    dp_size: int = 1
    kv_events: KvEventsConfig | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int = 16
    kv_tokens: int | None = None
    time_scale: float = 1.0
    seed: int = 0
    step_times: Literal["roofline", "measured"] = "roofline"
    output_tokens: float = 200.0
    scheduling_policy: str = "fcfs"
    api_key: str | None = None
    max_num_queued_reqs: int | None = None
    sse_keep_alive_interval_s: float = 0.0
    enable_prompt_tokens_details: bool = True
    enable_request_id_headers: bool = False
    enable_auto_tool_choice: bool = True
    enable_server_load_tracking: bool = False
    shutdown_timeout_s: float = 0.0
    sigterm: Literal["abort", "silence"] = "abort"
    restart_delay_s: float = 2.0

    def __post_init__(self) -> None:
        self._check_names()
        self._check_connector()
        self._check_ranks()
        self._check_numbers()

    @property
    def name(self) -> str:
        """The model name that clients ask for."""
        return self.served_model_name or self.model

    @property
    def connector(self) -> str:
        """The name of the KV connector."""
        if self.kv_connector is not None:
            return self.kv_connector
        if self.role == "both":
            return "none"
        return "nixl" if self.dialect == "vllm" else "sglang"

    @property
    def has_bootstrap(self) -> bool:
        """Whether a bootstrap server tells decode engines of this engine."""
        if self.connector == "mooncake":
            return self.role != "decode"
        return self.connector == "sglang" and self.role == "prefill"

    @property
    def kept_s(self) -> float:
        """How long a prefill's blocks are kept for a decode engine that does not come (wall seconds)."""
        # An SGLang prefill does not run before its decode engine is there, so nothing is kept for nobody.
        kept: dict[str, float] = {"mooncake": self.kv_abort_timeout_s, "sglang": inf}
        return kept.get(self.connector, self.kv_lease_s)

    def _check_names(self) -> None:
        _one_of("--model", self.model, MODELS)
        _one_of("--gpu", self.gpu, GPUS)
        _one_of("--dialect", self.dialect, ("vllm", "sglang"))
        _one_of("--step-times", self.step_times, ("roofline", "measured"))
        _one_of("--scheduling-policy", self.scheduling_policy, SCHEDULING_POLICIES)
        _one_of("--sigterm", self.sigterm, ("abort", "silence"))
        _one_of("--role", self.role, ("both", "prefill", "decode"))
        _one_of("--kv-connector", self.connector, KV_CONNECTORS)
        _one_of("--kv-load-failure-policy", self.kv_load_failure_policy, ("fail", "recompute"))

    def _check_ranks(self) -> None:
        if not 1 <= self.dp_size <= MOST_RANKS:
            raise SettingsError(f"--dp-size {self.dp_size}: 1 to {MOST_RANKS} ranks are possible.")
        if self.dp_size > 1 and self.connector not in RANKED_CONNECTORS:
            raise SettingsError(
                f"--kv-connector {self.connector}: the mock hands KV over between data-parallel ranks "
                "with nixl only; use --count for several engines of one rank."
            )
        if self.kv_events is None:
            return
        shared = self.kv_events.serves(self.dp_size)
        if shared is not None:
            raise SettingsError(f"--kv-events-endpoint: {shared}.")
        if self.dialect == "sglang" and self.kv_events.encoding != "maps":
            raise SettingsError("--kv-events-encoding arrays: the sglang dialect has only maps.")

    def _check_connector(self) -> None:
        connector = self.connector
        if connector != "none" and (connector == "sglang") != (self.dialect == "sglang"):
            raise SettingsError(
                f"--kv-connector {connector}: engines of the {self.dialect} dialect do not have it."
            )
        if connector == "sglang" and self.role == "both":
            raise SettingsError("--kv-connector sglang: an engine that hands over needs --role.")
        if connector == "sglang" and self.kv_load_failure_policy != "fail":
            raise SettingsError("--kv-load-failure-policy recompute: the sglang dialect has only fail.")
        if not 0 <= self.disaggregation_bootstrap_port < 1 << 16:
            port = self.disaggregation_bootstrap_port
            raise SettingsError(f"--disaggregation-bootstrap-port {port}: a port, or 0 for a free one.")

    def _check_numbers(self) -> None:
        for flag, value in (
            ("--max-num-seqs", self.max_num_seqs),
            ("--max-num-batched-tokens", self.max_num_batched_tokens),
            ("--max-model-len", self.max_model_len),
            ("--block-size", self.block_size),
            ("--kv-tokens", self.kv_tokens),
            ("--max-num-queued-reqs", self.max_num_queued_reqs),
        ):
            if value is not None and value < 1:
                raise SettingsError(f"{flag} {value}: must be at least 1.")
        for flag, number in (
            ("--time-scale", self.time_scale),
            ("--output-tokens", self.output_tokens),
            ("--kv-lease-s", self.kv_lease_s),
            ("--kv-abort-timeout-s", self.kv_abort_timeout_s),
            ("--disaggregation-timeout-s", self.disaggregation_timeout_s),
            ("--kv-bandwidth-gbps", self.kv_bandwidth_gbps),
        ):
            if not number > 0:
                raise SettingsError(f"{flag} {number}: must be above 0.")
        for flag, number in (
            ("--sse-keep-alive-interval", self.sse_keep_alive_interval_s),
            ("--shutdown-timeout", self.shutdown_timeout_s),
            ("--restart-delay", self.restart_delay_s),
            ("--kv-latency-s", self.kv_latency_s),
        ):
            if number < 0:
                raise SettingsError(f"{flag} {number}: must not be negative.")


def _one_of(flag: str, value: str, allowed: Iterable[str]) -> None:
    names = sorted(allowed)
    if value not in names:
        raise SettingsError(f"{flag} {value}: not known. Known: {', '.join(names)}.")
