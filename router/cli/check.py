"""`pointsman check`: what a configuration really does, and what in it is probably not meant.

Separate from the refusals: everything said here is allowed.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from router.cli import calibrated
from router.cli.check_barriers import barrier_warnings
from router.cli.check_policies import policy_report
from router.cli.check_workload import workload_report, workload_warnings
from router.cli.doors import loopback, open_doors
from router.cli.flags import add_settings_flags, given, notices
from router.cli.parser import COMMANDS
from router.cli.reference import reference
from router.core.binding import Mode
from router.core.local_queue import LocalQueue, Order
from router.core.worker import Role
from router.kv_events.lazy_wire import zmq_is_installed
from router.policies import build
from router.settings import Pair, PoolSettings, Settings, WorkerSettings, load, read_workers_file
from router.settings.pairs import BOOTSTRAPPED

if TYPE_CHECKING:
    from router.cli.parser import Subparsers

_UNIQUE_PER_REQUEST: Final = frozenset(
    {"x-request-id", "x-correlation-id", "x-trace-id", "x-amzn-trace-id", "traceparent", "idempotency-key"}
)
_FEW: Final = 64
"""Requests in flight that one busy engine has alone: a bound below this is probably a limit of open files."""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "check",
        help=COMMANDS["check"],
        description="Validate a configuration, with the flags of `pointsman serve`, and say what it does.",
    )
    parser.add_argument("--print-reference", action="store_true", help="print the reference of all settings")
    add_settings_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the report.

    Returns:
        0, also with warnings.

    Raises:
        SettingsError: the configuration is refused.
    """
    if args.print_reference:
        sys.stdout.write(reference())
        return 0
    settings = load(args.config, given(args))
    print(f"good: {args.config or 'flags, environment and defaults'}")
    open_files = _open_files()
    for line in report(settings, open_files):
        print(line)
    for notice in notices(args):
        print(f"note: {notice}")
    for warning in warnings(settings, open_files):
        print(f"warning: {warning}")
    return 0


def report(settings: Settings, open_files: int) -> Iterator[str]:
    """What the router would do, line by line.

    Args:
        open_files: files that a process may have open here, for the bound on requests in flight.
    """
    server, auth = settings.server, settings.auth
    yield _line("endpoint", url(server.host, server.port))
    yield _line("admin", url(server.admin_host, server.admin_port) if server.admin_port else "off")
    if server.prometheus is not None:
        yield _line("metrics", url(*server.prometheus))
    yield _line("in flight", f"at most {settings.limits.in_flight_bound(open_files):,}")
    clients = f"one of {len(auth.client_api_keys)} keys" if auth.asks_clients else "no key"
    yield _line(
        "asked of", f"clients {clients}, administrators {'a key' if auth.admin_api_key else 'no key'}"
    )
    for name, pool in settings.pools.items():
        yield from _pool_report(name, pool, settings)
    for pair in settings.pairs:
        yield from _pair_report(settings, pair)
    yield from calibrated.report(settings)
    for fact, value in workload_report(settings):
        yield _line(fact, value)


def warnings(settings: Settings, open_files: int) -> Iterator[str]:
    """What is allowed but probably not meant, one sentence each."""
    yield from open_doors(settings)
    bound = settings.limits.in_flight_bound(open_files)
    if settings.limits.max_in_flight is None and bound < _FEW:
        yield f"the limit of {open_files} open files leaves room for {bound} requests in flight; raise it"
    if settings.timeouts.idle_lost_worker_s > settings.timeouts.idle_s:
        yield "timeouts.idle_lost_worker_s is above timeouts.idle_s, which ends the wait first"
    if settings.timeouts.upstream_idle_s >= 5:
        yield "timeouts.upstream_idle_s is not below 5 s, after which engines close idle connections"
    answering = {name: pool for name, pool in settings.pools.items() if pool.role is not Role.PREFILL}
    learning = [name for name, pool in answering.items() if pool.model is None]
    if len(answering) > 1 and learning:
        yield f"of several pools, {', '.join(learning)} must learn their models before requests reach them"
    for name, pool in settings.pools.items():
        yield from _pool_warnings(name, pool, settings)
    for pair in settings.pairs:
        yield from _pair_warnings(settings, pair)
    yield from calibrated.doubts(settings)
    yield from workload_warnings(settings)


def _open_files() -> int:
    """Files that a router started here may have open: it raises its soft limit to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def url(host: str, port: int) -> str:
    """The URL of a listener, IPv6 in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _line(name: str, value: str, indent: int = 0) -> str:
    return f"{' ' * indent}{name:<{14 - indent}}{value}"


def _pool_report(name: str, pool: PoolSettings, settings: Settings) -> Iterator[str]:
    yield f"pool {name}"
    if pool.role is not Role.BOTH:
        yield _line("role", pool.role.value, 2)
    yield _line("model", pool.model or "learned from its workers", 2)
    for fact, value in policy_report(pool, settings, pool.each_rank):
        yield _line(fact, value, 2)
    order = _local_order(pool)
    if order is not Order.OFF:
        bound = "slots + 2" if pool.max_dispatched is None else str(pool.max_dispatched)
        yield _line("local queue", f"{order.value}, {bound} requests are sent to a worker at most", 2)
    yield _line("workers", str(len(pool.workers)) + (" and a file" if pool.workers_file else ""), 2)
    for worker in _workers(pool):
        yield f"    {worker.name}  {_worker_report(pool, worker)}"


