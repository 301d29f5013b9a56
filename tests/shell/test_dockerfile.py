"""Laws of the Dockerfile, read instruction by instruction because no Docker engine runs here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from router.cli.parser import parse

ROOT = Path(__file__).resolve().parents[2]


class Instruction(NamedTuple):
    stage: int
    word: str
    rest: str


def instructions() -> list[Instruction]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    stage, found = -1, []
    for line in filter(str.strip, lines):
        word, _, rest = line.partition(" ")
        stage += word == "FROM"
        found.append(Instruction(stage, word, " ".join(rest.split())))
    return found


def final(word: str) -> list[str]:
    last = max(each.stage for each in instructions())
    return [each.rest for each in instructions() if each.stage == last and each.word == word]


def test_the_image_is_built_in_two_stages_and_the_last_has_no_pip_step() -> None:
    stages = [each.rest for each in instructions() if each.word == "FROM"]
    assert len(stages) == 2
    assert stages[0].endswith(" AS build")
    assert "pip" not in " ".join(final("RUN"))
    assert final("COPY") == ["--from=build /opt/pointsman /opt/pointsman"]


def test_the_image_does_not_run_as_root() -> None:
    (user,) = final("USER")
    assert user.partition(":")[0] not in ("root", "0")
    assert f"--uid {user.partition(':')[0]} " in final("RUN")[0]
    order = [each.word for each in instructions()]
    assert order.index("USER") < order.index("ENTRYPOINT")


def test_the_image_listens_for_others_and_starts_the_router() -> None:
    assert "POINTSMAN_SERVER__HOST=0.0.0.0" in final("ENV")[0]
    assert final("EXPOSE") == ["30000"]
    words = json.loads(final("ENTRYPOINT")[0]) + json.loads(final("CMD")[0])
    assert words[0] == "pointsman"
    assert parse(words[1:])[0] == "serve"


def test_the_image_installs_what_the_constraints_pin() -> None:
    (install,) = [each.rest for each in instructions() if each.word == "RUN" and "pip install" in each.rest]
    assert "--constraint constraints.txt" in install
    assert "--no-cache-dir" in install
    copied = " ".join(each.rest for each in instructions() if each.word == "COPY" and each.stage == 0).split()
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for name in set(copied) - {"./"}:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, name


def test_no_file_names_a_package_registry() -> None:
    hosts = re.compile(r"pypi|pythonhosted|--index-url|--extra-index-url|docker\.io|ghcr\.io|quay\.io")
    for path in (ROOT / "Dockerfile", *(p for p in (ROOT / "deploy").rglob("*") if p.is_file())):
        assert hosts.search(path.read_text(encoding="utf-8")) is None, path


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_healthcheck_believes_liveness(status: int, healthy: bool) -> None:
    asked: list[str] = []

    class Liveness(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    (check,) = final("HEALTHCHECK")
    words = json.loads(check[check.index("CMD ") + 4 :])
    with ThreadingHTTPServer(("127.0.0.1", 0), Liveness) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        done = subprocess.run(
            [sys.executable, *words[1:]],
            env={"POINTSMAN_SERVER__PORT": str(server.server_port)},
            capture_output=True,
            check=False,
        )
        server.shutdown()
        thread.join()
    assert (done.returncode == 0) is healthy, done.stderr
    assert asked == ["/liveness"]
