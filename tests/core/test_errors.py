"""Laws of the errors: every one says whose fault it is, and how."""

from __future__ import annotations

import inspect

import pytest

from router.core import errors
from router.core.errors import (
    ConnectFailed,
    DeadlineExceeded,
    QueueFull,
    RouterError,
    UpstreamBroken,
    UpstreamClosed,
    UpstreamError,
)

_TABLE = {
    "RouterError": (500, "server_error", None),
    "InternalError": (500, "server_error", "internal_error"),
    "BadRequest": (400, "invalid_request_error", "bad_request"),
    "Unauthorized": (401, "invalid_request_error", "invalid_api_key"),
    "Forbidden": (403, "invalid_request_error", "forbidden"),
    "NotFound": (404, "invalid_request_error", "not_found"),
    "ModelNotFound": (404, "invalid_request_error", "model_not_found"),
    "MethodNotAllowed": (405, "invalid_request_error", "method_not_allowed"),
    "Conflict": (409, "invalid_request_error", "conflict"),
    "BodyTooLarge": (413, "invalid_request_error", "body_too_large"),
    "Poisonous": (502, "server_error", "workers_lost_on_this_request"),
    "HeadTooLarge": (431, "invalid_request_error", "header_fields_too_large"),
    "ClientGone": (499, "client_closed_request", "client_closed_request"),
    "QueueFull": (429, "rate_limit_error", "queue_full"),
    "Overloaded": (503, "server_error", "overloaded"),
    "NoWorker": (503, "server_error", "no_worker_available"),
    "UpstreamError": (502, "server_error", "upstream_error"),
    "ConnectFailed": (502, "server_error", "upstream_unreachable"),
    "UpstreamClosed": (502, "server_error", "upstream_closed"),
    "UpstreamBroken": (502, "server_error", "upstream_broken"),
    "DeadlineExceeded": (504, "server_error", "deadline_exceeded"),
}
_KINDS = {
    name: kind for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RouterError)
}


def test_the_table_of_errors_is_whole() -> None:
    assert set(_KINDS) == set(_TABLE)


@pytest.mark.parametrize("name", _TABLE)
def test_every_error_has_its_status_type_and_code(name: str) -> None:
    kind = _KINDS[name]
    assert (kind.status, kind.type, kind.code) == _TABLE[name]


def test_no_two_errors_share_a_code() -> None:
    codes = [kind.code for kind in _KINDS.values()]
    assert len(set(codes)) == len(codes)


def test_what_the_client_did_wrong_is_a_4xx_and_nothing_else_is() -> None:
    for kind in _KINDS.values():
        assert (kind.type == "server_error") is (kind.status >= 500), kind


def test_an_error_carries_its_sentence_and_what_to_do_next() -> None:
    error = QueueFull("too many", param="model", retry_after_s=1.0)
    assert (str(error), error.message, error.param, error.retry_after_s) == ("too many",) * 2 + ("model", 1.0)


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (ConnectFailed("x", refused=True), False),
        (ConnectFailed("x"), False),
        (UpstreamClosed("x", sent=False), False),
        (UpstreamClosed("x", sent=True), True),
        (UpstreamBroken("x"), True),
        (DeadlineExceeded("x", phase="idle", sent=True), True),
    ],
)
def test_an_error_of_a_worker_tells_whether_it_may_have_seen_the_request(
    error: UpstreamError, sent: bool
) -> None:
    assert error.sent is sent


def test_only_a_port_that_says_no_is_refused() -> None:
    assert ConnectFailed("x", refused=True).refused
    assert not ConnectFailed("x").refused