def _local_order(pool: PoolSettings) -> Order:
    """In which order requests start at their worker."""
    policy = build(pool.policy, pool.policy_params, seed=0)
    return LocalQueue(pool.local_rules(max_held=0), policy).order


def _worker_report(pool: PoolSettings, worker: WorkerSettings) -> str:
    said = {
        "role": worker.role.value if worker.role not in (None, pool.role) else None,
        "revision": worker.revision,
        "model": worker.model,
        "slots": pool.slots_of(worker),
        "capacity": worker.capacity,
        "group": pool.barrier_group_of(worker),
    }
    return "  ".join([worker.url, *(f"{word} {value}" for word, value in said.items() if value is not None)])


def _pair_report(settings: Settings, pair: Pair) -> Iterator[str]:
    pool = settings.pools[pair.decode]
    connector = pair.connector
    legs = "both legs at once" if connector.concurrent else "decode after prefill"
    held = f", KV held for {connector.lease_s:g} s" if connector.lease_s is not None else ""
    whole = _serves_whole(pool)
    shorter = "shorter ones are served whole by decode workers that may prefill"
    split = f"prompts of {pool.pd_split_min_tokens} tokens and more; {shorter}"
    refused = pool.fallback == "strict" or not (whole or connector.decode_takes_whole)
    yield f"pair {pair.prefill}, {pair.decode}"
    yield _line("connector", f"{connector.name}, {legs}{held}", 2)
    yield _line("split", split if whole and pool.pd_split_min_tokens else "every prompt", 2)
    yield _line("no prefill", "requests are refused" if refused else "requests are served whole", 2)


def _pair_warnings(settings: Settings, pair: Pair) -> Iterator[str]:
    pool = settings.pools[pair.decode]
    for key in ("pd_split_min_tokens", "fallback"):
        wants_whole = getattr(pool, key) not in (0, "strict")
        able = _serves_whole(pool) or (key == "fallback" and pair.connector.decode_takes_whole)
        if key in pool.model_fields_set and wants_whole and not able:
            yield (
                f"pool {pair.decode} has no worker that may serve whole requests, so {key} changes nothing; "
                "set may_prefill, or role: both for some workers"
            )
    decodes = {_host(worker) for worker in _workers(pool)}
    near = [worker for worker in _workers(settings.pools[pair.prefill]) if loopback(_host(worker))]
    if pair.connector.name in BOOTSTRAPPED and near and not all(map(loopback, decodes)):
        yield (
            f"pool {pair.prefill} has the worker {near[0].name}; decode workers elsewhere are told "
            "that address to fetch KV from, and would look on their own machine"
        )


def _serves_whole(pool: PoolSettings) -> bool:
    """Whether some worker of a decode pool may serve whole requests; while it has none, those to come."""
    workers = _workers(pool)
    return any(map(pool.serves_whole, workers)) if workers else pool.may_prefill


def _host(worker: WorkerSettings) -> str:
    return urlsplit(worker.origin_url).hostname or ""


def _workers(pool: PoolSettings) -> tuple[WorkerSettings, ...]:
    """All that are written down, those with several ranks once for each."""
    entries = pool.workers + (read_workers_file(pool.workers_file) if pool.workers_file else ())
    return tuple(rank for entry in entries for rank in pool.ranks_of(entry))


def _worker_warnings(name: str, workers: Sequence[WorkerSettings]) -> Iterator[str]:
    if not workers:
        yield f"pool {name} starts with no worker; requests get 503 until one is added"
    if len(workers) == 1 and not workers[0].resolves:
        yield f"pool {name} has one worker, so there is nothing to choose and nowhere to retry"
    if any(worker.kv_events_endpoint for worker in workers) and not zmq_is_installed():
        yield f"pool {name} has KV events to follow, but pyzmq is missing (the extra kv-events)"


def _pool_warnings(name: str, pool: PoolSettings, settings: Settings) -> Iterator[str]:
    workers = _workers(pool)
    yield from _worker_warnings(name, workers)
    yield from barrier_warnings(name, pool, workers)
    if pool.mode is not Mode.EARLY:
        unknown = [worker.name for worker in workers if pool.slots_of(worker) is None]
        if unknown:
            yield f"pool {name} waits for slots, but {', '.join(unknown)} has none and so gets no request"
    holds = _local_order(pool) is not Order.OFF
    if holds and pool.max_dispatched is None and not pool.knows_slots:
        yield f"pool {name} holds nothing back at workers without slots, and has no say in what starts there"
    if 0 < sum(worker.capacity is not None for worker in workers) < len(workers):
        yield f"pool {name} gives a capacity for some workers only; the others count as 1"
    unique = sorted(_UNIQUE_PER_REQUEST.intersection(settings.server.affinity_headers))
    if pool.policy == "session_affinity" and unique:
        yield f"pool {name} keeps sessions together by {unique[0]}, which differs for every request"
