"""Transcriptions: a form with a file in, text out.

Separate because the body is no JSON; the text is a function of the file's bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from engines.mock.ask import Ask, Sampling
from engines.mock.errors import ClientGone, Refusal, bad_body, bad_request, body_vllm
from engines.mock.fields import Fields
from engines.mock.multipart import Part, parse_form
from engines.mock.openai_ask import check_model
from engines.mock.process import EngineProcess
from engines.mock.rank_ask import HEADER, rank_asked
from engines.mock.wire import ClientWatch, Request
from engines.model.text import media_tokens

BYTES_PER_SECOND = 32_000
"""Of 16-bit mono audio at 16 kHz; what an upload's length is taken for."""
TOKENS_PER_SECOND = 3
"""Of transcribed speech: about two and a half words a second, a little more than a token each."""


async def serve_transcription(request: Request, process: EngineProcess) -> None:
    """Answer one upload with its text, as JSON or, when `response_format` is `text`, plain.

    Raises:
        Severed: the connection was ended by a fault or a crash.
    """
    try:
        parts = parse_form(request.header("content-type"), request.body)
        ask, seconds = _ask(parts, process, request.header("x-request-id") or process.draw_id())
        form = _text(parts, "response_format") or "json"
        if form not in {"json", "text"}:
            raise bad_request(f"response_format must be json or text, got {form}.", "response_format")
        ask = replace(ask, rank=rank_asked(request.header(HEADER), None, process.settings))
        generation = process.submit(ask, request.arrived)
        with ClientWatch(request.receive, generation.leave):
            (answer,) = await generation.answers()
    except Refusal as refusal:
        await request.answer(refusal.status, body_vllm(refusal))
        return
    except ClientGone:
        return
    except ConnectionResetError:
        await request.sever(hard=True)
    if form == "text":
        await request.answer(200, answer.text.encode(), b"text/plain; charset=utf-8")
        return
    usage = {"type": "duration", "seconds": seconds}
    await request.answer(200, msgspec.json.encode({"text": answer.text, "usage": usage}))


def _ask(parts: Mapping[str, Part], process: EngineProcess, request_id: str) -> tuple[Ask, int]:
    model = _text(parts, "model")
    check_model(Fields({"model": model}), process.settings.name)
    upload = parts.get("file")
    if upload is None or upload.filename is None:
        raise bad_body("1 validation error: body.file is required and was not sent", "body.file")
    seconds = -(-len(upload.data) // BYTES_PER_SECOND)
    prompt = tuple(media_tokens({"type": "input_audio", "data": upload.data.hex()}))
    longest = process.hardware.config.max_model_len - len(prompt)
    if longest < 1:
        raise bad_request("The audio does not fit into this model's context.", "file")
    tokens = max(1, min(seconds * TOKENS_PER_SECOND, longest))
    ask = Ask(
        request_id=f"trsc-{request_id}",
        model=process.settings.name,
        prompts=(prompt,),
        sampling=Sampling(max_tokens=tokens, ignore_eos=True),
    )
    return ask, seconds


def _text(parts: Mapping[str, Part], name: str) -> str | None:
    part = parts.get(name)
    return None if part is None else part.data.decode(errors="replace")
