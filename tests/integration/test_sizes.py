"""Files stay short enough to be held in the head, and every exception is named with its reason."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.integration.programs import ROOT

FOLDERS = ("router", "engines", "benchmarks", "tests")
MOST_LINES = 400
"""As CONTRIBUTING.md says."""

LONG = {"tests/core/test_pool_pairs.py": "one state machine, whose rules share all of its state"}


@cache
def lines_of() -> dict[str, int]:
    """By the path of the file from the root of the tree."""
    return {
        str(path.relative_to(ROOT)): path.read_bytes().count(b"\n")
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }


def test_files_are_short() -> None:
    long = {name: lines for name, lines in lines_of().items() if lines > MOST_LINES and name not in LONG}
    assert long == {}


def test_exceptions_are_none_that_are_short_by_now() -> None:
    assert [name for name in LONG if lines_of()[name] <= MOST_LINES] == []


def test_no_two_test_files_share_a_name() -> None:
    names = [Path(file).name for file in lines_of() if Path(file).name.startswith("test_")]
    assert len(names) == len(set(names))
