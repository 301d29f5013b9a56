"""Starts vLLM on the CPU: two processes an engine, a KV cache small enough to fill, one core each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.real.install import INSTALLED, MODEL, python_of
from tests.real.processes import child_named, environment, free_port
from tests.real.stage import Engine, Router, router_before

MODEL_NAME = "tiny"
CONTEXT_TOKENS = 2048
BLOCK_TOKENS = 32  # the CPU backend takes multiples of 32 only
KV_BYTES = 8 * 1024 * 1024
KV_BLOCKS = KV_BYTES // (BLOCK_TOKENS * 2 * 2 * 64 * 4)  # keys and values, 2 layers, 64 floats of 4 bytes
MAX_SEQUENCES = 4
MAX_UNFINISHED = 6
"""vLLM's `--max-num-queued-reqs` counts running requests with the waiting ones, whatever its name says."""
START_S = 400.0
"""Loading takes 40 s of one core, and twice that where byte code is not compiled; this bound is for a machine
that does much else."""

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOOPBACK_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # with the `uni` executor: no worker process beside the core
    "VLLM_CACHE_ROOT": str(INSTALLED / "vllm-cache"),
}
_FLAGS: dict[str, Any] = {
    "served-model-name": MODEL_NAME,
    "dtype": "float32",
    "max-model-len": CONTEXT_TOKENS,
    "block-size": BLOCK_TOKENS,
    "kv-cache-memory-bytes": KV_BYTES,
    "max-num-seqs": MAX_SEQUENCES,
    "max-num-queued-reqs": MAX_UNFINISHED,
    "distributed-executor-backend": "uni",
    "host": "127.0.0.1",
}


class VllmEngine(Engine):
    """An engine whose core is a process of its own."""

    def core(self) -> int:
        """The process that computes; the other one speaks HTTP."""
        found = child_named(self.pid, "VLLM::EngineCore")
        assert found is not None, "vLLM runs without a core process"
        return found


def start(
    directory: Path,
    port: int | None = None,
    flags: Mapping[str, Any] = MappingProxyType({}),
    **variables: str,
) -> VllmEngine:
    """Starts one engine; the caller waits until it serves, and stops it.

    Args:
        flags: beside those that all engines here have, or in place of them.
        variables: of its environment, the same way.
    """
    port = port or free_port()
    argv: list[str | Path] = [python_of("vllm").with_name("vllm"), "serve", MODEL]
    for flag, value in {**_FLAGS, **flags, "port": port}.items():
        argv += [f"--{flag}", str(value)]
    argv += ["--enforce-eager", "--enable-request-id-headers", "--enable-prompt-tokens-details"]
    path = f"{python_of('vllm').parent}{os.pathsep}{os.environ['PATH']}"  # it calls compilers from there
    env = environment(**_ENVIRONMENT, **variables, PATH=path)
    return VllmEngine(argv, port, directory / f"vllm-{port}.log", env)


@dataclass(slots=True)
class Pair:
    """Two engines behind one router."""

    engines: list[VllmEngine]
    router: Router
    directory: Path

    def named(self, worker: str | None) -> VllmEngine:
        """The engine behind a worker's name."""
        return next(engine for engine in self.engines if self.router.worker(engine)["name"] == worker)

    def other(self, engine: VllmEngine) -> VllmEngine:
        return next(one for one in self.engines if one is not engine)


@contextmanager
def pair(directory: Path) -> Iterator[Pair]:
    """Two engines behind a router; all of them have ended afterwards."""
    engines: list[VllmEngine] = []
    try:
        engines += [start(directory), start(directory)]
        for engine in engines:
            engine.until_healthy("/health", START_S)
        with router_before(engines, directory) as router:
            yield Pair(engines, router, directory)
    finally:
        for engine in engines:
            engine.stop()


def chat(words: str = "hello", **fields: Any) -> dict[str, Any]:
    """A body for chat/completions, greedy."""
    return {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": 24,
        "temperature": 0,
        **fields,
    }


def completion(prompt: Any = "Once upon a time", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 24, "temperature": 0, **fields}
