"""Our programs as a user starts them: real processes on real ports of this machine, always ended.

What a test starts here listens on 127.0.0.1 alone and is killed, with all its descendants, when the test is
over. Every wait is a poll with a deadline. After a test no router may have logged a stack trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

ROOT = Path(__file__).parents[2]
POINTSMAN = (str(Path(sys.executable).with_name("pointsman")),)
ENGINES = (sys.executable, "-m", "engines.mock")
MODEL = "qwen2.5-3b"

PATIENCE_S = 60.0
"""Bound of a wait for something that takes a second on an idle machine."""
_LOOK_S = 0.05
_FIRST_PORT, _LAST_PORT = 18_000, 31_000
"""Ports below those that the system gives to outgoing connections."""
_ports = itertools.count(os.getpid() * 37 % (_LAST_PORT - _FIRST_PORT))


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(url: str, *, method: str = "GET", body: object = None, headers: Mapping[str, str] = {}) -> Answer:
    """One request on a connection of its own. Raises OSError when nobody listens."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    data = None if body is None else json.dumps(body)
    try:
        connection.request(method, target, data, {"content-type": "application/json", **headers})
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def until(condition: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
    """Waits for a condition. Fails with what it was when it does not come true."""
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, f"not within {within_s:g} s: {what}"
        time.sleep(_LOOK_S)


async def until_on_loop(condition: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
    """The same, while the loop goes on with everything else."""
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(_LOOK_S)


def free_ports(count: int) -> list[int]:
    """Consecutive ports that nobody listens on."""
    while True:
        first = _FIRST_PORT + next(_ports) % (_LAST_PORT - _FIRST_PORT)
        ports = list(range(first, first + count))
        for _ in ports[1:]:
            next(_ports)
        if all(map(_is_free, ports)):
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Program:
    """A process that was started, in a session of its own; its output is kept in files."""

    def __init__(
        self, command: Sequence[str], folder: Path, name: str, variables: Mapping[str, str] = {}
    ) -> None:
        self.name = name
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        bare = {key: value for key, value in os.environ.items() if not key.startswith("POINTSMAN_")}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env={**bare, **variables},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self, within_s: float = PATIENCE_S) -> int:
        """Waits for its end."""
        return self.process.wait(within_s)

    def family(self) -> list[int]:
        """Process ids of it and of all its descendants that run."""
        return [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session(pid) == self.pid
        ]

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Waits for a condition, and fails at once when the process ends before it holds."""

        def holds() -> bool:
            ended = self.process.poll() is not None
            assert not ended, f"{self.name} ended with {self.process.returncode}:\n{self.err}"
            return bool(condition())

        until(holds, f"{self.name}: {what}")

    def kill(self) -> None:
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        until(lambda: not self.family(), f"the descendants of {self.name} are gone")


def _session(pid: int) -> int | None:
    """The session of a running process; None for one that is gone or that only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[3])


@dataclass
class Engine:
    """One mock engine, by its address."""

    url: str

    @property
    def name(self) -> str:
        """As the router calls it."""
        return urlsplit(self.url).netloc

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def state(self) -> Any:
        return ask(f"{self.url}/mock/state?requests=false").json()

    def fault(self, **fault: object) -> None:
        answer = ask(f"{self.url}/mock/faults", method="POST", body=fault)
        assert answer.status == 200, answer.body

    def heal(self) -> None:
        """Takes back every fault; waits for an engine that is just coming back."""

        def healed() -> bool:
            try:
                return ask(f"{self.url}/mock/faults", method="DELETE").status == 200
            except OSError:
                return False

        until(healed, f"{self.name} is healed")

    @property
    def idle(self) -> bool:
        state = self.state()
        return not (state["running"] or state["waiting"] or state["in_progress"])


