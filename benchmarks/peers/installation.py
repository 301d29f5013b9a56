"""Environments of other projects' routers, under `.venv-peers/`. Nothing of them is imported here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_ENVIRONMENTS = _ROOT / ".venv-peers"
_CONSTRAINTS = Path(__file__).with_name("constraints.txt")
_INSTALL_S = 600.0


def versions() -> dict[str, str]:
    """The version of each router, by the name of its distribution."""
    lines = [line.strip() for line in _CONSTRAINTS.read_text().splitlines()]
    pins = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {name: version for name, _, version in pins}


def command_of(name: str) -> Path:
    """The router's own command. Raises RuntimeError when it is not installed."""
    command = _ENVIRONMENTS / name / "bin" / name
    if not command.exists():
        raise RuntimeError(f"{name} is not installed; run `make bench-peers` with a network")
    return command


def install(name: str) -> None:
    """Makes the router's environment, unless it is there in the right version.

    Raises RuntimeError with the installer's last words.
    """
    home = _ENVIRONMENTS / name
    requirement = f"{name}=={versions()[name]}"
    stamp = home / ".installed"
    if stamp.exists() and stamp.read_text() == requirement:
        return
    print(f"installing {requirement}", flush=True)
    python = home / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(home))
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement)
    stamp.write_text(requirement)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} failed:\n{done.stderr[-2_000:]}")
