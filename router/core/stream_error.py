"""The events that the router itself may write into a client's stream: errors and keep-alives.

Separate because these are the only bytes of a stream that no engine sent. They may be written at an event
boundary only (`StreamScanner.at_boundary`): in the middle of an event they would end it, and the client would
read half an answer as a whole one. A stream that was ended by an error gets no `[DONE]`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from router.core.errors import RouterError
from router.core.request import Api

_encode = msgspec.json.Encoder().encode

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Error types of Anthropic's Messages API by HTTP status; `api_error` for the rest."""


def anthropic_type(status: int) -> str:
    """Error type of the Messages API for an HTTP status."""
    return _ANTHROPIC_TYPES.get(status, "api_error")


def anthropic_status(kind: str) -> int | None:
    """HTTP status that an error type of the Messages API stands for; None for a type not known there."""
    if kind == "api_error":
        return 500
    return next((status for status, name in _ANTHROPIC_TYPES.items() if name == kind), None)


def error_event(
    api: Api, error: RouterError, *, answer_id: str = "", model: str = "", sequence_number: int = 0
) -> bytes:
    """The event that ends a broken stream in the shape of its API.

    Args:
        answer_id, model, sequence_number: of the stream so far; the Responses API repeats them.
    """
    if api is Api.MESSAGES:
        detail = {"type": anthropic_type(error.status), "message": error.message}
        return _event("error", {"type": "error", "error": detail})
    if api is Api.RESPONSES:
        return _event("response.failed", _failed_response(error, answer_id, model, sequence_number))
    body = {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code or str(error.status),
        }
    }
    return b"data: " + _encode(body) + b"\n\n"


def keep_alive(api: Api) -> bytes:
    """A sign of life that no client takes for content: a comment, or a ping where the API knows one."""
    if api is Api.MESSAGES:
        return _event("ping", {"type": "ping"})
    return b": keep-alive\n\n"


def _failed_response(error: RouterError, answer_id: str, model: str, sequence_number: int) -> dict[str, Any]:
    response: dict[str, Any] = {
        "id": answer_id,
        "object": "response",
        "status": "failed",
        "error": {"code": error.code or "server_error", "message": error.message},
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
    }
    return {"type": "response.failed", "sequence_number": sequence_number, "response": response}


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode(data) + b"\n\n"
