"""Slips of operators: names that break headers, and workers that are none."""

from __future__ import annotations

import logging

import pytest

from router.settings.workers import WorkerSettings
from tests.shell.live import ADMIN, CHAT, QUIET, STREAM, Live, play
from tests.shell.puppet import ROLE, streaming, word


@pytest.mark.parametrize("name", ["a\r\nx: y", "a b", "a\n", "é", "\x00", "x" * 201])
def test_a_worker_name_that_no_header_can_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="visible ASCII"):
        WorkerSettings(url="http://b:8000", name=name)


@pytest.mark.parametrize(
    ("worker", "sentence"),
    [
        ({"url": "http://b:8000", "name": "a\r\nx: y"}, "name is "),
        ({"url": "ftp://b"}, 'url is "ftp://b"; it must be a URL such as http://host:port'),
        ({"url": "http://b:8000", "capacity": 1e9}, "capacity is 1000000000.0; it must be a number"),
        ({"url": "http://b:8000", "slots": 10**30}, "slots is "),
    ],
)
def test_a_worker_that_is_refused_over_the_admin_api_is_refused_in_one_sentence(
    worker: dict[str, object], sentence: str
) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask("/workers", worker, origin=ADMIN)
        assert reply.status == 400
        message = reply.error["message"]
        assert message.startswith(sentence)
        assert "\n" not in message
        assert "pydantic" not in message
        assert "WorkerSettings" not in message
        assert [member.name for member in act.router.fleet] == ["a"]

    play(scene)


def test_a_failed_request_is_logged_with_its_worker(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.broken is not None

    with caplog.at_level(logging.WARNING, "pointsman"):
        play(scene, {"a": streaming(ROLE, word(), then="close")}, **QUIET)
    (record,) = [record for record in caplog.records if "failed" in record.getMessage()]
    assert (vars(record)["worker"], vars(record)["model"]) == ("a", "m")
