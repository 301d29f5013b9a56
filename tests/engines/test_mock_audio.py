"""Transcriptions: a form with a file in, the same text for the same file out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mock.errors import Refusal
from engines.mock.multipart import parse_form
from router.virtual.clock import run
from tests.engines.mock_stage import Reply, stage

BOUNDARY = "xYzZy"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def form(*parts: tuple[str, str | None, bytes]) -> bytes:
    body = b""
    for name, filename, data in parts:
        head = f'Content-Disposition: form-data; name="{name}"'
        if filename is not None:
            head += f'; filename="{filename}"\r\nContent-Type: audio/wav'
        body += f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + data + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


def ask(body: bytes, content_type: str = TYPE) -> Reply:
    async def main() -> Reply:
        async with stage() as act:
            return await act.ask("/v1/audio/transcriptions", body, {"content-type": content_type})

    return run(main())


SOUND = bytes(range(256)) * 250


def test_the_same_file_has_the_same_text_and_another_has_another() -> None:
    first = ask(form(("file", "a.wav", SOUND), ("model", None, b"qwen2.5-3b"))).json()
    assert first["usage"] == {"type": "duration", "seconds": 2}
    assert first["text"]
    assert ask(form(("file", "b.wav", SOUND))).json() == first
    assert ask(form(("file", "a.wav", SOUND[1:]))).json()["text"] != first["text"]


def test_plain_text_is_given_when_asked_for() -> None:
    reply = ask(form(("file", "a.wav", SOUND), ("response_format", None, b"text")))
    assert reply.headers["content-type"].startswith("text/plain")
    assert reply.body.decode() == ask(form(("file", "a.wav", SOUND))).json()["text"]


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (form(("model", None, b"qwen2.5-3b")), TYPE, 400),
        (form(("file", None, b"no file name")), TYPE, 400),
        (form(("file", "a.wav", SOUND), ("model", None, b"nope")), TYPE, 404),
        (form(("file", "a.wav", SOUND), ("response_format", None, b"srt")), TYPE, 400),
        (b"{}", "application/json", 400),
        (b"nothing", TYPE, 400),
        (form(("file", "a.wav", SOUND))[:-4], TYPE, 400),
    ],
)
def test_what_is_no_upload_is_refused(body: bytes, content_type: str, status: int) -> None:
    reply = ask(body, content_type)
    assert (reply.status, reply.json()["error"]["code"]) == (status, status)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_parts_come_out_as_they_went_in(first: bytes, second: bytes) -> None:
    delimiter = f"--{BOUNDARY}".encode()
    if delimiter in first or delimiter in second:
        return
    parts = parse_form(TYPE, form(("a", "x", first), ("b", None, second)))
    assert (parts["a"].data, parts["a"].filename) == (first, "x")
    assert (parts["b"].data, parts["b"].filename) == (second, None)


def test_a_part_without_a_name_is_refused() -> None:
    body = f"--{BOUNDARY}\r\nContent-Type: text/plain\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode()
    with pytest.raises(Refusal, match="a part of the form has no name"):
        parse_form(TYPE, body)
