"""Which prompts, batches and hand-overs are measured, within what an engine can hold.

Separate so that the size of a run can be told, and tested, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PREFILL_TOKENS: Final = (128, 256, 512, 1024, 2048, 4096, 8192)
CONTEXT_TOKENS: Final = (128, 512, 2048, 8192)
SEQUENCES: Final = (1, 2, 4, 8, 16, 32, 64)
TRANSFER_TOKENS: Final = (256, 1024, 2048, 4096, 8192)

_QUICK_PREFILL: Final = (128, 512, 2048, 8192)
_QUICK_CONTEXT: Final = (128, 2048)
_QUICK_SEQUENCES: Final = (1, 4, 16, 64)
_QUICK_TRANSFER: Final = (256, 1024, 4096, 8192)

_KV_SHARE: Final = 0.8
"""Of an engine's KV, what a measurement may fill: beyond it engines preempt, which is another law."""
_SURE_SHARE: Final = 0.95
"""Of the room for a prompt. Tokens of a text are known by their mean only, until they have been counted."""
_FILL_TOKENS: Final = 65_536
"""Most prompt tokens of one batch. They are prefilled once for each context, and that is most of the time
that a calibration takes."""
_UNKNOWN_KV_TOKENS: Final = 32_768
"""Assumed of an engine that does not tell its KV."""
_UNKNOWN_SLOTS: Final = 256
"""Assumed of a full engine whose slots nobody told: vLLM's default for most GPUs."""
_SHORTEST_CONTEXT: Final = 16
_LEAST_DIFFERENT: Final = 3
"""Lengths that a curve of three terms needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What an engine can hold.

    Attributes:
        context_tokens: longest prompt and output together; None when nobody says.
        kv_tokens: all sequences together; None when it does not tell.
        slots: sequences that run at once; None when nobody said.
    """

    context_tokens: int | None = None
    kv_tokens: int | None = None
    slots: int | None = None

    @property
    def usable_kv_tokens(self) -> int:
        """KV that a measurement may fill."""
        return int(_KV_SHARE * (self.kv_tokens or _UNKNOWN_KV_TOKENS))

    def fits(self, sequences: int, context_tokens: int, output_tokens: int) -> bool:
        """Whether so many sequences run at once."""
        return (
            (self.slots is None or sequences <= self.slots)
            and context_tokens <= self.longest(output_tokens)
            and sequences * (context_tokens + output_tokens) <= self.usable_kv_tokens
        )

    def longest(self, output_tokens: int) -> int:
        """Longest prompt beside so much output that is sure to fit."""
        kv = self.usable_kv_tokens
        return int(_SURE_SHARE * (min(kv, self.context_tokens or kv) - output_tokens))


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        quick: less of everything.
        repeats: measurements of each prompt length that count; one more comes before them and does not.
        batches: times that each batch of decodes is measured; the median counts.
        steps: decode steps that are watched each time.
    """

    quick: bool = False

    @property
    def repeats(self) -> int:
        return 2 if self.quick else 3

    @property
    def batches(self) -> int:
        return 1 if self.quick else 3

    @property
    def steps(self) -> int:
        return 24 if self.quick else 48


@dataclass(frozen=True, slots=True)
class Ladder:
    """Decode batches of one context, of growing size.

    Attributes:
        context_tokens: length of each prompt.
        sequences: sizes of the batches, ascending.
    """

    context_tokens: int
    sequences: tuple[int, ...]


def prefill_lengths(room: Room, effort: Effort, also: int | None = None) -> list[int]:
    """Prompt lengths of the prefill curve, ascending, with `also` among them.

    An engine that can hold only one or two of them is measured at parts of its longest prompt.
    """
    longest = room.longest(1)
    wanted = {*(_QUICK_PREFILL if effort.quick else PREFILL_TOKENS)}
    if also is not None:
        wanted.add(also)
    return _at_least(_LEAST_DIFFERENT, {length for length in wanted if length <= longest}, longest)


def transfer_lengths(rooms: Sequence[Room], effort: Effort) -> list[int]:
    """Prompt lengths that are handed over between engines of these sizes, ascending."""
    longest = min(room.longest(2) for room in rooms)
    wanted = _QUICK_TRANSFER if effort.quick else TRANSFER_TOKENS
    return _at_least(_LEAST_DIFFERENT, {length for length in wanted if length <= longest}, longest)


def _at_least(count: int, lengths: set[int], longest: int) -> list[int]:
    if len(lengths) < count:
        lengths = lengths | {max(1, longest * part // count) for part in range(1, count + 1)}
    return sorted(lengths)


def ladders(
    room: Room, effort: Effort, output_tokens: int, also: tuple[int, int] | None = None
) -> list[Ladder]:
    """The decode batches to measure. Contexts differ by far more than sizes do, so that neither stands for
    the other.

    Args:
        output_tokens: most that each sequence generates.
        also: (sequences, context tokens) of a batch that must be among them if it fits.
    """
    sizes = {*(_QUICK_SEQUENCES if effort.quick else SEQUENCES), *_all_slots(room)}
    contexts = set(_QUICK_CONTEXT if effort.quick else CONTEXT_TOKENS)
    longest = room.longest(output_tokens)
    fitting = {context for context in contexts if context <= longest}
    if len(fitting) < 2:
        fitting |= {max(_SHORTEST_CONTEXT, longest // 4), max(_SHORTEST_CONTEXT, longest)}
    built = {context: _sizes(room, sizes, context, output_tokens) for context in fitting}
    if also is not None and also[1] <= longest and _fits(room, also[0], also[1], output_tokens):
        built[also[1]] = built.get(also[1], set()) | {also[0]}
    return [Ladder(context, tuple(sorted(found))) for context, found in sorted(built.items()) if found]


def _all_slots(room: Room) -> set[int]:
    """The batch that fills an engine of few slots."""
    return {room.slots} if room.slots is not None and room.slots < SEQUENCES[-1] else set()


def _sizes(room: Room, sizes: set[int], context: int, output_tokens: int) -> set[int]:
    return {n for n in sizes if _fits(room, n, context, output_tokens)}


def _fits(room: Room, sequences: int, context: int, output_tokens: int) -> bool:
    few = sequences == 1 or sequences * context <= _FILL_TOKENS
    return few and room.fits(sequences, context, output_tokens)


def full_sequences(room: Room, context_tokens: int) -> int:
    """Sequences of this context that a full engine runs: what its KV holds, within its slots."""
    return max(1, min(room.slots or _UNKNOWN_SLOTS, room.usable_kv_tokens // context_tokens))


def operating_sequences(room: Room, context_tokens: int, output_tokens: int) -> int:
    """Sequences of this context that one engine is expected to run at once under load, among the sizes that
    are
    measured: as many as its slots, its KV and the measurement allow."""
    fitting = [n for n in {*SEQUENCES, *_all_slots(room)} if _fits(room, n, context_tokens, output_tokens)]
    return max(fitting, default=1)
