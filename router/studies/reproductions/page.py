"""`docs/reproductions.md`, made from the files of results.

Separate from running: the page is a function of the studies and their stored figures, so it is cheap to make
and a test can say when it is stale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from router.studies.reproductions.store import Kept
from router.studies.reproductions.study import Claim, Row, Size, Study

PAGE = Path("docs/reproductions.md")

_INTRODUCTION = """\
# Reproductions

This page is made by `python -m router.studies.reproductions` (`make reproductions`) from `studies/results/`;
edit the studies in `router/studies/reproductions/`, not this page.

The experiments that the policies come from, run again in simulation with the product's own pools and
policies. Nothing here was measured on a GPU by us. Each study shows our figure beside the published one,
their ratio, and what to make of a difference. Where no figure is published, or none that is to be had, the
column is empty. The claims under each table are bands that a small version of the study must keep to in our
tests; what we could not reproduce is said in words and has no band.

Sizes: `full` is near the published number of calls, `small` is what the tests run. Each study says which one
its figures are of; one seed unless said otherwise. Equal commands give equal figures, whatever `--jobs` is.
"""


def render(studies: Mapping[str, Study], kept: Mapping[str, Kept]) -> str:
    """The whole page, of the studies that have results."""
    lines = [_INTRODUCTION, *_sizes(kept)]
    shown = [study for study in studies.values() if study.name in kept]
    for source, group in groupby(shown, key=lambda study: study.source):
        lines += [f"## {source}", ""]
        for study in group:
            lines += _section(study, kept[study.name])
    return "\n".join(lines)


def _sizes(kept: Mapping[str, Kept]) -> Iterator[str]:
    """Which studies are of which size, where not all are of one."""
    small = sorted(name for name, each in kept.items() if each.size is Size.SMALL)
    if not small or len(small) == len(kept):
        return
    yield f"Of the small size here: {', '.join(f'`{name}`' for name in small)}; all others are full."
    yield ""


def _section(study: Study, kept: Kept) -> Iterator[str]:
    findings = study.find(kept.measures)
    seeds = max(int(label.rpartition("/")[2]) for label in kept.measures)
    size = kept.size if seeds == 1 else f"{kept.size}, {seeds} seeds"
    yield f"### {study.title}"
    yield ""
    yield f"`{study.name}` ({size}). {study.setting}"
    yield ""
    yield "| | ours | published | ratio |"
    yield "|---|---|---|---|"
    yield from map(_row, findings.rows)
    yield ""
    yield study.word
    yield ""
    for claim in findings.claims:
        missed = "" if claim.holds else "**Missed here:** "
        yield f"- {missed}{claim.text}: {_number(claim.value)} ({_band(claim)})"
    if findings.claims:
        yield ""


def _row(row: Row) -> str:
    published = "" if row.published is None else _number(row.published)
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return f"| {row.what} | {_number(row.ours)} | {published} | {ratio} |"


def _band(claim: Claim) -> str:
    if math.isinf(claim.most):
        return f"at least {_number(claim.least)}"
    if math.isinf(claim.least):
        return f"at most {_number(claim.most)}"
    return f"{_number(claim.least)} to {_number(claim.most)}"


def _number(value: float) -> str:
    """Three or four digits: more than any of these is sure of."""
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{float(text):g}" if "e" in text else text
