"""Runs studies, and keeps what came out: one file of figures per study, from which the page is made.

Separate from the page so that writing it needs no simulation, and a test can say when it is stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from router.studies.processes import in_processes
from router.studies.reproductions.study import Measures, Part, Results, Size, Study

RESULTS = Path("studies/results")
"""Of the repository, where the command is to be run."""
_DIGITS = 4
"""Of a kept figure: more than any of them is sure of."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What one study has measured, in which size."""

    study: str
    size: Size
    measures: dict[str, dict[str, float]]


def run(
    study: Study, size: Size, jobs: int = 1, told: Callable[[str, Measures], None] | None = None
) -> dict[str, Measures]:
    """All parts of a study, in their order, whatever the number of processes.

    Args:
        told: of each part as it is done.
    """
    parts = study.parts(size)
    done: dict[str, Measures] = {}
    for label, measures in zip(parts, in_processes(list(parts.values()), jobs, _call), strict=True):
        done[label] = {name: _rounded(value) for name, value in measures.items()}
        if told is not None:
            told(label, done[label])
    return done


def _call(part: Part) -> Measures:
    return part()


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def save(study: Study, size: Size, measures: Results, folder: Path = RESULTS) -> Path:
    """Writes the file of a study."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(study=study.name, size=size, measures={name: dict(each) for name, each in measures.items()})
    path = folder / f"{study.name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
    return path


def load(studies: Mapping[str, Study], folder: Path = RESULTS) -> dict[str, Kept]:
    """Files of all studies that have one, by name. Raises ValueError for one that cannot be read."""
    found: dict[str, Kept] = {}
    for name in studies:
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        try:
            found[name] = msgspec.json.decode(path.read_bytes(), type=Kept)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path} is no file of results ({error}): run the study again") from error
    return found
