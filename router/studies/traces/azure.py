"""The Azure LLM inference traces of 2023 and 2024: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

Source: github.com/Azure/AzurePublicDataset (CC-BY 4.0). Lengths and times only; no prefix is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from router.studies.traces.columns import rows
from router.studies.traces.trace import LineError, Skip, TraceEntry

HEADER = frozenset({"timestamp", "contexttokens", "generatedtokens"})


def read(lines: Iterable[str]) -> Iterator[TraceEntry | Skip]:
    """Reads the rows. Times keep microseconds; the seventh decimal of the 2023 files is dropped."""
    for row in rows(lines, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        arrival_s = _seconds(row.line, row.text("TIMESTAMP"))
        prompt_tokens, output_tokens = row.count("ContextTokens"), row.count("GeneratedTokens")
        if prompt_tokens == 0 or output_tokens == 0:
            yield Skip(row.line, "no prompt" if prompt_tokens == 0 else "no output")
            continue
        yield TraceEntry(
            arrival_s=arrival_s, prompt_tokens=prompt_tokens, output_tokens=output_tokens, line=row.line
        )


def _seconds(line: int, text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise LineError(line, f"TIMESTAMP is {text!r}, not a date and time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
