"""Reads the few signals that routing needs out of an engine's Prometheus text.

Separate because a full exposition is 55 KB of histograms that nobody here reads: this finds some twenty lines
in it, in the names of vLLM (new and old) and SGLang, and folds several data-parallel engines into one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from router.core.engine_stats import EngineStats

_SAMPLE = re.compile(r'[^{\s]+\s*(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s*(\S+)')
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ENGINE_LABELS = ("engine", "dp_rank")  # vLLM's and SGLang's name of the data-parallel rank

# Gauges and counters by signal. The first name that is there counts: the newer one of an engine first.
_RUNNING = (b"vllm:num_requests_running", b"sglang:num_running_reqs")
_WAITING = (b"vllm:num_requests_waiting", b"sglang:num_queue_reqs")
_KV_USAGE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc", b"sglang:token_usage")
_CAPACITY = (b"sglang:max_total_num_tokens",)
_PAGE_SIZE = (b"sglang:page_size",)
_PROMPT = (b"vllm:prompt_tokens_total", b"sglang:prompt_tokens_total")
# SGLang adds to its generation counter only when a request ends; the realtime one moves with every step.
_REALTIME = b"sglang:realtime_tokens_total"
_GENERATION = (b"vllm:generation_tokens_total", _REALTIME, b"sglang:generation_tokens_total")
_QUERIES = (b"vllm:prefix_cache_queries_total", b"vllm:gpu_prefix_cache_queries_total", _PROMPT[1])
_HITS = (
    b"vllm:prefix_cache_hits_total",
    b"vllm:gpu_prefix_cache_hits_total",
    b"sglang:cached_tokens_total",
)
_PREEMPTIONS = (b"vllm:num_preemptions_total",)
_DRAFTS = (b"vllm:spec_decode_num_drafts_total",)
_ACCEPTED = (b"vllm:spec_decode_num_accepted_tokens_total",)
_ACCEPT_LENGTH = (b"sglang:spec_accept_length",)
_CACHE_CONFIG = b"vllm:cache_config_info"
_SLEEP_STATE = b"vllm:engine_sleep_state"
_PROCESS_START = b"process_start_time_seconds"

_WANTED = frozenset(
    {
        *_RUNNING, *_WAITING, *_KV_USAGE, *_CAPACITY, *_PAGE_SIZE, *_PROMPT, *_GENERATION, *_QUERIES, *_HITS,
        *_PREEMPTIONS, *_DRAFTS, *_ACCEPTED, *_ACCEPT_LENGTH, _CACHE_CONFIG, _SLEEP_STATE, _PROCESS_START,
    }
)  # fmt: skip
_PREFIXES = tuple(sorted({name.partition(b":")[0] for name in _WANTED}))


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of an exposition; `value` is finite."""

    labels: Mapping[str, str]
    value: float

    @property
    def engine(self) -> str | None:
        """The data-parallel rank it belongs to, None when it names none."""
        return next((self.labels[name] for name in _ENGINE_LABELS if name in self.labels), None)


_ByName = Mapping[bytes, list[Sample]]


class _Samples:
    """The wanted samples of one exposition, of all engines or of one.

    Args:
        whole: all of them.
        own: those of the engine that is asked for.
    """

    def __init__(self, whole: _ByName, own: _ByName) -> None:
        self._whole = whole
        self._own = own

    def named(self, names: Sequence[bytes]) -> list[Sample]:
        """Those of the first name that the exposition has."""
        for name in names:
            if self._whole.get(name):
                return self._own.get(name, [])
        return []

    def of_process(self, name: bytes) -> list[Sample]:
        """Samples that stand for the process, whichever engine is asked for."""
        return self._whole.get(name, [])

    def counter(self, names: Sequence[bytes]) -> float | None:
        """The sum over all label sets: engines, and request kinds in SGLang."""
        found = self.named(names)
        if names is _GENERATION:
            found = [one for one in found if one.labels.get("mode", "decode") == "decode"]
        return sum(one.value for one in found) if found else None

    def gauges(self, names: Sequence[bytes]) -> list[float]:
        """One value for each engine."""
        by_engine: dict[str | None, float] = {}
        found = self.named(names)
        # SGLang writes the total under priority="" and its parts under the priorities.
        total = [one for one in found if not one.labels.get("priority")]
        for one in total or found:
            # Tensor and pipeline ranks of one engine repeat its value.
            by_engine[one.engine] = max(one.value, by_engine.get(one.engine, 0.0))
        return list(by_engine.values())


def read_stats(data: bytes, taken: float, *, engine: str | None = None) -> EngineStats:
    """The signals of one scrape; one that is missing, NaN or unreadable is None.

    Requests, tokens and capacities are summed over the engines behind the endpoint, KV usage is averaged, and
    asleep means that one of them is.

    Args:
        taken: when the scrape was answered (s).
        engine: only this data-parallel rank. Counters that an engine keeps for all ranks together are then
            None.
    """
    whole = read_samples(data)
    own = whole if engine is None else _by_engine(whole).get(engine, {})
    return _stats(_Samples(whole, own), engine, taken)


