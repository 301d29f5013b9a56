"""`pointsman replay`: sends the requests of a trace to an endpoint and measures the answers."""

from __future__ import annotations

import argparse
import asyncio
import math
import resource
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from rich.console import Console

from router.cli.event_loop import loop_factory
from router.cli.parser import COMMANDS
from router.studies.data import SYNTHETIC
from router.studies.replay.endpoint import Deadlines, EndpointError, parse_url
from router.studies.replay.records import RecordsError
from router.studies.replay.report import Report
from router.studies.replay.schedule import Pace
from router.studies.replay.session import Options, Surroundings, replay
from router.studies.replay.settings import PATHS, Slo
from router.studies.replay.table import render
from router.studies.traces import FORMATS, TraceError
from router.upstream.client import Upstream
from router.upstream.connect import TcpConnect

if TYPE_CHECKING:
    from router.cli.parser import Subparsers

DEFAULT_URL: Final = "http://127.0.0.1:30000"
_MAX_IN_FLIGHT: Final = 10_000
_SPARE_FILES: Final = 64
"""Of the process itself: the terminal, the trace, the records, the event loop, libraries."""


class UsageError(Exception):
    """Flags that contradict each other or name what is not there."""


EXIT_OK, EXIT_ERRORS, EXIT_REFUSED, EXIT_INTERRUPTED = 0, 1, 2, 130


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "replay",
        help=COMMANDS["replay"],
        description="Send the requests of a trace to an OpenAI endpoint, each when it is due, and measure.",
    )
    _add_workload(parser.add_argument_group("what is sent"))
    _add_pace(parser.add_argument_group("when it is sent"))
    _add_endpoint(parser.add_argument_group("where it is sent"))
    _add_result(parser.add_argument_group("what comes out"))


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--trace",
        type=Path,
        default=SYNTHETIC,
        metavar="FILE",
        help="default: the synthetic trace that ships",
    )
    group.add_argument("--format", choices=tuple(FORMATS), help="default: recognised by content")
    group.add_argument("--limit", type=_whole(1), metavar="N", help="the first N requests of the file")
    group.add_argument("--seed", type=_whole(0), default=0, help="of prompts and jitter (default 0)")
    group.add_argument("--api", choices=tuple(PATHS), default="chat", help="default: chat")
    group.add_argument("--model", help="default: the first one that the endpoint serves")
    group.add_argument("--trace-models", action="store_true", help="send the trace's own model names")
    group.add_argument("--send-session", action="store_true", help="send sessions as prompt_cache_key")
    group.add_argument(
        "--no-ignore-eos",
        action="store_true",
        help="let the engine end answers before the length of the trace",
    )
    group.add_argument(
        "--bytes-per-token",
        type=_number(0, above=True),
        metavar="X",
        help="no calibration: X bytes are one token",
    )
    group.add_argument(
        "--overhead-tokens",
        type=_whole(0),
        metavar="N",
        help="no calibration: N tokens of template per prompt",
    )


def _add_pace(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--speed", type=_number(0, above=True), default=1.0, metavar="X", help="trace seconds per second"
    )
    group.add_argument(
        "--jitter-s",
        type=_number(0),
        default=0.0,
        metavar="S",
        help="move arrivals later by up to S trace seconds",
    )
    group.add_argument(
        "--duration", type=_number(0, above=True), metavar="S", help="send for S seconds at most"
    )
    group.add_argument("--concurrency-cap", type=_whole(1), metavar="N", help="most requests in flight")
    for name, default, what in (
        ("--first-event-timeout-s", 600.0, "the first event"),
        ("--idle-timeout-s", 600.0, "each further event"),
        ("--timeout-s", 3600.0, "a whole request"),
    ):
        group.add_argument(
            name,
            type=_number(0, above=True),
            default=default,
            metavar="S",
            help=f"for {what} (default {default:g})",
        )


def _add_endpoint(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--url", type=_url, default=DEFAULT_URL, help=f"with or without /v1 (default {DEFAULT_URL})"
    )
    group.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="its first line is the key")
    group.add_argument(
        "--header", type=_header, action="append", default=[], metavar="'NAME: VALUE'", help="may be repeated"
    )
    group.add_argument(
        "--reset-prefix-cache", action="store_true", help="empty the engines' prefix caches before the run"
    )
    group.add_argument(
        "--engine-url",
        type=_url,
        action="append",
        default=[],
        metavar="URL",
        help="whose cache; default: that of --url",
    )


