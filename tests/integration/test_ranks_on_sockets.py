"""An engine of data-parallel ranks behind the router, on sockets, filled by BalanceRoute by one flag."""

from __future__ import annotations

import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.clients import streams_of
from tests.integration.programs import MODEL, Engine, Programs, Router, ask, free_ports

RANKS = 2
_RANK = re.compile(r'engine="(\d+)"')
SLOTS = 4


def serve(programs: Programs, engine: Engine, *flags: str) -> Router:
    """`pointsman serve` by flags alone, in front of the ranks of one engine."""
    port, admin_port = free_ports(2)
    program = programs.pointsman(
        "serve",
        *("--port", str(port), "--admin-port", str(admin_port), "--model", MODEL),
        *("--worker-urls", engine.url, "--dp-size", str(RANKS), "--slots", str(SLOTS)),
        "--expose-routing-headers",
        *flags,
    )
    router = Router(program, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", [engine])
    program.until(lambda: f"listening on {router.url}\n" in program.err, "it listens")
    program.until(
        lambda: [worker["state"] for worker in router.state()["workers"]] == ["ready"] * RANKS,
        "its ranks are ready",
    )
    return router


def finished(engine: Engine) -> Counter[str]:
    """Answers by the rank that gave them, as the engine's own metrics say."""
    found: Counter[str] = Counter()
    for line in ask(f"{engine.url}/metrics").body.decode().splitlines():
        rank = _RANK.search(line)
        if line.startswith("vllm:request_success_total{") and rank is not None:
            found[rank[1]] += int(float(line.rpartition(" ")[2]))
    return found


@pytest.mark.parametrize("policy", ["balance_route_0", "balance_route_h"])
async def test_balance_route_fills_the_ranks_of_a_real_engine(
    programs: Programs, policy: str, tmp_path: Path
) -> None:
    _, (engine,) = programs.engines("--dp-size", str(RANKS), "--max-num-seqs", str(SLOTS))
    state = tmp_path / "state"
    router = serve(programs, engine, "--policy", policy, "--state-dir", str(state))
    async with streams_of(router) as streams:
        for tokens in (12, 16, 20, 24):
            streams.start(6, tokens=tokens)
        seen = await streams.over()
    assert all(stream.complete for stream in seen)
    assert Counter(stream.worker for stream in seen).keys() == {f"{engine.name}@0", f"{engine.name}@1"}
    told = finished(engine)
    assert sum(told.values()) == len(seen)
    assert min(told["0"], told["1"]) >= len(seen) // 4
    router.assert_idle()
    metrics = router.metrics()
    assert sum(value for name, value in metrics.items() if "balance_admitted_total{" in name) == len(seen)
    router.program.send(signal.SIGINT)
    assert router.program.exit_code() == 0
    assert (state / "lengths-default.json").is_file()
