"""`python -m router.studies.reproductions`: runs the studies, keeps their figures, and makes the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from router.studies.reproductions.catalogue import STUDIES
from router.studies.reproductions.page import PAGE, render
from router.studies.reproductions.store import RESULTS, load, run, save
from router.studies.reproductions.study import Measures, Size, Study


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 when a claim of a study that was run does not hold, 2 when the command was wrong."""
    asked = _parser().parse_args(arguments)
    if not RESULTS.parent.is_dir() or not PAGE.parent.is_dir():
        sys.stderr.write("run this in the root of the repository: there is no studies/ or docs/ here\n")
        return 2
    chosen = [STUDIES[name] for name in asked.only] if asked.only else list(STUDIES.values())
    size = Size.SMALL if asked.small else Size.FULL
    missed = 0 if asked.page else sum(_ran(study, size, asked.jobs) for study in chosen)
    PAGE.write_text(render(STUDIES, load(STUDIES)), encoding="utf-8")
    _say(f"{PAGE} is written")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m router.studies.reproductions", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--small", action="store_true", help="what the tests run: some minutes in all")
    size.add_argument("--full", action="store_true", help="near the published sizes: the default")
    size.add_argument("--page", action="store_true", help="run nothing, only make the page anew")
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(STUDIES),
        metavar="NAME",
        help="one of them; may be repeated",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    return parser


def _ran(study: Study, size: Size, jobs: int) -> int:
    """Runs one study and keeps its figures; returns how many of its claims do not hold."""
    _say(f"{study.name} ({size})")
    measures = run(study, size, jobs, _tell)
    save(study, size, measures)
    missed = [claim for claim in study.find(measures).claims if not claim.holds]
    for claim in missed:
        _say(f"  missed: {claim.text}: {claim.value:.4g} (from {claim.least:g} to {claim.most:g})")
    return len(missed)


def _tell(label: str, measures: Measures) -> None:
    _say(f"  {label}: {', '.join(f'{name} {value:.4g}' for name, value in measures.items())}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
