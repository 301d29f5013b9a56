"""`GET /metrics` of SGLang: names and labels of version 0.5.23, with help texts of our own.

Separate because the names, the labels and what is missing differ from vLLM: the multi-process mode of the
client library prints no creation dates and no process series, so a restart shows only in the counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from engines.mock.account import Histogram
from engines.mock.exposition import Family, Gauge, HistogramFamily, Joined, Series, labelled, number
from engines.mock.process import EngineProcess
from engines.mock.rank import Rank
from engines.mock.sglang_rooms import RoomsConnector

Read = Callable[[], float]


class Throughput:
    """Generated tokens per second between one scrape and the next."""

    def __init__(self, now: Callable[[], float], rank: Rank) -> None:
        self._now = now
        self._counters = rank.engine.counters
        self._last: tuple[float, int] | None = None

    def __call__(self) -> float:
        now, tokens = self._now(), self._counters.generation_tokens
        last, self._last = self._last, (now, tokens)
        if last is None or now <= last[0]:
            return 0.0
        return (tokens - last[1]) / (now - last[0])


class PlainCounter:
    """A counter without a creation date."""

    def __init__(self, name: str, text: str, labels: dict[str, str], read: Read) -> None:
        self._header = [f"# HELP {name}_total {text}", f"# TYPE {name}_total counter"]
        self._head = labelled(f"{name}_total", labels) + " "
        self._read = read

    def lines(self) -> Iterator[str]:
        """Yield header and sample."""
        yield from self._header
        yield self._head + number(self._read())


class PlainHistogram:
    """A histogram without a creation date."""

    def __init__(self, name: str, text: str, labels: dict[str, str], histogram: Histogram) -> None:
        self._header = [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
        self._family = HistogramFamily(name, text, labels, histogram, 0.0)

    def lines(self) -> Iterator[str]:
        """Yield header and samples."""
        yield from self._header
        yield from self._family.samples()


def sglang_families(process: EngineProcess) -> list[Family]:
    """Return the families of one incarnation; the next one needs its own."""
    table = _Table(process)
    ranks = [list(table.gauges(rank)) for rank in process.ranks]
    gauges = ranks[0] if len(ranks) == 1 else [Joined(family) for family in zip(*ranks, strict=True)]
    return [*gauges, *table.counters(), *table.histograms()]


def _failures(rooms: RoomsConnector, name: str) -> float:
    return rooms.failures[name]


class _Table:
    """Builds the SGLang families."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        settings = process.settings
        kind = settings.role if settings.connector == "sglang" else "unified"
        self._requests = {"model_name": settings.name, "engine_type": kind}
        self._scheduler = {**self._requests, "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}

    def _labels(self, rank: Rank) -> dict[str, str]:
        """Of what a scheduler says; several ranks have one each."""
        if self._process.settings.dp_size == 1:
            return self._scheduler
        return {**self._scheduler, "dp_rank": str(rank.index)}

    def gauges(self, rank: Rank) -> Iterator[Family]:
        engine, config, labels = rank.engine, self._process.hardware.config, self._labels(rank)
        capacity = engine.kv_capacity_tokens
        counters = engine.counters
        reads: dict[str, Read] = {
            "num_running_reqs": lambda: engine.running,
            "num_queue_reqs": lambda: engine.waiting,
            "num_grammar_queue_reqs": lambda: 0,
            "num_retracted_reqs": lambda: counters.preemptions,
            "num_paused_reqs": lambda: 0,
            "token_usage": lambda: engine.kv_usage,
            "full_token_usage": lambda: engine.kv_usage,
            "num_used_tokens": lambda: round(engine.kv_usage * capacity),
            "kv_used_tokens": lambda: round(engine.kv_usage * capacity),
            "kv_available_tokens": lambda: capacity - round(engine.kv_usage * capacity),
            "kv_evictable_tokens": lambda: 0,
            "gen_throughput": Throughput(self._process.now, rank),
            "cache_hit_rate": lambda: (
                counters.prefix_hits_tokens / counters.prefix_queries_tokens
                if counters.prefix_queries_tokens
                else 0.0
            ),
            "decode_sum_seq_lens": lambda: round(engine.kv_usage * capacity),
            "spec_accept_length": lambda: 0,
            "utilization": lambda: engine.running / config.max_num_seqs,
            "max_total_num_tokens": lambda: capacity,
            "page_size": lambda: config.block_size,
            "num_pages": lambda: config.num_blocks - 1,
            "context_len": lambda: config.max_model_len,
        }
        for name, read in reads.items():
            text = name.replace("_", " ").capitalize() + "."
            yield Gauge(f"sglang:{name}", text, [Series(labels, read)])
        if rank.connector is not None:
            yield from rank.connector.families(labels, self._process.started_unix_s)

    def counters(self) -> Iterator[Family]:
        counters = [rank.engine.counters for rank in self._process.ranks]
        account = self._process.account
        for name, text, read in (
            ("prompt_tokens", "Prompt tokens.", lambda: sum(one.prompt_tokens for one in counters)),
            (
                "generation_tokens",
                "Generated tokens.",
                lambda: sum(one.generation_tokens for one in counters),
            ),
            ("num_requests", "Requests that ended.", lambda: sum(account.finished.values())),
            ("num_aborted_requests", "Requests that were aborted.", lambda: account.aborted),
        ):
            yield PlainCounter(f"sglang:{name}", text, self._requests, read)
        yield PlainCounter(
            "sglang:cached_tokens",
            "Prompt tokens that were cached.",
            {**self._requests, "cache_source": "device"},
            lambda: sum(one.prompt_tokens_cached for one in counters),
        )
        rooms = self._process.connector
        if isinstance(rooms, RoomsConnector):
            for name in rooms.failures:
                text = f"Requests that failed: {name.split('_')[1]}."
                yield PlainCounter(f"sglang:{name}", text, self._scheduler, partial(_failures, rooms, name))

    def histograms(self) -> Iterator[Family]:
        account = self._process.account
        for name, text, histogram in (
            ("time_to_first_token_seconds", "Time to the first token (s).", account.ttft_s),
            ("inter_token_latency_seconds", "Time between outputs (s).", account.itl_s),
            ("request_time_per_output_token_seconds", "Mean time per token (s).", account.tpot_s),
            ("e2e_request_latency_seconds", "Arrival to end (s).", account.e2e_s),
            ("queue_time_seconds", "Queued to scheduled (s).", account.queue_s),
        ):
            yield PlainHistogram(f"sglang:{name}", text, self._requests, histogram)
