"""Forms that try to be read wrongly, on the whole router."""

from __future__ import annotations

import asyncio

import pytest

from tests.shell.live import QUIET, Live, play
from tests.shell.puppet import MODEL, Ask, failure

PATH = "/v1/audio/transcriptions"
TYPE = {"content-type": "multipart/form-data; boundary=cut"}


def part(disposition: str, value: bytes) -> bytes:
    return f"--cut\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + value + b"\r\n"


RIGHT = part('name="model"', MODEL.encode())
END = b"--cut--\r\n"


async def transcribe(ask: Ask) -> None:
    ask.answer(200, b'{"text":"hi"}')


@pytest.mark.parametrize(
    "before",
    [
        part('name="file"; filename="model"', b"RIFF\r\n\r\nother\r\n"),
        part('name="model_hint"', b"other"),
        part('name="prompt"', b'name="model"\r\n\r\nother\r\n'),
    ],
    ids=["file", "longer_name", "text"],
)
def test_a_form_goes_to_the_model_of_its_own_field(before: bytes) -> None:
    async def scene(act: Live) -> None:
        body = before + RIGHT + END
        reply = await act.ask(PATH, body, TYPE)
        assert (reply.status, reply.body) == (200, b'{"text":"hi"}')
        assert act.puppets["a"].asks[0].body == body

    play(scene, {"a": transcribe})


def test_a_compressed_form_is_refused_in_words() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(PATH, RIGHT + END, {**TYPE, "content-encoding": "gzip"})
        assert reply.status == 400
        assert "Content-Encoding" in reply.error["message"]
        assert not act.puppets["a"].asks

    play(scene, {"a": transcribe})


def test_a_form_that_comes_byte_by_byte_arrives_whole() -> None:
    async def scene(act: Live) -> None:
        body = part('name="text"', b"name=model\r\n" * 50) + RIGHT + END
        client = await act.raw()
        head = f"POST {PATH} HTTP/1.1\r\nhost: r\r\ncontent-type: {TYPE['content-type']}\r\n"
        client.send(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
        for byte in body:
            client.send(b"1\r\n%c\r\n" % byte)
            await asyncio.sleep(0)
        client.send(b"0\r\n\r\n")
        await client.until(lambda: b'{"text":"hi"}' in client.received)
        assert act.puppets["a"].asks[0].body == body
        client.transport.close()

    play(scene, {"a": transcribe})


async def know_only_ours(ask: Ask) -> None:
    """As vLLM, which takes the last of two fields of one name."""
    if b"\r\n\r\nother\r\n" in ask.body:
        ask.answer(404, failure(404, f"The model `other` does not exist. Valid aliases: {MODEL}."))
    else:
        ask.answer(200, b'{"text":"hi"}')


def test_a_second_model_in_a_form_costs_the_worker_nothing() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(PATH, RIGHT + part('name="model"', b"other") + END, TYPE)
        assert reply.status == 404
        assert act.worker("a").models == {MODEL}
        assert len(act.puppets["a"].asks) == 1

    play(scene, {"a": know_only_ours}, **QUIET)
