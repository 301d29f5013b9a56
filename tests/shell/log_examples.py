"""A request log, and records to write into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from router.telemetry.record import (
    Phases,
    RequestRecord,
    read_records,
)
from router.telemetry.request_log import RequestLog, RequestLogSettings


def record(name: str = "r1", **given: Any) -> RequestRecord:
    fields = {
        "arrival": 1_700_000_000.25,
        "id": name,
        "model": "m",
        "api": "chat/completions",
        "stream": True,
        "phases": Phases(total_s=1.5),
        "outcome": "ok",
        "status": 200,
    }
    return RequestRecord(**{**fields, **given})


async def inline(call: Callable[[], None]) -> None:
    call()


def opened(path: Path, **given: Any) -> RequestLog:
    on_drop = given.pop("on_drop", lambda lines: None)
    offload = given.pop("offload", inline)
    return RequestLog(RequestLogSettings(path=path, **given), on_drop=on_drop, offload=offload)


def names(path: Path) -> list[str]:
    return [r.id for r in read_records(path)]
