"""`pointsman explain`: why recorded requests went where they went, and whether they would go there again.

Separate from the router, of which it needs nothing: a decision log is enough.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from router.cli import explain_table
from router.cli.parser import COMMANDS
from router.policies import PolicyError
from router.telemetry.decision import DecisionRecord, Record, RoundRecord, read_decisions
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
        return _one(console, read_decisions(args.file), args.request_id)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"pointsman explain: {_words(error)}\n")
        return 1


def _words(error: OSError | ValueError) -> str:
    if isinstance(error, PolicyError):
        return f"this version cannot make it again: {error}"
    if isinstance(error, OSError):
        return f"{error.filename} cannot be read: {error.strerror}"
    return str(error)


def _about(records: Iterable[Record], request_id: str) -> Iterator[tuple[DecisionRecord, RoundRecord | None]]:
    """The decisions about a request, each with the round that it was made in, if that is in the file. A round
    comes before its decisions, and its number again after a restart of the router."""
    rounds: dict[int, RoundRecord] = {}
    for record in records:
        if isinstance(record, RoundRecord):
            if any(request_id in _names(choice.id) for choice in record.choices):
                rounds[record.number] = record
        elif request_id in _names(record.id):
            yield record, None if record.round is None else rounds.get(record.round)


def _names(request_id: str) -> tuple[str, str]:
    """What a request may be asked for by: its whole id, and the client's."""
    return request_id, request_id.rpartition("#")[0]


def _one(console: Console, records: Iterable[Record], request_id: str) -> int:
    """Everything about one request, by its own id or by the client's."""
    found = list(_about(records, request_id))
    if not found:
        sys.stderr.write(f"pointsman explain: no decision about {request_id} is in this file\n")
        return 1
    differs = False
    for record, made in found:
        console.print(explain_table.decision(record))
        if made is not None:
            same = made_again(made) == list(made.choices)
            differs |= not same
            console.print(explain_table.made_round(made, same=same))
        differs |= record.table is not None and not same_pick(record)
    return 1 if differs else 0
