"""The plots of a comparison, from its runs: which curves, over which axes.

Separate from the drawing, which knows no policy, and from the page, which knows no figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from router.studies.compare import Cell, Line
from router.studies.confidence import Estimate
from router.studies.curves import SHARES
from router.studies.html.axis import Axis, around, by_factors, from_zero, shares
from router.studies.html.svg import SMALL, Row, Series, lines, rows

_LATENCIES = (
    ("Time to first token", "ttft_s", 1e3, "ms"),
    ("Time per output token", "tpot_s", 1e3, "ms"),
    ("End-to-end time", "e2e_s", 1.0, "s"),
)
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


def of_lines(made: Sequence[Line], styles: Styles) -> Iterator[Plot]:
    """Means with their confidence intervals, a row for each policy."""
    remark = "dots are means, whiskers 95 % confidence over the seeds"
    if any(line.goodput is not None for line in made):
        goodputs = [(line.policy, line.goodput) for line in made]
        yield _dots("Goodput", remark, "% of all calls", goodputs, 100.0, styles)
    times = [(line.policy, line.e2e_s) for line in made]
    yield _dots("Mean end-to-end time", remark, "s", times, 1.0, styles)


def _dots(
    title: str,
    remark: str,
    unit: str,
    found: Sequence[tuple[str, Estimate | None]],
    scale: float,
    styles: Styles,
) -> Plot:  # fmt: skip
    known = [(policy, value) for policy, value in found if value is not None and math.isfinite(value.mean)]
    made = [
        Row(
            name=policy,
            value=value.mean * scale,
            half=None if value.half is None else value.half * scale,
            style=styles[policy],
            tip=f"{value.mean * scale:.4g} {unit}",
        )
        for policy, value in known
    ]
    ends = [row.value + sign * (row.half or 0.0) for row in made for sign in (-1, 1)]
    most = 100.0 if unit.startswith("%") else math.inf
    return Plot(title, remark, rows(made, around(unit, ends, most), title))


def distributions(made: Sequence[Cell], styles: Styles) -> Iterator[Plot]:
    """Cumulative distributions of the three latencies, a line for each policy."""
    for title, field, scale, unit in _LATENCIES:
        series = [
            Series(name=policy, points=points, style=styles[policy], tip=_middle(points, unit))
            for policy, group in _by_policy(made).items()
            if (points := _curve([getattr(each.curves, field) for each in group], scale))
        ]
        if series:
            x = by_factors(f"{unit}", [value for each in series for value, _ in each.points])
            remark = "share of answered calls that took no longer; mean over the seeds"
            yield Plot(title, remark, lines(series, x, shares("% of calls"), title))


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


def over_rates(made: Sequence[Line], styles: Styles) -> Iterator[Plot]:
    """What becomes of goodput and latency as more calls come."""
    yield from _over(made, styles, "calls per second", lambda line: line.rate)


def over_workers(made: Sequence[Line], styles: Styles) -> Iterator[Plot]:
    """What more replicas do: to the cache, and to latency."""
    yield from _over(made, styles, "workers", lambda line: line.workers, hits=True)


def _over(
    made: Sequence[Line],
    styles: Styles,
    unit: str,
    where: Callable[[Line], float | None],
    *,
    hits: bool = False,
) -> Iterator[Plot]:
    kinds: list[tuple[str, Callable[[Line], Estimate | None], float, str]] = []
    if hits:
        kinds.append(("Cache hits", lambda line: line.hit_rate, 100.0, "% of prompt tokens"))
    kinds.append(("Goodput", lambda line: line.goodput, 100.0, "% of all calls"))
    kinds.append(("Mean end-to-end time", lambda line: line.e2e_s, 1.0, "s"))
    kinds.append(("Time to first token, p99", lambda line: line.ttft_p99_s, 1.0, "s"))
    for title, read, scale, label in kinds:
        series = [
            _levels(policy, group, where, read, scale, styles[policy])
            for policy, group in _groups(made).items()
        ]
        values = [value for each in series for _, value in each.points]
        if values:
            percent = label.startswith("%")
            y = shares(label) if percent else by_factors(label, values)
            x = from_zero(unit, [at for each in series for at, _ in each.points])
            yield Plot(title, f"over {unit}", lines(series, x, y, f"{title} over {unit}"))


def _levels(
    policy: str,
    group: Sequence[Line],
    where: Callable[[Line], float | None],
    read: Callable[[Line], Estimate | None],
    scale: float,
    style: int,
) -> Series:
    known = [
        (at, value)
        for line in group
        if (at := where(line)) is not None and (value := read(line)) is not None and math.isfinite(value.mean)
    ]
    known.sort(key=lambda pair: pair[0])
    return Series(
        name=policy,
        points=[(float(at), value.mean * scale) for at, value in known],
        style=style,
        halves=[None if value.half is None else value.half * scale for _, value in known],
        dots=True,
    )


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
