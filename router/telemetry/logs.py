"""The program's own log: one handler, text or JSON, and what may stand in it.

Separate from the request log, which is data for replay; this one is for the person on call. INFO tells of the
lifecycle, of workers that come and go and of errors with whose fault they are; single requests are told of at
DEBUG. No line carries text of a prompt or an answer: besides the message, only the fields of `FIELDS` are
written, whatever else a caller attaches.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, TextIO

import msgspec

from router.core.errors import InternalError, RouterError, UpstreamError

LogFormat = Literal["text", "json"]

FIELDS = (
    "request_id", "model", "worker", "role", "policy", "state", "phase", "code", "status", "fault", "attempt",
    "seconds",
)  # fmt: skip
"""Names that a caller may give in `extra`; written in this order after the message."""

_REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)

_COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31;1m"}
_RESET = "\x1b[0m"

# uvicorn says this at ERROR for every answer that we cut on purpose, because its end would be a lie.
_CUT_ON_PURPOSE = "ASGI callable returned without completing response"


def configure(
    *, level: str = "info", form: LogFormat = "text", stream: TextIO | None = None, colour: bool | None = None
) -> logging.Handler:
    """Send all logging of the process to `stream` (stderr when None) in one form.

    Replaces the handlers of the root logger and of uvicorn; start uvicorn with `log_config=None`.

    Args:
        level: debug, info, warning or error.
        colour: None colours text when the stream is a terminal.

    Raises:
        ValueError: when the level is none of these.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r} is not one of debug, info, warning, error")
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    handler.addFilter(_attach_request_id)
    handler.addFilter(_is_wanted)
    coloured = stream.isatty() if colour is None else colour
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(colour=coloured))
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    access = logging.getLogger("uvicorn.access")  # a line a request, and with the full path
    access.handlers.clear()
    access.propagate = False
    return handler


@contextmanager
def request_id(value: str) -> Iterator[None]:
    """Every line logged inside carries this request id."""
    token = _REQUEST_ID.set(value)
    try:
        yield
    finally:
        _REQUEST_ID.reset(token)


def fault_of(error: RouterError) -> Literal["client", "worker", "router"]:
    """Whose fault an error is, which is the first thing that the reader of a log asks."""
    if isinstance(error, UpstreamError):
        return "worker"
    return "client" if error.status < 500 and error.status != 429 else "router"


def report(logger: logging.Logger, error: RouterError, *, worker: str | None = None) -> None:
    """Log the error that a request ended in: with a traceback when it is a bug of ours, at INFO when the
    client could have known better."""
    fault = fault_of(error)
    level = logging.INFO if fault == "client" else logging.WARNING
    fields: dict[str, object] = {
        "fault": fault,
        "code": error.code,
        "status": error.status,
        "worker": worker,
        "phase": getattr(error, "phase", None),
    }
    if isinstance(error, InternalError):
        logger.error("a bug in the router: %s", error.message, extra=fields, exc_info=error)
    else:
        logger.log(level, "%s", error.message, extra=fields)


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO pool: message worker=w1`, one line, except for a traceback.

    Control characters are escaped: a model name with a line feed must not be able to forge a line.
    """

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        level = record.levelname
        if self._colour and record.levelno in _COLOURS:
            level = f"{_COLOURS[record.levelno]}{level}{_RESET}"
        fields = "".join(f" {name}={_one_line(str(value))}" for name, value in _fields(record))
        line = f"{_time(record)} {level} {_short(record.name)}: {_one_line(record.getMessage())}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _encodable(record.getMessage()),
        }
        line.update((name, _plain(value)) for name, value in _fields(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    given = vars(record)
    for name in FIELDS:
        value = given.get(name)
        if value is not None:
            yield name, value


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _short(name: str) -> str:
    return name.removeprefix("router.")


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float) else _encodable(str(value))


def _encodable(text: str) -> str:
    # A line about a request with a lone surrogate in it is worth more than an error about the line.
    return text.encode("utf-8", "replace").decode("utf-8")


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _attach_request_id(record: logging.LogRecord) -> bool:
    if getattr(record, "request_id", None) is None:
        record.request_id = _REQUEST_ID.get()
    return True


def _is_wanted(record: logging.LogRecord) -> bool:
    return not (record.name.startswith("uvicorn") and _CUT_ON_PURPOSE in str(record.msg))
