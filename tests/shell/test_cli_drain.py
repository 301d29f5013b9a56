"""The laws of `pointsman drain`, against an admin API that tells what each test needs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from router.__main__ import main
from router.cli.drain import drain
from router.cli.parser import parse
from router.virtual.clock import run

Answer = httpx.Response
Said = dict[str, Any]


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("POINTSMAN_") or name == "WEB_CONCURRENCY":
            monkeypatch.delenv(name)


def worker(name: str, in_flight: int, held: int = 0, state: str = "draining") -> Said:
    return {"name": name, "state": state, "in_flight": in_flight, "held_handovers": held, "url": "x"}


def refusal(status: int, message: str) -> Answer:
    return Answer(status, json={"error": {"message": message, "type": "t", "code": "c"}})


class Admin:
    """An admin API: it answers a drain with the first list of workers, and each look with the next one."""

    def __init__(self, *lists: list[Said] | Exception | Answer) -> None:
        self._lists = list(lists)
        self.asked: list[tuple[str, str, Said | None]] = []
        self.headers: httpx.Headers = httpx.Headers()

    def __call__(self, request: httpx.Request) -> Answer:
        body = json.loads(request.content) if request.content else None
        self.asked.append((request.method, request.url.path, body))
        self.headers = request.headers
        now = self._lists.pop(0) if len(self._lists) > 1 else self._lists[0]
        if isinstance(now, Exception):
            raise now
        return now if isinstance(now, Answer) else Answer(200, json={"workers": now, "left": 0})


def code_of(admin: Callable[[httpx.Request], Answer], *words: str) -> int:
    async def scene() -> int:
        _, args = parse(["drain", *words])
        transport = httpx.MockTransport(admin)
        async with httpx.AsyncClient(transport=transport, base_url=args.url) as client:
            return await drain(client, args)

    return run(scene())


def test_a_worker_is_drained_and_what_is_left_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    admin = Admin([worker("a:1", 3)])
    assert code_of(admin, "--worker", "a:1") == 0
    assert admin.asked == [("POST", "/workers/drain", {"worker": "a:1", "force": False})]
    assert capsys.readouterr().out.splitlines() == ["draining worker a:1", "3 in flight (a:1 3)"]


def test_a_revision_is_drained_until_all_of_it_is_idle(capsys: pytest.CaptureFixture[str]) -> None:
    admin = Admin(
        [worker("p:1", 2, held=1), worker("d:1", 4)],
        [worker("p:1", 2, held=1), worker("d:1", 4), worker("other", 9, state="ready")],
        [worker("p:1", 0), worker("d:1", 1)],
        [worker("p:1", 0), worker("d:1", 0), worker("other", 9, state="ready")],
    )
    assert code_of(admin, "--revision", "r7", "--wait") == 0
    assert admin.asked[0] == ("POST", "/workers/drain", {"revision": "r7", "force": False})
    assert [asked[:2] for asked in admin.asked[1:]] == [("GET", "/workers")] * 3
    assert capsys.readouterr().out.splitlines() == [
        "draining revision r7: p:1, d:1",
        "6 in flight (p:1 2, 1 of them hand-overs; d:1 4)",
        "1 in flight (d:1 1)",
        "idle: revision r7",
    ]


def test_workers_that_are_idle_need_no_look(capsys: pytest.CaptureFixture[str]) -> None:
    admin = Admin([worker("a:1", 0)])
    assert code_of(admin, "--worker", "a:1", "--wait") == 0
    assert len(admin.asked) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "idle: worker a:1"


def test_a_worker_that_was_removed_meanwhile_is_idle() -> None:
    assert code_of(Admin([worker("a:1", 1)], []), "--worker", "a:1", "--wait") == 0


def test_the_wait_has_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    admin = Admin([worker("a:1", 2)])
    assert code_of(admin, "--worker", "a:1", "--wait", "--timeout", "2.5") == 1
    assert len(admin.asked) == 4, "one drain, and looks after 1, 2 and 2.5 s"
    printed = capsys.readouterr()
    assert printed.err == ("pointsman: not idle after 2.5 s: 2 in flight (a:1 2); they stay out of service\n")
    assert printed.out.count("2 in flight") == 1, "what has not changed is said once"


def test_a_router_that_is_silent_for_a_moment_ends_no_wait() -> None:
    admin = Admin([worker("a:1", 2)], httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), [])
    assert code_of(admin, "--worker", "a:1", "--wait") == 0


def test_a_worker_that_somebody_resumed_ends_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    admin = Admin([worker("a:1", 2)], [worker("a:1", 2, state="ready")])
    assert code_of(admin, "--worker", "a:1", "--wait") == 1
    assert "worker a:1 is ready again: somebody else has resumed it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            refusal(409, "Nobody would be left; say force."),
            "the router refuses: Nobody would be left; say force.",
        ),
        (refusal(400, "No worker has the revision r."), "the router refuses: No worker has the revision r."),
        (refusal(401, "This path asks for a key."), "the router refuses: This path asks for a key."),
        (Answer(404, text="<html>"), "the router refuses: status 404"),
        (Answer(404, json=["?"]), "the router refuses: status 404"),
        (Answer(200, text="hello"), "what answers at http://127.0.0.1:29001/workers/drain is not this"),
        (Answer(200, json={"workers": [{"name": 1}]}), "is not this router's admin API"),
        (httpx.ConnectError("nobody there"), "no router answers at http://127.0.0.1:29001: nobody there"),
    ],
)
def test_a_refusal_is_one_sentence_and_exit_code_1(
    answer: Answer | Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(Admin(answer), "--revision", "r") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_refused_look_ends_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    admin = Admin([worker("a:1", 2)], refusal(401, "Another key, please."))
    assert code_of(admin, "--worker", "a:1", "--wait") == 1
    assert "Another key, please." in capsys.readouterr().err


def test_force_is_passed_on() -> None:
    admin = Admin([])
    assert code_of(admin, "--revision", "r", "--force") == 0
    assert admin.asked[0][2] == {"revision": "r", "force": True}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "one of the arguments --worker --revision is required"),
        (["--worker", "a", "--revision", "r"], "not allowed with argument --worker"),
        (["--worker", "a", "--url", "gpu-1:29001"], "gpu-1:29001 is no URL such as http://127.0.0.1:29001"),
        (["--worker", "a", "--timeout", "-1"], "must be between 0 and 86400 seconds"),
    ],
)
def test_wrong_usage_of_drain_is_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["drain", *words])
    assert end.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("from_environment", [False, True])
def test_the_administrators_key_is_sent(from_environment: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin([])
    real = httpx.AsyncClient

    def client(**options: Any) -> httpx.AsyncClient:
        return real(transport=httpx.MockTransport(admin), **options)

    monkeypatch.setattr(httpx, "AsyncClient", client)
    words = ["drain", "--worker", "a:1", "--url", "http://router:1"]
    if from_environment:
        monkeypatch.setenv("POINTSMAN_AUTH__ADMIN_API_KEY", "secret")
    else:
        words += ["--admin-api-key", "secret"]
    assert main(words) == 0
    assert admin.headers["authorization"] == "Bearer secret"
    assert admin.headers["host"] == "router:1"


def test_a_router_that_is_not_there_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "--worker", "a:1", "--url", "http://127.0.0.1:1"]) == 1
    assert "no router answers at http://127.0.0.1:1: " in capsys.readouterr().err
