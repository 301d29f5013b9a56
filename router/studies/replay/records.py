"""The record of each request, as JSONL, and what a later run may learn from it.

A records file begins with one line per run that says what was sent, so that a resumed run can refuse to mix
two different workloads. Separate from the report because the report is a function of records alone.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import msgspec

if TYPE_CHECKING:
    Gaps: TypeAlias = array[int]
else:
    Gaps = array  # takes no brackets at run time before Python 3.12

Outcome: TypeAlias = Literal["ok", "failed", "skipped", "interrupted"]


class RecordsError(ValueError):
    """The records file cannot be written or continued; the message says why and what to do."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the bytes of every request: a resumed run must agree with it."""

    trace_digest: str
    trace_format: str
    seed: int
    model: str
    api: str
    ignore_eos: bool


class Run(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    """One line at the start of every run; `started` is UTC in ISO 8601, `run` counts from 1."""

    run: int
    started: str
    workload: Workload


class Record(msgspec.Struct, kw_only=True, tag_field="kind", tag="request", omit_defaults=True):
    """What became of one request. Times are seconds; those of the run count from its start.

    Attributes:
        line: of the trace; names the request.
        outcome: `skipped` was never sent, `interrupted` was cut by the user.
        due_s, sent_s: when it should have been sent and when it was.
        lag_s: the part of the lateness that is the client's own; the rest waited for the concurrency cap.
        ttft_s: from sending to the first event that carries a token.
        generation_s: from the first such event to the last event with a choice.
        e2e_s: from sending to the end of the answer, or to the failure.
        itl_us: microseconds between events that carry tokens. An array, because a long run keeps millions.
        prompt_tokens, output_tokens: asked for; `clipped` when the trace wants more output than fits into
            the engine's context. The `told_` ones are the engine's usage.
        error: kind of failure (see docs/replay.md), with `message` in words.
    """

    line: int
    run: int
    outcome: Outcome
    due_s: float
    prompt_tokens: int
    output_tokens: int
    clipped: bool = False
    sent_s: float | None = None
    lag_s: float | None = None
    ttft_s: float | None = None
    generation_s: float | None = None
    e2e_s: float | None = None
    itl_us: Gaps = msgspec.field(default_factory=lambda: array("Q"))
    told_prompt_tokens: int | None = None
    told_output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None
    error: str | None = None
    message: str | None = None
    worker: str | None = None
    request_id: str | None = None

    @property
    def late_s(self) -> float:
        """Seconds between the moment it was due and the moment it was sent; 0 when it never was."""
        return 0.0 if self.sent_s is None else max(0.0, self.sent_s - self.due_s)

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per output token after the first; None for fewer than two tokens."""
        if self.generation_s is None or self.told_output_tokens is None or self.told_output_tokens < 2:
            return None
        return self.generation_s / (self.told_output_tokens - 1)


def _plain(value: object) -> list[int]:
    if isinstance(value, array):
        return value.tolist()
    raise NotImplementedError


def _typed(kind: type, value: Any) -> Any:
    if kind is not array:
        raise NotImplementedError
    try:
        return array("Q", value)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not microseconds: {error}") from None


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_DECODER: msgspec.json.Decoder[Run | Record] = msgspec.json.Decoder(Run | Record, dec_hook=_typed)


def encode(item: Run | Record) -> bytes:
    """One line of a records file, without its newline."""
    return _ENCODER.encode(item)


def decode(line: bytes) -> Run | Record:
    """Reads one line of a records file. Raises msgspec.DecodeError."""
    return _DECODER.decode(line)


class Ledger:
    """All records of a workload, those of earlier runs included; the last word on each line counts.

    Mutable state: `_latest` by line, `run`, and the open file when there is one.
    """

    def __init__(self, workload: Workload, started: str, earlier: Iterable[Run | Record] = ()) -> None:
        self.run = 1
        self._latest: dict[int, Record] = {}
        for item in earlier:
            if isinstance(item, Run):
                self.run = item.run + 1
            else:
                self._latest[item.line] = item
        self.opening = Run(run=self.run, started=started, workload=workload)
        self._file: io.FileIO | None = None

    @property
    def records(self) -> list[Record]:
        """The latest record of each line, by line."""
        return [self._latest[line] for line in sorted(self._latest)]

    @property
    def done(self) -> frozenset[int]:
        """Lines that need not be sent again: those that once succeeded."""
        return frozenset(line for line, record in self._latest.items() if record.outcome == "ok")

    def add(self, record: Record) -> None:
        """Takes a record in, and writes it at once, so that a killed run loses only what was in flight.

        Raises RecordsError when the disk does not take it.
        """
        self._latest[record.line] = record
        self._write(record)

    def write_to(self, path: Path) -> None:
        """From now on every record is appended to the file. Raises RecordsError."""
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise RecordsError(f"cannot write records to {path}: {error.strerror or error}") from None
        self._write(self.opening)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, item: Run | Record) -> None:
        if self._file is None:
            return
        data = encode(item) + b"\n"
        try:
            written = self._file.write(data)
        except OSError as error:
            self.close()
            raise RecordsError(f"cannot write records: {error.strerror or error}") from None
        if written != len(data):  # a resumed run removes the torn line, so nothing may follow it
            self.close()
            raise RecordsError("cannot write records: the disk is full")

    def __repr__(self) -> str:
        return f"<Ledger run {self.run} [{len(self._latest)} records | {len(self.done)} ok]>"


def open_ledger(path: Path | None, workload: Workload, started: str, *, resume: bool) -> Ledger:
    """A ledger that writes to `path`, continuing what is there when `resume` is set.

    Raises RecordsError when the file holds another workload, or holds anything and `resume` is not set.
    """
    if path is None:
        return Ledger(workload, started)
    earlier, whole_bytes = _read(path)
    if earlier and not resume:
        raise RecordsError(f"{path} already holds records: give --resume to continue them, or another file")
    for item in earlier:
        if isinstance(item, Run):
            _check_same(path, item.workload, workload)
    if earlier and path.stat().st_size > whole_bytes:
        with path.open("r+b") as file:
            file.truncate(whole_bytes)
    ledger = Ledger(workload, started, earlier)
    ledger.write_to(path)
    return ledger


def _check_same(path: Path, before: Workload, now: Workload) -> None:
    for name in before.__struct_fields__:
        then, given = getattr(before, name), getattr(now, name)
        if then != given:
            raise RecordsError(
                f"{path} holds another workload: its {name} is {then!r}, this run's is {given!r}"
            )


def _read(path: Path) -> tuple[list[Run | Record], int]:
    """What a run wrote, and the bytes it takes. A last line without its newline was cut by a kill."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise RecordsError(f"cannot read records from {path}: {error.strerror or error}") from None
    whole_bytes = data.rfind(b"\n") + 1
    items: list[Run | Record] = []
    for number, line in enumerate(data[:whole_bytes].splitlines(), 1):
        try:
            items.append(decode(line))
        except msgspec.DecodeError as error:
            raise RecordsError(f"{path}, line {number}: not a replay record: {error}") from None
    if data and not (items and isinstance(items[0], Run)):
        raise RecordsError(f"{path} does not begin with a run: it is not a records file of replay")
    return items, whole_bytes
