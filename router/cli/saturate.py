"""`pointsman saturate`: how much a fleet carries under a policy before it collapses."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from router.cli.parser import COMMANDS
from router.cli.study_flags import UsageError, known_workload, parsed_policy, positive
from router.policies import PolicyError
from router.studies.compare import Plan
from router.studies.saturate import Point, Saturation, saturate
from router.studies.setups import SETUPS
from router.studies.traces import TraceError
from router.studies.workloads import WORKLOADS

if TYPE_CHECKING:
    from router.cli.parser import Subparsers

_CALLS: Final = 2_000


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "saturate",
        help=COMMANDS["saturate"],
        description="Find the highest rate at which a policy still holds, by widening and halving.",
    )
    parser.add_argument("--policy", default="round_robin", metavar="P", help="with parameters as in compare")
    parser.add_argument(
        "--workload", default="toolbench", metavar="W", help=f"{', '.join(WORKLOADS)}, or trace:FILE"
    )
    parser.add_argument("--setup", choices=tuple(SETUPS), help="fleet; default: the workload's own")
    parser.add_argument("--goodput", type=_share, default=0.9, metavar="G", help="that holds (default 0.9)")
    parser.add_argument(
        "--seeds", type=positive, default=1, metavar="N", help="runs of each rate (default 1)"
    )
    parser.add_argument("--requests", type=positive, default=_CALLS, metavar="N", help="calls per run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything that was tried")


def run(args: argparse.Namespace) -> int:
    """Searches. Returns 0, 1 when there is no such rate, or 2 for flags that cannot be used."""
    try:
        plan = Plan(
            policies=[parsed_policy(args.policy)],
            workloads=[known_workload(args.workload)],
            seeds=1,
            calls=args.requests,
            setup=args.setup,
        )
        [task] = plan.tasks()
    except (UsageError, PolicyError, TraceError, ValueError) as error:
        sys.stderr.write(f"pointsman saturate: {error}\n")
        return 2
    progress = Console(stderr=True)

    def told(point: Point) -> None:
        progress.print(f"{point.rate:8.3g} calls/s: {100 * point.worth:5.1f} %", highlight=False)

    try:
        found = saturate(task, args.goodput, range(1, args.seeds + 1), told=told)
    except ValueError as error:
        sys.stderr.write(f"pointsman saturate: {error}\n")
        return 1
    if args.json is not None:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    Console().print(_table(found))
    return 0


def _table(found: Saturation) -> Table:
    title = (
        f"{found.policy} on {found.workload} holds {100 * found.least:.0f} % up to {found.rate:.3g} calls/s"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for name in ("calls/s", "goodput %", "e2e s", "TTFT p99 s"):
        table.add_column(name, justify="right")
    for point in found.points:
        table.add_row(
            f"{point.rate:.3g}", f"{100 * point.worth:.1f}", f"{point.e2e_s:.2f}", f"{point.ttft_p99_s:.2f}"
        )
    return table


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text}: above 0, at most 1")
    return share
