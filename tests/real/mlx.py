"""Starts mlx-lm's server: a small real engine that speaks HTTP/1.0 and has no metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.install import MODEL, python_of
from tests.real.processes import environment, free_port
from tests.real.stage import Engine, Router, router_before

MODEL_NAME = str(MODEL)
"""mlx-lm knows a model by the path of its directory."""
START_S = 60.0


def start(directory: Path, port: int | None = None) -> Engine:
    """Starts one engine; the caller waits until it serves, and stops it."""
    port = port or free_port()
    # Its list of models comes from the hub's cache, and it breaks the connection when there is none.
    cache = directory / "hub-cache"
    (cache / "hub").mkdir(parents=True, exist_ok=True)
    argv: list[str | Path] = [
        python_of("mlx-lm"),
        "-m",
        "mlx_lm.server",
        "--model",
        MODEL,
        "--host",
        "127.0.0.1",
    ]
    argv += ["--port", str(port)]
    env = environment(HF_HUB_OFFLINE="1", HF_HOME=str(cache))
    return Engine(argv, port, directory / f"mlx-lm-{port}.log", env)


@dataclass(slots=True)
class Pair:
    """Two engines behind one router."""

    engines: list[Engine]
    router: Router
    directory: Path

    def other(self, worker: str) -> Engine:
        """The engine that is not the named worker."""
        return next(engine for engine in self.engines if self.router.worker(engine)["name"] != worker)

    def named(self, worker: str) -> Engine:
        return next(engine for engine in self.engines if self.router.worker(engine)["name"] == worker)


@contextmanager
def pair(directory: Path) -> Iterator[Pair]:
    """Two engines behind a router; all of them have ended afterwards."""
    engines: list[Engine] = []
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
    """A body for chat/completions."""
    return {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": 24,
        **fields,
    }


def completion(words: str = "Once upon a time", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL_NAME, "prompt": words, "max_tokens": 24, **fields}
