"""Any recorded trace as a workload: Azure, Mooncake, BurstGPT, or the router's own request log.

Prompts share what the trace says they share; arrivals are the recorded ones, stretched to the rate. A seed
changes nothing but the text: there is one recording.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path

from engines.model.parts import Part
from router.studies.simulation.call import Call
from router.studies.traces import Trace, TraceEntry, TraceError, read_trace
from router.studies.workloads.arrivals import recorded
from router.studies.workloads.workload import Workload

PREFIX = "trace:"
SETUP = "agents_a100"
"""Fleet of a trace that was told none."""
_OWN = 1 << 40
"""Above the keys of all blocks."""


@lru_cache(maxsize=8)
def trace_workload(name: str, model: str | None = None) -> Workload:
    """`trace:FILE`, or `trace:FILE:FORMAT` for a format that is not recognised.

    Args:
        model: only requests that name it; None: all.

    Raises:
        TraceError: the file cannot be used; the sentence says why.
    """
    trace = _read(name.removeprefix(PREFIX))
    entries = [entry for entry in trace.entries if model in (None, entry.model)]
    times = [entry.arrival_s for entry in entries]
    if len(times) < 2 or times[-1] <= times[0]:
        of = "" if model is None else f" of {model}"
        raise TraceError(f"{trace.name} has too few requests{of} to be a workload, or all come at once")
    length = times[-1] - times[0]
    return Workload(
        name=name,
        make=partial(_calls, entries, trace.block_tokens),
        published_size=len(entries),
        setup=SETUP,
        page=__doc__ or "",
        arrivals=recorded(times),
        natural_rate=(len(times) - 1) / length,
    )


def _read(text: str) -> Trace:
    path, _, form = text.rpartition(":")
    if path and not Path(text).exists():
        return read_trace(Path(path), form)
    return read_trace(Path(text))


def _calls(
    entries: Sequence[TraceEntry], block_tokens: int, _count: int, _chance: random.Random
) -> Iterator[Call]:
    """The requests of the trace, again and again. Prompts of a later round end in something of their own, or
    the first one would have cached them whole."""
    keys: dict[str, int] = {}
    number = 0
    while True:
        for entry in entries:
            parts: list[Part] = []
            left = entry.prompt_tokens
            for block in entry.blocks:
                here = min(block_tokens, left)
                if here <= 0:
                    break
                parts.append(Part(keys.setdefault(block, len(keys)), here))
                left -= here
            if left <= 0 and number >= len(entries):
                left = parts.pop().tokens
            if left > 0:
                parts.append(Part(_OWN + number, left))
            yield Call(
                number=number,
                at=0.0,
                parts=tuple(parts),
                output_tokens=entry.output_tokens,
                tenant=entry.tenant or "",
                session=entry.session,
                family="trace",
            )
            number += 1
