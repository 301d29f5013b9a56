"""An error as the client's library expects it. The only place where an error becomes a status and a body."""

from __future__ import annotations

import math

import msgspec

from router.api.routes import ROUTES
from router.core.errors import ModelNotFound, NotFound, QueueFull, RouterError, Unauthorized, shown
from router.core.request import Api
from router.core.stream_error import anthropic_type

_encode = msgspec.json.Encoder().encode
_JSON = (b"content-type", b"application/json")
_MIN_RETRY_AFTER_S = 1
_MAX_RETRY_AFTER_S = 60


def error_body(error: RouterError, api: Api) -> bytes:
    """The JSON body of an error: Anthropic's shape for Messages, OpenAI's for everything else."""
    if api is Api.MESSAGES:
        detail = {"type": anthropic_type(error.status), "message": error.message}
        return _encode({"type": "error", "error": detail})
    return _encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )


def error_headers(error: RouterError) -> list[tuple[bytes, bytes]]:
    """Headers of an error answer. `Retry-After` only where another try can help."""
    headers = [_JSON]
    if error.retry_after_s is not None:
        seconds = min(max(math.ceil(error.retry_after_s), _MIN_RETRY_AFTER_S), _MAX_RETRY_AFTER_S)
        headers.append((b"retry-after", str(seconds).encode()))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if not _worth_a_retry(error):
        headers.append((b"x-should-retry", b"false"))
    return headers


def _worth_a_retry(error: RouterError) -> bool:
    """Whether a client library that retries by itself should. The router has already tried elsewhere, so
    only a refusal that costs nothing (the queue, no worker yet) is worth one."""
    return isinstance(error, QueueFull) or error.status == 503 or error.status < 500


def model_not_found(model: str, known: set[str]) -> ModelNotFound:
    """404 that names what is there."""
    names = ", ".join(f"`{name}`" for name in sorted(known)) or "none yet"
    return ModelNotFound(
        f"The model `{shown(model)}` does not exist here. Known models: {names}.", param="model"
    )


def path_not_found(path: str) -> NotFound:
    """404 for a path that is not in the list of allowed ones, with the slip of most clients named."""
    once = path.removeprefix("/v1") if path.startswith("/v1/v1/") else f"/v1{path}"
    hint = f" Did you mean {once}? The base URL of a client ends in /v1, once." if once in ROUTES else ""
    return NotFound(f"No such path: {shown(path)}{'.' if hint else ''}{hint}")
