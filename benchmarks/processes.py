"""Processes under measurement: started, waited for, weighed and ended.

CPU time and memory come from /proc and cover a process with all its descendants, because some routers are a
launcher with the real one below it. CPU time has the resolution of the kernel's clock tick, 10 ms.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import httpx
import msgspec

from benchmarks.client import Load, Outcome
from benchmarks.engine_bytes import Leg

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_START_S = 60.0
_END_S = 5.0
_RUN_S = 300.0


class Child:
    """A process of ours, a context manager. Its output goes to a file that is shown when it fails."""

    def __init__(self, name: str, argv: Sequence[str], *, reads_port: bool = False) -> None:
        self.name = name
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `stop`
        out = subprocess.PIPE if reads_port else self._log
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=self._log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def read_line(self) -> str:
        """The next line of its standard output. Raises RuntimeError when it ended instead."""
        if self._process.stdout is None:
            raise RuntimeError(f"the output of {self.name} is not read")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended early:\n{self.output()}")
        return line.decode().strip()

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Waits until `ready`. Raises RuntimeError when it ends before, or after a minute."""
        ends = time.monotonic() + _START_S
        while not ready():
            if self._process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"{self.name} does not start:\n{self.output()}")
            time.sleep(0.1)

    def output(self) -> str:
        """What it wrote, but for what `read_line` reads."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4_000:]

    def cpu_s(self) -> float:
        """CPU seconds, user and system, that the tree has used so far."""
        return sum(_cpu_ticks(pid) for pid in _tree(self.pid)) / _TICKS_PER_S

    def rss_bytes(self) -> int:
        """Resident memory of the tree."""
        return sum(_rss_pages(pid) for pid in _tree(self.pid)) * _PAGE_BYTES

    def stop(self) -> None:
        """Ends it and its descendants, as Ctrl-C does: some routers answer SIGTERM with a long goodbye."""
        pids = [pid for pid in _tree(self.pid) if pid != self.pid]
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class EngineProcess(Child):
    """A measuring engine in a process of its own."""

    def __init__(self, name: str = "engine") -> None:
        super().__init__(name, python("benchmarks.engine"), reads_port=True)
        self.port = int(self.read_line())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def pace(self, milliseconds: float) -> None:
        """Time between the events of streams that begin from now on; 0: as fast as they are read."""
        httpx.put(f"{self.url}/pace", params={"ms": milliseconds}).raise_for_status()

    def legs(self) -> dict[Leg, int]:
        """How many chat requests it has been asked for so far, by kind."""
        answer = httpx.get(f"{self.url}/legs").raise_for_status()
        return msgspec.json.decode(answer.content, type=dict[Leg, int])


def python(module: str, *args: object) -> list[str]:
    """The command that runs one of our modules with the interpreter that runs this one."""
    return [sys.executable, "-m", module, *map(str, args)]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Whether a GET is answered with a 2xx."""
    try:
        return httpx.get(url, timeout=2.0).is_success
    except httpx.HTTPError:
        return False


def drive(load: Load) -> Outcome:
    """Runs the client in a process of its own. Raises RuntimeError when an answer was not as expected."""
    done = subprocess.run(client_argv(load), capture_output=True, timeout=_RUN_S, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace").strip())
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)


def client_argv(load: Load) -> list[str]:
    """The command line of a client."""
    flags: list[object] = []
    for name, value in msgspec.structs.asdict(load).items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif value is not False:
            flags += [flag, value]
    return python("benchmarks.client", *flags)


def _tree(root: int) -> Iterator[int]:
    """A process and its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    pids = [root]
    while pids:
        pid = pids.pop()
        yield pid
        pids += parents.get(pid, [])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the command's name; nothing of a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def _cpu_ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def _rss_pages(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[21]) if fields else 0
