"""What the README tells people to paste is run here: a page that is wrong is a failing test."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from router.cli.parser import parse
from tests.integration.programs import MODEL, ROOT, Programs, Router, ask, until

README = (ROOT / "README.md").read_text()
DEMO_URL = "http://127.0.0.1:30000"
ADMIN_URL = "http://127.0.0.1:29001"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")


def blocks(language: str = "") -> list[str]:
    return [text for name, text in BLOCK.findall(README) if name == language]


def commands(program: str) -> list[str]:
    """Commands of the shell blocks that begin with a program, put on one line each."""
    lines = "".join(blocks()).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.split() and line.split()[0] == program]


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def greeted(router: Router) -> tuple[str, str]:
    """The curl command and the Python program that `pointsman up` prints."""
    lines = router.program.out.partition("Pointsman listens")[2].splitlines()
    pasted = "\n".join(line[2:] for line in lines if line.startswith("  "))
    curl, _, program = pasted.partition("\nfrom openai")
    return curl, f"from openai{program}"


def answers(curl: str) -> bool:
    return '"finish_reason":"' in run("sh", "-c", f"{curl} --silent --show-error --fail").replace(" ", "")


@needs_curl
def test_its_curl_is_answered(demo: Router) -> None:
    (curl,) = [line for line in commands("curl") if DEMO_URL in line]
    assert answers(curl.replace(DEMO_URL, demo.url))


def test_its_python_prints_an_answer(demo: Router) -> None:
    (program,) = blocks("python")
    assert DEMO_URL in program
    assert run(sys.executable, "-c", program.replace(DEMO_URL, demo.url)).strip()


@needs_curl
def test_what_pointsman_up_prints_can_be_pasted(demo: Router) -> None:
    curl, program = greeted(demo)
    assert answers(curl)
    assert run(sys.executable, "-c", program).strip()


@pytest.fixture
def gpus(programs: Programs) -> Router:
    """A router whose worker has the name that the README gives to one."""
    _, engines = programs.engines()
    pool = {"model": MODEL, "workers": [{"url": engines[0].url, "name": "gpu-1:8000"}]}
    return programs.router(engines, {"pools": {"demo": pool}})


@needs_curl
def test_its_administration_works(gpus: Router) -> None:
    lines = [line for line in commands("curl") if ADMIN_URL in line]
    assert len(lines) == 3
    said = [
        run("sh", "-c", f"{line} --silent --show-error --fail".replace(ADMIN_URL, gpus.admin_url))
        for line in lines
    ]
    assert '"gpu-3:8000"' in said[0]
    until(lambda: gpus.worker("gpu-1:8000")["state"] == "draining", "the worker drains")
    assert all(name in said[2] for name in ("gpu-1:8000", "gpu-3:8000"))


@pytest.mark.parametrize("command", commands("pointsman"))
def test_its_commands_are_ours(command: str) -> None:
    """Parsed, not run: the engines and traces they speak of are not here."""
    words = shlex.split(command, comments=True)[1:]
    assert parse(words)[0] == words[0]


def test_the_targets_of_make_that_it_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {line.split()[1] for line in commands("make")}
    assert named == {"up", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)


def test_the_pages_that_it_links_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_demo_serves_what_it_says(demo: Router) -> None:
    assert [model["id"] for model in ask(f"{demo.base_url}/models").json()["data"]] == [MODEL]
    for path in ("/metrics", "/liveness", "/readiness"):
        assert f"`{path}`" in README
        assert ask(demo.url + path).status == 200
