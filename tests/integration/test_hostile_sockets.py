"""What operators and strangers do to a running router: a real process, real sockets."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Sequence

import pytest

from tests.integration.programs import MODEL, POINTSMAN, Engine, Programs, Router, ask, free_ports

IDLE = 600
FILES = 700
"""Open files of a router: far fewer than a crowd of idle connections would take."""


def router_with_few_files(programs: Programs, engines: Sequence[Engine]) -> Router:
    """`pointsman serve` that may open FILES files."""
    port, admin_port = free_ports(2)
    pool = {"model": MODEL, "workers": [engine.url for engine in engines]}
    config = programs.config({"server": {"port": port, "admin_port": admin_port}, "pools": {"demo": pool}})
    command = ("prlimit", f"--nofile={FILES}:{FILES}", *POINTSMAN, "serve", "--config", str(config))
    program = programs.start(command, "serve")
    router = Router(program, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", engines)
    program.until(lambda: "listening on" in program.err, "it listens")
    program.until(lambda: router.readiness() == 200, "it is ready")
    return router


def test_sighup_without_a_request_log_ends_nothing(programs: Programs) -> None:
    router = programs.router([], ready=False)
    router.program.send(signal.SIGHUP)
    router.program.until(lambda: "no request log to reopen" in router.program.err, "it says so")
    assert ask(f"{router.url}/liveness").status == 200
    router.program.send(signal.SIGINT)
    assert router.program.exit_code() == 0


def test_an_open_admin_port_is_warned_of_at_the_start(programs: Programs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that no port is opened to the network here
        port = str(taken.getsockname()[1])
        program = programs.pointsman("serve", "--port", port, "--admin-host", "0.0.0.0")
        assert program.exit_code() == 1
    assert "warning: server.admin_host 0.0.0.0 is open to the network, but administrators need no key" in (
        program.err
    )


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit comes with util-linux")
def test_idle_connections_shut_out_neither_operators_nor_workers(programs: Programs) -> None:
    _, engines = programs.engines("--time-scale", "0.01", count=1)
    router = router_with_few_files(programs, engines)
    crowd = [socket.create_connection(("127.0.0.1", int(router.url.rpartition(":")[2]))) for _ in range(IDLE)]
    try:
        router.program.until(lambda: "turned away" in router.program.err, "some are turned away")
        assert router.program.open_files() < FILES - 64
        assert router.worker(engines[0].name)["state"] == "ready"
        assert ask(f"{router.admin_url}/metrics").status == 200
    finally:
        for one in crowd:
            one.close()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    router.program.until(
        lambda: ask(f"{router.url}/v1/chat/completions", method="POST", body=body).status == 200, "it serves"
    )
    router.assert_idle()
