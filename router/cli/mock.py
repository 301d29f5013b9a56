"""`pointsman mock`: hands over to the mock engine, which is a program of its own.

Separate because the router never imports `engines`: they meet over HTTP, and here as one process that becomes
the other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from router.cli.parser import COMMANDS

if TYPE_CHECKING:
    from router.cli.parser import Subparsers

COMMAND: Final = (sys.executable, "-P", "-m", "engines.mock")
"""Runs the mock of this installation: -P ignores a folder called engines where it is started."""


def add_parser(subparsers: Subparsers) -> None:
    subparsers.add_parser("mock", help=COMMANDS["mock"], add_help=False)


def become(argv: Sequence[str]) -> NoReturn:
    """Replaces this process by the mock engine, which reads the arguments itself."""
    os.execv(COMMAND[0], [*COMMAND, *argv])
