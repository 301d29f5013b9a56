"""`pointsman serve`: the router, until it is told to stop."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from router.cli import calibrated
from router.cli.doors import open_doors
from router.cli.flags import add_settings_flags, given, notices
from router.cli.parser import COMMANDS
from router.settings import load

if TYPE_CHECKING:
    from router.cli.parser import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("serve", help=COMMANDS["serve"], description="Run the router.")
    add_settings_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Runs until SIGTERM or Ctrl-C.

    Returns:
        The exit code: 0 after a clean stop.

    Raises:
        SettingsError: the configuration is refused; nothing was started.
    """
    settings = load(args.config, given(args))
    for notice in notices(args):
        print(f"note: {notice}", file=sys.stderr)
    for warning in (*open_doors(settings), *calibrated.doubts(settings)):
        print(f"warning: {warning}", file=sys.stderr)
    from router.lifecycle import serve  # noqa: PLC0415 - help and refusals need not load the server

    return serve(settings)
