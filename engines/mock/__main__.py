"""`python -m engines.mock`: the command line of the mock engines, also behind `pointsman mock`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import uvicorn

from engines.mock.kv_broadcast import PlaceTaken
from engines.mock.kv_events_config import ENCODINGS, Encoding, KvEventsConfig
from engines.mock.server import EngineServer, Fleet
from engines.mock.settings import KV_CONNECTORS, SCHEDULING_POLICIES, MockSettings, SettingsError
from engines.model.specs import GPUS, MODELS

_LEVELS = ("debug", "info", "warning", "error")


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, but not the absence of one, and kinds of values in place of the flag's name again."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, "") else super()._get_help_string(action)

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        kinds: dict[object, str] = {int: "N", float: "X"}
        return kinds.get(action.type, "WORD")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong without the page of flags before it, and guesses at no abbreviation."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nSee {self.prog} --help.\n")


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser; every default is the settings' own."""
    default = MockSettings()
    command = _Parser(
        prog="pointsman mock",
        description="Serve mock LLM engines that a router cannot tell from vLLM or SGLang.",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    _place(command)
    _model(command, default)
    _batch(command, default)
    _handover(command, default)
    _kv_events(command)
    _server(command, default)
    return command


def _place(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", default="127.0.0.1", help="address to listen on")
    command.add_argument("--port", type=int, default=9000, help="port of the first engine; 0 takes free ones")
    command.add_argument("--count", type=int, default=1, help="engines, on consecutive ports")
    command.add_argument("--log-level", choices=_LEVELS, default="warning", help="what is logged to stderr")


def _model(command: argparse.ArgumentParser, default: MockSettings) -> None:
    command.add_argument("--model", default=default.model, help=f"one of {', '.join(MODELS)}")
    command.add_argument("--gpu", default=default.gpu, help=f"one of {', '.join(GPUS)}")
    command.add_argument("--served-model-name", help="name on the wire; without it the model's")
    command.add_argument("--dialect", default=default.dialect, help="vllm or sglang")
    command.add_argument(
        "--dp-size",
        type=int,
        default=default.dp_size,
        help="data-parallel ranks behind each port, in lockstep",
    )
    command.add_argument(
        "--time-scale",
        type=float,
        default=default.time_scale,
        help="wall seconds of one engine second: 0.1 is ten times as fast, 2 half as fast",
    )
    command.add_argument("--seed", type=int, default=default.seed, help="of texts and output lengths")
    command.add_argument("--step-times", default=default.step_times, help="roofline or measured")
    command.add_argument(
        "--output-tokens",
        type=float,
        default=default.output_tokens,
        help="mean of the seeded output lengths; max_tokens cuts them",
    )


def _batch(command: argparse.ArgumentParser, default: MockSettings) -> None:
    command.add_argument("--max-num-seqs", type=int, help="sequences that run at once; vLLM's default")
    command.add_argument("--max-num-batched-tokens", type=int, help="tokens of a step; vLLM's default")
    command.add_argument("--max-model-len", type=int, help="prompt and output (tokens); the model's own")
    command.add_argument("--block-size", type=int, default=default.block_size, help="tokens of a KV block")
    command.add_argument("--kv-tokens", type=int, help="KV capacity (tokens); what the GPU's memory holds")
    command.add_argument(
        "--scheduling-policy",
        "--scheduling",
        default=default.scheduling_policy,
        help=f"which waiting request starts next: {', '.join(SCHEDULING_POLICIES)}",
    )
    command.add_argument(
        "--max-num-queued-reqs", type=int, help="requests before 503, running ones too in vLLM; unbounded"
    )


def _handover(command: argparse.ArgumentParser, default: MockSettings) -> None:
    command.add_argument("--role", default=default.role, help="both, prefill or decode")
    command.add_argument(
        "--kv-connector",
        help=f"one of {', '.join(KV_CONNECTORS)}; without it the dialect's own, none for role both",
    )
    for flag, seconds, text in (
        ("--kv-lease-s", default.kv_lease_s, "seconds that nixl keeps a prefill's KV"),
        ("--kv-abort-timeout-s", default.kv_abort_timeout_s, "the same for mooncake, on both sides"),
        ("--disaggregation-timeout-s", default.disaggregation_timeout_s, "seconds in a bootstrap room"),
    ):
        command.add_argument(flag, type=float, default=seconds, help=text)
    command.add_argument(
        "--disaggregation-bootstrap-port",
        type=int,
        default=default.disaggregation_bootstrap_port,
        help="of a prefill engine with mooncake or sglang; further engines take the next ones; 0: free ones",
    )
    command.add_argument(
        "--kv-load-failure-policy",
        default=default.kv_load_failure_policy,
        help="what becomes of a request whose KV cannot be had: fail or recompute",
    )
    command.add_argument(
        "--kv-bandwidth-gbps",
        type=float,
        default=default.kv_bandwidth_gbps,
        help="what one KV transfer gets (10^9 bits per engine second)",
    )
    command.add_argument(
        "--kv-latency-s",
        type=float,
        default=default.kv_latency_s,
        help="engine seconds of a KV transfer beside its bytes",
    )
    command.add_argument(
        "--kv-side-channel-host", help="host that peers are told for the KV side channel; the one of --host"
    )


def _kv_events(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--kv-events-endpoint",
        help="ZMQ address that KV events are published at, tcp://*:PORT or ipc://PATH; further ranks and "
        "engines take the next ports; without it nothing is published",
    )
    command.add_argument(
        "--kv-events-replay-endpoint", help="where missed KV events can be asked for; without it nowhere"
    )
    command.add_argument("--kv-events-topic", default="", help="of every message; none")
    command.add_argument(
        "--kv-events-encoding",
        default=ENCODINGS[0],
        help=f"{' or '.join(ENCODINGS)}: as vLLM since 0.24, or before it",
    )
    command.add_argument(
        "--kv-events-config", help="vLLM's JSON of endpoints and topic, in place of their flags"
    )


def _server(command: argparse.ArgumentParser, default: MockSettings) -> None:
    command.add_argument("--api-key", help="asked on /v1 when set")
    command.add_argument(
        "--sse-keep-alive-interval",
        type=float,
        default=default.sse_keep_alive_interval_s,
        help="seconds of silence before a comment; 0 is never",
    )
    for flag, preset, text in (
        ("--enable-prompt-tokens-details", default.enable_prompt_tokens_details, "cached tokens in usage"),
        ("--enable-request-id-headers", default.enable_request_id_headers, "x-request-id on answers"),
        ("--enable-auto-tool-choice", default.enable_auto_tool_choice, "serve tool_choice auto"),
        ("--enable-server-load-tracking", default.enable_server_load_tracking, "count in /load"),
    ):
        command.add_argument(flag, action=argparse.BooleanOptionalAction, default=preset, help=text)
    command.add_argument(
        "--shutdown-timeout",
        type=float,
        default=default.shutdown_timeout_s,
        help="seconds that SIGTERM lets open streams finish; 0 ends them at once",
    )
    command.add_argument("--sigterm", default=default.sigterm, help="end of open streams: abort or silence")
    command.add_argument(
        "--restart-delay",
        type=float,
        default=default.restart_delay_s,
        help="seconds that a crashed engine stays down",
    )


def settings_of(args: argparse.Namespace) -> MockSettings:
    """Return the settings of a parsed command line.

    Raises:
        SettingsError: a value that cannot be worked with.
    """
    values = vars(args).copy()
    for name in ("host", "port", "count", "log_level"):
        del values[name]
    for name in ("sse_keep_alive_interval", "shutdown_timeout", "restart_delay"):
        values[f"{name}_s"] = values.pop(name)
    if args.count < 1:
        raise SettingsError(f"--count {args.count}: must be at least 1.")
    told = {name: values.pop(name) for name in _KV_EVENTS}
    settings = MockSettings(kv_events=_kv_events_config(**told), **values)
    if settings.kv_events is not None:
        shared = settings.kv_events.serves(args.count * settings.dp_size)
        if shared is not None:
            raise SettingsError(f"--kv-events-endpoint: {shared}.")
    return settings


_KV_EVENTS = tuple(
    f"kv_events_{name}" for name in ("endpoint", "replay_endpoint", "topic", "encoding", "config")
)


def _kv_events_config(
    kv_events_endpoint: str | None,
    kv_events_replay_endpoint: str | None,
    kv_events_topic: str,
    kv_events_encoding: Encoding,
    kv_events_config: str | None,
) -> KvEventsConfig | None:
    """What the flags of KV events say. Raises SettingsError."""
    if kv_events_config is not None:
        if kv_events_endpoint or kv_events_replay_endpoint or kv_events_topic:
            raise SettingsError("--kv-events-config: it says where and what; leave the other flags out.")
        try:
            return KvEventsConfig.of_json(kv_events_config, kv_events_encoding)
        except ValueError as error:
            raise SettingsError(f"--kv-events-config: {error}.") from None
    if kv_events_endpoint is None:
        if kv_events_replay_endpoint is not None:
            raise SettingsError(
                "--kv-events-replay-endpoint: nothing is published without --kv-events-endpoint."
            )
        return None
    try:
        return KvEventsConfig(
            endpoint=kv_events_endpoint,
            replay_endpoint=kv_events_replay_endpoint,
            topic=kv_events_topic,
            encoding=kv_events_encoding,
        )
    except ValueError as error:
        raise SettingsError(f"--kv-events-endpoint: {error}.") from None


def announce(server: EngineServer) -> str:
    """Return the one line that an engine prints when it listens."""
    process = server.front.process
    settings, config = process.settings, process.hardware.config
    ranks = "" if settings.dp_size == 1 else f", each of {settings.dp_size} ranks"
    bootstrap = "" if server.bootstrap is None else f", bootstrap port {server.bootstrap.port}"
    events = "" if process.kv_events is None else f", KV events at {process.kv_events.places[0].endpoint}"
    return (
        f"{server.url} {settings.name} ({settings.model} on {settings.gpu}, {settings.dialect}, "
        f"{config.max_num_seqs} sequences, {process.engine.kv_capacity_tokens} KV tokens{ranks}{bootstrap}"
        f"{events})\n"
    )


async def _run(args: argparse.Namespace, settings: MockSettings) -> None:
    fleet = Fleet(settings, args.count, args.host, args.port)
    await fleet.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, fleet.signal, number)
    for server in fleet.servers:
        sys.stdout.write(announce(server))
    sys.stdout.flush()
    await fleet.serve()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    args = parser().parse_args(argv)
    logging.basicConfig(level=args.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    try:
        settings = settings_of(args)
        factory = uvicorn.Config("", loop="auto").get_loop_factory()
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(_run(args, settings))
    except SettingsError as refused:
        sys.stderr.write(f"pointsman mock: {refused}\n")
        return 2
    except PlaceTaken as refused:
        sys.stderr.write(
            f"pointsman mock: cannot publish KV events at {refused.strerror}. "
            "Choose another --kv-events-endpoint.\n"
        )
        return 1
    except OSError as refused:
        where = f"{args.host} from port {args.port}"
        sys.stderr.write(f"pointsman mock: cannot listen on {where}: {refused}. Choose another --port.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
