"""`pointsman saturate`: how much a fleet carries under a policy before it collapses."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
from rich.console import Console

from router.cli.parser import COMMANDS
from router.cli.study_flags import (
    UsageError,
    calls,
    known_workload,
    parsed_policy,
    positive,
    share,
    traces_of,
)
from router.cli.study_output import add_output_flags, check_outputs, complain, hand_out
from router.policies import PolicyError
from router.studies.compare import Plan, Task
from router.studies.grid import as_table
from router.studies.html.report import held, saturation, saturation_grid
from router.studies.saturate import Point, saturate
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
    parser.add_argument("--goodput", type=share, default=0.9, metavar="G", help="that holds (default 0.9)")
    parser.add_argument(
        "--seeds", type=positive, default=1, metavar="N", help="runs of each rate (default 1)"
    )
    parser.add_argument("--requests", type=calls, default=_CALLS, metavar="N", help="calls per run")
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Searches. Returns 0, 1 when there is no such rate, or 2 for flags that cannot be used."""
    try:
        check_outputs(args, *traces_of(args.workload))
        plan = Plan(
            policies=[parsed_policy(args.policy)],
            workloads=[known_workload(args.workload)],
            seeds=1,
            calls=args.requests,
            setup=args.setup,
        )
        [task] = plan.tasks()
    except (UsageError, PolicyError, TraceError, ValueError) as error:
        return complain("saturate", error)
    progress = Console(stderr=True)

    def told(point: Point) -> None:
        progress.print(f"{point.rate:8.3g} calls/s: {100 * point.worth:5.1f} %", highlight=False)

    try:
        found = saturate(task, args.goodput, range(1, args.seeds + 1), told=told)
    except ValueError as error:
        return complain("saturate", error, 1)
    except KeyboardInterrupt:
        sys.stderr.write("pointsman saturate: interrupted; nothing was written\n")
        raise
    table = as_table(replace(saturation_grid(found), title=held(found)))
    facts = _facts(task, args.seeds)
    return hand_out(args, msgspec.structs.asdict(found), table, lambda: saturation(found, facts))


def _facts(task: Task, seeds: int) -> list[tuple[str, str]]:
    return [
        ("fleet", task.setup),
        ("calls of each run", f"{task.calls:,}"),
        ("seeds", ", ".join(str(seed + 1) for seed in range(seeds))),
    ]
