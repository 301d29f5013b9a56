"""Data-parallel ranks behind one port: who is addressed, what each shows, and that they step together."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from engines.mock.settings import SettingsError
from router.virtual.clock import run
from tests.engines.mock_stage import TEXT, Reply, Stage, stage

RANK = "x-data-parallel-rank"
LONG = {"prompt": "word " * 200, "max_tokens": 40, "ignore_eos": True}
SIZE: dict[str, Any] = {"kv_tokens": 16_000, "max_model_len": 4_000}


async def ranks_of(act: Stage) -> list[dict[str, Any]]:
    state = await act.state()
    ranks: list[dict[str, Any]] = state["ranks"]
    return ranks


async def served(act: Stage) -> list[int]:
    """Prompt tokens by rank."""
    return [rank["prompt_tokens"] for rank in await ranks_of(act)]


def series(reply: Reply, name: str) -> dict[str, float]:
    """Labels to value."""
    found = {}
    for line in reply.body.decode().splitlines():
        if line.startswith(name + "{"):
            head, _, value = line.rpartition(" ")
            found[head.removeprefix(name)] = float(value)
    return found


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_request_runs_on_the_rank_that_it_names(dialect: str) -> None:
    async def main() -> None:
        async with stage(dp_size=3, dialect=dialect) as act:
            assert (await act.ask("/v1/completions", TEXT, {RANK: "2"})).status == 200
            assert [tokens > 0 for tokens in await served(act)] == [False, False, True]
            assert (await act.ask("/v1/embeddings", {"input": "fox"}, {RANK: "1"})).status == 200
            assert [tokens > 0 for tokens in await served(act)] == [False, True, True]

    run(main())


@pytest.mark.parametrize("rank", ["3", "-1"])
def test_a_rank_that_is_not_there_is_refused(rank: str) -> None:
    async def main() -> None:
        async with stage(dp_size=3) as act:
            reply = await act.ask("/v1/completions", TEXT, {RANK: rank})
            assert (reply.status, reply.json()["error"]["type"]) == (400, "BadRequestError")
            assert reply.json()["error"]["message"] == f"data_parallel_rank {rank} is out of range [0, 3)."

    run(main())


def test_sglang_reads_the_rank_in_the_body_and_the_header_outweighs_it() -> None:
    async def main() -> None:
        async with stage(dp_size=3, dialect="sglang") as act:
            for path, asked in (("/generate", {"text": "fox"}), ("/v1/completions", TEXT)):
                before = await served(act)
                assert (await act.ask(path, {**asked, "routed_dp_rank": 2})).status == 200
                assert (await act.ask(path, {**asked, "data_parallel_rank": 1})).status == 200
                after = await served(act)
                assert [now > then for now, then in zip(after, before, strict=True)] == [False, True, True]
            await act.ask("/generate", {"text": "fox", "routed_dp_rank": 2}, {RANK: "0"})
            assert (await served(act))[0] > 0
            wrong = await act.ask("/generate", {"text": "fox", "routed_dp_rank": 3})
            assert (wrong.status, wrong.json()["message"]) == (400, "routed_dp_rank=3 out of range [0, 3)")
            wrong = await act.ask("/generate", {"text": "fox"}, {RANK: "first"})
            assert wrong.status == 400
            assert "must be an integer, got 'first'" in wrong.json()["message"]

    run(main())


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_requests_without_a_rank_are_spread(dialect: str) -> None:
    async def main() -> None:
        async with stage(dp_size=4, dialect=dialect) as act:
            await asyncio.gather(*(act.ask("/v1/completions", LONG) for _ in range(8)))
            assert len(set(await served(act))) == 1

    run(main())


def test_ranks_have_caches_of_their_own() -> None:
    async def main() -> None:
        async with stage(dp_size=2) as act:
            ask = {**LONG, "max_tokens": 1}
            cached = []
            for rank in ("0", "1", "0", "1"):
                reply = await act.ask("/v1/completions", ask, {RANK: rank})
                cached.append(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
            assert [tokens > 0 for tokens in cached] == [False, False, True, True]

    run(main())


def test_vllm_shows_every_series_once_for_each_rank() -> None:
    async def main() -> None:
        async with stage(dp_size=2, **SIZE) as act:
            asking = asyncio.ensure_future(act.ask("/v1/completions", LONG, {RANK: "1"}))
            await asyncio.sleep(0.2)
            reply = await act.ask("/metrics")
            name = 'model_name="qwen2.5-3b"'
            first, second = f'{{engine="0",{name}}}', f'{{engine="1",{name}}}'
            assert series(reply, "vllm:num_requests_running") == {first: 0.0, second: 1.0}
            assert set(series(reply, "vllm:time_to_first_token_seconds_count")) == {first, second}
            assert set(series(reply, "vllm:prompt_tokens_created")) == {first, second}
            config = series(reply, "vllm:cache_config_info")
            assert len(config) == 2
            # As recorded: the sum of both, by each.
            assert all('num_gpu_blocks="2002"' in labels for labels in config)
            rejected = series(reply, "vllm:admission_rejections_total")
            assert len(rejected) == 2
            assert not any("engine" in labels for labels in rejected)
            text = reply.body.decode().splitlines()
            types = [line for line in text if line.startswith("# TYPE")]
            assert len(types) == len(set(types))
            await asking

    run(main())


def test_one_rank_shows_what_it_showed_before_there_were_several() -> None:
    async def outline(ranks: int) -> list[str]:
        async with stage(dp_size=ranks) as act:
            text = (await act.ask("/metrics")).body.decode().splitlines()
        return [line for line in text if line.startswith("# TYPE vllm:")]

    assert run(outline(1)) == run(outline(3))


def test_sglang_tells_its_schedulers_apart_and_adds_up_the_rest() -> None:
    async def main() -> None:
        async with stage(dp_size=2, dialect="sglang", **SIZE) as act:
            asking = asyncio.ensure_future(act.ask("/v1/completions", LONG, {RANK: "1"}))
            await asyncio.sleep(0.2)
            reply = await act.ask("/metrics")
            running = series(reply, "sglang:num_running_reqs")
            assert sorted(running.values()) == [0.0, 1.0]
            assert all('dp_rank="' in labels for labels in running)
            loads = (await act.ask("/v1/loads")).json()["loads"]
            assert [(load["dp_rank"], load["num_running_reqs"]) for load in loads] == [(0, 0), (1, 1)]
            info = (await act.ask("/server_info")).json()
            assert (info["dp_size"], len(info["internal_states"])) == (2, 2)
            await asking
            (tokens,) = series(await act.ask("/metrics"), "sglang:prompt_tokens_total").values()
            assert tokens == 250
            (requests,) = series(await act.ask("/metrics"), "sglang:num_requests_total").values()
            assert requests == 1

    run(main())


def test_a_long_prefill_holds_up_the_tokens_of_another_rank() -> None:
    async def gaps(rank: str) -> float:
        """The longest pause in a stream on rank 0, while a long prompt is prefilled on `rank`."""
        async with stage(dp_size=2, gpu="a6000", model="mistral-7b") as act:
            stream = {"prompt": "fox", "max_tokens": 60, "ignore_eos": True, "stream": True}
            streaming = asyncio.ensure_future(act.ask("/v1/completions", stream, {RANK: "0"}))
            await asyncio.sleep(0.3)
            prompt = list(range(1000, 9000))
            await act.ask("/v1/completions", {"prompt": prompt, "max_tokens": 1}, {RANK: rank})
            times = [at for at, _ in (await streaming).chunks]
            return max(after - before for before, after in pairwise(times))

    quiet = run(gaps_without_prefill())
    assert run(gaps("1")) > 4 * quiet
    assert run(gaps("1")) == pytest.approx(run(gaps("0")), rel=0.2)


def test_the_wait_at_the_barrier_is_told() -> None:
    async def waited(*ranks: str) -> float:
        async with stage(dp_size=2) as act:
            await asyncio.gather(*(act.ask("/v1/completions", LONG, {RANK: rank}) for rank in ranks))
            wait_s = (await act.state())["barrier_wait_s"]
            assert isinstance(wait_s, float)
            return wait_s

    # One rank idle, both with the same work, and both idle but for one prompt after the other.
    idle, even, both = run(waited("0")), run(waited("0", "1")), run(waited("0", "0"))
    assert even == pytest.approx(0.0, abs=1e-9)
    assert idle > 0.1
    assert both >= idle


async def gaps_without_prefill() -> float:
    async with stage(dp_size=2, gpu="a6000", model="mistral-7b") as act:
        stream = {"prompt": "fox", "max_tokens": 60, "ignore_eos": True, "stream": True}
        times = [at for at, _ in (await act.ask("/v1/completions", stream, {RANK: "0"})).chunks]
        return max(after - before for before, after in pairwise(times))


def test_the_answer_does_not_depend_on_the_rank() -> None:
    async def main() -> None:
        async with stage(dp_size=3) as act:
            replies = [await act.ask("/v1/completions", LONG, {RANK: str(rank)}) for rank in range(3)]
            texts = {reply.json()["choices"][0]["text"] for reply in replies}
            assert len(texts) == 1

    run(main())


def test_a_full_rank_refuses_while_another_has_room() -> None:
    async def main() -> None:
        async with stage(dp_size=2, max_num_queued_reqs=1) as act:
            asking = asyncio.ensure_future(act.ask("/v1/completions", LONG, {RANK: "0"}))
            await asyncio.sleep(0.05)
            assert (await act.ask("/v1/completions", TEXT, {RANK: "0"})).status == 503
            assert (await act.ask("/v1/completions", TEXT, {RANK: "1"})).status == 200
            assert sum(series(await act.ask("/metrics"), "vllm:admission_rejections_total").values()) == 1
            await asking

    run(main())


def test_all_ranks_die_and_come_back_together() -> None:
    async def main() -> None:
        async with stage(dp_size=2, restart_delay_s=1.0) as act:
            stream = {**LONG, "stream": True, "max_tokens": 500}
            asking = [
                asyncio.ensure_future(act.ask("/v1/completions", stream, {RANK: rank})) for rank in ("0", "1")
            ]
            await asyncio.sleep(0.3)
            await act.fault("engine_death")
            for reply in await asyncio.gather(*asking):
                assert b'"code": 500' in reply.body
            await asyncio.sleep(2.0)
            assert await served(act) == [0, 0]
            assert (await act.ask("/v1/completions", TEXT, {RANK: "1"})).status == 200

    run(main())


def test_the_cache_of_every_rank_is_reset() -> None:
    async def main() -> None:
        async with stage(dp_size=2) as act:
            ask = {**LONG, "max_tokens": 1}
            for rank in ("0", "1"):
                await act.ask("/v1/completions", ask, {RANK: rank})
            assert (await act.ask("/reset_prefix_cache", method="POST")).json() == {"success": True}
            for rank in ("0", "1"):
                reply = await act.ask("/v1/completions", ask, {RANK: rank})
                assert json.loads(reply.body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    run(main())


@pytest.mark.parametrize("dp_size", [0, 257])
def test_there_is_a_bound_of_ranks(dp_size: int) -> None:
    async def main() -> None:
        async with stage(dp_size=dp_size):
            raise AssertionError("built")

    with pytest.raises(SettingsError, match=f"--dp-size {dp_size}: 1 to 256"):
        run(main())
