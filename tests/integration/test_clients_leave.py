"""A thousand clients that leave at once: nothing of them is left, in the router or its engines."""

from __future__ import annotations

import contextlib
import json
import resource
import socket

import pytest

from tests.integration.clients import chat
from tests.integration.programs import PATIENCE_S, Programs, Router, until

CLIENTS = 1000
FILES_EACH = 2
"""Of the router: one towards the client, one towards the engine."""


def send(router: Router, number: int) -> socket.socket:
    """Sends a request on a raw socket and reads nothing. Half of the clients want streams."""
    host, _, port = router.url.removeprefix("http://").partition(":")
    client = socket.create_connection((host, int(port)), PATIENCE_S)
    body = json.dumps(chat(5000, stream=number % 2 == 0)).encode()
    client.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: pointsman\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    return client


def test_a_thousand_clients_leave_at_once(programs: Programs) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = (FILES_EACH + 2) * CLIENTS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this machine grants {hard} open files, the test needs {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    _, engines = programs.engines("--time-scale", "30", count=2)
    router = programs.router(engines, {"limits": {"max_in_flight": CLIENTS + 10}})
    idle_files = router.program.open_files()
    with contextlib.ExitStack() as clients:
        for number in range(CLIENTS):
            clients.enter_context(send(router, number))
        until(lambda: router.in_flight() == CLIENTS, "all requests are in flight")
        until(lambda: sum(engine.state()["in_progress"] for engine in engines) == CLIENTS, "at the engines")
        assert router.program.open_files() > FILES_EACH * CLIENTS
    router.assert_idle(10)
    scraped = 2 * len(engines)  # a probe and a scrape of each may be under way
    until(lambda: router.program.open_files() <= idle_files + scraped, "the files are closed")
    assert sum(engine.state()["aborted"] for engine in engines) == CLIENTS
    left = {
        name: value
        for name, value in router.metrics().items()
        if name.startswith("pointsman_client_disconnects_total")
    }
    assert sum(left.values()) == CLIENTS, left
