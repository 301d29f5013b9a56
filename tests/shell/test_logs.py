"""Laws of the program's own log: one line each, only named fields, nothing of uvicorn's noise."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import errors
from router.telemetry.logs import JsonFormatter, TextFormatter, configure, fault_of, report, request_id
from router.telemetry.series import Counter

LOG = logging.getLogger("router.pool")


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        root.removeHandler(handler)
    for handler in before[0]:
        root.addHandler(handler)
    root.setLevel(before[1])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_text_is_one_plain_line() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    LOG.warning("worker %s was ejected", "w1", extra={"worker": "w1", "state": "ejected"})
    (line,) = said(stream)
    time, rest = line.split(" ", 1)
    assert time.endswith("Z")
    assert rest == "WARNING pool: worker w1 was ejected worker=w1 state=ejected"


def test_colour_is_for_terminals_only() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    configure(stream=terminal)
    LOG.error("x")
    configure(stream=pipe)
    LOG.error("x")
    assert "\x1b[31mERROR\x1b[0m" in terminal.getvalue()
    assert "\x1b" not in pipe.getvalue()


def test_json_is_one_object_a_line() -> None:
    stream = io.StringIO()
    configure(form="json", stream=stream)
    with request_id("req-1"):
        LOG.info("retry", extra={"attempt": 2, "worker": "w1"})
    (line,) = said(stream)
    got = json.loads(line)
    assert got.pop("time").endswith("Z")
    assert got == {
        "level": "info", "logger": "router.pool", "message": "retry", "request_id": "req-1", "worker": "w1",
        "attempt": 2,
    }  # fmt: skip


def test_a_request_id_ends_with_its_request() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    with request_id("outer"):
        with request_id("inner"):
            LOG.info("a")
        LOG.info("b")
    LOG.info("c")
    assert [line.partition("request_id=")[2] for line in said(stream)] == ["inner", "outer", ""]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_field_that_is_not_named_is_never_written(form: str) -> None:
    stream = io.StringIO()
    configure(form="json" if form == "json" else "text", stream=stream)
    LOG.info("x", extra={"prompt": "SECRET", "body": b"SECRET", "messages": ["SECRET"]})
    assert "SECRET" not in stream.getvalue()


@given(st.text())
def test_no_text_can_forge_a_line_or_a_colour(text: str) -> None:
    entry = logging.LogRecord("router.api", logging.INFO, "", 0, "unknown model %s", (text,), None)
    entry.model = text
    line = TextFormatter().format(entry)
    assert line.isprintable()
    line.encode()
    assert json.loads(JsonFormatter().format(entry))["message"].startswith("unknown model ")


def test_uvicorn_keeps_its_noise_and_not_its_news() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    logging.getLogger("uvicorn.error").error("ASGI callable returned without completing response.")
    logging.getLogger("uvicorn.access").info('%s - "%s"', "127.0.0.1:1", "GET /health HTTP/1.1")
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    (line,) = said(stream)
    assert line.endswith("uvicorn.error: Started server process [7]")
    assert not logging.getLogger("uvicorn.access").hasHandlers()


def test_the_level_decides_what_is_told() -> None:
    stream = io.StringIO()
    configure(level="warning", stream=stream)
    LOG.info("x")
    LOG.warning("y")
    assert len(said(stream)) == 1
    with pytest.raises(ValueError, match="'loud' is not one of debug, info, warning, error"):
        configure(level="loud")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (errors.BadRequest("x"), "client"),
        (errors.ModelNotFound("x"), "client"),
        (errors.ClientGone("x"), "client"),
        (errors.QueueFull("x"), "router"),
        (errors.Overloaded("x"), "router"),
        (errors.InternalError("x"), "router"),
        (errors.NoWorker("x"), "router"),
        (errors.ConnectFailed("x"), "worker"),
        (errors.DeadlineExceeded("x", phase="idle", sent=True), "worker"),
    ],
)
def test_every_error_is_somebodys_fault(error: errors.RouterError, fault: str) -> None:
    assert fault_of(error) == fault


def test_an_error_is_reported_with_fault_code_and_phase() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    report(LOG, errors.DeadlineExceeded("no data", phase="idle", sent=True), worker="w1")
    report(LOG, errors.BadRequest("bad JSON"))
    first, second = said(stream)
    assert first.endswith(
        "WARNING pool: no data worker=w1 phase=idle code=deadline_exceeded status=504 fault=worker"
    )
    assert second.endswith("INFO pool: bad JSON code=bad_request status=400 fault=client")


def test_a_bug_of_ours_comes_with_its_traceback() -> None:
    text, form = io.StringIO(), io.StringIO()
    for stream, name in ((text, "text"), (form, "json")):
        configure(form="json" if name == "json" else "text", stream=stream)
        with pytest.raises(errors.InternalError) as caught:
            Counter().add(-1)
        report(LOG, caught.value)
    assert "ERROR pool: a bug in the router: a counter was asked to fall by 1" in text.getvalue()
    assert "Traceback" in text.getvalue()
    assert "Traceback" in json.loads(form.getvalue())["exception"]
    assert len(said(form)) == 1
