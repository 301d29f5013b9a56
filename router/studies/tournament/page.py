"""`docs/tournament.md`, made from the files of a tournament.

Separate from running it: the page is a function of the stored entries, so a test can say when it is stale.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from router.studies.confidence import Estimate
from router.studies.tournament.entries import (
    CHALLENGER,
    E2E_RATIO,
    GOODPUT_POINTS,
    LEVELS,
    Entry,
    Kept,
    Round,
    Standing,
    rounds_of,
    standings,
)

PAGE = Path("docs/tournament.md")

_INTRODUCTION = """\
# All policies against all workloads

This page is made by `python -m router.studies.tournament` (`make tournament`) from
`studies/results/tournament/`; edit `router/studies/tournament/`, not this page.

A policy that has to be chosen per workload has to be chosen well. `{challenger}` is meant to be near the
best of the others on every one of them, with one set of parameters and nothing tuned for any. Here all
policies, with their default parameters, meet the same calls in simulation: each workload on the fleet it was
published on, at {levels} of the rate at which round robin is about to collapse there
([studies.md](studies.md)); {seeds} seeds; {calls:,} calls a run{but}.

Near the best means: goodput at least that of the best of the others less {points:g} points, and mean
end-to-end time at most {ratio:g} times the least of the others. The two may be of two different policies, and
each is the luckiest of a dozen, so the bar is a little higher than it looks.

**`{challenger}` is near the best in {near} of {rounds} rounds.**
"""


def render(kept: Sequence[Kept], words: str = "") -> str:
    """The whole page.

    Args:
        words: what is to be said of rounds that are not near the best.
    """
    entries = [entry for each in kept for entry in each.entries]
    met = rounds_of(entries)
    lines = [_introduction(kept, met), *_standings(standings(entries)), *_rounds(met)]
    if words:
        lines += [words.rstrip(), ""]
    lines += ["## All entries", "", "Goodput (%), then mean end-to-end time (s); means over the seeds.", ""]
    for each in kept:
        lines += _grid(each)
    return "\n".join(lines)


def _introduction(kept: Sequence[Kept], met: Sequence[Round]) -> str:
    [((calls, seeds), _)] = Counter((each.calls, each.seeds) for each in kept).most_common(1)
    others = [each for each in kept if (each.calls, each.seeds) != (calls, seeds)]
    but = ", ".join(f"{each.calls:,} of {each.workload}" for each in others)
    return _INTRODUCTION.format(
        challenger=CHALLENGER,
        levels=" and ".join(f"{level:g}" for level in LEVELS).replace(" and ", ", ", len(LEVELS) - 2),
        calls=calls,
        seeds=seeds,
        but=f"; {but}" if but else "",
        points=GOODPUT_POINTS,
        ratio=E2E_RATIO,
        near=sum(each.holds for each in met),
        rounds=len(met),
    )


def _standings(ranked: Iterable[Standing]) -> Iterator[str]:
    yield "## How far each policy is from the best of the others"
    yield ""
    yield "Where a policy is itself the best it is ahead: a positive number of points, or a ratio below 1."
    yield ""
    yield "| policy | near the best | goodput, worst (points) | goodput, mean | e2e, worst (×) | e2e, mean |"
    yield "|---|---|---|---|---|---|"
    for each in ranked:
        yield (
            f"| `{each.policy}` | {each.near} of {each.rounds} | {each.worst_goodput:+.1f} |"
            f" {each.mean_goodput:+.1f} | {each.worst_e2e:.2f} | {each.mean_e2e:.2f} |"
        )
    yield ""


def _rounds(met: Iterable[Round]) -> Iterator[str]:
    yield f"## `{CHALLENGER}` round by round"
    yield ""
    yield "± is half of a 95 % confidence interval of the paired difference."
    yield ""
    yield "| workload | load | calls/s | goodput % | best other | points | e2e s | best other | × |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for each in met:
        yield _round(each)
    yield ""


def _round(each: Round) -> str:
    goodput = best = points = ""
    if each.by_goodput is not None and each.goodput_gain is not None:
        goodput = _percent(each.challenger)
        best = f"{_percent(each.by_goodput)} {each.by_goodput.policy}"
        points = _strong(_signed(each.goodput_gain), not each.near_goodput)
    ratio = _strong(f"{each.e2e_ratio:.3f}", not each.near_e2e)
    return (
        f"| {each.workload} | {each.level:g} | {each.rate:.3g} | {goodput} | {best} | {points} |"
        f" {_seconds(each.challenger)} | {_seconds(each.by_e2e)} {each.by_e2e.policy} | {ratio} |"
    )


def _grid(kept: Kept) -> Iterator[str]:
    levels = list(dict.fromkeys(entry.level for entry in kept.entries))
    by_policy: dict[str, list[Entry]] = {}
    for entry in kept.entries:
        by_policy.setdefault(entry.policy, []).append(entry)
    yield f"### {kept.workload}"
    yield ""
    yield f"| {kept.setup} | {' | '.join(f'load {level:g}' for level in levels)} |"
    yield f"|---|{'---|' * len(levels)}"
    for policy, entries in by_policy.items():
        yield f"| {policy} | {' | '.join(map(_both, entries))} |"
    yield ""


def _both(entry: Entry) -> str:
    lost = f", {entry.unanswered} unanswered" if entry.unanswered else ""
    goodput = f"{_percent(entry)} · " if entry.goodput else ""
    return f"{goodput}{_seconds(entry)}{lost}"


def _percent(entry: Entry) -> str:
    return f"{100 * (entry.mean_goodput or 0.0):.1f}"


def _seconds(entry: Entry) -> str:
    return f"{entry.mean_e2e_s:.3g}" if entry.mean_e2e_s < 1_000 else f"{entry.mean_e2e_s:,.0f}"


def _signed(gain: Estimate) -> str:
    return f"{gain.mean:+.1f}" if gain.half is None else f"{gain.mean:+.1f} ± {gain.half:.1f}"


def _strong(text: str, strong: bool) -> str:
    return f"**{text}**" if strong else text
