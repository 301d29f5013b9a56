"""Laws of a split request that goes well: what each engine gets, and what the client sees of it."""

from __future__ import annotations

from tests.shell.live import ASK, CHAT, STREAM, Live
from tests.shell.pair import of_decode, play_pair
from tests.shell.puppet import TALK, WHOLE


def test_a_split_stream_is_the_decode_workers_stream_byte_for_byte() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.body) == (200, TALK)
        (first,), (second,) = act.puppets["p"].asks, act.puppets["d"].asks
        assert first.json()["max_tokens"] == 1
        assert first.json()["stream"] is False
        assert of_decode(second)
        assert second.json()["kv_transfer_params"]["remote_request_id"].startswith("cmpl-")
        assert await act.metric("pointsman_split_requests_total") == 1
        assert await act.metric("pointsman_transfer_seconds_count") == 1

    play_pair(scene)


def test_a_split_answer_that_is_not_streamed_is_the_decode_workers() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, ASK)
        assert (reply.status, reply.body) == (200, WHOLE)

    play_pair(scene)
