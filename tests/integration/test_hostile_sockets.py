"""What operators and strangers do to a running router: a real process, real sockets."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from tests.integration.programs import Programs, ask, free_ports, programs_in

IDLE = 600
FILES = 700
"""Open files of a router: far fewer than a crowd of idle connections would take."""


@pytest.fixture
def programs(tmp_path: Path) -> object:
    with programs_in(tmp_path) as started:
        yield started


def test_sighup_without_a_request_log_ends_nothing(programs: Programs) -> None:
    router = programs.router([], ready=False)
    router.program.send(signal.SIGHUP)
    router.program.until(lambda: "no request log to reopen" in router.program.err, "it says so")
    assert ask(f"{router.url}/liveness").status == 200
    router.program.send(signal.SIGINT)
    assert router.program.exit_code() == 0


def test_an_open_admin_port_is_warned_of_at_the_start(programs: Programs) -> None:
    port, admin_port = free_ports(2)
    flags = ("--port", str(port), "--admin-port", str(admin_port), "--admin-host", "0.0.0.0")  # noqa: S104 - on purpose
    program = programs.pointsman("serve", *flags)
    program.until(lambda: "listening on" in program.err, "it listens")
    assert "warning: server.admin_host 0.0.0.0 is open to the network, but administrators need no key" in (
        program.err
    )


def test_idle_connections_shut_out_neither_operators_nor_workers(programs: Programs) -> None:
    _, engines = programs.engines("--time-scale", "0.01", count=1)
    files = ("prlimit", f"--nofile={FILES}:{FILES}")
    router = programs.router(engines, wrap=files)
    crowd = [socket.create_connection(("127.0.0.1", int(router.url.rpartition(":")[2]))) for _ in range(IDLE)]
    try:
        router.program.until(lambda: "turned away" in router.program.err, "some are turned away")
        assert router.program.open_files() < FILES - 64
        assert router.worker(engines[0].name)["state"] == "ready"
        assert ask(f"{router.admin_url}/metrics").status == 200
    finally:
        for one in crowd:
            one.close()
    body = {"model": "qwen2.5-3b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    router.program.until(
        lambda: ask(f"{router.url}/v1/chat/completions", method="POST", body=body).status == 200, "it serves"
    )
    router.assert_idle()
