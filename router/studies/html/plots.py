"""The plots of a comparison, from its runs: which curves, over which axes.

Separate from the drawing, which knows no policy, and from the page, which knows no figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from router.studies.compare import Cell
from router.studies.confidence import Estimate
from router.studies.curves import SHARES
from router.studies.html.axis import Axis, around, by_factors, from_zero, shares
from router.studies.html.svg import SMALL, Row, Series, lines, rows
from router.studies.lines import Line, Read, e2e_s, goodput, hit_rate, ttft_p99_s

_LATENCIES = (
    ("Time to first token", "ttft_s", 1e3, "ms"),
    ("Time per output token", "tpot_s", 1e3, "ms"),
    ("Time between tokens", "itl_s", 1e3, "ms"),
    ("End-to-end time", "e2e_s", 1.0, "s"),
)
_WHOSE = {"calls": "answered calls", "gaps": "all gaps between two tokens"}
_LAST_SHARE = 0.995
"""A curve is drawn up to here: the slowest call of all is no share."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture with what stands above it."""

    title: str
    remark: str
    svg: str


Styles = Mapping[str, int]
"""Number of the colour of each policy."""


def styles_of(policies: Sequence[str]) -> dict[str, int]:
    """A colour for each policy, in the order in which they come."""
    return {policy: index for index, policy in enumerate(dict.fromkeys(policies))}


# --- one workload, one fleet, one rate --------------------------------------------------------------------


def against_first(made: Sequence[Line], styles: Styles) -> Iterator[Plot]:
    """What each policy gains or loses against the first one on the same calls, seed by seed: what all of them
    have in common, an easy or a hard seed, has fallen out."""
    remark = f"less that of {made[0].policy}, seed by seed; whiskers: 95 % confidence"
    if any(line.mean(goodput) is not None for line in made):
        gains = [(line.policy, line.against_first(goodput)) for line in made]
        yield _dots("Goodput", remark, "percentage points", gains, 100.0, styles)
    times = [(line.policy, line.against_first(e2e_s)) for line in made]
    yield _dots("Mean end-to-end time", remark, "s", times, 1.0, styles)


def _dots(
    title: str,
    remark: str,
    unit: str,
    found: Sequence[tuple[str, Estimate | None]],
    scale: float,
    styles: Styles,
) -> Plot:  # fmt: skip
    """A dot for each difference; the first policy, which has none, stands at 0."""
    made = [
        _dot(policy, value or Estimate(0.0, None), unit, scale, styles[policy])
        for policy, value in found
        if value is None or math.isfinite(value.mean)
    ]
    ends = [row.value + sign * (row.half or 0.0) for row in made for sign in (-1, 1)]
    return Plot(title, remark, rows(made, around(unit, ends), f"{title} {remark}"))


def _dot(policy: str, value: Estimate, unit: str, scale: float, style: int) -> Row:
    half = None if value.half is None else value.half * scale
    tip = f"{value.mean * scale:+.4g}{'' if half is None else f' ±{half:.2g}'} {unit}"
    return Row(name=policy, value=value.mean * scale, half=half, style=style, tip=tip)


def distributions(made: Sequence[Cell], styles: Styles) -> Iterator[Plot]:
    """Cumulative distributions of the latencies, a line for each policy."""
    for title, field, scale, unit in _LATENCIES:
        series = [
            Series(name=policy, points=points, style=styles[policy], tip=_middle(points, unit))
            for policy, group in _by_policy(made).items()
            if (points := _curve([getattr(each.curves, field) for each in group], scale))
        ]
        if series:
            x = by_factors(f"{unit}", [value for each in series for value, _ in each.points])
            what = "gaps" if field == "itl_s" else "calls"
            remark = f"share of {_WHOSE[what]} that took no longer; mean over the seeds"
            yield Plot(title, remark, lines(series, x, shares(f"% of {what}"), title))


def _curve(many: Sequence[Sequence[float]], scale: float) -> list[tuple[float, float]]:
    """The mean of the seeds at each share."""
    known = [each for each in many if each]
    if not known:
        return []
    return [
        (scale * math.fsum(each[place] for each in known) / len(known), 100.0 * share)
        for place, share in enumerate(SHARES)
        if share <= _LAST_SHARE
    ]


