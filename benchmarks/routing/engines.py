"""Four mock engines that can be told apart by their answers, whatever the router in front of them passes on.

Separate from the measuring engines of the speed benchmarks, which have no time and no cache of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import httpx

from benchmarks.engine_bytes import MODEL
from benchmarks.processes import Child, answers, free_port, python

ENGINES = 4
_COUNTER = re.compile(r"^(vllm:prefix_cache_(?:queries|hits)_total)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine in a process of its own.

    Attributes:
        fingerprint: stands in each of its answers, and in no other's.
    """

    name: str
    url: str
    fingerprint: str
    process: Child


class Cached:
    """Prompt tokens that engines have looked up in their caches, and found there, so far."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.queries = self.hits = 0.0
        for engine in engines:
            text = httpx.get(f"{engine.url}/metrics").raise_for_status().text
            found = {name: float(value) for name, value in _COUNTER.findall(text)}
            self.queries += found["vllm:prefix_cache_queries_total"]
            self.hits += found["vllm:prefix_cache_hits_total"]

    def rate_since(self, before: Cached) -> float:
        """Share of the tokens in between that was found."""
        return (self.hits - before.hits) / (self.queries - before.queries)


@contextmanager
def mock_engines(count: int = ENGINES) -> Iterator[list[Engine]]:
    """So many engines while the block lasts. Seeds differ, and with them fingerprints."""
    with ExitStack() as stack:
        engines = []
        for number in range(count):
            port, name = free_port(), f"engine {number}"
            argv = python("engines.mock", "--port", port, "--seed", number, "--served-model-name", MODEL)
            process = stack.enter_context(Child(name, argv))
            url = f"http://127.0.0.1:{port}"
            process.wait_for(partial(answers, f"{url}/health"))
            engines.append(Engine(name, url, _fingerprint(url), process))
        if len({engine.fingerprint for engine in engines}) < count:
            raise RuntimeError("the mock engines cannot be told apart")
        yield engines


def _fingerprint(url: str) -> str:
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "who?"}], "max_tokens": 1}
    answer = httpx.post(f"{url}/v1/chat/completions", json=ask).raise_for_status().json()
    return str(answer["system_fingerprint"])
