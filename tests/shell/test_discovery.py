"""Workers that come and go while the router runs: by a watched file, and by names of many addresses."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from router.settings.workers import WorkerSettings
from tests.shell.live import CHAT, STREAM, Live, play
from tests.shell.puppet import TALK, Puppet, talk


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The virtual loop has none: what would go to a thread is done in place."""

    async def in_place(work: Any, *args: Any, **options: Any) -> Any:
        return work(*args, **options)

    monkeypatch.setattr(asyncio, "to_thread", in_place)


def names(act: Live) -> set[str]:
    return {member.name for member in act.router.fleet}


def with_puppets(act: Live, *hosts: str) -> None:
    for host in hosts:
        act.puppets[host] = Puppet(act.network, host, talk)


def test_a_workers_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    path.write_text("http://a:8000\n")

    async def scene(act: Live) -> None:
        with_puppets(act, "a", "b", "c")
        await act.until(lambda: names(act) == {"a:8000"}, 2)
        path.write_text("# more\nhttp://a:8000\nhttp://b:8000\n")
        await act.until(lambda: names(act) == {"a:8000", "b:8000"}, 2)
        kept = act.router.fleet.member("a:8000")
        path.write_text(
            '[{"url": "http://b:8000"}, {"url": "http://c:8000", "capacity": 2}, "http://a:8000"]'
        )
        await act.until(lambda: len(act.router.fleet) == 3, 2)
        assert act.router.fleet.member("a:8000") is kept  # it was there all along
        assert act.worker("c:8000").capacity == 2
        path.write_text("http://c:8000\n")
        await act.until(lambda: names(act) == {"c:8000"}, 2)
        await act.until(lambda: act.state("c:8000") == "ready", 2)
        assert (await act.ask(CHAT, STREAM)).body == TALK

    play(scene, {}, pool={"workers_file": path}, ready=False)


@pytest.mark.parametrize(
    "broken",
    [
        "htp://b:8000\n",
        "[",
        "http://a:8000\nhttp://a:8000\n",
        '{"urls": []}',
        "http://a:8000/v1\n",
        None,
        b"\xff\xfe",
    ],
    ids=repr,
)
def test_a_file_with_a_mistake_changes_nothing(tmp_path: Path, broken: str | bytes | None) -> None:
    path = tmp_path / "workers"
    path.write_text("http://a:8000\n")

    async def scene(act: Live) -> None:
        with_puppets(act, "a", "b")
        await act.until(lambda: names(act) == {"a:8000"}, 2)
        if broken is None:
            path.unlink()
        elif isinstance(broken, bytes):
            path.write_bytes(broken)
        else:
            path.write_text(broken)
        await asyncio.sleep(10)
        assert names(act) == {"a:8000"}
        assert "failing" not in repr(act.router.supervisor)
        path.write_text("http://b:8000\n")
        await act.until(lambda: names(act) == {"b:8000"}, 3)

    play(scene, {}, pool={"workers_file": path}, ready=False)


@pytest.mark.parametrize("before", [None, "[", b"\xff"], ids=repr)
def test_an_empty_workers_file_is_said_and_takes_nobody_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: str | bytes | None
) -> None:
    path = tmp_path / "workers"
    path.write_text("http://a:8000\n")

    async def scene(act: Live) -> None:
        await act.until(lambda: names(act) == {"a:8000"}, 2)
        if before is not None:
            path.write_bytes(before if isinstance(before, bytes) else before.encode())
            await act.until(lambda: str(path) in caplog.text, 5)
        path.write_text("\n")
        await act.until(lambda: "is empty" in caplog.text, 5)
        assert names(act) == {"a:8000"}
        path.write_text("[]")
        await act.until(lambda: not names(act), 5)

    play(scene, {}, pool={"workers_file": path}, ready=False)


def test_a_mistake_in_the_file_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "workers"
    path.write_text("htp://typo\n")

    async def scene(act: Live) -> None:
        await asyncio.sleep(30)
        assert len([record for record in caplog.records if str(path) in record.getMessage()]) == 1

    play(scene, {}, pool={"workers_file": path}, ready=False)


def test_a_file_that_is_gone_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "workers"

    async def scene(act: Live) -> None:
        await asyncio.sleep(30)
        assert len([record for record in caplog.records if str(path) in record.getMessage()]) == 1

    play(scene, {}, pool={"workers_file": path}, ready=False)


def test_a_worker_of_the_file_that_is_configured_already_is_left_out_and_the_others_join(
    tmp_path: Path,
) -> None:
    path = tmp_path / "workers"
    path.write_text("http://a:8000\nhttp://b:8000\n")

    async def scene(act: Live) -> None:
        with_puppets(act, "b")
        await act.until(lambda: names(act) == {"a", "b:8000"}, 3)
        assert "failing" not in repr(act.router.supervisor)
        path.write_text("[]")
        await act.until(lambda: names(act) == {"a"}, 3)  # the file takes away only its own

    play(
        scene,
        {"a": talk},
        pool={"workers_file": path, "workers": [{"url": "http://a:8000", "name": "a"}]},
        ready=False,
    )


