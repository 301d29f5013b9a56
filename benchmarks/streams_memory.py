"""What one open stream costs the router in memory: 2,000 of them, nearly idle, with 8 KB prompts.

Measured as growth of the resident memory between a router that has served a few requests and the same router
with all streams open, which counts everything: both connections, buffers, the task and the accounts.
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.client import Load
from benchmarks.peers.targets import POINTSMAN, start
from benchmarks.processes import Child, EngineProcess, client_argv, drive
from benchmarks.verdict import Verdict, print_verdicts

BOUND_KIB = 32.0

_STREAMS = 2_000
_QUICK_STREAMS = 200
_PROMPT_BYTES = 8 * 1024
_PACE_MS = 1_000.0
_EVENTS = 1_000
_SETTLE_S = 5.0


def measure(*, quick: bool = False) -> Verdict:
    """Memory of one stream (KiB)."""
    streams = _QUICK_STREAMS if quick else _STREAMS
    with EngineProcess() as engine:
        target = start(POINTSMAN, [engine.url])
        if target.router is None:
            raise RuntimeError("there is no router to weigh")
        with target.router as router:
            drive(Load(target.port, concurrency=8, requests=64, events=20, prompt_bytes=_PROMPT_BYTES))
            before = router.rss_bytes()
            engine.pace(_PACE_MS)
            load = Load(target.port, streams, streams, _EVENTS, _PROMPT_BYTES, announce=True)
            after = _rss_with_streams(router, load)
    name = f"router memory of one stream, {streams} open"
    return Verdict(name, (after - before) / streams / 1024, "KiB", BOUND_KIB)


def _rss_with_streams(router: Child, load: Load) -> int:
    """Resident memory while all streams are open and have been for some seconds."""
    client = subprocess.Popen(client_argv(load), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        if client.stdout is None or client.stdout.readline().strip() != b"open":
            raise RuntimeError(f"the streams did not open: {client.communicate()[1].decode()}")
        time.sleep(_SETTLE_S)
        if client.poll() is not None:
            raise RuntimeError(f"the streams did not stay open: {client.communicate()[1].decode()}")
        return router.rss_bytes()
    finally:
        client.kill()
        client.communicate()


def main() -> int:
    verdict = measure(quick="--quick" in sys.argv)
    print_verdicts([verdict])
    return 0 if verdict.holds else 1


if __name__ == "__main__":
    sys.exit(main())
