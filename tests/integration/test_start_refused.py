"""What does not start says why in one sentence, with what to do, and a non-zero exit code."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.integration.programs import Programs, free_ports


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def said(programs: Programs, *words: str) -> tuple[int, str]:
    """Exit code and stderr of a command that ends by itself."""
    program = programs.pointsman(*words)
    return program.exit_code(), program.err


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_taken_port_is_one_sentence(programs: Programs, taken: int, flag: str) -> None:
    free = [word for name in ("--port", "--admin-port") if name != flag for word in (name, "0")]
    code, words = said(programs, "serve", *free, flag, str(taken))
    assert code == 1
    (line,) = [line for line in words.splitlines() if "ERROR" in line]
    assert f"cannot listen on 127.0.0.1 port {taken}" in line
    assert "in use" in line


def test_a_taken_port_of_an_engine_is_one_sentence(programs: Programs, taken: int) -> None:
    program = programs.pointsman("mock", "--port", str(taken))
    assert program.exit_code() == 1
    assert len(program.err.splitlines()) == 1
    assert f"cannot listen on 127.0.0.1 from port {taken}" in program.err


def test_pointsman_up_names_the_key_of_a_taken_port(programs: Programs, taken: int) -> None:
    ports = free_ports(2)
    server = {"port": ports[0], "admin_port": 0}
    config = programs.config({"server": server, "mock": {"fleet": [{"port": taken}]}})
    code, words = said(programs, "up", "--config", str(config))
    assert code == 1
    assert f"mock.fleet[0]: port {taken} on 127.0.0.1 cannot be used" in words


@pytest.mark.parametrize(
    ("command", "sections", "parts"),
    [
        (
            "serve",
            {"pools": {"demo": {"policy": "least_request"}}},
            ["pools.demo.policy", "least_request", "round_robin", "did you mean least_requests?"],
        ),
        ("up", {"server": {"prot": 1}}, ["server.prot", "did you mean", "port"]),
        ("check", {"pools": {"demo": {"workers": ["gpu-1:8000"]}}}, ["gpu-1:8000", "http://host:port"]),
    ],
    ids=["policy", "key", "url"],
)
def test_a_typo_is_refused_with_the_key_the_value_and_what_is_allowed(
    programs: Programs, command: str, sections: dict[str, object], parts: list[str]
) -> None:
    code, words = said(programs, command, "--config", str(programs.config(sections)))
    assert code == 1
    for part in parts:
        assert part in words, words


def test_a_variable_that_nobody_reads_is_refused(programs: Programs) -> None:
    program = programs.pointsman("check", variables={"POINTSMAN_SERVER__PROT": "1"})
    assert program.exit_code() == 1
    assert "POINTSMAN_SERVER__PROT" in program.err


def test_an_unknown_flag_is_refused_with_the_nearest(programs: Programs) -> None:
    code, words = said(programs, "serve", "--worker-url", "http://127.0.0.1:1")
    assert code == 2
    assert "unknown flag --worker-url, did you mean --worker-urls?" in words


def test_the_demo_configuration_is_good(programs: Programs) -> None:
    program = programs.pointsman("check", "--config", "config.yaml")
    assert program.exit_code() == 0
    assert program.out.startswith("good: config.yaml\n")
    assert "least_tokens" in program.out
    assert "warning" not in program.out
    assert program.err == ""
