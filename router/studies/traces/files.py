"""From a file to a Trace: which format it is, which lines count, in what order.

What happens to a line is the same for every format. A line that breaks its format refuses the file, with
its number: a wrong workload is worse than none. A line that is sound and cannot be sent again (a failed
request, an empty answer) is left out and counted by reason.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from router.studies.traces import azure, burstgpt, mooncake, pointsman
from router.studies.traces.bounds import check_kind, check_times, check_tokens, text_lines
from router.studies.traces.columns import column_names
from router.studies.traces.trace import LineError, Skip, Trace, TraceEntry, TraceError, count_reasons


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of trace file.

    Attributes:
        read: turns a file into entries and skips; arrivals count from the file's own epoch.
        block_tokens: what one block name stands for, given the entries; 0 without blocks.
    """

    read: Callable[[Path], Iterator[TraceEntry | Skip]]
    block_tokens: Callable[[list[TraceEntry]], int]


def _by_line(
    read: Callable[[Iterable[str]], Iterator[TraceEntry | Skip]],
) -> Callable[[Path], Iterator[TraceEntry | Skip]]:
    def read_file(path: Path) -> Iterator[TraceEntry | Skip]:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from read(text_lines(file))

    return read_file


FORMATS: Mapping[str, Format] = {
    "azure": Format(_by_line(azure.read), lambda _: 0),
    "burstgpt": Format(_by_line(burstgpt.read), lambda _: 0),
    "mooncake": Format(_by_line(mooncake.read), lambda _: mooncake.BLOCK_TOKENS),
    "pointsman": Format(pointsman.read, pointsman.block_tokens),
}


def read_trace(path: Path, format_name: str | None = None, limit: int | None = None) -> Trace:
    """Reads a trace, by its content or as the format named.

    Args:
        limit: keep the first `limit` requests of the file that can be sent; later lines are not looked at.

    Raises TraceError when the file cannot be read, is of no known format, breaks it, or holds no request.
    """
    try:
        check_kind(path)
        _check_format(format_name)
        name = format_name or _recognise(path)
        entries, skips = _take(FORMATS[name].read(path), limit)
        digest = _digest(path)
        ordered = _from_zero(entries)
    except LineError as error:
        raise TraceError(f"{path.name}, {error}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path.name} is not UTF-8 text: {error}") from None
    except OSError as error:
        raise TraceError(f"cannot read the trace {path.name or path}: {error.strerror or error}") from None
    if not ordered:
        raise TraceError(f"{path.name} holds no request that can be sent ({_reasons(skips)})")
    return Trace(
        format=name,
        name=path.name,
        digest=digest,
        entries=ordered,
        block_tokens=FORMATS[name].block_tokens(entries),
        skipped=count_reasons(skips),
    )


def _check_format(name: str | None) -> None:
    if name is not None and name not in FORMATS:
        raise TraceError(f"the trace format {name!r} is unknown; known: {', '.join(FORMATS)}")


def recognise(first_line: str) -> str | None:
    """The format whose first line this is, None when it is none."""
    if first_line.lstrip().startswith("{"):
        return _recognise_json(first_line)
    columns = set(column_names(first_line))
    if columns >= azure.HEADER:
        return "azure"
    return "burstgpt" if columns >= burstgpt.HEADER else None


def _recognise_json(line: str) -> str | None:
    try:
        fields = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return None
    if fields.keys() >= {"timestamp", "input_length", "output_length"}:
        return "mooncake"
    return "pointsman" if fields.get("format") == pointsman.HEADER_FORMAT else None


def _recognise(path: Path) -> str:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = next((line for line in text_lines(file) if line.strip()), "")
    found = recognise(first)
    if not first:
        raise TraceError(f"{path.name} is empty: it holds no request")
    if found is None:
        shown = first.strip()[:80]
        raise TraceError(
            f"{path.name} is no trace that is known here: it begins with {shown!r}. "
            f"Known formats: {', '.join(FORMATS)}; name one with --format to see what is wrong with the file"
        )
    return found


def _take(items: Iterator[TraceEntry | Skip], limit: int | None) -> tuple[list[TraceEntry], list[Skip]]:
    entries: list[TraceEntry] = []
    skips: list[Skip] = []
    while limit is None or len(entries) < limit:
        item = next(items, None)
        if item is None:
            break
        if isinstance(item, Skip):
            skips.append(item)
        else:
            check_tokens(item)
            entries.append(item)
    return entries, skips


def _from_zero(entries: list[TraceEntry]) -> list[TraceEntry]:
    if not entries:
        return []
    ordered = sorted(entries, key=lambda entry: entry.arrival_s)
    check_times(ordered)
    start = ordered[0].arrival_s
    return [msgspec.structs.replace(entry, arrival_s=entry.arrival_s - start) for entry in ordered]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def _reasons(skips: list[Skip]) -> str:
    counted = count_reasons(skips)
    shown = itertools.islice(counted.items(), 5)
    return "; ".join(f"{count} × {reason}" for reason, count in shown) or "it is empty"
