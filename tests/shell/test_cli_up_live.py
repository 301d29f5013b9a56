"""`pointsman up` for real: two engines, the router, a request and a clean end, on sockets of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Up:
    """A running `pointsman up`, and where its parts listen."""

    def __init__(self, folder: Path) -> None:
        self.router, *self.engines = free_ports(3)
        urls = [f"http://127.0.0.1:{port}" for port in self.engines]
        (folder / "config.yaml").write_text(
            f"server: {{port: {self.router}, admin_port: 0, log_level: warning}}\n"
            f"pools: {{demo: {{model: qwen2.5-3b, workers: {urls}}}}}\n"
            f"mock: {{fleet: [{{port: {self.engines[0]}}}, {{port: {self.engines[1]}}}]}}\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "router", "up"],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_greeting(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Pointsman listens on"):
                return
        raise AssertionError(f"no greeting; it said: {self.process.communicate(timeout=30)[1]}")

    def end(self) -> str:
        """What it said on stderr; fails when it does not end."""
        return self.process.communicate(timeout=60)[1]

    def nobody_listens(self) -> bool:
        for port in (self.router, *self.engines):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return False
        return True


def process_with(words: str) -> int:
    """The process whose command line holds these words."""
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("finds the engine's process in /proc")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # processes of others come and go
            if words in path.read_text(errors="replace"):
                return int(path.parent.name)
    raise AssertionError(f"no process has {words!r}")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    running.wait_for_greeting()
    yield running
    if running.process.poll() is None:
        running.process.terminate()
        running.process.communicate(timeout=60)


def test_it_serves_a_request_and_ctrl_c_ends_all_of_it(up: Up) -> None:
    answer = httpx.post(
        f"http://127.0.0.1:{up.router}/v1/chat/completions",
        json={"model": "qwen2.5-3b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
        timeout=30,
        trust_env=False,
    )
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 4
    up.process.send_signal(signal.SIGINT)
    assert up.end() == ""
    assert up.process.returncode == 0
    assert up.nobody_listens()


def test_an_engine_that_dies_ends_all_of_it_with_a_sentence(up: Up) -> None:
    os.kill(process_with(f"--port\0{up.engines[0]}\0"), signal.SIGKILL)
    assert f"the mock engine on port {up.engines[0]} ended by itself, with exit code -9" in up.end()
    assert up.process.returncode == 1
    assert up.nobody_listens()
