"""What can go wrong, whose fault it is, and what the caller should do next.

Every error carries the HTTP status, the OpenAI `type` and `code`, and whether the client may try again.
The mapping to a body happens once, in `router.api.errors`. Messages are read by strangers: they name no
internal address.
"""

from __future__ import annotations

from typing import ClassVar

_SHOWN_CHARACTERS = 200


def shown(text: str) -> str:
    """A client's own words, as far as an answer repeats them: a packed name of 60 MB must not become an
    answer of 60 MB."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


class RouterError(Exception):
    """Base of all errors that a client may see.

    Attributes:
        message: one sentence, fit for a stranger.
        param: the request field at fault, when there is one.
        retry_after_s: seconds after which another try makes sense, when that is known.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InternalError(RouterError):
    """A bug in the router: please report it."""

    code = "internal_error"


# --- the client's fault ------------------------------------------------------------------------------


class BadRequest(RouterError):
    """The request cannot be understood or routed; sending it again will not help."""

    status = 400
    type = "invalid_request_error"
    code = "bad_request"


class Unauthorized(RouterError):
    """The key is missing or wrong."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(RouterError):
    """Whoever asks, this way of asking is not allowed."""

    status = 403
    type = "invalid_request_error"
    code = "forbidden"


class NotFound(RouterError):
    """No such path, or no such response id."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """No worker serves the model asked for."""

    code = "model_not_found"


class MethodNotAllowed(RouterError):
    """The path exists, the method does not."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class Conflict(RouterError):
    """It would leave a model without anybody to serve it."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class BodyTooLarge(RouterError):
    """The body is over the limit of this router."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class Poisonous(RouterError):
    """Workers died while they served this very body, so it is not tried on more of them for a while."""

    status = 502
    type = "server_error"
    code = "workers_lost_on_this_request"


class HeadTooLarge(RouterError):
    """More header bytes than any client of this API needs."""

    status = 431
    type = "invalid_request_error"
    code = "header_fields_too_large"


class ClientGone(RouterError):
    """The client left before the answer was complete. It gets nothing; logs and metrics do (status 499)."""

    status = 499
    type = "client_closed_request"
    code = "client_closed_request"


# --- the router's limits ------------------------------------------------------------------------------


class QueueFull(RouterError):
    """More requests wait than the router is willing to hold, or one has waited too long."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"


class Overloaded(RouterError):
    """The router is out of memory for bodies, or shutting down."""

    status = 503
    type = "server_error"
    code = "overloaded"


# --- the workers' fault -------------------------------------------------------------------------------


class NoWorker(RouterError):
    """The model is known, but no worker can take a request now."""

    status = 503
    code = "no_worker_available"


class UpstreamError(RouterError):
    """A worker did not do its part. `sent` tells whether it may have seen the request."""

    status = 502
    code = "upstream_error"

    def __init__(self, message: str, *, sent: bool, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.sent = sent


class ConnectFailed(UpstreamError):
    """No connection: refused, no route, TLS failed, or not within the connect deadline. Nothing was sent.

    `refused` tells that the port itself said no, so the worker is known to be down.
    """

    code = "upstream_unreachable"

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message, sent=False)
        self.refused = refused


class UpstreamClosed(UpstreamError):
    """The worker closed or reset the connection before a single byte of its answer."""

    code = "upstream_closed"


class UpstreamBroken(UpstreamError):
    """The answer began and then broke: cut short, or not HTTP, or not what its headers promised."""

    code = "upstream_broken"

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=True)


class DeadlineExceeded(UpstreamError):
    """A deadline ran out. `phase` names which: connect, write, first_event, idle, total, queue …"""

    status = 504
    code = "deadline_exceeded"

    def __init__(self, message: str, *, phase: str, sent: bool) -> None:
        super().__init__(message, sent=sent)
        self.phase = phase
