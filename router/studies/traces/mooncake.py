"""Mooncake's JSONL: timestamp (ms), input_length, output_length and hash_ids of 512-token blocks.

Source: github.com/kvcache-ai/Mooncake, FAST'25 traces (Apache-2.0). Equal ids are equal blocks and an id
stands for the whole prefix up to its block, so ids become shared prefixes. The timestamps of the
conversation trace are batched every 3 s: replay offers a jitter, or the batch is what is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from router.studies.traces.trace import LineError, Skip, TraceEntry

BLOCK_TOKENS = 512

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: _Count
    output_length: _Count
    hash_ids: list[int]


def read(lines: Iterable[str]) -> Iterator[TraceEntry | Skip]:
    """Reads the lines. The last block of a prompt may be partly filled; ids beyond its length are refused."""
    decoder = msgspec.json.Decoder(_Line)
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise LineError(number, f"not a Mooncake record: {error}") from None
        if line.input_length == 0 or line.output_length == 0:
            yield Skip(number, "no prompt" if line.input_length == 0 else "no output")
            continue
        if (len(line.hash_ids) - 1) * BLOCK_TOKENS >= line.input_length:
            raise LineError(
                number, f"{len(line.hash_ids)} hash_ids are more than {line.input_length} tokens fill"
            )
        yield TraceEntry(
            arrival_s=line.timestamp / 1000,
            prompt_tokens=line.input_length,
            output_tokens=line.output_length,
            blocks=tuple(map(str, line.hash_ids)),
            line=number,
        )
