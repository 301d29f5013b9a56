"""`GET /metrics` of vLLM: names, labels, order and quirks of version 0.32, with help texts of our own.

Separate from the generic exposition because this table is a fact of one engine. Quirks kept: counters end
in `_total` and have `_created` gauges; `iteration_tokens_total` is a histogram; usage leaves cached blocks
that nobody refers to out; `num_gpu_blocks` counts the null block; rejections have no engine label.
Data-parallel ranks are told apart by the label `engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR

from engines.mock.account import Histogram
from engines.mock.exposition import Counter, Family, Gauge, HistogramFamily, Joined, Series, labelled, number
from engines.mock.hardware import MEMORY_UTILIZATION
from engines.mock.process import EngineProcess
from engines.mock.rank import Rank
from engines.model.engine import Engine

Read = Callable[[], float]

_NOTHING: Read = lambda: 0.0  # noqa: E731 - a constant that is read like every other value
_ONE: Read = lambda: 1.0  # noqa: E731 - likewise


def vllm_families(process: EngineProcess) -> list[Family]:
    """Return the families of one incarnation; the next one needs its own."""
    ranks = [list(_Table(process, rank).families()) for rank in process.ranks]
    families = ranks[0] if len(ranks) == 1 else [Joined(family) for family in zip(*ranks, strict=True)]
    return [PythonFamilies(process.started_unix_s), *families]


class PythonFamilies:
    """The default collectors of the Python client, with the start time of the mock's incarnation."""

    def __init__(self, started_unix_s: float) -> None:
        self._started_unix_s = started_unix_s

    def lines(self) -> Iterator[str]:
        """Yield the lines of interpreter and process."""
        for collector in (GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR):
            for metric in collector.collect():
                name = f"{metric.name}_total" if metric.type == "counter" else metric.name
                yield f"# HELP {name} {metric.documentation}"
                yield f"# TYPE {name} {metric.type}"
                for sample in metric.samples:
                    value = sample.value
                    if sample.name == "process_start_time_seconds":
                        value = self._started_unix_s
                    yield f"{labelled(sample.name, sample.labels)} {number(value)}"