@dataclass
class Router:
    """A running router, with the engines behind it that are asked for their accounts too."""

    program: Program
    url: str
    admin_url: str
    engines: Sequence[Engine] = ()
    request_log: Path | None = None

    @property
    def base_url(self) -> str:
        """As the libraries want it."""
        return f"{self.url}/v1"

    def state(self) -> Any:
        return ask(f"{self.admin_url}/debug/state").json()

    def worker(self, name: str) -> Any:
        return next((worker for worker in self.state()["workers"] if worker["name"] == name), None)

    def readiness(self) -> int:
        return ask(f"{self.url}/readiness").status

    def in_flight(self) -> int:
        in_flight: int = self.state()["requests_in_flight"]
        return in_flight

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics, by name and labels as they stand there."""
        text = ask(f"{self.url}/metrics").body.decode()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in text.splitlines() if line[:1] != "#")
        }

    def accounts(self) -> dict[str, float]:
        """What is zero when nothing runs, as far as it is not."""
        state = self.state()
        held = {"requests_in_flight": state["requests_in_flight"]}
        for name, pool in state["pools"].items():
            held |= {f"{name} {key}": pool[key] for key in ("queued", "in_flight")}
        for worker in state["workers"]:
            for key in ("in_flight", "sequences", "queued_tokens", "kv_tokens"):
                held[f"{worker['name']} {key}"] = worker[key]
        return {name: value for name, value in (held | self._gauges()).items() if value}

    def _gauges(self) -> dict[str, float]:
        metrics = self.metrics()
        found = {name: value for name, value in metrics.items() if _ACCOUNTS.match(name)}
        assert len({name.partition("{")[0] for name in found}) == len(_GAUGES), sorted(metrics)
        return found

    def assert_idle(self, within_s: float = PATIENCE_S) -> None:
        """The first law: when nothing runs, every account is zero, the router's and its engines'."""
        until(lambda: not self.accounts(), "every account is zero", within_s)
        until(lambda: all(engine.idle for engine in self.engines), "the engines are idle", within_s)


_GAUGES = (
    "pointsman_requests_in_flight",
    "pointsman_worker_requests_in_flight",
    "pointsman_worker_kv_tokens",
    "pointsman_queue_depth",
)
_ACCOUNTS = re.compile(rf"({'|'.join(_GAUGES)})(?:{{|$)")


@dataclass
class Programs:
    """Everything that one test, or one session of tests, has started."""

    folder: Path
    started: list[Program] = field(default_factory=list)

    def start(self, command: Sequence[str], name: str, variables: Mapping[str, str] = {}) -> Program:
        program = Program(command, self.folder, f"{len(self.started)}-{name}", variables)
        self.started.append(program)
        return program

    def pointsman(self, *words: str, variables: Mapping[str, str] = {}) -> Program:
        """`pointsman …` with these variables in its environment, not waited for."""
        return self.start((*POINTSMAN, *words), words[0], variables)

    def engines(self, *flags: str, count: int = 1, port: int = 0) -> tuple[Program, list[Engine]]:
        """`python -m engines.mock`, listening."""
        words = ("--port", str(port), "--count", str(count), *flags)
        program = self.start((*ENGINES, *words), "engines")
        program.until(lambda: program.out.count("\n") == count, "it listens")
        return program, [Engine(line.split()[0]) for line in program.out.splitlines()]

    def config(self, sections: Mapping[str, object]) -> Path:
        path = self.folder / f"{len(self.started)}.yaml"
        path.write_text(yaml.safe_dump(dict(sections)))
        return path

    def router(
        self,
        engines: Sequence[Engine],
        sections: Mapping[str, object] = {},
        *,
        ready: bool = True,
        policy: str | None = None,
    ) -> Router:
        """`pointsman serve` in front of these engines; `ready` waits until one of them is. Without a policy
        it has its default one."""
        port, admin_port = free_ports(2)
        server = {
            "port": port,
            "admin_port": admin_port,
            "expose_routing_headers": True,
            **_mapping(sections.get("server")),
        }
        pool: dict[str, object] = {"model": MODEL, "workers": [engine.url for engine in engines]}
        if policy is not None:
            pool["policy"] = policy
        config = self.config({"pools": {"demo": pool}, **sections, "server": server})
        program = self.pointsman("serve", "--config", str(config))
        router = Router(program, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", engines)
        program.until(lambda: f"listening on {router.url}\n" in program.err, "it listens")
        if ready:
            program.until(lambda: self._all_ready(router), "its workers are ready")
        return router

    def up(self, group: Mapping[str, object], sections: Mapping[str, object] = {}) -> Router:
        """`pointsman up` with one group of mock engines, greeting."""
        count = int(str(group.get("count", 1)))
        port, admin_port, *engine_ports = free_ports(2 + count)
        engines = [Engine(f"http://127.0.0.1:{port}") for port in engine_ports]
        log = self.folder / f"{len(self.started)}-requests.jsonl"
        config = self.config(
            {
                "server": {"port": port, "admin_port": admin_port, "expose_routing_headers": True},
                "pools": {"demo": {"model": MODEL, "workers": [engine.url for engine in engines]}},
                "mock": {"fleet": [{"port": engine_ports[0], **group}]},
                "request_log": {"path": str(log)},
                **sections,
            }
        )
        program = self.pointsman("up", "--config", str(config))
        router = Router(program, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", engines, log)
        program.until(lambda: "Ctrl-C stops all of it." in program.out, "it greets")
        program.until(lambda: self._all_ready(router), "its workers are ready")
        return router

    @staticmethod
    def _all_ready(router: Router) -> bool:
        workers = router.state()["workers"]
        return bool(workers) and all(worker["state"] == "ready" for worker in workers)

    def end(self) -> None:
        """Kills what still runs, and fails when a program logged a stack trace."""
        for program in reversed(self.started):
            program.kill()
        for program in self.started:
            assert "Traceback" not in program.err, f"{program.name}:\n{program.err}"


def _mapping(section: object) -> Mapping[str, object]:
    return section if isinstance(section, Mapping) else {}


@contextlib.contextmanager
def programs_in(folder: Path) -> Iterator[Programs]:
    """Programs that all end with the block."""
    programs = Programs(folder)
    try:
        yield programs
    finally:
        programs.end()
