"""Laws of replay against the mock engine, in virtual time: exact lengths, and caching that is real."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from engines.mock.app import create_app
from engines.mock.settings import MockSettings
from router.studies.data import SYNTHETIC
from router.studies.replay.report import Report
from router.studies.replay.session import Options, Surroundings, replay
from router.studies.traces import Trace, read_trace, statistics
from router.upstream.client import Upstream
from router.virtual.asgi import serve_asgi
from router.virtual.clock import run
from router.virtual.network import Network


def replayed(seeds: tuple[int, ...] = (0,), **options: Any) -> list[Report]:
    """Reports of one replay for each seed, one after the other, against one engine."""

    async def main() -> list[Report]:
        network = Network()
        app = create_app(MockSettings(enable_prompt_tokens_details=True), unix_origin_s=1.7e9)
        serve_asgi(network, "engine", 80, app)
        loop = asyncio.get_running_loop()
        upstream = Upstream(network.connect, loop.time)
        world = Surroundings(
            upstream=upstream,
            now=loop.time,
            started="then",
            console=Console(file=io.StringIO()),
            stop=asyncio.Event(),
        )
        try:
            return [
                await replay(Options(trace=SYNTHETIC, url="http://engine", seed=seed, **options), world)
                for seed in seeds
            ]
        finally:
            await upstream.aclose()

    return run(main())


def reusable(trace: Trace) -> float:
    share = statistics(trace).reuse_share
    assert share is not None
    return share


@pytest.fixture(scope="module")
def first() -> Report:
    return replayed(limit=60)[0]


def test_every_request_succeeds_with_the_exact_lengths_of_the_trace(first: Report) -> None:
    assert first.all_succeeded
    assert first.prompt_fit is not None
    assert first.output_fit is not None
    assert first.prompt_fit.exact == first.output_fit.exact == 60


def test_prefixes_are_cached_about_as_much_as_the_trace_allows(first: Report) -> None:
    """Less than an endless cache: what is still being prefilled cannot be shared, and blocks are shifted."""
    assert first.cache is not None
    most = reusable(read_trace(SYNTHETIC, limit=60))
    assert most * 0.7 < first.cache.share < most


def test_a_second_replay_finds_its_prompts_cached_and_another_seed_does_not() -> None:
    shares = [found.cache.share for found in replayed((0, 0, 1), limit=20) if found.cache is not None]
    cold, warm, reseeded = shares
    assert warm > 0.9
    assert cold < warm
    assert reseeded == pytest.approx(cold, abs=0.1)


def test_the_whole_run_is_a_function_of_its_inputs(first: Report) -> None:
    assert msgspec.json.encode(replayed(limit=60)[0]) == msgspec.json.encode(first)


def test_completions_are_exact_as_well() -> None:
    (found,) = replayed(limit=15, api="completions")
    assert found.all_succeeded
    assert found.prompt_fit is not None
    assert found.prompt_fit.exact == 15