def test_streams_of_a_worker_that_leaves_the_file_go_on(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    path.write_text("http://a:8000\n")

    async def scene(act: Live) -> None:
        with_puppets(act, "a")
        await act.until(lambda: act.router.fleet.ready, 3)
        visit = await act.open(CHAT, STREAM)
        path.write_text("[]")
        act.router.discovery.reconcile("default", f"file {path}", [])
        assert names(act) == set()
        assert (await visit.rest()).body == TALK

    play(scene, {}, pool={"workers_file": path}, ready=False)


def test_the_same_name_at_another_address_is_another_worker(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    path.write_text('[{"url": "http://a:8000", "name": "one"}]')

    async def scene(act: Live) -> None:
        with_puppets(act, "a", "b")
        await act.until(lambda: act.router.fleet.ready, 3)
        path.write_text('[{"url": "http://b:8000", "name": "one"}]')
        await asyncio.sleep(3)
        assert (await act.ask(CHAT, STREAM)).body == TALK
        assert len(act.puppets["b"].asks) == 1

    play(scene, {}, pool={"workers_file": path}, ready=False)


def test_two_workers_may_swap_their_names(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    path.write_text('[{"url": "http://a:8000", "name": "x"}, {"url": "http://b:8000", "name": "y"}]')

    async def scene(act: Live) -> None:
        with_puppets(act, "a", "b")
        await act.until(lambda: len(act.router.fleet) == 2, 3)
        path.write_text('[{"url": "http://a:8000", "name": "y"}, {"url": "http://b:8000", "name": "x"}]')
        await asyncio.sleep(3)
        assert {(member.name, member.url) for member in act.router.fleet} == {
            ("y", "http://a:8000"),
            ("x", "http://b:8000"),
        }
        assert "failing" not in repr(act.router.supervisor)

    play(scene, {}, pool={"workers_file": path}, ready=False)


class Names:
    """A resolver whose answers a test sets."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.fails = False
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        if self.fails:
            raise OSError("the resolver is down")
        return self.addresses


def follow(act: Live, resolve: Names) -> None:
    template = WorkerSettings.model_validate(
        {"url": "dns+http://engines:8000", "name": "engines", "slots": 3}
    )
    act.router.supervisor.start(
        "dns", lambda: act.router.discovery.follow_name("default", template, resolve, period_s=10)
    )


def test_each_address_of_a_name_is_a_worker() -> None:
    async def scene(act: Live) -> None:
        with_puppets(act, "10.0.0.1", "10.0.0.2", "fd00::1")
        resolve = Names("10.0.0.2", "10.0.0.1", "10.0.0.1", "fd00::1")
        follow(act, resolve)
        await act.until(lambda: len(act.router.fleet) == 3, 2)
        assert names(act) == {"engines/10.0.0.1", "engines/10.0.0.2", "engines/[fd00::1]"}
        assert resolve.asked == [("engines", 8000)]
        assert act.worker("engines/10.0.0.1").slots == 3
        await act.until(lambda: all(act.state(name) == "ready" for name in names(act)), 2)
        resolve.addresses = ["10.0.0.2"]
        await act.until(lambda: names(act) == {"engines/10.0.0.2"}, 11)

    play(scene, {}, ready=False)


@pytest.mark.parametrize("how", ["fails", "empty"])
def test_a_resolver_that_is_down_does_not_empty_the_fleet_and_is_said_once(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(act: Live) -> None:
        with_puppets(act, "10.0.0.1")
        resolve = Names("10.0.0.1")
        follow(act, resolve)
        await act.until(lambda: len(act.router.fleet) == 1, 2)
        if how == "fails":
            resolve.fails = True
        else:
            resolve.addresses = []
        await asyncio.sleep(60)
        assert names(act) == {"engines/10.0.0.1"}
        assert len(resolve.asked) >= 6
        said = [message for message in caplog.messages if "its workers stay as they were" in message]
        assert len(said) == 1
        assert {"fails": "does not resolve", "empty": "resolves to no address"}[how] in said[0]

    with caplog.at_level(logging.WARNING):
        play(scene, {}, ready=False)


def test_a_worker_of_which_something_else_changes_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    path.write_text('[{"url": "http://a:8000", "name": "one", "revision": "old"}]')

    async def scene(act: Live) -> None:
        with_puppets(act, "a")
        await act.until(lambda: act.router.fleet.ready, 3)
        before = act.worker("one").incarnation
        path.write_text('[{"url": "http://a:8000", "name": "one", "revision": "new", "slots": 3}]')
        await asyncio.sleep(3)
        worker = act.worker("one")
        assert (worker.label, worker.slots, worker.incarnation) == ("new", 3, before + 1)

    play(scene, {}, pool={"workers_file": path}, ready=False)
