"""A real vLLM publishes the events of its KV cache, and the router knows from them what it holds.

One engine of its own, told where to publish as docs/kv-events.md says; the router finds that out by itself.
What it predicts is asked of `/route/explain` before a request goes, and held against what the engine reports.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.install import MODEL
from tests.real.processes import free_port, until
from tests.real.stage import ADMIN_KEY, Router, router_with, sample
from tests.real.vllm import BLOCK_TOKENS, KV_BLOCKS, START_S, VllmEngine, chat, completion, start
from tests.real.vllm_bodies import CHAT, COMPLETIONS
from tests.real.wire import ask

pytestmark = pytest.mark.timeout(900)
HEARD_S = 10.0
"""Events come within milliseconds of a step; a busy machine takes its time."""
QUIET_S = 0.2
"""So long nothing new: an engine that has answered has no more to tell."""
EXACT = 2.0


@dataclass(frozen=True)
class Followed:
    """An engine whose events the router follows."""

    engine: VllmEngine
    router: Router

    def metric(self, name: str) -> float | None:
        """The router's own figure of its one worker, the label `by` aside; None when it shows none."""
        lines = ask(self.router.port, "GET", "/metrics").body.decode().splitlines()
        wanted = f"pointsman_worker_{name}{{"
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(wanted)), None)

    def predicted(self, path: str, body: dict[str, Any]) -> float:
        """Tokens of a prompt that the router expects the engine to have cached."""
        question = {"path": path, "body": body}
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        answer = ask(self.router.port, "POST", "/route/explain", question, headers=headers)
        assert answer.status == 200, answer.body
        (candidate,) = answer.json()["candidates"]
        return float(candidate["terms"]["cached_tokens"])

    def cached(self, path: str, body: dict[str, Any]) -> int:
        """Sends it, and returns how many tokens of the prompt the engine says it had cached."""
        answer = ask(self.router.port, "POST", path, body)
        assert answer.status == 200, answer.body
        details = answer.json()["usage"]["prompt_tokens_details"]
        return int((details or {}).get("cached_tokens") or 0)

    def hits(self) -> float:
        """Prompt tokens that the engine itself has counted as found in its cache."""
        return self.engine.stats().prefix_hits or 0.0

    def until_heard(self) -> None:
        """Waits until no event comes any more, and the record is exact."""
        batches = [-1.0, -2.0]

        def settled() -> bool:
            batches.append(self.metric("kv_events_batches_total") or 0.0)
            time.sleep(QUIET_S)
            return batches[-1] == batches[-2] > 0.0 and self.metric("prefix_trust") == EXACT

        until(settled, HEARD_S, f"an exact record: {self.router.tail()}")


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    directory = tmp_path_factory.mktemp("kv-events")
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{free_port()}",
        "replay_endpoint": f"tcp://*:{free_port()}",
    }
    engine = start(directory, flags={"kv-events-config": json.dumps(events)})
    try:
        engine.until_healthy("/health", START_S)
        with following(engine, directory) as found:
            yield found
    finally:
        engine.stop()


@contextmanager
def following(engine: VllmEngine, directory: Path) -> Iterator[Followed]:
    """A router that has subscribed to the events of this engine."""
    with router_with([engine], directory, "--config", str(_config(directory, engine))) as router:
        found = Followed(engine, router)
        until(lambda: found.metric("kv_events_up") == 1.0, HEARD_S, f"a subscription: {router.tail()}")
        yield found


def _config(directory: Path, engine: VllmEngine) -> Path:
    path = directory / "router.yaml"
    pool = {"policy": "cache_aware", "tokenizer": str(MODEL), "workers": [{"url": engine.url}]}
    path.write_text(json.dumps({"pools": {"default": pool}}))
    return path


@pytest.fixture(autouse=True)
def first_law(followed: Followed) -> Iterator[None]:
    yield
    followed.router.assert_idle()


def ids(first: int, count: int) -> list[int]:
    """Token ids of printable characters, another row for each beginning."""
    return [32 + (first + 7 * place) % 94 for place in range(count)]


