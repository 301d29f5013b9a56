"""The exposition of the vLLM dialect, against what a real vLLM 0.32 printed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from engines.mock.account import Histogram, token_buckets
from engines.mock.exposition import labelled
from router.virtual.clock import run
from tests.engines.mock_stage import TEXT, UNIX_ORIGIN_S, Stage, stage

RECORDED = (Path(__file__).parent.parent / "wire" / "vllm_metrics.txt").read_text()
NAME = 'engine="0",model_name="qwen2.5-3b"'


def values(text: str) -> dict[str, float]:
    """Sample with labels to value."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {head: float(value) for head, value in (line.rsplit(" ", 1) for line in lines)}


async def scrape(act: Stage) -> dict[str, float]:
    reply = await act.ask("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=")
    return values(reply.body.decode())


def outline(text: str) -> list[str]:
    """Names and label names in order; of buckets only one per family, for lengths differ with the model."""
    seen: list[str] = []
    for line in text.splitlines():
        if line.startswith("# HELP") or "http_" in line:
            continue
        head = line.rsplit(" ", 1)[0] if not line.startswith("#") else line
        head = re.sub(r'="[^"]*"', "", head)
        if not seen or seen[-1] != head:
            seen.append(head)
    return seen


def test_names_labels_types_and_order_are_the_recorded_ones() -> None:
    async def main() -> str:
        async with stage() as act:
            return (await act.ask("/metrics")).body.decode()

    ours, theirs = outline(run(main())), outline(RECORDED)
    assert ours == theirs


def test_http_families_follow_the_engines_as_recorded() -> None:
    async def main() -> str:
        async with stage() as act:
            await act.ask("/v1/completions", TEXT)
            return (await act.ask("/metrics")).body.decode()

    def types(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("# TYPE") and "http_" in line]

    assert types(run(main())) == types(RECORDED)


def test_split_labels_have_the_recorded_values() -> None:
    async def main() -> str:
        async with stage() as act:
            return (await act.ask("/metrics")).body.decode()

    def split(text: str) -> set[tuple[str, str, str]]:
        found = set()
        for line in text.splitlines():
            for label in ("reason", "source", "finished_reason", "sleep_state"):
                hit = re.match(rf'([a-z_:]+)\{{.*\b{label}="([^"]*)"', line)
                if hit and not line.startswith("http"):
                    found.add((hit[1], label, hit[2]))
        return found

    assert split(run(main())) == split(RECORDED)


