"""`pointsman explain`: why recorded requests went where they went, and whether they would go there again.

Separate from the router, of which it needs nothing: a decision log is enough.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from router.cli import explain_table
from router.cli.parser import COMMANDS
from router.policies import PolicyError
from router.telemetry.decision import Record, RoundRecord, read_decisions
from router.telemetry.recompute import made_again
from router.telemetry.verdicts import same_pick, verdicts_on

if TYPE_CHECKING:
    from router.cli.parser import Subparsers

_WIDTH: Final = 200
"""Columns where the output is no terminal: tables have many terms."""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "explain",
        help=COMMANDS["explain"],
        description="Show recorded decisions, and make those again that were kept whole. Exit code 1 when "
        "one leads to another choice.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a log of pointsman serve --decision-log")
    parser.add_argument(
        "--request-id", metavar="ID", help="only this request, with all that was compared for it"
    )


def run(args: argparse.Namespace) -> int:
    """Prints.

    Returns:
        0, or 1 when a decision differs, there is no such request, or the file cannot be read.
    """
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    try:
        if args.request_id is None:
            verdicts = verdicts_on(read_decisions(args.file))
            console.print(explain_table.summary(verdicts))
            return 1 if verdicts.differ else 0
        return _one(console, list(read_decisions(args.file)), args.request_id)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"pointsman explain: {_words(error)}\n")
        return 1


def _words(error: OSError | ValueError) -> str:
    if isinstance(error, PolicyError):
        return f"this version cannot make it again: {error}"
    if isinstance(error, OSError):
        return f"{error.filename} cannot be read: {error.strerror}"
    return str(error)


def _one(console: Console, records: Sequence[Record], request_id: str) -> int:
    """Everything about one request, by its own id or by the client's."""
    rounds = {record.number: record for record in records if isinstance(record, RoundRecord)}
    found = [
        record
        for record in records
        if not isinstance(record, RoundRecord) and request_id in (record.id, record.id.rpartition("#")[0])
    ]
    if not found:
        sys.stderr.write(f"pointsman explain: no decision about {request_id} is in this file\n")
        return 1
    differs = False
    for record in found:
        console.print(explain_table.decision(record))
        made = None if record.round is None else rounds.get(record.round)
        if made is not None:
            same = made_again(made) == list(made.choices)
            differs |= not same
            console.print(explain_table.made_round(made, same=same))
        differs |= record.table is not None and not same_pick(record)
    return 1 if differs else 0