class _Table:
    """Builds the vLLM families of one rank in the order in which the engine prints them."""

    def __init__(self, process: EngineProcess, rank: Rank) -> None:
        self._process = process
        self._rank = rank
        self._created = process.started_unix_s
        self._labels = {"engine": str(rank.index), "model_name": process.settings.name}

    def families(self) -> Iterator[Family]:
        yield from self.connector()
        yield from self.gauges()
        yield from self.cache_counters()
        yield from self.token_counters()
        yield from self.request_counters()
        yield from self.token_histograms()
        yield from self.time_histograms()
        yield self.cache_config()

    def connector(self) -> Iterator[Family]:
        connector = self._rank.connector
        return iter(()) if connector is None else connector.families(self._labels, self._created)

    def gauges(self) -> Iterator[Family]:
        engine = self._rank.engine
        for what in ("flops", "read_bytes", "write_bytes"):
            yield self._counter(
                f"estimated_{what}_per_gpu", f"Estimate of {what} per GPU; 0 when not enabled.", _NOTHING
            )
        yield self._gauge("num_requests_running", "Requests in the batch.", lambda: engine.running)
        yield self._gauge("num_requests_waiting", "Requests that wait.", lambda: engine.waiting)
        yield self._gauge_by(
            "num_requests_waiting_by_reason",
            "Requests that wait for capacity, or are deferred by a passing constraint.",
            "reason",
            {
                "capacity": lambda: engine.waiting_by_reason["capacity"],
                "deferred": lambda: engine.waiting_by_reason["deferred"],
            },
        )
        if self._rank.connector is not None and self._process.settings.role != "prefill":
            yield self._kv_fetch_stages()
        yield self._gauge_by(
            "engine_sleep_state",
            "1 for the state the engine is in.",
            "sleep_state",
            {"awake": _ONE, "weights_offloaded": _NOTHING, "discard_all": _NOTHING},
        )
        yield self._gauge(
            "kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", lambda: engine.kv_usage
        )

    def _kv_fetch_stages(self) -> Family:
        engine = self._rank.engine
        stages = engine.kv_fetch_by_stage
        return self._gauge_by(
            "num_requests_kv_fetch_by_stage",
            "Waiting requests whose KV is with another engine, by how far they are.",
            "stage",
            {stage: _stage(engine, stage) for stage in stages},
        )

    def cache_counters(self) -> Iterator[Family]:
        counters = self._rank.engine.counters
        yield self._counter(
            "prefix_cache_queries", "Tokens looked up.", lambda: counters.prefix_queries_tokens
        )
        yield self._counter("prefix_cache_hits", "Tokens found.", lambda: counters.prefix_hits_tokens)
        external: tuple[Read, Read] = (
            lambda: counters.external_queries_tokens,
            lambda: counters.external_hits_tokens,
        )
        for kind, what, (queries, hits) in (
            ("external_prefix", "tokens of a KV connector", external),
            ("mm", "multi-modal items", (_NOTHING, _NOTHING)),
        ):
            yield self._counter(f"{kind}_cache_queries", f"Look-ups of {what}.", queries)
            yield self._counter(f"{kind}_cache_hits", f"Finds of {what}.", hits)
        yield self._counter("num_preemptions", "Preemptions.", lambda: counters.preemptions)

    def token_counters(self) -> Iterator[Family]:
        counters = self._rank.engine.counters
        yield self._counter("prompt_tokens", "Prompt tokens processed.", lambda: counters.prompt_tokens)
        yield self._counter_by(
            "prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            "source",
            {
                "local_compute": lambda: counters.prompt_tokens - counters.prompt_tokens_cached,
                "local_cache_hit": lambda: counters.prompt_tokens_cached - counters.prompt_tokens_external,
                "external_kv_transfer": lambda: counters.prompt_tokens_external,
            },
        )
        yield self._counter(
            "prompt_tokens_cached", "Prompt tokens that were cached.", lambda: counters.prompt_tokens_cached
        )
        tiers: dict[str, Read] = dict.fromkeys(
            ("device", "host", "p2p", "disk", "external_unspecified"), _NOTHING
        )
        tiers["device"] = lambda: counters.prefix_hits_tokens
        tiers["p2p"] = lambda: counters.external_hits_tokens
        yield self._counter_by(
            "prompt_tokens_cached_by_source", "Cached prompt tokens by tier, at admission.", "source", tiers
        )
        yield self._counter("generation_tokens", "Tokens generated.", lambda: counters.generation_tokens)

    def request_counters(self) -> Iterator[Family]:
        finished = self._rank.account.finished
        rejected = [rank.engine.counters.rejected for rank in self._process.ranks]
        yield self._counter_by(
            "request_success",
            "Requests that ended, by reason.",
            "finished_reason",
            {reason: _entry(finished, reason) for reason in finished},
        )
        series = [
            Series({"model_name": self._labels["model_name"], "reason": reason}, _sum(rejected, reason))
            for reason in ("max_num_queued_reqs", "max_num_queued_tokens")
        ]
        text = "Requests refused at admission, by limit."
        yield Counter("vllm:admission_rejections", text, series, self._created)

    def token_histograms(self) -> Iterator[Family]:
        account = self._rank.account
        yield self._histogram("request_prompt_tokens", "Prompt tokens.", account.request_prompt_tokens)
        yield self._histogram(
            "request_generation_tokens", "Generated tokens.", account.request_generation_tokens
        )
        yield self._histogram("iteration_tokens_total", "Tokens of a step.", account.iteration_tokens)
        yield self._histogram(
            "request_max_num_generation_tokens",
            "Tokens of a request's longest answer.",
            account.max_num_generation_tokens,
        )
        yield self._histogram("request_params_n", "Parameter n.", account.params_n)
        yield self._histogram("request_params_max_tokens", "Parameter max_tokens.", account.params_max_tokens)

    def time_histograms(self) -> Iterator[Family]:
        account = self._rank.account
        for name, text, histogram in (
            ("time_to_first_token_seconds", "Time to the first token (s).", account.ttft_s),
            ("inter_token_latency_seconds", "Time between outputs (s).", account.itl_s),
            ("request_time_per_output_token_seconds", "Mean time per token (s).", account.tpot_s),
            ("e2e_request_latency_seconds", "Arrival to end (s).", account.e2e_s),
            ("request_queue_time_seconds", "Queued to scheduled (s).", account.queue_s),
            ("request_inference_time_seconds", "Scheduled to last token (s).", account.inference_s),
            ("request_prefill_time_seconds", "Scheduled to first token (s).", account.prefill_s),
            ("request_decode_time_seconds", "First to last token (s).", account.decode_s),
            ("request_num_preemptions", "Preemptions of a request.", account.num_preemptions),
            (
                "request_prefill_kv_computed_tokens",
                "Prompt tokens computed, without cached ones.",
                account.prefill_computed_tokens,
            ),
        ):
            yield self._histogram(name, text, histogram)

    def cache_config(self) -> Family:
        return Gauge(
            "vllm:cache_config_info",
            "The cache's configuration, as labels.",
            [Series(cache_config_labels(self._process, self._rank.index), _ONE)],
        )

    # --- builders -------------------------------------------------------------------------------------

    def _gauge(self, name: str, text: str, read: Read) -> Gauge:
        return Gauge(f"vllm:{name}", text, [Series(self._labels, read)])

    def _gauge_by(self, name: str, text: str, label: str, reads: Mapping[str, Read]) -> Gauge:
        return Gauge(f"vllm:{name}", text, self._by(label, reads))

    def _counter(self, name: str, text: str, read: Read) -> Counter:
        return Counter(f"vllm:{name}", text, [Series(self._labels, read)], self._created)

    def _counter_by(self, name: str, text: str, label: str, reads: Mapping[str, Read]) -> Counter:
        return Counter(f"vllm:{name}", text, self._by(label, reads), self._created)

    def _by(self, label: str, reads: Mapping[str, Read]) -> list[Series]:
        return [Series({**self._labels, label: value}, read) for value, read in reads.items()]

    def _histogram(self, name: str, text: str, histogram: Histogram) -> HistogramFamily:
        return HistogramFamily(f"vllm:{name}", text, self._labels, histogram, self._created)


