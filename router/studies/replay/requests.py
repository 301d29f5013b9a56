"""The body of each request. Pure: the same settings and entry give the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from router.studies.replay.prompts import Prompts
from router.studies.replay.settings import Api, ReplaySettings
from router.studies.traces.trace import TraceEntry


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready to be sent. `max_tokens` is the entry's output, or what the context has room for."""

    body: bytes
    max_tokens: int
    clipped: bool


def prompt_field(api: Api, text: str) -> dict[str, Any]:
    """The part of a body that carries the prompt: one user message, or the plain prompt."""
    if api == "chat":
        return {"messages": [{"role": "user", "content": text}]}
    return {"prompt": text}


def too_long(settings: ReplaySettings, entry: TraceEntry) -> bool:
    """Whether the engine's context has no room for this prompt and one token more."""
    return settings.max_model_len is not None and entry.prompt_tokens >= settings.max_model_len


def prepare(settings: ReplaySettings, prompts: Prompts, entry: TraceEntry) -> Prepared:
    """Builds the streamed request of one entry; see `too_long` for those that have none."""
    max_tokens = entry.output_tokens
    if settings.max_model_len is not None:
        max_tokens = min(max_tokens, settings.max_model_len - entry.prompt_tokens)
    model = entry.model if settings.trace_models and entry.model is not None else settings.model
    fields: dict[str, Any] = {
        "model": model,
        **prompt_field(settings.api, prompts.write(entry)),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if settings.ignore_eos:
        fields["ignore_eos"] = True
    if settings.send_session and entry.session is not None:
        fields["prompt_cache_key"] = entry.session
    return Prepared(msgspec.json.encode(fields), max_tokens, clipped=max_tokens < entry.output_tokens)
