"""How large a trace may be. What no engine takes and no study ends is a damaged file, and is said to be one.

Separate from the readers, each of which knows one format: these bounds hold for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from router.studies.traces.trace import LineError, TraceEntry, TraceError

MOST_TOKENS: Final = 1 << 24
"""Of a prompt, and of an answer: more than any engine takes. One line of a damaged file would otherwise ask
for the memory of a billion tokens."""
LONGEST_S: Final = 366 * 86_400.0
"""From the first request to the last. A clock that jumped makes decades, through which nobody waits."""
_LONGEST_LINE: Final = 16 << 20
"""Characters. A record of a prompt with 100,000 blocks has about 2 million."""
_DAY_S: Final = 86_400.0


def check_kind(path: Path) -> None:
    """Raises TraceError for a pipe or a device: a trace is read more than once, and ends."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise TraceError(f"{path.name} is a pipe or a device: write the trace to a file first")


def text_lines(file: TextIO) -> Iterator[str]:
    """The lines of a file, with their ends. Raises LineError for one that is no line."""
    number = 0
    while line := file.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise LineError(number, f"it is longer than {_LONGEST_LINE:,} characters, so this is no trace")
        yield line


def check_tokens(entry: TraceEntry) -> None:
    """Raises LineError for lengths that are none."""
    for what, tokens in (("prompt", entry.prompt_tokens), ("output", entry.output_tokens)):
        if tokens < 1:
            raise LineError(entry.line, f"its number of {what} tokens is below 0")
        if tokens > MOST_TOKENS:
            raise LineError(
                entry.line, f"it has more than {MOST_TOKENS:,} {what} tokens, which no engine takes"
            )


def check_times(ordered: Sequence[TraceEntry]) -> None:
    """Raises LineError when the requests, in order of arrival, do not fit into a year: for the first or the
    last one, whichever is further from the middle one."""
    first, middle, last = ordered[0], ordered[len(ordered) // 2], ordered[-1]
    if last.arrival_s - first.arrival_s <= LONGEST_S:
        return
    before, after = middle.arrival_s - first.arrival_s, last.arrival_s - middle.arrival_s
    odd, far_s, word = (first, before, "before") if before > after else (last, after, "after")
    raise LineError(
        odd.line,
        f"it comes {far_s / _DAY_S:.3g} days {word} the middle of the trace, and a trace has at most "
        f"{LONGEST_S / _DAY_S:.0f} days",
    )
