"""The flags that set settings, as one table: help, reference, refusals and precedence come from it.

Names are those of vllm-router and sglang-router where the meaning is the same. Flags of theirs that mean
nothing here are refused with the reason, because a knob that is silently ignored is found at night.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from router.core.worker import Role
from router.settings import Given, Settings, SettingsError
from router.settings.keys import Key, all_keys
from router.settings.refusals import ONE_PROCESS


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag and the settings that it sets.

    Attributes:
        name: with its dashes.
        keys: dotted keys, all set to the same value; `pools.*` is the one pool there is, or the pools of
            `roles`.
        metavar: how help calls the value; "" for a switch.
        many: takes several values, and may be repeated.
        switch: what a flag without a value sets.
        meaning: for help, where the meaning of the first key does not say it all; with its default in
            brackets where that is not the key's.
        notice: said at the start when the flag is given, because users of other routers expect otherwise.
        roles: the sides of the pair that it speaks of.
        alias: the name that another router has for it.
        read: makes the value of the words that were typed; raises ValueError.
        param: the one parameter of the policy that it sets, where its key is all of them.
    """

    name: str
    keys: tuple[str, ...]
    metavar: str = ""
    many: bool = False
    switch: bool = True
    meaning: str = ""
    notice: str = ""
    roles: tuple[Role, ...] = ()
    alias: str = ""
    read: Callable[[Any], Any] | None = None
    param: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All that it may be typed as."""
        return (self.name, self.alias) if self.alias else (self.name,)

    @property
    def dest(self) -> str:
        return self.name.lstrip("-").replace("-", "_")


_REQUEST_TIMEOUT: Final = (
    "--request-timeout-secs bounds the wait for the first event of a stream, "
    "and the whole of an answer that is not streamed. It never cuts a stream that makes progress."
)
_THRESHOLDS: Final = (
    "--balance-abs-threshold and --balance-rel-threshold are judged for each request, by the load of the "
    "worker that holds its prefix and not of the most loaded one; who is above both is passed over."
)
_NO_PORT: Final = "none"


def read_prefills(words: Sequence[str]) -> list[dict[str, Any]]:
    """The workers of `URL [BOOTSTRAP_PORT] URL …`; `none` is no port, as in sglang-router.

    Raises:
        ValueError: a port without a URL before it.
    """
    workers: list[dict[str, Any]] = []
    for word in words:
        if not word.isdecimal() and word.lower() != _NO_PORT:
            workers.append({"url": word})
        elif not workers or "bootstrap_port" in workers[-1]:
            raise ValueError(f"{word} must follow the URL of the worker whose bootstrap port it is")
        else:
            workers[-1]["bootstrap_port"] = int(word) if word.isdecimal() else None
    return workers


_PREFILL: Final = (Role.PREFILL,)
_DECODE: Final = (Role.DECODE,)
_PAIR: Final = (Role.PREFILL, Role.DECODE)
_PARAMS: Final = ("pools.*.policy_params",)
_CONCURRENCY: Final = "Requests in flight at most: a hard limit held to the last byte, no rate."

FLAGS: Final[tuple[Flag, ...]] = (
    Flag("--host", ("server.host",), "ADDRESS"),
    Flag("--port", ("server.port",), "PORT"),
    Flag("--admin-host", ("server.admin_host",), "ADDRESS"),
    Flag("--admin-port", ("server.admin_port",), "PORT"),
    Flag("--prometheus-host", ("server.prometheus_host",), "ADDRESS"),
    Flag("--prometheus-port", ("server.prometheus_port",), "PORT"),
    Flag("--log-level", ("server.log_level",), "LEVEL"),
    Flag("--log-format", ("server.log_format",), "FORMAT"),
    Flag("--expose-routing-headers", ("server.expose_routing_headers",)),
    Flag("--passthrough-paths", ("server.passthrough_paths",), "PATH", many=True),
    Flag("--request-id-headers", ("server.request_id_headers",), "HEADER", many=True),
    Flag("--worker-urls", ("pools.*.workers",), "URL", many=True, meaning="URLs of the workers."),
    Flag("--workers-file", ("pools.*.workers_file",), "FILE"),
    Flag("--policy", ("pools.*.policy",), "NAME"),
    Flag(
        "--cache-threshold",
        _PARAMS,
        "SHARE",
        param="cache_threshold",
        meaning="cache_aware: share of the prompt above which its prefix is followed.",
    ),
    Flag(
        "--balance-abs-threshold",
        _PARAMS,
        "N",
        param="balance_abs_threshold",
        notice=_THRESHOLDS,
        meaning="cache_aware: requests that a holder of the prefix may have above the least loaded worker.",
    ),
    Flag(
        "--balance-rel-threshold",
        _PARAMS,
        "X",
        param="balance_rel_threshold",
        notice=_THRESHOLDS,
        meaning="cache_aware: or so many times its load.",
    ),
    Flag(
        "--max-tree-size",
        _PARAMS,
        "BYTES",
        param="max_tree_size",
        meaning="cache_aware: bytes of text that one worker is believed to hold.",
    ),
    Flag(
        "--eviction-interval-secs",
        _PARAMS,
        "S",
        alias="--eviction-interval",
        param="eviction_interval_s",
        meaning="cache_aware: between two evictions down to --max-tree-size.",
    ),
    Flag("--model", ("pools.*.model",), "NAME"),
    Flag("--slots", ("pools.*.slots",), "N"),
    Flag("--state-dir", ("state.dir",), "FOLDER"),
    Flag("--dp-size", ("pools.*.dp_size",), "N", alias="--intra-node-data-parallel-size"),
    Flag(
        "--pd-disaggregation",
        ("pools.*.role",),
        roles=_PAIR,
        alias="--vllm-pd-disaggregation",
        meaning="Prefill and decode on different workers. Any of the flags below says the same.",
    ),
    Flag(
        "--prefill",
        ("pools.*.workers",),
        "URL [BOOTSTRAP_PORT]",
        many=True,
        roles=_PREFILL,
        read=read_prefills,
        meaning="URLs of the prefill workers, each with its bootstrap port if that is not 8998.",
    ),
    Flag(
        "--decode",
        ("pools.*.workers",),
        "URL",
        many=True,
        roles=_DECODE,
        meaning="URLs of the decode workers.",
    ),
    Flag(
        "--prefill-policy", ("pools.*.policy",), "NAME", roles=_PREFILL, meaning="Policy of the prefill pool."
    ),
    Flag(
        "--decode-policy",
        ("pools.*.policy",),
        "NAME",
        roles=_DECODE,
        meaning="Policy of the decode pool. [least_requests]",
    ),
    Flag("--kv-connector", ("pools.*.connector",), "NAME", roles=_PAIR),
    Flag("--pd-split-min-tokens", ("pools.*.pd_split_min_tokens",), "N", roles=_DECODE),
    Flag("--pd-fallback", ("pools.*.fallback",), "WORD", roles=_DECODE),
    Flag("--pd-binding", ("pools.*.binding",), "WORD", roles=_DECODE),
    Flag("--pd-may-prefill", ("pools.*.may_prefill",), roles=_DECODE),
    Flag("--api-key", ("auth.api_key",), "KEY"),
    Flag("--client-api-keys", ("auth.client_api_keys_file",), "FILE"),
    Flag("--admin-api-key", ("auth.admin_api_key",), "KEY"),
    Flag("--max-payload-size", ("limits.body_bytes",), "BYTES"),
    Flag("--max-concurrent-requests", ("limits.max_in_flight",), "N", meaning=_CONCURRENCY),
    Flag("--queue-size", ("limits.queue_size",), "N"),
    Flag("--queue-timeout-secs", ("limits.queue_timeout_s",), "S"),
    Flag(
        "--request-timeout-secs",
        ("timeouts.first_event_s", "timeouts.total_s"),
        "S",
        meaning="First event of a stream, or the whole of an answer that is not streamed.",
        notice=_REQUEST_TIMEOUT,
    ),
    Flag("--retry-max-retries", ("retry.max_retries",), "N"),
    Flag("--disable-retries", ("retry.enabled",), switch=False, meaning="No tries elsewhere."),
    Flag("--health-check-interval-secs", ("health.interval_s",), "S"),
    Flag("--health-check-timeout-secs", ("health.timeout_s",), "S"),
    Flag("--health-check-endpoint", ("health.path",), "PATH"),
    Flag("--health-failure-threshold", ("health.timeouts_to_eject",), "N"),
    Flag("--request-log", ("request_log.path",), "FILE"),
    Flag("--decision-log", ("decision_log.path",), "FILE"),
    Flag("--decision-sample", ("decision_log.sample",), "SHARE"),
    Flag("--calibration", ("calibration.file",), "FILE"),
    Flag(
        "--no-usage-injection",
        ("usage.inject",),
        switch=False,
        meaning="Do not ask engines for usage that the client did not ask for.",
    ),
    Flag("--seed", ("seed",), "N"),
)

_NO_BREAKER: Final = (
    "there is no circuit breaker to tune: a refused connection takes a worker out at once, "
    "and one good probe brings it back (settings health.*)"
)
_NO_BACKOFF: Final = (
    "a retry goes to another worker at once, so there is no back-off; "
    "--retry-max-retries and retry.budget_share bound the retries"
)
_NO_KUBERNETES: Final = (
    "discovery through the Kubernetes API is not in this version; "
    "name a headless Service as dns+http://name:port, or use --workers-file"
)
_RANKS_ARE_TOLD: Final = "workers are not asked how many ranks they have; say it with --dp-size N"
_NO_WAIT: Final = "the router starts at once and takes each worker in as soon as it answers"
_NO_TLS: Final = "TLS towards clients is not in this version; put a proxy that ends it in front"

REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "--cb-failure-threshold",
            "--cb-success-threshold",
            "--cb-timeout-duration-secs",
            "--cb-window-duration-secs",
            "--disable-circuit-breaker",
            "--health-success-threshold",
        ),
        _NO_BREAKER,
    ),
    **dict.fromkeys(
        (
            "--retry-initial-backoff-ms",
            "--retry-max-backoff-ms",
            "--retry-backoff-multiplier",
            "--retry-jitter-factor",
        ),
        _NO_BACKOFF,
    ),
    **dict.fromkeys(
        (
            "--service-discovery",
            "--selector",
            "--prefill-selector",
            "--decode-selector",
            "--service-discovery-port",
            "--service-discovery-namespace",
        ),
        _NO_KUBERNETES,
    ),
    "--dp-aware": _RANKS_ARE_TOLD,
    **dict.fromkeys(("--worker-startup-timeout-secs", "--worker-startup-check-interval"), _NO_WAIT),
    **dict.fromkeys(("--tls-cert-path", "--tls-key-path"), _NO_TLS),
    **dict.fromkeys(("--workers", "--processes"), ONE_PROCESS),
    "--disable-health-check": "probes are how a worker that failed comes back; make them rare instead",
    "--rate-limit-tokens-per-second": "--max-concurrent-requests is a hard limit, and there is no rate",
}
"""Flags of other routers, or of later versions, and why they are refused."""


class _Refuse(argparse.Action):
    """Ends the parsing with the reason that stands in the table."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        flag = option_string or ""
        parser.error(f"{flag} is refused: {REFUSED[flag]}")


