"""`python -m router.studies.tournament`: runs all policies on all workloads, and makes the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from router.studies.compare import cells
from router.studies.progress import bar
from router.studies.tournament.entries import (
    Entry,
    Kept,
    Round,
    entries_of,
    merged,
    rounds_of,
    tasks_of,
)
from router.studies.tournament.page import PAGE, render
from router.studies.tournament.store import FOLDER, load, save
from router.studies.tournament.words import WORDS
from router.studies.workloads import WORKLOADS, workload_named


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 2 when the command was wrong. A round that is not near the best is told, and is no error."""
    asked = _parser().parse_args(arguments)
    if not FOLDER.parent.is_dir() or not PAGE.parent.is_dir():
        sys.stderr.write(
            "run this in the root of the repository: there is no studies/results/ or docs/ here\n"
        )
        return 2
    if not asked.page:
        for workload in asked.only or WORKLOADS:
            _run(workload, asked)
    PAGE.write_text(render(load(WORKLOADS), WORDS), encoding="utf-8")
    _say(f"{PAGE} is written\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m router.studies.tournament", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=sorted(WORKLOADS), metavar="WORKLOAD", help="may be repeated"
    )
    parser.add_argument(
        "--policies",
        type=lambda text: text.split(","),
        metavar="P[,P]",
        help="run only these anew, and keep what the others did",
    )
    parser.add_argument("--page", action="store_true", help="run nothing, only make the page anew")
    parser.add_argument("--requests", type=int, default=1_000, help="calls of each run (default 1,000)")
    parser.add_argument("--seeds", type=int, default=8, help="runs of each policy and load (default 8)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    return parser


def _run(workload: str, asked: argparse.Namespace) -> None:
    """Runs one workload and keeps what came out."""
    tasks = [
        task
        for task in tasks_of(workload, asked.requests, asked.seeds)
        if asked.policies is None or task.policy in asked.policies
    ]
    _say(f"{workload}: {len(tasks)} runs\n")
    with bar(Console(stderr=True)) as progress:
        shown = progress.add_task(workload, total=len(tasks))
        entries = entries_of(cells(tasks, asked.jobs, lambda _cell: progress.advance(shown)))
    if asked.policies is not None:
        entries = merged(_old(workload, asked), entries)
    save(
        Kept(
            workload=workload,
            setup=workload_named(workload).setup,
            calls=asked.requests,
            seeds=asked.seeds,
            entries=entries,
        )
    )
    _report(rounds_of(entries))


def _old(workload: str, asked: argparse.Namespace) -> list[Entry]:
    """What the file of a workload has. Raises ValueError when it was made in another size."""
    found = load([workload])
    if not found:
        return []
    (kept,) = found
    if (kept.calls, kept.seeds) != (asked.requests, asked.seeds):
        raise ValueError(
            f"{workload} was run with {kept.calls} calls and {kept.seeds} seeds: run all policies, or as many"
        )
    return kept.entries


def _report(met: Sequence[Round]) -> None:
    for each in met:
        best = (
            "" if each.by_goodput is None else f"{each.goodput_gain} points from {each.by_goodput.policy}, "
        )
        held = "near the best" if each.holds else "not near the best"
        _say(f"  load {each.level:g}: {held}: {best}{each.e2e_ratio:.3f} × {each.by_e2e.policy}\n")


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
