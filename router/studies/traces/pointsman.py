"""Pointsman's own request log as a trace: record in production, replay on a laptop.

The log holds no text. Its chained block hashes name prefixes, so shared ones become shared prefixes again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from router.core.request import Api
from router.studies.traces.trace import Skip, TraceEntry, TraceError
from router.telemetry.record import FORMAT, RequestRecord, read_numbered

HEADER_FORMAT = FORMAT
"""Of the header that every request log begins with."""

_GENERATING = frozenset({"chat/completions", *(api.value for api in Api if api.generates)})
"""Logs name the family of the path, or the route itself."""

_TOKENS_PER_BLOCK = 64
"""Of 256 characters, at the four characters of English that are roughly one token in any vocabulary. Taken
when the log is too small to say it better."""

_MIN_BLOCKS = 4
"""Prompts of fewer blocks say little: the last block is partly filled and the template counts too much."""


def read(path: Path) -> Iterator[TraceEntry | Skip]:
    """Reads the records in the order of the file, which is the order in which the requests ended.

    A request with n sequences becomes one of their mean length. A cancelled one keeps the output that it got.
    Raises TraceError.
    """
    for line, record in _records(path):
        reason = _unfit(record)
        if reason is not None:
            yield Skip(line, reason)
            continue
        yield TraceEntry(
            arrival_s=record.arrival,
            prompt_tokens=record.prompt_tokens or 0,
            output_tokens=-(-(record.output_tokens or 0) // max(1, record.n)),
            blocks=record.blocks,
            model=record.model,
            tenant=record.tenant or None,
            session=record.affinity,
            line=line,
        )


def block_tokens(entries: list[TraceEntry]) -> int:
    """Tokens that one block hash stands for, by the median of the longer prompts.

    One number for the whole log, or equal names would not be equal text. The last block of a prompt is half
    full on average. 0 when no entry has blocks.
    """
    if not any(entry.blocks for entry in entries):
        return 0
    ratios = [
        entry.prompt_tokens / (len(entry.blocks) - 0.5)
        for entry in entries
        if len(entry.blocks) >= _MIN_BLOCKS
    ]
    return max(1, round(statistics.median(ratios))) if ratios else _TOKENS_PER_BLOCK


def _records(path: Path) -> Iterator[tuple[int, RequestRecord]]:
    try:
        yield from read_numbered(path)
    except ValueError as error:
        raise TraceError(str(error)) from None


def _unfit(record: RequestRecord) -> str | None:
    if record.api not in _GENERATING:
        return "generates nothing"
    if not record.prompt_tokens:
        return "prompt length unknown"
    return None if record.output_tokens else "no output"
