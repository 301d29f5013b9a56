"""The generation APIs of vLLM, each a record of functions.

Separate from `serving`, which knows how to run any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engines.mock.ask import Answer, Ask
from engines.mock.chat import DONE, ChatStream, chat_body
from engines.mock.completions import CompletionStream, completion_body
from engines.mock.errors import body_vllm, event_vllm
from engines.mock.openai_ask import chat_ask, completion_ask
from engines.mock.serving import Api, StreamEncoder


def _chat_stream(ask: Ask, created: int, fingerprint: str, details: bool) -> StreamEncoder:
    return ChatStream(ask, created, fingerprint, details=details)


def _chat_body(
    ask: Ask, answers: Sequence[Answer], created: int, fingerprint: str, cached: int | None
) -> bytes:
    return chat_body(ask, answers, created, fingerprint, cached_tokens=cached)


def _completion_stream(ask: Ask, created: int, fingerprint: str, details: bool) -> StreamEncoder:
    return CompletionStream(ask, created, fingerprint, details=details)


def _completion_body(
    ask: Ask, answers: Sequence[Answer], created: int, fingerprint: str, cached: int | None
) -> bytes:
    return completion_body(ask, answers, created, fingerprint, cached_tokens=cached)


CHAT = Api(
    ask=chat_ask,
    stream=_chat_stream,
    body=_chat_body,
    error_body=body_vllm,
    error_event=event_vllm,
    error_end=DONE,
)

COMPLETIONS = Api(
    ask=completion_ask,
    stream=_completion_stream,
    body=_completion_body,
    error_body=body_vllm,
    error_event=event_vllm,
    error_end=DONE,
)

VLLM_APIS: Mapping[str, Api] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
}
