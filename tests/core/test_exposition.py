"""Laws of the scrape reader: the few lines it needs, and a missing signal is missing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.core.engine_stats import EngineStats
from router.core.exposition import read_samples, read_stats

RECORDED = (Path(__file__).parents[1] / "wire" / "vllm_metrics.txt").read_bytes()


def lines(*text: str) -> bytes:
    return ("\n".join(text) + "\n").encode()


def test_a_recorded_scrape_of_vllm_is_read() -> None:
    assert read_stats(RECORDED, 5.0) == EngineStats(
        taken=5.0,
        running=0,
        waiting=0,
        kv_usage=0.0,
        kv_capacity_tokens=32_767 * 32,  # the null block holds nothing
        block_size=32,
        prompt_tokens=929.0,
        generation_tokens=74.0,
        prefix_queries=929.0,
        prefix_hits=384.0,
        preemptions=0.0,
        asleep=False,
        process_start=1.79597215634e9,
    )


def test_samples_agree_with_the_parser_of_prometheus_client() -> None:
    theirs: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(RECORDED.decode()):
        for sample in family.samples:
            theirs.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    ours = read_samples(RECORDED)
    assert len(ours) >= 10
    for name, samples in ours.items():
        assert [(dict(one.labels), one.value) for one in samples] == theirs[name.decode()]


LABEL = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('"\\\n{},= '), max_size=12)


@given(LABEL, LABEL, st.floats(allow_nan=True, allow_infinity=True))
def test_any_label_and_value_is_read_as_it_was_written(engine: str, model: str, value: float) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("vllm:num_requests_running", "x", ["engine", "model_name"], registry=registry)
    gauge.labels(engine, model).set(value)
    samples = read_samples(generate_latest(registry)).get(b"vllm:num_requests_running", [])
    if math.isfinite(value):
        assert [(dict(one.labels), one.value) for one in samples] == [
            ({"engine": engine, "model_name": model}, value)
        ]
    else:
        assert samples == []


def test_an_empty_scrape_says_nothing() -> None:
    assert read_stats(b"", 1.0) == EngineStats(taken=1.0)
    assert read_stats(b"<html>not metrics</html>", 1.0) == EngineStats(taken=1.0)


@given(st.binary(max_size=200))
def test_garbage_breaks_nothing(data: bytes) -> None:
    assert read_stats(b"vllm:num_requests_running" + data, 1.0).taken == 1.0


@pytest.mark.parametrize("value", ["NaN", "nan", "+Inf", "-Inf", "", "x", "{"])
def test_a_value_that_is_no_number_is_missing(value: str) -> None:
    data = lines(f"vllm:kv_cache_usage_perc {value}", "vllm:num_requests_running 2.0")
    stats = read_stats(data, 1.0)
    assert stats.kv_usage is None
    assert stats.running == 2


def test_several_engines_are_summed_and_their_usage_averaged() -> None:
    data = lines(
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0',
        'vllm:num_requests_running{engine="1",model_name="m"} 4.0',
        'vllm:num_requests_waiting{engine="0",model_name="m"} 1.0',
        'vllm:num_requests_waiting{engine="1",model_name="m"} 0.0',
        'vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 50.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2',
        'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.4',
        'vllm:generation_tokens_total{engine="0",model_name="m"} 10.0',
        'vllm:generation_tokens_total{engine="1",model_name="m"} 20.0',
        'vllm:generation_tokens_created{engine="1",model_name="m"} 1.7e9',
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="128"} 1.0',
        'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="128"} 1.0',
        'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0',
        'vllm:engine_sleep_state{engine="1",sleep_state="awake"} 0.0',
        'vllm:engine_sleep_state{engine="1",sleep_state="discard_all"} 1.0',
        "process_start_time_seconds 1.5e9",
    )
    both = read_stats(data, 1.0)
    assert (both.running, both.waiting, both.generation_tokens) == (7, 1, 30.0)
    assert both.kv_usage == pytest.approx(0.3)
    # num_gpu_blocks is the sum over the engines, each of which keeps one null block
    assert both.kv_capacity_tokens == 126 * 16
    assert both.asleep is True

    one = read_stats(data, 1.0, engine="1")
    assert (one.running, one.waiting, one.generation_tokens, one.kv_usage) == (4, 0, 20.0, 0.4)
    assert one.kv_capacity_tokens == 63 * 16
    assert (one.asleep, one.process_start) == (True, 1.5e9)
    assert read_stats(data, 1.0, engine="0").asleep is False

    nobody = read_stats(data, 1.0, engine="2")
    assert nobody == EngineStats(taken=1.0, process_start=1.5e9)


def test_the_names_of_old_vllm_are_known_and_the_new_one_wins() -> None:
    old = lines(
        "vllm:gpu_cache_usage_perc 0.5",
        "vllm:gpu_prefix_cache_queries_total 10.0",
        "vllm:gpu_prefix_cache_hits_total 4.0",
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0',
    )
    stats = read_stats(old, 1.0)
    assert (stats.kv_usage, stats.prefix_queries, stats.prefix_hits) == (0.5, 10.0, 4.0)
    assert (stats.kv_capacity_tokens, stats.block_size) == (99 * 16, 16)
    assert read_stats(old + b"vllm:kv_cache_usage_perc 0.7\n", 1.0).kv_usage == 0.7


def test_capacity_that_is_not_known_yet_is_missing() -> None:
    data = lines('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0')
    assert read_stats(data, 1.0) == EngineStats(taken=1.0, block_size=16)
    data = lines('vllm:cache_config_info{block_size="None",num_gpu_blocks="8"} 1.0')
    assert read_stats(data, 1.0) == EngineStats(taken=1.0)


SGLANG = lines(
    'sglang:num_running_reqs{dp_rank="0",model_name="m",priority="",tp_rank="0"} 5.0',
    'sglang:num_running_reqs{dp_rank="0",model_name="m",priority="1",tp_rank="0"} 2.0',
    'sglang:num_running_reqs{dp_rank="0",model_name="m",priority="2",tp_rank="0"} 3.0',
    'sglang:num_running_reqs{dp_rank="1",model_name="m",priority="",tp_rank="1"} 4.0',
    'sglang:num_queue_reqs{dp_rank="0",model_name="m",tp_rank="0"} 1.0',
    'sglang:num_queue_reqs{dp_rank="0",model_name="m",tp_rank="1"} 1.0',
    'sglang:token_usage{dp_rank="0",model_name="m",tp_rank="0"} 0.25',
    'sglang:token_usage{dp_rank="1",model_name="m",tp_rank="1"} 0.75',
    'sglang:max_total_num_tokens{dp_rank="0",model_name="m",tp_rank="0"} 1000.0',
    'sglang:max_total_num_tokens{dp_rank="1",model_name="m",tp_rank="1"} 1000.0',
    'sglang:page_size{dp_rank="0",model_name="m",tp_rank="0"} 64.0',
    'sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 100.0',
    'sglang:prompt_tokens_total{is_streaming="false",model_name="m"} 50.0',
    'sglang:cached_tokens_total{cache_source="device",model_name="m"} 30.0',
    'sglang:cached_tokens_total{cache_source="host",model_name="m"} 20.0',
    'sglang:generation_tokens_total{is_streaming="true",model_name="m"} 7.0',
)


def test_sglang_is_read_in_its_own_names() -> None:
    assert read_stats(SGLANG, 2.0) == EngineStats(
        taken=2.0,
        running=9,  # the total of each rank, not its parts by priority
        waiting=1,  # tensor ranks repeat the same queue
        kv_usage=0.5,
        kv_capacity_tokens=2000,
        block_size=64,
        prompt_tokens=150.0,
        generation_tokens=7.0,
        prefix_queries=150.0,
        prefix_hits=50.0,
    )


def test_one_rank_of_sglang_has_no_counters_of_its_own() -> None:
    stats = read_stats(SGLANG, 2.0, engine="1")
    assert (stats.running, stats.kv_usage, stats.kv_capacity_tokens) == (4, 0.75, 1000)
    assert (stats.waiting, stats.prompt_tokens, stats.generation_tokens) == (None, None, None)


def test_progress_of_sglang_is_the_counter_that_moves_with_every_step() -> None:
    data = SGLANG + lines(
        'sglang:realtime_tokens_total{mode="decode",model_name="m"} 90.0',
        'sglang:realtime_tokens_total{mode="prefill_compute",model_name="m"} 1000.0',
    )
    assert read_stats(data, 1.0).generation_tokens == 90.0


def test_timestamps_spaces_and_crlf_are_tolerated() -> None:
    data = (
        b'vllm:num_requests_running{ engine = "0" , }  2  1700000000000\r\nvllm:num_requests_waiting\t3\r\n'
    )
    stats = read_stats(data, 1.0)
    assert (stats.running, stats.waiting) == (2, 3)


@given(st.integers(0, 10_000), st.floats(0, 1), st.integers(0, 10**9))
def test_what_prometheus_client_writes_is_what_is_read(running: int, usage: float, tokens: int) -> None:
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_running", "r", ["engine"], registry=registry).labels("0").set(running)
    Gauge("vllm:kv_cache_usage_perc", "u", registry=registry).set(usage)
    Counter("vllm:prompt_tokens", "p", ["engine"], registry=registry).labels("0").inc(tokens)
    stats = read_stats(generate_latest(registry), 1.0)
    assert (stats.running, stats.kv_usage, stats.prompt_tokens) == (running, usage, float(tokens))


def test_tokens_per_step_follow_from_what_vllm_drafted_and_accepted() -> None:
    data = lines(
        'vllm:spec_decode_num_drafts_total{engine="0"} 400',
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 600',
    )
    assert read_stats(data, 1.0).tokens_per_step == 2.5
    assert read_stats(lines("vllm:spec_decode_num_drafts_total 0"), 1.0).tokens_per_step is None


def test_tokens_per_step_are_what_sglang_accepts_on_average() -> None:
    two = lines('sglang:spec_accept_length{dp_rank="0"} 2.0', 'sglang:spec_accept_length{dp_rank="1"} 3.0')
    assert read_stats(two, 1.0).tokens_per_step == 2.5
    assert read_stats(lines("sglang:spec_accept_length 0.0"), 1.0).tokens_per_step is None