def _add_result(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", type=Path, metavar="FILE", help="write the whole report as JSON")
    group.add_argument("--records", type=Path, metavar="FILE", help="append one JSON line per request")
    group.add_argument("--resume", action="store_true", help="send only what --records has no success of")
    group.add_argument("--slo-ttft-ms", type=_number(0, above=True), metavar="MS", help="from the due time")
    group.add_argument("--slo-tpot-ms", type=_number(0, above=True), metavar="MS")
    group.add_argument("--slo-e2e-s", type=_number(0, above=True), metavar="S", help="from the due time")
    group.add_argument("--allow-errors", action="store_true", help="exit 0 even when requests failed")


def run(args: argparse.Namespace) -> int:
    """Replays and prints the table.

    Returns:
        0 when every planned request succeeded (or errors are allowed), 1 when not, 2 when nothing could be
        sent or the report not be written, 130 after Ctrl-C.
    """
    progress, out = Console(stderr=True), Console()
    try:
        report = _measure(_options(args), progress)
    except (UsageError, TraceError, EndpointError, RecordsError) as error:
        print(f"pointsman replay: {error}", file=sys.stderr)
        return EXIT_REFUSED
    out.print(render(report))
    if args.json is not None and not _written(report, args.json):
        return EXIT_REFUSED
    return _exit_code(report, allow_errors=args.allow_errors)


def _written(report: Report, path: Path) -> bool:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    except OSError as error:
        print(f"pointsman replay: cannot write the report to {path}: {error.strerror}", file=sys.stderr)
        return False
    return True


def _exit_code(report: Report, *, allow_errors: bool) -> int:
    if report.run.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_OK if allow_errors or report.all_succeeded else EXIT_ERRORS


def _measure(options: Options, progress: Console) -> Report:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_on_this_machine(options, progress))


async def _on_this_machine(options: Options, progress: Console) -> Report:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    upstream = Upstream(TcpConnect(), time.monotonic)  # noqa: TID251 - this is a composition root
    world = Surroundings(
        upstream=upstream,
        now=time.monotonic,  # noqa: TID251 - uvloop's own clock counts whole milliseconds
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        console=progress,
        stop=stop,
        cpu_s=time.process_time,
    )

    def interrupt() -> None:
        """The first Ctrl-C ends the run with its table; a second one ends the program."""
        progress.print("stopping; Ctrl-C once more ends at once")
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await replay(options, world)
    finally:
        await upstream.aclose()


def _options(args: argparse.Namespace) -> Options:
    if args.resume and args.records is None:
        raise UsageError("--resume needs --records: that file says what is done")
    if args.engine_url and not args.reset_prefix_cache:
        raise UsageError("--engine-url is only for --reset-prefix-cache")
    if args.json is not None and not args.json.absolute().parent.is_dir():
        raise UsageError(f"--json {args.json}: there is no such directory to write it to")
    return Options(
        trace=args.trace,
        trace_format=args.format,
        url=args.url,
        headers=(*_key_header(args), *args.header),
        model=args.model,
        api=args.api,
        seed=args.seed,
        limit=args.limit,
        pace=Pace(speed=args.speed, jitter_s=args.jitter_s, duration_s=args.duration),
        concurrency_cap=min(args.concurrency_cap or _MAX_IN_FLIGHT, _socket_room()),
        ignore_eos=not args.no_ignore_eos,
        trace_models=args.trace_models,
        send_session=args.send_session,
        deadlines=Deadlines(
            first_event_s=args.first_event_timeout_s, idle_s=args.idle_timeout_s, total_s=args.timeout_s
        ),
        bytes_per_token=args.bytes_per_token,
        overhead_tokens=args.overhead_tokens,
        slo=Slo(ttft_ms=args.slo_ttft_ms, tpot_ms=args.slo_tpot_ms, e2e_s=args.slo_e2e_s),
        records=args.records,
        resume=args.resume,
        reset_prefix_cache=args.reset_prefix_cache,
        engine_urls=args.engine_url,
    )


def _socket_room() -> int:
    """Sockets this process may open; the soft limit is raised first, as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_IN_FLIGHT + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _MAX_IN_FLIGHT if soft == resource.RLIM_INFINITY else max(1, soft - _SPARE_FILES)


def _key_header(args: argparse.Namespace) -> tuple[tuple[bytes, bytes], ...]:
    if args.api_key is not None and args.api_key_file is not None:
        raise UsageError("give --api-key or --api-key-file, not both")
    key = args.api_key
    if args.api_key_file is not None:
        key = _first_line(args.api_key_file)
    if key is None:
        return ()
    if not (key and key.isascii() and key.isprintable()):
        raise UsageError("the API key must be printable ASCII")
    return ((b"authorization", b"Bearer " + key.encode()),)


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file {path}: {error}") from None


def _url(text: str) -> str:
    try:
        parse_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _header(text: str) -> tuple[bytes, bytes]:
    name, colon, value = text.partition(":")
    if not (colon and name.strip() and text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r} is not 'NAME: VALUE' in printable ASCII")
    return name.strip().lower().encode(), value.strip().encode()


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} up")
        return int(text)

    return parse


def _number(least: float, *, above: bool = False) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < least or (above and number == least):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number {'above' if above else 'from'} {least:g}"
            )
        return number

    return parse
