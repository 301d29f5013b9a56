"""What the commands of studies show and write: a bar while they run, a table, a file of figures, a page.

Separate from the commands, which differ in what they run and agree in all of this.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console, RenderableType

from router.cli.study_flags import UsageError
from router.studies.compare import Cell, Task
from router.studies.compare_table import short
from router.studies.progress import bar

_WIDTH: Final = 140
"""Of a table that goes into a file."""

Told = Callable[[Cell], None]


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """`--json` and `--html`."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="every run's figures")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a page with plots that needs no network")


def check_outputs(args: argparse.Namespace, *inputs: Path) -> None:
    """Raises UsageError for a file that cannot be written, before the work and not after it, or that is one
    of the inputs."""
    for path in (args.json, args.html):
        if path is not None:
            _check_writable(path)
            if path.exists() and any(each.exists() and path.samefile(each) for each in inputs):
                raise UsageError(f"{path} is read by this study: write its results to another file")
    if args.json is not None and args.html is not None and args.json.absolute() == args.html.absolute():
        raise UsageError(f"--json and --html both name {args.json}: give each a file of its own")


def _check_writable(path: Path) -> None:
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.is_dir():
        raise UsageError(f"{path} cannot be written: it is a folder; name a file in it")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{path} cannot be written: you may not write there")


def with_bar(command: str, tasks: Sequence[Task], run: Callable[[Told], list[Cell]]) -> list[Cell]:
    """Runs with a bar on stderr, where that is a terminal. Raises KeyboardInterrupt, after a sentence."""
    done = 0
    try:
        with bar(Console(stderr=True)) as progress:
            shown = progress.add_task("", total=len(tasks))

            def told(made: Cell) -> None:
                nonlocal done
                done += 1
                progress.update(shown, advance=1, description=f"{short(made.task.workload)} {made.policy}")

            return run(told)
    except KeyboardInterrupt:
        sys.stderr.write(
            f"pointsman {command}: interrupted after {done:,} of {len(tasks):,} runs; nothing was written\n"
        )
        raise


def hand_out(
    args: argparse.Namespace,
    figures: Mapping[str, object],
    table: RenderableType,
    page: Callable[[], str] | None = None,
) -> int:
    """Prints the table, as wide as the terminal, and writes what was asked for.

    Args:
        figures: for `--json`; each member of a list is a line. Nothing in them may depend on when they were
            made.
        page: makes what `--html` writes; None: there is no page.

    Returns:
        The exit code: 1 when a file could not be written after all.
    """
    _print(table)
    written = True
    if args.json is not None:
        members = (f"{_encoded(name)}: {_lines(value)}" for name, value in figures.items())
        written &= _write(args.command, args.json, "{\n" + ",\n".join(members) + "\n}\n")
    if args.html is not None and page is not None:
        written &= _write(args.command, args.html, page())
    return 0 if written else 1


def _write(command: str, path: Path, text: str) -> bool:
    """Whether it could be written; says so when not."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"pointsman {command}: {path} was not written: {error.strerror}\n")
        return False
    return True


def _print(table: RenderableType) -> None:
    """Whoever reads the output may stop, as `head` does."""
    try:
        Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _lines(value: object) -> str:
    if not isinstance(value, list) or not value:
        return _encoded(value)
    return "[\n" + ",\n".join(map(_encoded, value)) + "\n]"


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


def complain(command: str, error: Exception, code: int = 2) -> int:
    """Says why nothing was run, or nothing came of it; the exit code."""
    for sentence in getattr(error, "problems", (error,)):
        sys.stderr.write(f"pointsman {command}: {sentence}\n")
    return code
