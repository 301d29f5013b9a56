"""`pointsman compare`: policies on the same simulated calls, before any of them meets a GPU."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

from router.cli.parser import COMMANDS
from router.cli.study_flags import (
    UsageError,
    add_judge_flag,
    calls,
    each_once,
    known_judge,
    known_workload,
    numbers_above_0,
    parsed_policy,
    positive,
    traces_of,
)
from router.cli.study_output import add_output_flags, check_outputs, complain, hand_out, with_bar
from router.policies import PolicyError
from router.studies.compare import SATURATED, Plan, cells
from router.studies.compare_table import render
from router.studies.grid import as_table
from router.studies.html.report import comparison
from router.studies.lines import lines
from router.studies.processes import LostProcess
from router.studies.setups import SETUPS, Choosing
from router.studies.simulation.fleet import FleetPlan
from router.studies.traces import TraceError
from router.studies.workload_table import statistics, workload_grid
from router.studies.workloads import WORKLOADS, workload_named

if TYPE_CHECKING:
    from router.cli.parser import Subparsers

DEFAULT_POLICIES: Final = "round_robin,least_requests,cache_aware,preble,calibrated,joint"
_CALLS: Final = 2_000
_MOST_WORKERS: Final = 4_096


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
    parser.add_argument(
        "--rates", metavar="A,B,…", help="several rates, each run by itself: goodput against rate"
    )
    parser.add_argument(
        "--workers", metavar="A,B,…", help="several sizes of the fleet; its own rate grows with it"
    )
    parser.add_argument("--requests", type=calls, metavar="N", help=f"calls per run (default {_CALLS:,})")
    parser.add_argument("--full", action="store_true", help="as many calls as were published")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes")
    add_judge_flag(parser)
    parser.add_argument("--describe", action="store_true", help="only say what the calls are like")
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the comparison. Returns 0, 1 when it came to nothing, or 2 for flags that cannot be used."""
    try:
        check_outputs(args, *traces_of(args.workloads))
        plan = plan_of(args)
        tasks = plan.tasks()
    except (UsageError, PolicyError, TraceError, ValueError) as error:
        return complain("compare", error)
    found = statistics(tasks)
    if args.describe:
        return hand_out(args, {"plan": plan, "workloads": found}, as_table(workload_grid(found)))
    try:
        made = with_bar("compare", tasks, lambda told: cells(tasks, args.jobs, told))
    except LostProcess as error:
        return complain("compare", error, 1)
    title = "Policies compared on simulated calls"
    figures = {"plan": plan, "cells": made}
    return hand_out(args, figures, render(lines(made)), lambda: comparison(title, made, found))


def plan_of(args: argparse.Namespace) -> Plan:
    """What the flags ask for. Raises UsageError for names and rates that mean nothing."""
    workloads = [known_workload(name) for name in args.workloads.split(",")]
    policies = [parsed_policy(text) for text in args.policies.split(",")]
    each_once("--workloads", workloads)
    each_once("--policies", [Choosing(policy=policy, params=params).name for policy, params in policies])
    if args.describe and args.html is not None:
        raise UsageError("--describe says what the calls are like, and has no page for --html")
    if args.full and args.requests is not None:
        raise UsageError("--full and --requests contradict each other")
    if args.rates is not None and args.rate is not None:
        raise UsageError("--rate and --rates contradict each other")
    rate = _rate(args.rate)
    plan = Plan(
        policies=policies,
        workloads=workloads,
        seeds=args.seeds,
        calls=None if args.full else args.requests or _CALLS,
        rates={} if args.rate is None else dict.fromkeys(workloads, rate),
        levels=[] if args.rates is None else numbers_above_0("--rates", args.rates),
        setup=args.setup,
        workers=[] if args.workers is None else _sizes(args.workers),
        judge=args.judge,
    )
    if args.judge is not None:
        known_judge(args.judge, _fleets(plan))
    return plan


def _fleets(plan: Plan) -> list[FleetPlan]:
    """Of all its workloads. Raises UsageError for one without engines, whose decisions nobody judges."""
    setups = [SETUPS[plan.setup or workload_named(name).setup] for name in plan.workloads]
    plain = next((setup.name for setup in setups if setup.plain), None)
    if plain is not None:
        raise UsageError(f"--judge looks at decisions between engines, and {plain} has plain servers")
    return [setup.plan(Choosing(policy=plan.policies[0][0])) for setup in setups]


def _sizes(text: str) -> list[int]:
    sizes = numbers_above_0("--workers", text)
    if any(size != int(size) or size > _MOST_WORKERS for size in sizes):
        raise UsageError(
            f"--workers is {text!r}: whole numbers, at most {_MOST_WORKERS:,}, with commas between them"
        )
    return [int(size) for size in sizes]


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
