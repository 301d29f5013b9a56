"""The laws of `pointsman up`: what it would start, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from router.__main__ import main
from router.cli.children import Program
from router.cli.up import Plan, greeting, plan, run_plan, taken_ports, unfit
from router.settings import Settings

CONFIG = Path("config.yaml")


def on_a_real_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Child processes need a loop that watches processes; each test has one of its own, closed at its end."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


ANSWERS_200 = (
    "import http.server, sys\n"
    "class Yes(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.send_header('Content-Length', '0'); self.end_headers()\n"
    "    def log_message(self, *args): pass\n"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Yes).serve_forever()\n"
)
"""A program that answers 200 to everything, in place of an engine and of the router."""


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("POINTSMAN_") or name == "WEB_CONCURRENCY":
            monkeypatch.delenv(name)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken


def fleet(**keys: object) -> Settings:
    group = {"port": 9001, "count": 2, "kv_tokens": 60_000}
    return Settings.model_validate({"mock": {"fleet": [group]}, **keys})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def yes(name: str, port: int) -> Program:
    return Program(name, (sys.executable, "-c", ANSWERS_200, str(port)), (f"http://127.0.0.1:{port}/health",))


def test_a_group_of_engines_is_one_program_on_consecutive_ports() -> None:
    (engines,) = plan(fleet(), CONFIG, []).engines
    assert engines.name == "the 2 mock engines on ports 9001-9002"
    words = " ".join(engines.command)
    assert " -m engines.mock --host 127.0.0.1 --port 9001 --count 2 " in words
    assert words.endswith("--kv-tokens 60000")
    assert engines.ready_urls == ("http://127.0.0.1:9001/health", "http://127.0.0.1:9002/health")


def test_engines_of_one_role_are_called_so() -> None:
    settings = Settings.model_validate(
        {"mock": {"fleet": [{"role": "prefill", "count": 2}, {"role": "decode", "port": 9003}]}}
    )
    assert [program.name for program in plan(settings, CONFIG, []).engines] == [
        "the 2 mock prefill engines on ports 9001-9002",
        "the mock decode engine on port 9003",
    ]


def test_the_router_reads_the_same_file_and_flags() -> None:
    router = plan(fleet(), Path("x.yaml"), ["--port=31000"]).router
    assert router.command[-5:] == ("router", "serve", "--config", "x.yaml", "--port=31000")
    assert router.ready_urls == ("http://127.0.0.1:30000/readiness",)


def test_the_router_drains_at_once_and_is_given_the_time_for_it() -> None:
    router = plan(fleet(timeouts={"shutdown_drain_s": 20}), CONFIG, []).router
    assert router.stop_signal == signal.SIGINT
    assert router.stop_s > 20


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:30000"), ("::", "http://[::1]:30000"), ("::1", "http://[::1]:30000")],
)
def test_a_router_that_listens_everywhere_is_reached_on_this_machine(host: str, url: str) -> None:
    settings = fleet(server={"host": host})
    assert plan(settings, CONFIG, []).router.ready_urls == (f"{url}/readiness",)
    assert f"curl {url}/v1/chat/completions" in greeting(settings)


def test_the_greeting_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    text = greeting(fleet())
    assert "Pointsman listens on http://127.0.0.1:30000/v1" in text
    assert '"model": "qwen2.5-3b"' in text
    assert "Authorization" not in text
    snippet = "\n".join(line[2:] for line in text.splitlines() if line.startswith("  ")).split("\n", 2)[2]
    compile(snippet, "greeting", "exec")


def test_the_greeting_says_where_the_key_goes() -> None:
    text = greeting(fleet(auth={"client_api_keys": ["sk-1"], "api_key": "sk-2"}))
    assert "Authorization: Bearer YOUR_KEY" in text
    assert "sk-" not in text


def test_the_greeting_names_the_model_as_it_is_served() -> None:
    settings = Settings.model_validate({"mock": {"fleet": [{"flags": {"served-model-name": "mine"}}]}})
    assert '"model": "mine"' in greeting(settings)
    assert "the mock engine on port 9001" in greeting(settings)


def test_a_configuration_without_engines_is_refused() -> None:
    assert "mock.fleet is empty" in next(unfit(Settings()))
    assert list(unfit(fleet())) == []


def test_a_port_that_nobody_knows_is_refused() -> None:
    assert "server.port is 0" in next(unfit(fleet(server={"port": 0})))


def test_a_taken_port_is_named_with_its_key(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    settings = Settings.model_validate(
        {"mock": {"fleet": [{"port": port}]}, "server": {"port": free_port(), "admin_port": 0}}
    )
    assert list(taken_ports(settings)) == [
        f"mock.fleet[0]: port {port} on 127.0.0.1 cannot be used, another program listens there"
    ]


def test_an_address_of_another_machine_is_named() -> None:
    settings = Settings.model_validate(
        {"mock": {"host": "192.0.2.1", "fleet": [{}]}, "server": {"port": free_port(), "admin_port": 0}}
    )
    (problem,) = taken_ports(settings)
    assert problem.startswith("mock.fleet[0]: port 9001 on 192.0.2.1 cannot be used")


def test_a_folder_without_configuration_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["up"]) == 1
    assert "there is no config.yaml in this folder" in capsys.readouterr().err
    assert main(["up", "--config", "other.yaml"]) == 1
    assert "the configuration file other.yaml does not exist" in capsys.readouterr().err


def test_a_taken_port_refuses_before_anything_is_started(
    tmp_path: Path, listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    port = listener.getsockname()[1]
    config = tmp_path / "c.yaml"
    config.write_text(f"mock: {{fleet: [{{port: {port}}}]}}\nserver: {{port: {free_port()}, admin_port: 0}}")
    assert main(["up", "--config", str(config)]) == 1
    printed = capsys.readouterr()
    assert f"port {port} on 127.0.0.1 cannot be used" in printed.err
    assert printed.out == ""


@on_a_real_loop
async def test_it_greets_once_all_answer_and_a_signal_ends_it_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine, router = yes("the engine", free_port()), yes("the router", free_port())

    class Greeting(str):
        def __str__(self) -> str:
            os.kill(os.getpid(), signal.SIGTERM)
            return "hello"

    assert await run_plan(Plan((engine,), router, 60.0, Greeting("hello"))) == 0
    printed = capsys.readouterr()
    assert printed.out == "hello\n"
    assert printed.err == ""


@on_a_real_loop
async def test_it_fails_with_a_sentence_when_a_child_ends(capsys: pytest.CaptureFixture[str]) -> None:
    engine = yes("the engine", free_port())
    router = Program("the router", ("sh", "-c", "exit 7"), ("http://127.0.0.1:1/readiness",))
    assert await run_plan(Plan((engine,), router, 60.0, "hello")) == 1
    printed = capsys.readouterr()
    assert printed.err == "pointsman: the router ended by itself, with exit code 7\n"
    assert printed.out == ""


@on_a_real_loop
async def test_the_router_is_not_started_before_the_engines_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    silent = Program("the engine", ("sleep", "1000"), ("http://127.0.0.1:1/health",))
    router = Program("the router", ("/no/such/program",), ())
    assert await run_plan(Plan((silent,), router, 0.0, "hello")) == 1
    assert capsys.readouterr().err == "pointsman: http://127.0.0.1:1/health does not answer 200 within 0 s\n"
