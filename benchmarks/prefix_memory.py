"""What the prefix index takes of the machine's memory, beside what it accounts for and may take.

Three fills, each in a process of its own, until the index is at its bound and evicts: many turns of
conversations over a few system prompts as text, the same as token ids, and blocks told by the events of many
engines. Compared is the growth of the process (resident set), which has what the account cannot see: the
allocator's, the interpreter's tables.

Run with `python -m benchmarks.prefix_memory`.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.verdict import Verdict, print_verdicts
from router.core.kv_event import BlocksStored
from router.core.prefix_index import PrefixIndex, Prompt
from router.core.prefix_settings import PrefixSettings
from router.core.prompt_key import Partition
from router.core.trust import TrustSignal

BOUND = 1.1
"""Of the growth over `max_bytes`: a tenth is left to the allocator."""

KINDS = ("text", "blocks", "events")
_MAX_BYTES = 32 * 2**20
_PART = Partition("model", "", "")
_WORKERS = 64
_SYSTEMS = 8
_TURNS = 6
_TURN_TOKENS = 200
_BLOCKS = 64
_EVICTED = 5_000


def _resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _piece(source: random.Random, kind: str, tokens: int) -> Prompt:
    """Some tokens, or the four bytes of text that each stands for."""
    data = source.randbytes(4 * tokens)
    return data if kind == "text" else tuple(token & 0x1FFFF for token in memoryview(data).cast("I"))


def _conversation(source: random.Random, kind: str, systems: Sequence[Prompt]) -> Iterator[Prompt]:
    """The turns of one conversation, each with the one before it at its beginning."""
    prompt = source.choice(systems)
    for _ in range(_TURNS):
        prompt = prompt + _piece(source, kind, _TURN_TOKENS)  # type: ignore[operator]  # both of one kind
        yield prompt


def _fill_prompts(index: PrefixIndex, kind: str, evicted: int) -> None:
    """Until it was full, and so much was evicted."""
    source, now = random.Random(1), 0.0
    systems = [_piece(source, kind, 4 * _TURN_TOKENS) for _ in range(_SYSTEMS)]
    while index.store.evicted < evicted:
        worker = f"w{source.randrange(_WORKERS)}"
        for prompt in _conversation(source, kind, systems):
            now += 0.001
            claim = index.insert(_PART, prompt, worker, now, prompt_tokens=len(prompt))
            if claim is not None:
                index.confirm(claim, now)
        index.sweep(now)


def _fill_events(index: PrefixIndex) -> None:
    source = random.Random(2)
    for number in range(_WORKERS):
        index.follow(f"w{number}")
        index.stream(f"w{number}", TrustSignal.COMPLETE)
    while index.store.event_blocks.used_bytes < index.store.event_blocks.max_bytes:
        names = tuple(source.getrandbits(64) for _ in range(_BLOCKS))
        tokens = _piece(source, "events", 16 * _BLOCKS)
        assert not isinstance(tokens, bytes)
        index.apply(f"w{source.randrange(_WORKERS)}", BlocksStored(_PART, names, None, tokens, 16))


def fill(kind: str, max_bytes: int, evicted: int = _EVICTED) -> tuple[int, int]:
    """Bytes by which this process grew, and bytes that the index accounts for."""
    index = PrefixIndex(PrefixSettings(max_bytes=max_bytes))
    for number in range(_WORKERS):
        index.admit(f"w{number}", 0)
    gc.collect()
    before = _resident()
    if kind == "events":
        _fill_events(index)
    else:
        _fill_prompts(index, kind, evicted)
    gc.collect()
    return _resident() - before, index.used_bytes


def grown(kind: str, max_bytes: int) -> tuple[int, int]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.prefix_memory", kind, str(max_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    growth, used = done.stdout.split()
    return int(growth), int(used)


def measure(*, quick: bool = False) -> list[Verdict]:
    """Growth over what the kind may take; events may take half of the whole."""
    max_bytes = _MAX_BYTES // 8 if quick else _MAX_BYTES
    verdicts = []
    for kind in KINDS:
        growth, used = grown(kind, max_bytes)
        may = max_bytes // 2 if kind == "events" else max_bytes
        name = (
            f"prefix index of {kind}, growth over its {may / 2**20:.0f} MiB (accounts for {used / may:.2f})"
        )
        verdicts.append(Verdict(name, growth / may, "of the bound", None if quick else BOUND))
    return verdicts


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(*fill(sys.argv[1], int(sys.argv[2])))
    else:
        print_verdicts(measure())