def read_ranks(data: bytes, taken: float) -> tuple[EngineStats, dict[str, EngineStats]]:
    """The signals of all data-parallel ranks together, as `read_stats` has them, and of each by the name that
    it has in labels; of none where the labels name no rank."""
    whole = read_samples(data)
    ranks = {engine: _stats(_Samples(whole, own), engine, taken) for engine, own in _by_engine(whole).items()}
    return _stats(_Samples(whole, whole), None, taken), ranks


def _by_engine(whole: _ByName) -> dict[str, dict[bytes, list[Sample]]]:
    """Samples by engine and name, of those that name one."""
    found: dict[str, dict[bytes, list[Sample]]] = {}
    for name, samples in whole.items():
        for sample in samples:
            if sample.engine is not None:
                found.setdefault(sample.engine, {}).setdefault(name, []).append(sample)
    return found


def _stats(samples: _Samples, engine: str | None, taken: float) -> EngineStats:
    capacity, block_size = _cache_config(samples, engine)
    usage = samples.gauges(_KV_USAGE)
    start = samples.of_process(_PROCESS_START)
    awake = [one.value for one in samples.named((_SLEEP_STATE,)) if one.labels.get("sleep_state") == "awake"]
    return EngineStats(
        taken=taken,
        running=_whole(samples.gauges(_RUNNING)),
        waiting=_whole(samples.gauges(_WAITING)),
        kv_usage=sum(usage) / len(usage) if usage else None,
        kv_capacity_tokens=capacity,
        block_size=block_size,
        prompt_tokens=samples.counter(_PROMPT),
        generation_tokens=samples.counter(_GENERATION),
        prefix_queries=samples.counter(_QUERIES),
        prefix_hits=samples.counter(_HITS),
        preemptions=samples.counter(_PREEMPTIONS),
        tokens_per_step=_tokens_per_step(samples),
        asleep=min(awake) == 0.0 if awake else None,
        process_start=max(one.value for one in start) if start else None,
    )


def _tokens_per_step(samples: _Samples) -> float | None:
    """One token and the drafted ones that were accepted, as vLLM counts; SGLang tells the mean itself."""
    drafts, accepted = samples.counter(_DRAFTS), samples.counter(_ACCEPTED)
    if drafts and accepted is not None:
        return 1.0 + accepted / drafts
    lengths = [length for length in samples.gauges(_ACCEPT_LENGTH) if length >= 1.0]
    return sum(lengths) / len(lengths) if lengths else None


def read_samples(data: bytes) -> dict[bytes, list[Sample]]:
    """The finite samples of the wanted metrics, by name, in the order of the text."""
    found: dict[bytes, list[Sample]] = {}
    for line in data.splitlines():
        if not line.startswith(_PREFIXES):
            continue
        brace = line.find(b"{")
        name = line[:brace].rstrip() if brace >= 0 else line.split(None, 1)[0]
        if name in _WANTED:
            sample = _sample(line)
            if sample is not None:
                found.setdefault(name, []).append(sample)
    return found


def _sample(line: bytes) -> Sample | None:
    match = _SAMPLE.match(line.decode("utf-8", "replace"))
    if match is None:
        return None
    try:
        value = float(match[2])
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return Sample({name: _unescape(text) for name, text in _LABEL.findall(match[1] or "")}, value)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], text)


def _whole(values: Sequence[float]) -> int | None:
    return round(sum(values)) if values else None


def _cache_config(samples: _Samples, engine: str | None) -> tuple[int | None, int | None]:
    """(usable KV tokens, tokens of a block)."""
    info = samples.of_process(_CACHE_CONFIG)
    mine = samples.named((_CACHE_CONFIG,))
    if not mine:
        capacity = _whole(samples.gauges(_CAPACITY))
        page_sizes = samples.gauges(_PAGE_SIZE)
        return capacity, round(max(page_sizes)) if page_sizes else None
    block_size = _label_number(mine[0], "block_size")
    if block_size is None:
        return None, None
    engines = len({one.engine for one in info})
    blocks = _label_number(info[0], "num_gpu_blocks")
    if engines == 1:
        tokens = _label_number(mine[0], "kv_cache_size_tokens")  # right for hybrid models, too
        tokens = tokens if tokens is not None or blocks is None else blocks * block_size
        return None if tokens is None else max(tokens - block_size, 0), block_size
    if blocks is None:
        return None, block_size
    return _shared_capacity(blocks, engines, block_size, engine), block_size


def _shared_capacity(blocks: int, engines: int, block_size: int, engine: str | None) -> int:
    """Every engine of a data-parallel group reports the blocks of the whole group (seen in vLLM 0.32), and
    each keeps one null block that holds nothing."""
    usable = blocks - engines if engine is None else blocks // engines - 1
    return max(usable, 0) * block_size


def _label_number(sample: Sample, label: str) -> int | None:
    """A number in a label, None where it says "None" or nothing."""
    try:
        return int(float(sample.labels.get(label, "")))
    except (ValueError, OverflowError):
        return None
