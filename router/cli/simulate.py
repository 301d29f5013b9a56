"""`pointsman simulate`: one scenario, before any of it exists.

Separate from `compare`, whose fleets are those of papers: here the fleet is the user's own configuration.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Group

from router.cli.parser import COMMANDS
from router.cli.study_flags import UsageError, add_judge_flag, known_judge, parsed_policy, positive
from router.cli.study_output import add_output_flags, check_outputs, complain, hand_out, with_bar
from router.policies import PolicyError
from router.settings import SettingsError, load
from router.settings.calibration_file import CalibrationFileError
from router.studies.grid import as_table
from router.studies.html.report import one_scenario
from router.studies.processes import LostProcess
from router.studies.scenario import Scenario, ScenarioError, scenario_of
from router.studies.scenario_load import Load
from router.studies.scenario_runs import scenario_cells, scenario_tasks
from router.studies.setups import Choosing
from router.studies.simulate_table import render_runs
from router.studies.traces import TraceError
from router.studies.workload_table import workload_grid

if TYPE_CHECKING:
    from router.cli.parser import Subparsers

REFUSALS: Final = (
    UsageError, SettingsError, PolicyError, TraceError, CalibrationFileError, ScenarioError,
)  # fmt: skip
"""What files and flags can be refused with; exit code 2."""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help=COMMANDS["simulate"],
        description="Run the calls of a scenario through its pools under a virtual clock. A scenario is a "
        "configuration with a section `workload`.",
    )
    parser.add_argument("file", type=Path, metavar="SCENARIO", help="YAML file; POINTSMAN_… overrides it")
    parser.add_argument("--policy", metavar="P", help="in place of the file's; with parameters as in compare")
    parser.add_argument("--seeds", type=positive, metavar="N", help="runs; default: as the file says")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes")
    add_judge_flag(parser)
    add_output_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the scenario. Returns 0, 1 when it came to nothing, or 2 for what cannot be used."""
    try:
        check_outputs(args, args.file)
        scenario = _scenario(args.file)
        choosing = scenario.configured if args.policy is None else _choosing(args.policy)
        judge = known_judge(args.judge, [scenario.under(choosing)])
    except REFUSALS as error:
        return complain("simulate", error)
    seeds = args.seeds or scenario.load.seeds
    tasks = scenario_tasks(scenario, [choosing], [scenario.load.rate], seeds, judge)
    try:
        made = with_bar("simulate", tasks, lambda told: scenario_cells(scenario, tasks, args.jobs, told))
    except LostProcess as error:
        return complain("simulate", error, 1)
    came, notes = scenario.statistics(), [*scenario.notes, *scenario.doubts()]
    return hand_out(
        args,
        {"scenario": scenario.name, "notes": notes, "cells": made},
        Group(as_table(workload_grid(came)), render_runs(made, notes)),
        lambda: one_scenario(made, came, notes),
    )


def _scenario(file: Path) -> Scenario:
    settings = load(file)
    try:
        return scenario_of(settings, file.name, Load.of(settings.workload))
    except ScenarioError as error:
        raise ScenarioError(f"{file}: {error}") from None


def _choosing(text: str) -> Choosing:
    policy, params = parsed_policy(text)
    return Choosing(policy=policy, params=params)
