"""Starts a prefill and a decode engine that hand KV over by NIXL, and the router between them and the client.

The prefill engine is the reference as well: asked without a hand-over, it is one engine alone. Its lease is
short, so that a test can wait for its end.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.real.exposition import value
from tests.real.processes import free_port, until
from tests.real.stage import Router, router_with
from tests.real.vllm import START_S, VllmEngine, start
from tests.real.wire import ask

LEASE_S = 20.0
DECODE_SEQUENCES = 2
"""Few, so that a test can fill the decode engine."""
FREED_S = 10.0
"""A prefill engine that was told to let go of KV does so within this time: half a second where the machine
has nothing else to do, and in any case long before its lease ends."""

_ENVIRONMENT = {
    "UCX_TLS": "tcp,self",  # with shared memory beside it, transfers stall for seconds now and then
    "UCX_NET_DEVICES": "lo",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache: two answers are equal when both caches are cold
    "PYTHONHASHSEED": "0",
}
_ROLES: dict[str, dict[str, Any]] = {
    "prefill": {"kv_role": "kv_producer", "kv_connector_extra_config": {"kv_lease_duration": int(LEASE_S)}},
    "decode": {
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {"kv_lease_duration": int(LEASE_S)},
        "kv_load_failure_policy": "fail",
    },
}


def start_as(role: str, directory: Path, port: int | None = None) -> VllmEngine:
    """Starts an engine of a pair; the caller waits until it serves, and stops it."""
    transfer = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu", **_ROLES[role]}
    flags: dict[str, Any] = {"kv-transfer-config": json.dumps(transfer)}
    if role == "decode":
        flags["max-num-seqs"] = DECODE_SEQUENCES
    return start(directory, port, flags, VLLM_NIXL_SIDE_CHANNEL_PORT=str(free_port()), **_ENVIRONMENT)


@dataclass(frozen=True, slots=True)
class Moved:
    """What a decode engine has read from a prefill engine, by its own account, since it started."""

    prompt_tokens: float
    nixl_bytes: float
    failed: float

    def __sub__(self, other: Moved) -> Moved:
        return Moved(
            self.prompt_tokens - other.prompt_tokens,
            self.nixl_bytes - other.nixl_bytes,
            self.failed - other.failed,
        )


@dataclass(slots=True)
class Disaggregated:
    """A prefill engine and a decode engine, with or without a router.

    State: which processes these are; a killed one is replaced by `restart`.
    """

    prefill: VllmEngine
    decode: VllmEngine
    directory: Path

    @property
    def engines(self) -> tuple[VllmEngine, VllmEngine]:
        return self.prefill, self.decode

    def moved(self) -> Moved:
        text = self.decode.metrics()
        return Moved(
            value(text, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer"),
            value(text, "vllm:nixl_bytes_transferred_sum"),
            value(text, "vllm:nixl_num_failed_transfers_total"),
        )

    def expired(self) -> float:
        """Hand-overs that nobody fetched in time, by the prefill engine's account."""
        return value(self.prefill.metrics(), "vllm:nixl_num_kv_expired_reqs_total")

    def read_too_late(self) -> float:
        """Reads that the prefill engine heard of when it no longer kept that KV for anybody."""
        return value(self.prefill.metrics(), "vllm:nixl_num_notifications_after_expiry_total")

    def held(self) -> float:
        """Share of KV that the idle prefill engine holds."""
        return self.prefill.stats().kv_usage or 0.0

    def until_idle(self, within_s: float = FREED_S) -> None:
        """Waits until both engines run nothing and hold nothing."""

        def busy() -> list[tuple[float | None, ...]]:
            stats = [engine.stats() for engine in self.engines]
            return [(one.running, one.waiting, one.kv_usage) for one in stats]

        until(lambda: busy() == [(0, 0, 0.0)] * 2, within_s, f"idle engines, not {busy()}")

    def forget_prompts(self) -> None:
        """Empties the prefix caches of both."""
        for engine in self.engines:
            answer = ask(engine.port, "POST", "/reset_prefix_cache")
            assert answer.status == 200, answer.body

    @contextmanager
    def router(self, *flags: str, directory: Path | None = None) -> Iterator[Router]:
        """A router that splits every prompt between the two."""
        workers = ("--prefill", self.prefill.url, "--decode", self.decode.url, "--kv-connector", "nixl")
        split = ("--pd-disaggregation", "--pd-split-min-tokens", "0", *flags)
        with router_with(self.engines, directory or self.directory, *split, *workers) as running:
            yield running

    def kill(self, engine: VllmEngine) -> None:
        """SIGKILL to all of its processes."""
        engine.send_all(signal.SIGKILL)
        engine.wait(10.0)

    def restart(self, role: str) -> VllmEngine:
        """A new process on the port of a dead one, which serves."""
        dead = self.prefill if role == "prefill" else self.decode
        dead.stop()
        again = start_as(role, self.directory, dead.port)
        if role == "prefill":
            self.prefill = again
        else:
            self.decode = again
        again.until_healthy("/health", START_S)
        return again


def config(
    directory: Path,
    prefill: Mapping[str, Any] = MappingProxyType({}),
    health: Mapping[str, Any] = MappingProxyType({}),
    **decode: Any,
) -> str:
    """A file with what no flag says: the lease of the producers, and more of the pools and of `health`."""
    pools = {
        "prefill": {"role": "prefill", **prefill},
        "decode": {"role": "decode", "kv_lease_s": LEASE_S, **decode},
    }
    file = directory / f"pair-{'-'.join((*prefill, *health, *decode))}.yaml"
    file.write_text(json.dumps({"pools": pools, "health": dict(health)}))  # JSON is YAML
    return str(file)


def router_value(router: Router, name: str, **labels: str) -> float:
    """One series of the router, summed over the labels that are not given."""
    return value(ask(router.port, "GET", "/metrics").body, f"pointsman_{name}", **labels)


@contextmanager
def disaggregated(directory: Path) -> Iterator[Disaggregated]:
    """A pair that serves; both have ended afterwards."""
    found: Disaggregated | None = None
    started: list[VllmEngine] = []
    try:
        started += [start_as("prefill", directory), start_as("decode", directory)]
        for engine in started:
            engine.until_healthy("/health", START_S)
        found = Disaggregated(started[0], started[1], directory)
        yield found
    finally:
        for engine in (*started, *(found.engines if found is not None else ())):
            engine.stop()