def add_settings_flags(parser: argparse.ArgumentParser, only: Collection[str] | None = None) -> None:
    """Adds `--config` and every flag of the table, or `only` some of them, grouped by section."""
    flags = [flag for flag in FLAGS if only is None or flag.name in only]
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="YAML file with settings; flags and POINTSMAN_… override it",
    )
    keys = {key.path: key for key in all_keys(Settings)}
    sections = list(dict.fromkeys(_section(flag) for flag in flags))
    groups = {name: parser.add_argument_group(name) for name in sections}
    for flag in flags:
        _add(groups[_section(flag)], flag, keys[flag.keys[0]])
    for name in REFUSED if only is None else ():
        parser.add_argument(name, nargs="*", action=_Refuse, help=argparse.SUPPRESS)


def given(args: argparse.Namespace) -> list[Given]:
    """The settings that these arguments give, one for each key of each flag that was typed.

    Raises:
        SettingsError: the words of a flag make no sense together.
    """
    return [
        Given(flag.name, f"{key}.{flag.param}" if flag.param else key, _read(flag, value), flag.roles)
        for flag in FLAGS
        if (value := getattr(args, flag.dest, None)) is not None
        for key in flag.keys
    ]


def _read(flag: Flag, value: Any) -> Any:
    try:
        return value if flag.read is None else flag.read(value)
    except ValueError as error:
        raise SettingsError([f"{flag.name}: {error}"]) from error


