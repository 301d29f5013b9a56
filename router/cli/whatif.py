"""`pointsman whatif`: your own traffic, your own fleet, all policies, one report.

Separate from `simulate`, whose file says which calls come: here the router's own log does.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from router.cli.parser import COMMANDS
from router.cli.simulate import REFUSALS
from router.cli.study_flags import (
    add_judge_flag,
    each_once,
    known_judge,
    numbers_above_0,
    parsed_policy,
    positive,
)
from router.cli.study_output import add_output_flags, check_outputs, complain, hand_out, with_bar
from router.settings import load
from router.studies.compare_table import render
from router.studies.grid import as_table
from router.studies.html.report import comparison
from router.studies.lines import lines
from router.studies.processes import LostProcess
from router.studies.scenario_runs import scenario_cells, scenario_tasks
from router.studies.setups import Choosing
from router.studies.whatif import Traffic, WhatIf, what_if
from router.studies.workload_table import workload_grid

if TYPE_CHECKING:
    from router.cli.parser import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "whatif",
        help=COMMANDS["whatif"],
        description="Run recorded requests through the fleet of a configuration, once for each policy that "
        "fits it, under a virtual clock.",
    )
    parser.add_argument(
        "--log",
        type=Path,
        required=True,
        metavar="FILE",
        help="a log of pointsman serve --request-log, or a trace of Azure, Mooncake or BurstGPT",
    )
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the fleet; its engines as mock.fleet or "
        "calibration.file describe them",
    )  # fmt: skip
    parser.add_argument(
        "--policies", metavar="A,B,…", help="default: all that fit, the configured one first, as the baseline"
    )
    parser.add_argument(
        "--speeds", default="1", metavar="X,Y,…", help="how many times as fast as recorded (default 1)"
    )
    parser.add_argument(
        "--model", metavar="M", help="only requests that name it, before its pools, where there are several"
    )
    parser.add_argument("--seeds", type=positive, default=1, metavar="N", help="runs of each (default 1)")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes")
    add_judge_flag(parser)
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Runs them all. Returns 0, 1 when it came to nothing, or 2 for what cannot be used."""
    try:
        check_outputs(args, args.log, args.config)
        asked = _asked(args)
        judge = known_judge(args.judge, [asked.scenario.fleet])
    except REFUSALS as error:
        return complain("whatif", error)
    tasks = scenario_tasks(asked.scenario, asked.policies, asked.rates, args.seeds, judge)
    try:
        made = with_bar("whatif", tasks, lambda told: scenario_cells(asked.scenario, tasks, args.jobs, told))
    except LostProcess as error:
        return complain("whatif", error, 1)
    title = f"{args.log.name} on the fleet of {args.config.name}"
    came, said = asked.scenario.statistics(), [Text(f"note: {note}") for note in asked.notes]
    return hand_out(
        args,
        {"scenario": asked.scenario.name, "notes": asked.notes, "cells": made},
        Group(as_table(workload_grid(came)), render(lines(made)), *said),
        lambda: comparison(title, made, came, asked.notes),
    )


def _asked(args: argparse.Namespace) -> WhatIf:
    asked = [] if args.policies is None else [parsed_policy(text) for text in args.policies.split(",")]
    policies = [Choosing(policy=policy, params=params) for policy, params in asked]
    each_once("--policies", [choosing.name for choosing in policies])
    return what_if(
        load(args.config),
        args.config.name,
        Traffic(
            log=args.log,
            model=args.model,
            speeds=numbers_above_0("--speeds", args.speeds),
            seeds=args.seeds,
        ),
        policies,
    )
