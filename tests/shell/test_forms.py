"""Multipart bodies: streamed through, bounded, and placed by the model that they name."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.shell.live import QUIET, Live, play
from tests.shell.puppet import WHOLE, hang


async def _whole(ask: Any) -> None:
    ask.answer(200, WHOLE)


def test_a_form_over_its_limit_is_refused_when_declared() -> None:
    async def scene(act: Live) -> None:
        client = await act.raw()
        client.send(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: r\r\ncontent-length: 1000000\r\n"
            b"content-type: multipart/form-data; boundary=c\r\n\r\n"
        )
        await client.until(lambda: b"body_too_large" in client.received)
        client.transport.close()

    play(scene, limits={"multipart_bytes": 100_000})


FORM_HEAD = (
    b'--c\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--c\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
)


def test_a_form_that_turns_out_too_large_is_refused_and_no_worker_blamed() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].at_head = act.puppets["b"].at_head = True
        for _ in range(6):
            client = await act.raw()
            client.send(
                b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n"
                b"content-type: multipart/form-data; boundary=c\r\n\r\n%x\r\n%b\r\n"
                % (len(FORM_HEAD), FORM_HEAD)
            )
            for _ in range(30):
                client.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
                await asyncio.sleep(0.001)
            await client.until(lambda client=client: b"body_too_large" in client.received)  # type: ignore[misc]
            client.transport.close()
        assert {act.state(name) for name in "ab"} == {"ready"}
        assert act.worker("a").health.failures == 0

    play(scene, {"a": hang, "b": hang}, limits={"multipart_bytes": 100_000}, **QUIET)


def test_a_form_without_a_model_goes_to_the_only_model_there_is() -> None:
    body = b'--c\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nabc\r\n--c--\r\n'
    kind = {"content-type": "multipart/form-data; boundary=c"}

    async def scene(act: Live) -> None:
        assert (await act.ask("/v1/audio/transcriptions", body, kind)).status == 200
        act.pool.roster.learn_models("a", {"m": None, "other": None})
        reply = await act.ask("/v1/audio/transcriptions", body, kind)
        assert (reply.status, reply.error["param"]) == (400, "model")

    play(scene, {"a": _whole})


def test_a_form_streams_through_while_it_comes() -> None:
    async def scene(act: Live) -> None:
        puppet = act.puppets["a"]
        puppet.at_head = True
        client = await act.raw()
        rest = b"x" * 3_000_000
        size = len(FORM_HEAD) + len(rest)
        client.send(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: r\r\ncontent-length: %d\r\n"
            b"content-type: multipart/form-data; boundary=c\r\n\r\n" % size + FORM_HEAD
        )
        await act.until(lambda: len(puppet.asks) == 1)
        assert puppet.asks[0].header("content-length") == str(size)
        client.send(rest[:1_500_000])
        await act.until(lambda: len(puppet.asks[0].body) > 1_000_000)
        assert act.router.bodies.used == 0
        client.send(rest[1_500_000:])
        await act.until(lambda: len(puppet.asks[0].body) == size)
        assert puppet.asks[0].body == FORM_HEAD + rest
        puppet.asks[0].answer(200, b'{"text": "x"}')
        await client.until(lambda: b'{"text": "x"}' in client.received)
        client.transport.close()

    play(scene, {"a": hang})