def test_time_buckets_are_the_recorded_ones() -> None:
    async def main() -> str:
        async with stage() as act:
            return (await act.ask("/metrics")).body.decode()

    def bounds(text: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, le in re.findall(r'(vllm:[a-z_]+)_bucket\{engine="0",le="([^"]+)"', text):
            found.setdefault(name, []).append(le)
        return {
            name: edges
            for name, edges in found.items()
            if "seconds" in name or "iteration" in name or "_n" in name
        }

    ours, theirs = bounds(run(main())), bounds(RECORDED)
    assert {name: ours[name] for name in theirs if "max_num" not in name} == {
        name: edges for name, edges in theirs.items() if "max_num" not in name
    }


def test_the_reference_parser_reads_the_text() -> None:
    async def main() -> str:
        async with stage() as act:
            await act.ask("/v1/completions", TEXT)
            return (await act.ask("/metrics")).body.decode()

    families = {family.name: family for family in text_string_to_metric_families(run(main()))}
    assert families["vllm:generation_tokens"].type == "counter"
    assert families["vllm:generation_tokens"].samples[0].value == 4
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"
    config = families["vllm:cache_config_info"].samples[0].labels
    assert (config["block_size"], config["num_cpu_blocks"]) == ("16", "None")


def test_capacity_counts_the_null_block() -> None:
    async def main() -> None:
        async with stage(kv_tokens=1600, max_model_len=512) as act:
            text = (await act.ask("/metrics")).body.decode()
            assert 'num_gpu_blocks="101"' in text
            assert act.process.engine.kv_capacity_tokens == 1600

    run(main())


def test_an_idle_engine_shows_zero_usage_although_its_cache_is_full() -> None:
    async def main() -> None:
        async with stage() as act:
            long = {"prompt": "word " * 400, "max_tokens": 2}
            working = asyncio.ensure_future(act.ask("/v1/completions", long))
            await asyncio.sleep(0.005)
            assert (await scrape(act))[f"vllm:kv_cache_usage_perc{{{NAME}}}"] > 0
            await working
            after = await scrape(act)
            assert after[f"vllm:kv_cache_usage_perc{{{NAME}}}"] == 0.0
            assert after[f"vllm:num_requests_running{{{NAME}}}"] == 0.0
            await act.ask("/v1/completions", long)
            again = await scrape(act)
            assert again[f"vllm:prefix_cache_hits_total{{{NAME}}}"] == 496
            assert again[f"vllm:prefix_cache_queries_total{{{NAME}}}"] == 1000
            assert again[f'vllm:prompt_tokens_by_source_total{{{NAME},source="local_cache_hit"}}'] == 496
            assert again[f'vllm:prompt_tokens_by_source_total{{{NAME},source="local_compute"}}'] == 504

    run(main())


def test_one_gap_is_observed_per_step_and_the_iteration_counts_the_prompt() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.ask("/v1/completions", {**TEXT, "max_tokens": 5, "ignore_eos": True})
            samples = await scrape(act)
            assert samples[f"vllm:inter_token_latency_seconds_count{{{NAME}}}"] == 4
            assert samples[f"vllm:iteration_tokens_total_count{{{NAME}}}"] == 5
            assert samples[f"vllm:iteration_tokens_total_sum{{{NAME}}}"] == 5 + 5
            assert samples[f"vllm:time_to_first_token_seconds_count{{{NAME}}}"] == 1
            assert samples[f"vllm:request_time_per_output_token_seconds_count{{{NAME}}}"] == 1
            assert (
                samples[
                    'vllm:request_success_total{engine="0",finished_reason="length",model_name="qwen2.5-3b"}'
                ]
                == 1
            )
            assert samples[f"vllm:request_params_max_tokens_sum{{{NAME}}}"] == 5

    run(main())


def test_times_are_the_times_of_the_virtual_clock() -> None:
    async def main() -> None:
        async with stage() as act:
            reply = await act.ask(
                "/v1/completions", {**TEXT, "max_tokens": 5, "ignore_eos": True, "stream": True}
            )
            samples = await scrape(act)
            spent = samples[f"vllm:request_decode_time_seconds_sum{{{NAME}}}"]
            assert abs(spent - (reply.chunks[-1][0] - reply.chunks[0][0])) < 1e-6
            parts = [
                samples[f"vllm:request_{part}_time_seconds_sum{{{NAME}}}"]
                for part in ("queue", "prefill", "decode")
            ]
            assert abs(sum(parts) - samples[f"vllm:e2e_request_latency_seconds_sum{{{NAME}}}"]) < 1e-6

    run(main())


def test_an_abandoned_request_moves_no_finished_series_but_its_tokens_count() -> None:
    async def main() -> None:
        async with stage() as act:
            exchange = await act.open("/v1/completions", {**TEXT, "max_tokens": 500, "stream": True})
            await exchange.read()
            exchange.close()
            await asyncio.sleep(0.1)
            samples = await scrape(act)
            finished = [value for name, value in samples.items() if "request_success_total" in name]
            assert finished == [0.0] * 5
            assert samples[f"vllm:e2e_request_latency_seconds_count{{{NAME}}}"] == 0
            assert samples[f"vllm:generation_tokens_total{{{NAME}}}"] >= 1

    run(main())


def test_waiting_is_told_by_reason() -> None:
    async def main() -> None:
        async with stage(max_num_seqs=1) as act:
            asks = [asyncio.ensure_future(act.ask("/v1/completions", TEXT)) for _ in range(3)]
            await asyncio.sleep(0.01)
            samples = await scrape(act)
            assert samples[f"vllm:num_requests_running{{{NAME}}}"] == 1
            assert samples[f"vllm:num_requests_waiting{{{NAME}}}"] == 2
            assert samples[f'vllm:num_requests_waiting_by_reason{{{NAME},reason="capacity"}}'] == 2
            assert samples[f'vllm:num_requests_waiting_by_reason{{{NAME},reason="deferred"}}'] == 0
            await asyncio.gather(*asks)

    run(main())


def test_http_series_appear_with_the_routes_and_leave_scrapes_out() -> None:
    async def main() -> None:
        async with stage() as act:
            await act.ask("/v1/completions", TEXT)
            await act.ask("/v1/completions", {"prompt": 5})
            await act.ask("/health")
            samples = await scrape(act)
            counted = {
                name: value for name, value in samples.items() if name.startswith("http_requests_total")
            }
            assert counted == {
                'http_requests_total{handler="/v1/completions",method="POST",status="2xx"}': 1.0,
                'http_requests_total{handler="/v1/completions",method="POST",status="4xx"}': 1.0,
            }

    run(main())


def test_a_new_incarnation_has_a_later_start_and_zero_counters() -> None:
    async def main() -> None:
        async with stage() as act:
            before = await scrape(act)
            assert before["process_start_time_seconds"] == UNIX_ORIGIN_S
            await act.ask("/v1/completions", TEXT)
            await asyncio.sleep(100)
            act.process.restart()
            after = await scrape(act)
            assert after["process_start_time_seconds"] > UNIX_ORIGIN_S + 99
            assert after[f"vllm:generation_tokens_total{{{NAME}}}"] == 0
            assert not any(name.startswith("http_requests_total") for name in after)

    run(main())


@given(st.lists(st.floats(0, 1e6, allow_nan=False), max_size=30))
def test_a_histogram_counts_each_value_once_below_its_bound(observed: list[float]) -> None:
    histogram = Histogram((1.0, 10.0, 100.0))
    for value in observed:
        histogram.observe(value)
    for index, bound in enumerate(histogram.bounds):
        assert sum(histogram.counts[: index + 1]) == sum(value <= bound for value in observed)
    assert sum(histogram.counts) == len(observed)


def test_token_buckets_end_at_the_models_length() -> None:
    assert token_buckets(512) == (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


def test_label_values_are_escaped() -> None:
    assert labelled("m", {"b": 'say "hi"\n', "a": "\\"}) == 'm{a="\\\\",b="say \\"hi\\"\\n"}'