def _stage(engine: Engine, stage: str) -> Read:
    return lambda: engine.kv_fetch_by_stage[stage]


def _entry(counts: Mapping[str, int], name: str) -> Read:
    return lambda: counts[name]


def _sum(counts: Sequence[Mapping[str, int]], name: str) -> Read:
    return lambda: sum(each[name] for each in counts)


def cache_config_labels(process: EngineProcess, rank: int = 0) -> dict[str, str]:
    """Return the labels of `vllm:cache_config_info`; a None of Python is the text "None".

    Of several ranks each says how many blocks all of them have, as vLLM was seen to do.
    """
    config = process.hardware.config
    size = str(config.block_size)
    tokens = process.engine.kv_capacity_tokens + config.block_size
    labels = dict.fromkeys(_UNSET_LABELS, "None")
    labels |= dict.fromkeys(_FALSE_LABELS, "False")
    labels |= {
        "_block_size_resolved": "True",
        "block_size": size,
        "cache_dtype": "auto",
        "effective_attention_block_size": size,
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "engine": str(rank),
        "gpu_memory_utilization": str(MEMORY_UTILIZATION),
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_max_concurrency": str(tokens / config.max_model_len),
        "kv_cache_memory_bytes": str(process.hardware.kv_bytes),
        "kv_cache_size_tokens": str(tokens),
        "kv_offloading_backend": "native",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_ssm_cache_dtype": "auto",
        "num_gpu_blocks": str(config.num_blocks * process.settings.dp_size),
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "replayssm_buffer_len": "16",
        "swa_bounded_replay": "True",
        "user_specified_block_size": "True",
    }
    return labels


_UNSET_LABELS = (
    "cache_hit_alignment_tokens", "hash_block_size", "kv_cache_layout", "kv_offloading_size",
    "mamba_block_size", "mamba_page_size_padded", "num_cpu_blocks", "num_gpu_blocks_override",
    "prefix_match_unit", "skip_page_size_padded", "sliding_window",
)  # fmt: skip
_FALSE_LABELS = (
    "enable_mamba_shared_prefix_checkpoint", "is_attention_free", "kv_sharing_fast_prefill",
    "use_kda_recoverssm", "use_replayssm",
)  # fmt: skip
