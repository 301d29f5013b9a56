"""`pointsman calibrate`: measures the engines of a fleet and writes calibration.yaml."""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import signal
import sys
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
from rich.console import Console

from router.cli.event_loop import loop_factory
from router.cli.flags import add_settings_flags, given
from router.cli.parser import COMMANDS
from router.settings import Settings, load
from router.settings.calibration_file import CalibrationFile, write_calibration
from router.studies.calibrate.fleet import FleetError, fleet_of, settings_from_router
from router.studies.calibrate.grid import Effort
from router.studies.calibrate.probe import ProbeFailed
from router.studies.calibrate.session import GatesFailed, Options, World, calibrate
from router.studies.calibrate.table import render, render_gates
from router.studies.calibrate.verdict import CONTEXT_TOKENS, PROMPT_P90_TOKENS
from router.studies.traces import TraceError, read_trace, statistics
from router.upstream.client import Upstream
from router.upstream.connect import TcpConnect

if TYPE_CHECKING:
    from router.cli.parser import Subparsers

FLEET_FLAGS: Final = (
    "--worker-urls",
    "--workers-file",
    "--model",
    "--slots",
    "--pd-disaggregation",
    "--prefill",
    "--decode",
    "--kv-connector",
    "--api-key",
    "--admin-api-key",
)
"""Flags of `serve` that say which engines there are."""

DEFAULT_OUT: Final = Path("calibration.yaml")
EXIT_OK, EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 0, 1, 2, 130
_NOT_PASSED: Final = (
    "engines did not pass, so nothing was measured; --despite-gates measures them all the same"
)
_ADMIN_S: Final = 10.0


class UsageError(Exception):
    """Flags that contradict each other or name what is not there."""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "calibrate",
        help=COMMANDS["calibrate"],
        description="Measure the engines of a fleet: prefill curves, decode steps, KV hand-overs. Keep all "
        "other traffic away from them meanwhile; a fleet on GPUs takes about five minutes.",
    )
    _add_result(parser.add_argument_group("what is measured, and what comes out"))
    parser.add_argument(
        "--url", metavar="URL", help="admin address of a running router, which is asked for its workers"
    )
    add_settings_flags(parser, only=FLEET_FLAGS)


def _add_result(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, metavar="FILE", help=f"what is written [{DEFAULT_OUT}]"
    )
    group.add_argument("--json", type=Path, metavar="FILE", help="write the same as JSON, too")
    group.add_argument("--quick", action="store_true", help="fewer points: rougher, in a third of the time")
    group.add_argument(
        "--one-at-a-time", action="store_true", help="for workers that share GPUs, or a slow client"
    )
    group.add_argument("--despite-gates", action="store_true", help="measure engines that failed a gate, too")
    group.add_argument(
        "--trace", type=Path, metavar="FILE", help="take the expected prompts and contexts from this trace"
    )
    for flag, default, what in (
        ("--prompt-tokens", PROMPT_P90_TOKENS, "prompt that TTFT targets are for (90th percentile)"),
        ("--context-tokens", CONTEXT_TOKENS, "mean context of a sequence while it is decoded"),
    ):
        group.add_argument(flag, type=_whole, metavar="N", help=f"{what} [{default}]")


def run(args: argparse.Namespace) -> int:
    """Measures, writes the file and prints the tables.

    Returns:
        0 when all was measured; 1 when an engine failed a gate, or did not answer as it must; 2 when there is
        nothing to measure or the result cannot be written; 130 after Ctrl-C. Nothing is written but on 0.

    Raises:
        SettingsError: the configuration is refused.
    """
    settings = load(args.config, given(args))
    progress, out = Console(stderr=True), Console()
    try:
        _check_places(args)
        prompt_tokens, context_tokens = _workload(args)
        settings = _of_router(args, settings)
        options = Options(
            fleet=fleet_of(settings),
            run=secrets.token_hex(4),
            effort=Effort(quick=args.quick),
            one_at_a_time=args.one_at_a_time,
            despite_gates=args.despite_gates,
            prompt_tokens=prompt_tokens,
            context_tokens=context_tokens,
        )
        found = _measure(options, progress)
        _write(args, found)
    except GatesFailed as error:
        out.print(render_gates(error.gates))
        return _refuse(_NOT_PASSED, EXIT_FAILED)
    except ProbeFailed as error:
        return _refuse(str(error), EXIT_FAILED)
    except (UsageError, FleetError, TraceError) as error:
        return _refuse(str(error), EXIT_REFUSED)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _refuse("stopped; nothing was written", EXIT_INTERRUPTED)
    out.print(render(found))
    print(f"written to {args.out}; use it with pointsman serve --calibration {args.out}")
    return EXIT_OK


def _refuse(why: str, code: int) -> int:
    print(f"pointsman calibrate: {why}", file=sys.stderr)
    return code


def _check_places(args: argparse.Namespace) -> None:
    for flag, path in (("--out", args.out), ("--json", args.json)):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"{flag} {path}: there is no such directory to write it to")


def _workload(args: argparse.Namespace) -> tuple[int, int]:
    """(prompt tokens, context tokens) that are expected. Raises TraceError."""
    prompt, context = PROMPT_P90_TOKENS, CONTEXT_TOKENS
    if args.trace is not None:
        found = statistics(read_trace(args.trace))
        if found.prompt_tokens is None or found.output_tokens is None:
            raise UsageError(f"--trace {args.trace}: there is no request in it")
        prompt = round(found.prompt_tokens.p90)
        context = round(found.prompt_tokens.mean + found.output_tokens.mean / 2)
    return args.prompt_tokens or prompt, args.context_tokens or context


def _of_router(args: argparse.Namespace, settings: Settings) -> Settings:
    """The settings with the workers of a running router, when one is named. Raises FleetError."""
    if args.url is None:
        return settings
    secret = settings.auth.admin_api_key
    headers = {"authorization": f"Bearer {secret.get_secret_value()}"} if secret is not None else {}
    try:
        answer = httpx.get(
            f"{args.url.rstrip('/')}/workers", headers=headers, timeout=_ADMIN_S, trust_env=False
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise FleetError(f"no router answers at {args.url}: {error}") from None
    if not answer.is_success:
        raise FleetError(
            f"the router at {args.url} answers /workers with {answer.status_code}; --url is its admin "
            "address (port 29001 unless configured), and --admin-api-key its key"
        )
    try:
        said = answer.json()
    except ValueError:
        raise FleetError(f"what answers at {args.url} is not a router's admin API") from None
    return settings_from_router(said, settings, args.kv_connector)


def _write(args: argparse.Namespace, found: CalibrationFile) -> None:
    try:
        write_calibration(args.out, found)
        if args.json is not None:
            args.json.write_text(found.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or args.out}: {error.strerror}") from None


def _measure(options: Options, progress: Console) -> CalibrationFile:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_on_this_machine(options, progress))


async def _on_this_machine(options: Options, progress: Console) -> CalibrationFile:
    upstream = Upstream(TcpConnect(), time.monotonic)  # noqa: TID251 - this is a composition root
    world = World(
        upstream=upstream,
        now=time.monotonic,  # noqa: TID251 - uvloop's own clock counts whole milliseconds
        wall=lambda: datetime.now(UTC),
        console=progress,
        chance=random.SystemRandom(),
        cpu_s=time.process_time,
    )
    try:
        return await _until_interrupted(calibrate(options, world))
    finally:
        await upstream.aclose()


async def _until_interrupted(work: Coroutine[Any, Any, CalibrationFile]) -> CalibrationFile:
    """The result, unless Ctrl-C or SIGTERM comes first: then every request is ended, and CancelledError
    raised."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)
