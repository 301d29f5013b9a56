"""What the mock refuses, and the body each dialect gives for it.

Separate so that validation raises one exception and each API renders it in its own error shape.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import msgspec

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "NotFoundError",
    500: "internal_error",
    503: "overloaded_error",
}
"""Types of the Messages API by status; 404 is vLLM's own spelling, as recorded."""


@dataclass(slots=True, eq=False)
class Refusal(Exception):
    """A request that is answered with an error body.

    Attributes:
        status: HTTP status, repeated as `code` in the body.
        kind: the body's `type`.
        message: one sentence for the client.
        param: the field at fault, None when it is not one field.
    """

    status: int
    kind: str
    message: str
    param: str | None = None

    def __str__(self) -> str:
        return self.message

    def fields(self) -> dict[str, object]:
        """Return vLLM's error object, in its key order."""
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


def bad_request(message: str, param: str | None = None) -> Refusal:
    """A value that the engine cannot serve (vLLM: BadRequestError)."""
    return Refusal(400, "BadRequestError", message, param)


def bad_body(message: str, where: str = "body") -> Refusal:
    """A body that does not have the asked shape (vLLM: the validation error of its web framework)."""
    return Refusal(400, "Bad Request", message, where)


def unknown_model(asked: str, served: str) -> Refusal:
    """A model that this engine does not serve."""
    return Refusal(
        404, "NotFoundError", f"The model `{asked}` does not exist. Valid aliases: {served}.", "model"
    )


def queue_full() -> Refusal:
    """The limit of `--max-num-queued-reqs` is reached."""
    return Refusal(
        503,
        "Service Unavailable",
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance.",
    )


def draining() -> Refusal:
    """SIGTERM was received and open requests may finish; vLLM was seen to answer new ones like this."""
    return Refusal(500, "InternalServerError", "cannot schedule new futures after shutdown")


def load_failed() -> Refusal:
    """The KV of a request could not be had, and the policy is to fail."""
    return Refusal(500, "InternalServerError", "Internal server error")


def transfer_failed(message: str) -> Refusal:
    """The two engines of a request did not come together, or their transfer failed (SGLang)."""
    return Refusal(500, "InternalServerError", message)


def engine_dead() -> Refusal:
    """The engine core died while the request was in it."""
    return Refusal(
        500,
        "InternalServerError",
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    )


def body_vllm(refusal: Refusal) -> bytes:
    """Return the JSON body of vLLM's OpenAI routes."""
    return msgspec.json.encode({"error": refusal.fields()})


def body_sglang(refusal: Refusal) -> bytes:
    """Return SGLang's flat JSON body."""
    return msgspec.json.encode({"object": "error", **in_sglang_words(refusal).fields()})


def body_for(dialect: str, path: str, refusal: Refusal) -> bytes:
    """Return the JSON body of a refusal in the shape of the route that was asked."""
    if path.startswith("/v1/messages"):
        return body_anthropic(refusal)
    return body_sglang(refusal) if dialect == "sglang" else body_vllm(refusal)


def event_for(dialect: str, path: str, refusal: Refusal) -> bytes:
    """Return the error event of a refusal in the shape of the route that was asked."""
    if path.startswith("/v1/messages"):
        return event_anthropic(refusal)
    if path.startswith("/v1/responses"):
        return event_responses(refusal)
    return event_sglang(refusal) if dialect == "sglang" else event_vllm(refusal)


def body_anthropic(refusal: Refusal) -> bytes:
    """Return the JSON body of the Messages API; a body of the wrong shape keeps the OpenAI form."""
    if refusal.kind == "Bad Request":
        return body_vllm(refusal)
    return msgspec.json.encode({"type": "error", "error": anthropic_error(refusal)})


def anthropic_error(refusal: Refusal) -> dict[str, str]:
    """Return the inner error object of the Messages API."""
    return {"type": _ANTHROPIC_TYPES.get(refusal.status, refusal.kind), "message": refusal.message}


def event_vllm(refusal: Refusal) -> bytes:
    """Return the error event of a stream whose status was already 200 (with json.dumps' spaces, as vLLM)."""
    return b"data: " + json.dumps({"error": refusal.fields()}).encode() + b"\n\n"


def in_sglang_words(refusal: Refusal) -> Refusal:
    """Say a refusal as SGLang does where its words differ."""
    if refusal.status == 503:
        return Refusal(503, "ServiceUnavailableError", "The request queue is full.")
    return refusal


def event_sglang(refusal: Refusal) -> bytes:
    """Return SGLang's error event."""
    return (
        b"data: "
        + json.dumps({"error": {"object": "error", **in_sglang_words(refusal).fields()}}).encode()
        + b"\n\n"
    )


def event_anthropic(refusal: Refusal) -> bytes:
    """Return the error event of the Messages API."""
    return b"event: error\ndata: " + body_anthropic(refusal) + b"\n\n"


def event_responses(refusal: Refusal) -> bytes:
    """Return the error event of the Responses API."""
    data = {"code": str(refusal.status), "message": refusal.message, "param": refusal.param, "type": "error"}
    return b"event: error\ndata: " + msgspec.json.encode(data) + b"\n\n"
