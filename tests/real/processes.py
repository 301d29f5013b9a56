"""Starts the processes of a probe, waits until they serve, and ends all of them, whatever happened.

Every process leads a session of its own, so that its children end with it, and the kernel kills it when the
test runner dies.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.real.wire import ask

T = TypeVar("T")

_LIBC = ctypes.CDLL(None)
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG of prctl(2)
_LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def until(condition: Callable[[], T | None], within_s: float, what: str) -> T:
    """The first true value of `condition`. Fails, saying what was awaited, when there is none in time."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what} (last: {value!r})")
        time.sleep(0.02)


class Process:
    """A process in its own session, listening on `port`.

    Attributes:
        log: its output, for the one who has to find out why it did not start.
    """

    def __init__(self, argv: Sequence[str | Path], port: int, log: Path, env: Mapping[str, str]) -> None:
        self.port = port
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - the tests start processes from one thread
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def until_healthy(self, path: str, within_s: float) -> None:
        """Waits until `path` is answered with 200."""

        def healthy() -> bool:
            assert not self.ended, f"it ended: {self.tail()}"
            try:
                return ask(self.port, "GET", path, timeout_s=10.0).status == 200
            except OSError:
                return False

        until(healthy, within_s, f"{path} of {self.log.name}: {self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def send(self, number: signal.Signals) -> None:
        """A signal to the leading process alone."""
        self._process.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """A signal to the process and everything that it started."""
        _signal_group(self.pid, number)

    def wait(self, within_s: float) -> int:
        return self._process.wait(within_s)

    def stop(self) -> None:
        """Ends the process and everything that it started."""
        children = descendants(self.pid)
        for number, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0)):
            _signal_group(self.pid, number)
            try:
                self._process.wait(patience_s)
                break
            except subprocess.TimeoutExpired:
                continue
        _signal_group(self.pid, signal.SIGKILL)
        for child in children:
            _kill(child)


def _die_with_parent() -> None:
    _LIBC.prctl(_PARENT_DEATH, int(signal.SIGKILL))


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def descendants(pid: int) -> list[int]:
    """Children and their children, from /proc."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(parents.get(pid, []))
    for child in found:
        found.extend(parents.get(child, []))
    return found


def child_named(pid: int, name: str) -> int | None:
    """A descendant whose command line begins with `name`."""
    for child in descendants(pid):
        try:
            if Path(f"/proc/{child}/cmdline").read_bytes().startswith(name.encode()):
                return child
        except OSError:
            continue  # it ended while we looked
    return None


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what would configure a router or an engine."""
    ours = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("POINTSMAN_", "VLLM_", "HF_", "PYTHON", "PYTEST_"))
    }
    return {**ours, "NO_PROXY": "127.0.0.1", **more}


def listening_port(log: Path) -> int | None:
    """The port that a router says it listens on."""
    match = _LISTENING.search(log.read_text(errors="replace"))
    return int(match[1]) if match else None
