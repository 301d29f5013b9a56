"""Laws of the client that plays calls at their own times, and of the comparison with simulated ones."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.parity import compared, elsewhere, hit_otherwise, jittered, simulated
from benchmarks.timed_calls import Seen, StreamedAnswer, request_bytes
from engines.model.parts import Part
from router.studies.simulation.call import Call, Texts
from router.virtual.clock import run

HEAD = b"HTTP/1.1 200 OK\r\nX-Pointsman-Worker: w1\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"text":"a"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":32}}}\n\n'
    b"data: [DONE]\n\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def call(number: int = 0, at: float = 0.0) -> Call:
    return Call(number=number, at=at, parts=(Part(number, 20),), output_tokens=7)


async def answered(*pieces: bytes) -> Seen:
    answer = StreamedAnswer()
    for piece in pieces:
        answer.data_received(piece)
    answer.connection_lost(None)
    await answer.whole
    return answer.seen(0.0, 0.0)


def test_a_call_asks_for_exactly_its_tokens_in_its_own_text() -> None:
    head, _, body = request_bytes(call(), Texts()).partition(b"\r\n\r\n")
    ask = msgspec.json.decode(body)
    assert b"content-length: %d" % len(body) in head
    assert (ask["max_tokens"], ask["ignore_eos"], len(ask["prompt"])) == (7, True, 80)


def test_a_stream_tells_worker_hits_and_that_its_first_token_came_before_its_end() -> None:
    seen = run(answered(HEAD, chunk(TOKEN), chunk(TOKEN), chunk(USAGE) + chunk(b"")))
    assert (seen.worker, seen.hit_tokens) == ("w1", 32)
    assert 0.0 < seen.ttft_s <= seen.e2e_s


def test_headers_alone_are_no_token() -> None:
    with pytest.raises(RuntimeError, match="without tokens"):
        run(answered(HEAD, chunk(b"")))


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([HEAD, chunk(TOKEN)], "closed in the middle"),
        ([b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy"], "status 503"),
        ([b"no HTTP at all\r\n\r\n"], "not HTTP"),
    ],
)
def test_an_answer_that_is_no_whole_stream_ends_the_run(pieces: list[bytes], why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        run(answered(*pieces))


def test_times_are_judged_by_the_share_they_are_off() -> None:
    mean, p90 = compared("TTFT", [0.11, 0.13], [0.1, 0.1])
    assert mean.figure == pytest.approx(0.2)
    assert not mean.holds
    assert p90.name.startswith("TTFT p90")


def test_placements_and_hits_are_compared_call_by_call() -> None:
    left = [Seen("a", 0.1, 0.2, 0), Seen("b", 0.1, 0.2, 16)]
    right = [Seen("b", 0.1, 0.2, 0), Seen("b", 0.1, 0.2, 16)]
    assert elsewhere(left, right) == 0.5
    assert hit_otherwise(left, right) == 0.0


def test_jitter_moves_arrivals_by_a_millisecond_at_most_and_by_the_same_again() -> None:
    calls = [call(number, at=number / 4) for number in range(20)]
    moved = jittered(calls, 3)
    assert moved == jittered(calls, 3) != jittered(calls, 4)
    assert all(
        abs(one.at - other.at) <= 0.001 and one.at >= 0.0 for one, other in zip(calls, moved, strict=True)
    )


def test_a_call_takes_four_milliseconds_longer_than_its_engine() -> None:
    calls = [msgspec.structs.replace(call(), max_tokens=7, ignore_eos=True)]
    (seen,) = simulated("cache_aware", calls)
    ways_s = 0.004
    assert ways_s < seen.ttft_s < seen.e2e_s