def test_two_prompts_that_share_a_prefix_hit_what_the_router_predicts(followed: Followed) -> None:
    shared = ids(0, 3 * BLOCK_TOKENS + 10)
    one = completion(shared + ids(1, 60), max_tokens=2)
    other = completion(shared + ids(2, 60), max_tokens=2)
    assert followed.predicted(COMPLETIONS, one) == 0.0
    assert followed.cached(COMPLETIONS, one) == 0
    followed.until_heard()
    predicted, hits = followed.predicted(COMPLETIONS, other), followed.hits()
    reported = followed.cached(COMPLETIONS, other)
    assert predicted == reported == 3 * BLOCK_TOKENS
    assert followed.hits() - hits == reported


def test_a_chat_is_tokenized_as_the_engine_does_it_and_predicted_to_the_block(followed: Followed) -> None:
    words = "a system prompt that many conversations share, and that takes a few blocks of tokens; " * 2
    assert followed.cached(CHAT, chat(words + "the first question", max_tokens=2)) == 0
    followed.until_heard()
    other = chat(words + "another question", max_tokens=2)
    predicted = followed.predicted(CHAT, other)
    reported = followed.cached(CHAT, other)
    assert reported >= len(words) // BLOCK_TOKENS * BLOCK_TOKENS
    assert abs(predicted - reported) <= BLOCK_TOKENS


def test_the_router_counts_the_blocks_that_the_engine_holds(followed: Followed) -> None:
    before = followed.metric("prefix_resident_tokens") or 0.0
    followed.cached(COMPLETIONS, completion(ids(11, 5 * BLOCK_TOKENS + 1), max_tokens=1))
    followed.until_heard()
    assert (followed.metric("prefix_resident_tokens") or 0.0) - before == 5 * BLOCK_TOKENS


def test_a_router_that_comes_later_knows_by_replay_what_was_stored_before(
    followed: Followed, tmp_path: Path
) -> None:
    shared = ids(41, 6 * BLOCK_TOKENS)
    followed.cached(COMPLETIONS, completion(shared + ids(1, 5), max_tokens=1))
    followed.until_heard()
    other = completion(shared + ids(2, 5), max_tokens=1)
    with following(followed.engine, tmp_path) as later:
        later.until_heard()
        assert (later.metric("kv_events_replayed_total") or 0.0) > 0.0
        assert later.metric("prefix_resident_tokens") == followed.metric("prefix_resident_tokens")
        assert later.predicted(COMPLETIONS, other) == 6 * BLOCK_TOKENS
        assert later.cached(COMPLETIONS, other) == 6 * BLOCK_TOKENS


def test_what_the_engine_evicts_is_forgotten(followed: Followed) -> None:
    first = completion(ids(21, 4 * BLOCK_TOKENS + 1), max_tokens=1)
    followed.cached(COMPLETIONS, first)
    followed.until_heard()
    assert followed.predicted(COMPLETIONS, first) == 4 * BLOCK_TOKENS
    blocks = 40
    for number in range(KV_BLOCKS // blocks + 1):
        followed.cached(COMPLETIONS, completion(ids(30 + number, blocks * BLOCK_TOKENS), max_tokens=1))
    followed.until_heard()
    assert (followed.metric("kv_events_blocks_removed_total") or 0.0) > 0.0
    # What was sent a moment ago counts for five seconds, so that a burst finds its prefix before events do.
    until(lambda: followed.predicted(COMPLETIONS, first) == 0.0, HEARD_S, "the removal to be believed")
    assert followed.cached(COMPLETIONS, first) == 0
    resident = followed.metric("prefix_resident_tokens") or 0.0
    assert 0.0 < resident <= (KV_BLOCKS - 1) * BLOCK_TOKENS


def test_no_event_was_lost_or_not_understood(followed: Followed) -> None:
    for name in ("gaps", "broken", "unknown", "orphans", "lost", "replays_failed"):
        assert followed.metric(f"kv_events_{name}_total") == 0.0
    assert sample(followed.engine.metrics(), "vllm:num_preemptions_total") == 0.0
    lines = ask(followed.router.port, "GET", "/metrics").body.decode().splitlines()
    errors = [line for line in lines if line.startswith("pointsman_worker_prefix_error_ratio{")]
    by_events = [float(line.rsplit(" ", 1)[1]) for line in errors if 'by="events"' in line]
    assert by_events
    assert max(by_events) < 0.05
