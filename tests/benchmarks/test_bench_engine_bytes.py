"""Laws of the measuring engine's bytes: what routers read in them is what real engines would have said."""

from __future__ import annotations

import httptools

from benchmarks import engine_bytes as says
from router.core.answer import read_answer
from router.core.exposition import read_stats
from router.core.request import Api
from router.core.stream import StreamScanner


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def test_a_stream_reads_as_one_whole_answer_of_vllm() -> None:
    scanner = StreamScanner(Api.CHAT)
    events = [says.opening_event(), *says.token_events(), says.last_event(), says.usage_event(13), says.DONE]
    for event in events:
        assert scanner.feed(event) == event
    facts = scanner.facts
    assert scanner.complete
    assert facts.answer_id == says.ANSWER_ID
    assert facts.content_events == len(says.token_events()) + 1
    assert facts.finish_reasons == {0: "length"}
    assert (facts.prompt_tokens, facts.generated_tokens) == (says.PROMPT_TOKENS, 13)


def test_the_stream_is_framed_as_http_frames_it() -> None:
    pieces: list[bytes] = []

    class Reader:
        def on_body(self, body: bytes) -> None:
            pieces.append(body)

        def on_message_complete(self) -> None:
            pieces.append(b"end")

    parser = httptools.HttpResponseParser(Reader())
    parser.feed_data(says.stream_head() + says.chunked(says.DONE) + b"0\r\n\r\n")
    assert pieces == [says.DONE, b"end"]


def test_the_whole_answer_is_small_and_says_its_usage() -> None:
    body = body_of(says.whole_chat())
    facts = read_answer(Api.CHAT, body)
    assert 600 < len(body) < 800
    assert facts.usage is not None
    assert facts.usage.completion_tokens == 12


def test_a_scrape_is_as_long_as_vllms_and_has_its_signals() -> None:
    body = body_of(says.metrics())
    stats = read_stats(body, 0.0)
    assert len(body) > 30_000
    assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.1)
    assert stats.kv_capacity_tokens is not None
