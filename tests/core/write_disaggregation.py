"""Writes the tables of docs/disaggregation.md anew: `python -m tests.core.write_disaggregation`.

Only what stands between a pair of markers is printed; the words around it are written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from router.connectors import CONNECTORS, build_connector
from router.core.deadlines import SplitDeadlines, Wait
from router.core.phase import FINAL, PHASES, Phase, Step
from router.core.split_rule import RULES, Unsplit

PAGE = Path(__file__).parents[2] / "docs" / "disaggregation.md"

_ENDINGS = frozenset({Step.CANCEL, Step.EXPIRE, Step.FAIL})


def phases() -> str:
    """Every step of every phase; the three endings lead out of all that are not final."""
    steps = [step for step in Step if step not in _ENDINGS]
    lines = ["| phase | " + " | ".join(step.value for step in steps) + " |", "|---" * (len(steps) + 1) + "|"]
    for phase in Phase:
        if phase not in FINAL:
            cells = [PHASES[phase, step].value if (phase, step) in PHASES else "" for step in steps]
            lines.append(f"| {phase.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def unsplit() -> str:
    """Why a request stays whole, in the order in which the reasons are looked at."""
    lines = ["| reason | goes to |", "|---|---|"]
    for why, _, places in RULES:
        where = ", else ".join(place.value for place in places) or "the owner"
        lines.append(f"| `{why.value}` | {where} |")
    if [why for why, _, _ in RULES] != list(Unsplit):
        raise AssertionError("a reason has no rule")
    return "\n".join(lines)


def connectors() -> str:
    lines = [
        "| connector | legs | a decode worker is chosen | KV is held for | serves whole requests |",
        "|---|---|---|---|---|",
    ]
    for name in CONNECTORS:
        made = build_connector(name)
        legs = "at once" if made.concurrent else "one after the other"
        chosen = "up front, as a pair" if made.concurrent else "after the prefill"
        held = "–" if made.lease_s is None else f"{made.lease_s:g} s"
        whole = "yes" if made.decode_takes_whole else "no"
        lines.append(f"| `{name}` | {legs} | {chosen} | {held} | {whole} |")
    return "\n".join(lines)


def deadlines() -> str:
    limits = SplitDeadlines()
    times = limits.handover(0.0)
    lease = f"{limits.lease_s:g}"
    of = {
        Wait.PREFILL: f"{limits.prefill_s:g} s after the prefill leg was sent",
        Wait.TRANSFER: f"{times.dispatch_by:g} s after the prefill answered, of a lease of {lease} s",
        Wait.DECODE_FIRST_EVENT: f"{limits.decode_first_event_s:g} s after the decode leg was sent",
        Wait.FIRST_EVENT: "`timeouts.first_event_s`, or the client's own `x-stainless-read-timeout`",
        Wait.TOTAL: "`timeouts.total_s`",
    }
    lines = ["| phase in error and metric | runs out |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{wait.value}` | {of[wait]} |" for wait in Wait)])


TABLES: dict[str, Callable[[], str]] = {
    "phases": phases,
    "unsplit": unsplit,
    "connectors": connectors,
    "deadlines": deadlines,
}


def render(page: str) -> str:
    """The page with its tables as they are now. Raises ValueError for a table that it does not show."""
    for name, table in TABLES.items():
        block = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if block.search(page) is None:
            raise ValueError(f"the page has no place for the table {name}")
        printed = table()
        page = block.sub(lambda found, printed=printed: f"{found[1]}{printed}\n{found[2]}", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
