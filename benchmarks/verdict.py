"""A figure beside its bound, and the table of them. Separate because every benchmark ends in one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec


class Verdict(msgspec.Struct, frozen=True):
    """One figure that was reached.

    Attributes:
        bound: the figure may not be above it; None: shown, not judged.
    """

    name: str
    figure: float
    unit: str
    bound: float | None = None

    @property
    def holds(self) -> bool:
        return self.bound is None or self.figure <= self.bound

    @property
    def word(self) -> str:
        if self.bound is None:
            return ""
        return "holds" if self.holds else "MISSED"


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """One line each, in columns."""
    width = max(len(verdict.name) for verdict in verdicts)
    print(f"\n{'':<{width}}  {'figure':>10} {'bound':>10}  unit")
    for verdict in verdicts:
        bound = "" if verdict.bound is None else f"{verdict.bound:g}"
        line = (
            f"{verdict.name:<{width}}  {verdict.figure:>10.3g} {bound:>10}  {verdict.unit:<24} {verdict.word}"
        )
        print(line.rstrip())


def write_json(path: Path, content: object) -> None:
    """Writes `content` readably, making the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    print(f"\nwritten: {path}")
