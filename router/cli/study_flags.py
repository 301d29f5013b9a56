"""Words that the commands of studies have in common: policies with parameters, workloads, counts.

Separate from the commands, which would otherwise each read them a little differently.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping

from router.policies import POLICIES
from router.settings.refusals import closest
from router.studies.workloads import WORKLOADS
from router.studies.workloads.trace_file import PREFIX


class UsageError(Exception):
    """Flags that name what is not there, or contradict each other."""


def known_workload(name: str) -> str:
    """A workload's name, or `trace:FILE`. Raises UsageError."""
    return name if name.startswith(PREFIX) else _known(name, WORKLOADS, "workload")


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
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1")
    return number


def numbers_above_0(flag: str, text: str) -> list[float]:
    """The numbers of `a,b,c`, sorted, each once. Raises UsageError."""
    try:
        numbers = sorted({float(word) for word in text.split(",")})
    except ValueError:
        numbers = [0.0]
    if not all(0 < number < math.inf for number in numbers):
        raise UsageError(f"{flag} is {text!r}: numbers above 0 with commas between them")
    return numbers
