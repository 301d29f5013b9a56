"""`pointsman compare`: policies on the same simulated calls, before any of them meets a GPU."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from router.cli.parser import COMMANDS
from router.cli.study_flags import UsageError, known_workload, parsed_policy, positive
from router.policies import PolicyError
from router.studies.compare import SATURATED, Cell, Plan, Task, cells, lines
from router.studies.compare_table import render
from router.studies.setups import SETUPS
from router.studies.traces import TraceError
from router.studies.workloads import WORKLOADS

if TYPE_CHECKING:
    from router.cli.parser import Subparsers

DEFAULT_POLICIES: Final = "round_robin,least_requests,cache_aware,preble,calibrated,joint"
_CALLS: Final = 2_000
_WIDTH: Final = 140
"""Of a table that goes into a file."""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "compare",
        help=COMMANDS["compare"],
        description="Run policies on the same simulated calls, over several seeds, and compare them.",
    )
    parser.add_argument(
        "--policies",
        default=DEFAULT_POLICIES,
        metavar="A,B,…",
        help="names, with parameters if wanted: preble:window_s=60;pairing=off; the first is the baseline",
    )
    parser.add_argument(
        "--workloads", default="toolbench", metavar="X,Y,…", help=f"{', '.join(WORKLOADS)}, or trace:FILE"
    )
    parser.add_argument("--setup", choices=tuple(SETUPS), help="fleet; default: the workload's own")
    parser.add_argument("--seeds", type=positive, default=3, metavar="N", help="runs of each (default 3)")
    parser.add_argument("--rate", metavar="R", help=f"calls per second, or {SATURATED}; default: the setup's")
    parser.add_argument("--requests", type=positive, metavar="N", help=f"calls per run (default {_CALLS:,})")
    parser.add_argument("--full", action="store_true", help="as many calls as were published")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every run's figures")


def run(args: argparse.Namespace) -> int:
    """Runs the comparison. Returns 0, or 2 for flags that cannot be used."""
    try:
        plan = plan_of(args)
        tasks = plan.tasks()
    except (UsageError, PolicyError, TraceError, ValueError) as error:
        sys.stderr.write(f"pointsman compare: {error}\n")
        return 2
    made = _with_bar(tasks, args.jobs, Console(stderr=True))
    if args.json is not None:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode({"plan": plan, "cells": made})))
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(render(lines(made)))
    return 0


def _with_bar(tasks: list[Task], jobs: int, console: Console) -> list[Cell]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(tasks))

        def told(made: Cell) -> None:
            progress.update(bar, advance=1, description=f"{made.task.workload} {made.policy}")

        return cells(tasks, jobs, told)


def plan_of(args: argparse.Namespace) -> Plan:
    """What the flags ask for. Raises UsageError for names and rates that mean nothing."""
    workloads = [known_workload(name) for name in args.workloads.split(",")]
    if args.full and args.requests is not None:
        raise UsageError("--full and --requests contradict each other")
    rate = _rate(args.rate)
    return Plan(
        policies=[parsed_policy(text) for text in args.policies.split(",")],
        workloads=workloads,
        seeds=args.seeds,
        calls=None if args.full else args.requests or _CALLS,
        rates={} if args.rate is None else dict.fromkeys(workloads, rate),
        setup=args.setup,
    )


def _rate(text: str | None) -> float | None:
    if text is None or text == SATURATED:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise UsageError(f"--rate is {text!r}: calls per second above 0, or {SATURATED}")
    return rate
