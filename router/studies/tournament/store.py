"""The files of a tournament: one per workload, from which the page is made.

Separate so that a tournament can be run workload by workload, and a page needs no simulation.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from router.studies.tournament.entries import Kept

FOLDER = Path("studies/results/tournament")
"""Of the repository, where the command is to be run."""


def save(kept: Kept, folder: Path = FOLDER) -> Path:
    """Writes the file of a workload: an entry a line, so that two of them can be compared by line."""
    folder.mkdir(parents=True, exist_ok=True)
    head = msgspec.to_builtins(kept)
    entries = head.pop("entries")
    lines = ",\n".join(f"  {msgspec.json.encode(entry).decode()}" for entry in entries)
    text = msgspec.json.encode({**head, "entries": []}).decode()
    path = folder / f"{kept.workload}.json"
    path.write_text(f"{text.removesuffix(']}')}\n{lines}\n]}}\n", encoding="utf-8")
    return path


def load(workloads: Iterable[str], folder: Path = FOLDER) -> list[Kept]:
    """The files of these workloads, of those that have one. Raises ValueError for one that cannot be read."""
    found = []
    for name in workloads:
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Kept))
        except msgspec.DecodeError as error:
            raise ValueError(
                f"{path} is no file of a tournament ({error}): run the workload again"
            ) from error
    return found
