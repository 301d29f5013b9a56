"""The parser of the command line: whole commands, near words for typos, and nothing imported too early.

Separate from the commands, of which only the one that was asked for is imported: help and `check` do not load
the server.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from router import __version__
from router.settings.refusals import closest

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction["Parser"]  # noqa: SLF001 - argparse names its type no other way

COMMANDS: Final[Mapping[str, str]] = {
    "serve": "run the router",
    "up": "run the router and the mock engines of a configuration",
    "mock": "run mock engines that need no GPU",
    "check": "validate a configuration and say what it does",
    "drain": "take workers of a running router out of service",
    "replay": "send the requests of a trace to an endpoint and measure it",
    "simulate": "run the calls of a scenario through its configuration, without any engine",
    "compare": "compare policies on simulated calls, without any engine",
    "saturate": "find the rate at which a policy collapses, without any engine",
    "whatif": "run a recorded request log through a fleet under other policies, without any engine",
    "explain": "show why recorded requests went where they went",
    "calibrate": "measure the engines of a fleet, for policies that reckon in seconds",
}
"""Each command is the module of that name, with `add_parser(subparsers)` and `run(args) -> int`."""


_EPILOG: Final = """\
`pointsman up` shows all of it on one machine, without a GPU. Each command has its own --help. Every setting:
docs/configuration.md."""


class _Commands(argparse.HelpFormatter):
    """argparse reckons the column of help without the indentation of commands, and breaks the longest off."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = max(map(len, COMMANDS)) + 4


class Parser(argparse.ArgumentParser):
    """Refuses abbreviations and says which word was probably meant."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, without the page of flags before it that pushes the sentence off the screen."""
        self.exit(2, f"{self.prog}: {message}\nSee {self.prog} --help.\n")

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """Ends with exit code 2 and a sentence about the first word that nobody knows."""
        word = words[0].partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        near = closest(word, known) if word.startswith("-") else None
        what = "unknown flag" if word.startswith("-") else "unexpected argument"
        self.error(f"{what} {word}" + (f", did you mean {near}?" if near else ""))


def module_of(command: str) -> ModuleType:
    """The module of a command, imported now."""
    return importlib.import_module(f"router.cli.{command}")


def parse(argv: Sequence[str]) -> tuple[str, argparse.Namespace]:
    """The command and its arguments. Ends the program after `--help` and wrong usage (exit code 2)."""
    top = Parser(
        prog="pointsman",
        description="Routing proxy for pools of OpenAI-compatible LLM engines.",
        epilog=_EPILOG,
        formatter_class=_Commands,
    )
    top.add_argument("--version", action="version", version=f"pointsman {__version__}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in argv if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        if name == asked:
            module_of(name).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    if asked is not None and asked not in COMMANDS:
        near = closest(asked, COMMANDS)
        top.error(
            f"unknown command {asked}, "
            + (f"did you mean {near}?" if near else f"known: {_listed(COMMANDS)}")
        )
    args, unknown = top.parse_known_args(argv)
    if unknown:
        (subparsers.choices[args.command] if args.command else top).refuse_unknown(unknown)
    return args.command, args


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)