def notices(args: argparse.Namespace) -> list[str]:
    """What users of other routers should hear about the flags they typed."""
    said = [flag.notice for flag in FLAGS if flag.notice and getattr(args, flag.dest, None) is not None]
    return list(dict.fromkeys(said))


def typed(args: argparse.Namespace) -> list[str]:
    """The settings flags of these arguments as words again, to hand them to another command."""
    words: list[str] = []
    for flag in FLAGS:
        value = getattr(args, flag.dest, None)
        if value is None:
            continue
        if not flag.metavar or value == []:
            words.append(flag.name)
        else:
            words += [f"{flag.name}={item}" for item in (value if flag.many else [value])]
    return words


def flags_of(path: str) -> tuple[Flag, ...]:
    """The flags that set a key."""
    return tuple(flag for flag in FLAGS if path in flag.keys)


def _section(flag: Flag) -> str:
    return flag.keys[0].partition(".")[0]


def _add(group: argparse._ArgumentGroup, flag: Flag, key: Key) -> None:
    if not flag.metavar:
        group.add_argument(
            *flag.names, dest=flag.dest, action="store_const", const=flag.switch, help=_help(flag, key)
        )
    elif flag.many:
        group.add_argument(
            *flag.names,
            dest=flag.dest,
            action="extend",
            nargs="*",
            metavar=flag.metavar,
            help=_help(flag, key),
        )
    else:
        group.add_argument(*flag.names, dest=flag.dest, metavar=flag.metavar, help=_help(flag, key))


def _help(flag: Flag, key: Key) -> str:
    meaning = flag.meaning or key.meaning
    own = meaning.endswith("]")
    default = f" [{key.default}]" if flag.metavar and key.default and not own else ""
    return f"{meaning}{default}".replace("%", "%%")
