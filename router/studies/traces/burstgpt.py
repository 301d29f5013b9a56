"""BurstGPT, both header variants: with and without `Session ID` and `Elapsed time`.

Source: github.com/HPMLL/BurstGPT (CC-BY 4.0). A request that failed has 0 response tokens: such rows are
left out and counted, since nobody knows how long the answer would have been.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from router.studies.traces.columns import rows
from router.studies.traces.trace import Skip, TraceEntry

HEADER = frozenset({"timestamp", "model", "request tokens", "response tokens"})


def read(lines: Iterable[str]) -> Iterator[TraceEntry | Skip]:
    """Reads the rows; `Timestamp` is in seconds."""
    for row in rows(lines, ("Timestamp", "Model", "Request tokens", "Response tokens")):
        arrival_s = row.seconds("Timestamp")
        prompt_tokens, output_tokens = row.count("Request tokens"), row.count("Response tokens")
        if prompt_tokens == 0 or output_tokens == 0:
            yield Skip(
                row.line, "no prompt" if prompt_tokens == 0 else "failed in the trace (0 response tokens)"
            )
            continue
        yield TraceEntry(
            arrival_s=arrival_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            model=row.optional("Model"),
            session=row.optional("Session ID"),
            line=row.line,
        )
