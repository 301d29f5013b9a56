"""Words that the commands of studies have in common: policies with parameters, workloads, counts.

Separate from the commands, which would otherwise each read them a little differently.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from router.policies import POLICIES
from router.settings.refusals import closest
from router.studies.simulation.fleet import FleetPlan
from router.studies.workloads import WORKLOADS
from router.studies.workloads.trace_file import PREFIX

MOST_CALLS: Final = 10_000_000


class UsageError(Exception):
    """Flags that name what is not there, or contradict each other."""


def known_workload(name: str) -> str:
    """A workload's name, or `trace:FILE`. Raises UsageError."""
    if name == PREFIX:
        raise UsageError(f"{PREFIX} names no file: write {PREFIX}FILE")
    return name if name.startswith(PREFIX) else _known(name, WORKLOADS, "workload")


def traces_of(workloads: str) -> list[Path]:
    """The files that `trace:FILE` names among these workloads, with commas between them."""
    return [Path(name.removeprefix(PREFIX)) for name in workloads.split(",") if name.startswith(PREFIX)]


def parsed_policy(text: str) -> tuple[str, dict[str, object]]:
    """`name` or `name:key=value;key=value`. Raises UsageError and PolicyError."""
    name, _, words = text.partition(":")
    spec = POLICIES[_known(name, POLICIES, "policy")]
    params: dict[str, object] = {}
    for word in filter(None, words.split(";")):
        key, _, value = word.partition("=")
        params[key] = _value(value)
    spec.check(params)
    return name, params


def _value(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _known(name: str, known: Mapping[str, object], what: str) -> str:
    if name not in known:
        near = closest(name, known)
        raise UsageError(
            f"{what} {name!r} is unknown"
            + (f", did you mean {near}?" if near else f"; known: {', '.join(known)}")
        )
    return name


def positive(text: str) -> int:
    """A whole number above 0, for argparse."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return number


def calls(text: str) -> int:
    """As many calls as a scenario may ask for, for argparse."""
    number = positive(text)
    if number > MOST_CALLS:
        raise argparse.ArgumentTypeError(f"{text} is more than {MOST_CALLS:,}, the most that is simulated")
    return number


def share(text: str) -> float:
    """Above 0, at most 1, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and at most 1")
    return number


def add_judge_flag(parser: argparse.ArgumentParser) -> None:
    """`--judge`."""
    parser.add_argument(
        "--judge",
        metavar="P",
        help="a policy that judges every decision by its own costs: what it regrets is told, too",
    )


def known_judge(name: str | None, fleets: Iterable[FleetPlan]) -> str | None:
    """A policy that can judge in some pool of each of these fleets. Raises UsageError."""
    if name is None:
        return None
    spec = POLICIES[_known(name, POLICIES, "policy")]
    for fleet in fleets:
        roles = {pool.role for pool in fleet.pools}
        if not any(map(spec.fits, roles)):
            words = " and ".join(sorted(role.value for role in roles))
            raise UsageError(f"--judge {name} is for no pool of role {words}, so there is nothing to judge")
    return name


def each_once(flag: str, names: Sequence[str]) -> None:
    """Raises UsageError for a name that comes twice: its runs would count as those of two seeds."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{flag} names {twice} twice")


def numbers_above_0(flag: str, text: str) -> list[float]:
    """The numbers of `a,b,c`, sorted, each once. Raises UsageError."""
    try:
        numbers = sorted({float(word) for word in text.split(",")})
    except ValueError:
        numbers = [0.0]
    if not all(0 < number < math.inf for number in numbers):
        raise UsageError(f"{flag} is {text!r}: numbers above 0 with commas between them")
    return numbers