def _middle(points: Sequence[tuple[float, float]], unit: str) -> str:
    value = next(value for value, share in points if share >= 50)
    return f"half within {value:.3g} {unit}"


def kv_loads(made: Sequence[Cell], styles: Styles) -> Iterator[Plot]:
    """KV tokens of each worker of a barrier group over time, a picture for each policy."""
    groups = [(each, name, group) for each in made for name, group in each.loads.items()]
    loads = [float(load) for _, _, group in groups for row in group.kv_tokens for load in row]
    y = from_zero("KV tokens", loads)
    for each, name, group in groups:
        style, barrier = styles[each.policy], each.figures.barriers[name]
        series = [
            Series(name=f"worker {index}", points=list(zip(group.at_s, row, strict=True)), style=style)
            for index, row in enumerate(group.kv_tokens)
        ]
        remark = f"max − min {barrier.gap_tokens:,.0f} tokens, idle {100 * barrier.idle_share:.1f} %"
        x = Axis(label="s", low=0.0, high=max(group.at_s[-1], 1e-3))
        yield Plot(each.policy, remark, lines(series, x, y, f"{each.policy}: {remark}", SMALL))


# --- over rates, and over sizes of the fleet --------------------------------------------------------------


class _Figure(NamedTuple):
    """One figure of a line that is followed over rates or sizes."""

    title: str
    read: Read
    unit: str

    @property
    def is_share(self) -> bool:
        return self.unit.startswith("%")


_HITS = _Figure("Cache hits", hit_rate, "% of prompt tokens")
_COPIES = _Figure("Copies of a cached block", lambda run: run.copies, "workers that hold it")
_FOLLOWED = (
    _Figure("Goodput", goodput, "% of all calls"),
    _Figure("Mean end-to-end time", e2e_s, "s"),
    _Figure("Time to first token, p99", ttft_p99_s, "s"),
)
Where = Callable[[Line], float | None]


def over_rates(made: Sequence[Line], styles: Styles) -> Iterator[Plot]:
    """What becomes of goodput and latency as more calls come."""
    for figure in _FOLLOWED:
        yield from _over("calls per second", made, styles, lambda line: line.rate, figure)


def over_workers(made: Sequence[Line], styles: Styles) -> Iterator[Plot]:
    """What more replicas do: to the cache, and to latency."""
    for figure in (_HITS, _COPIES, *_FOLLOWED):
        yield from _over("workers", made, styles, lambda line: line.workers, figure)


def _over(unit: str, made: Sequence[Line], styles: Styles, where: Where, figure: _Figure) -> Iterator[Plot]:
    series = [
        _levels(policy, group, where, figure, styles[policy]) for policy, group in _groups(made).items()
    ]
    values = [value for each in series for _, value in each.points]
    if values:
        y = shares(figure.unit) if figure.is_share else by_factors(figure.unit, values)
        x = around(unit, [at for each in series for at, _ in each.points])
        yield Plot(figure.title, f"over {unit}", lines(series, x, y, f"{figure.title} over {unit}"))


def _levels(policy: str, group: Sequence[Line], where: Where, figure: _Figure, style: int) -> Series:
    """Confidence intervals stand at shares alone: those of times are wide with what all policies have in
    common, and would cover the lines."""
    scale = 100.0 if figure.is_share else 1.0
    known = [
        (at, value.mean * scale, value.half)
        for line in group
        if (at := where(line)) is not None
        and (value := line.mean(figure.read)) is not None
        and math.isfinite(value.mean)
    ]
    halves = [half * scale if half is not None and figure.is_share else None for _, _, half in known]
    points = [(at, value) for at, value, _ in known]
    return Series(name=policy, points=points, style=style, halves=halves, dots=True)


def _groups(made: Sequence[Line]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = {}
    for line in made:
        groups.setdefault(line.policy, []).append(line)
    return groups


def _by_policy(made: Sequence[Cell]) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = {}
    for each in made:
        groups.setdefault(each.policy, []).append(each)
    return groups
