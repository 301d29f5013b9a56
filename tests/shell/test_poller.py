"""What the router learns of its workers while it runs: probes, scrapes, incarnations, and what follows."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from engines.mock.settings import MockSettings
from router.poller import _base_names, _ModelCard
from tests.shell.live import ASK, CHAT, QUIET, STREAM, Live, play
from tests.shell.puppet import DONE, ROLE, STOP, TALK, Ask, hang, streaming, talk, word


def asked(act: Live, name: str, path: str) -> list[float]:
    return [at - act.started for probed, at in act.puppets[name].probes if probed == path]


def gaps(times: list[float]) -> list[float]:
    return [later - sooner for sooner, later in itertools.pairwise(times)]


def test_a_worker_is_probed_every_five_seconds_give_or_take_a_fifth() -> None:
    async def scene(act: Live) -> None:
        await asyncio.sleep(200)
        between = gaps(asked(act, "a", "/health"))
        assert len(between) >= 33
        assert all(4 <= gap <= 6 for gap in between)
        assert len({round(gap, 3) for gap in between}) > 20  # not in step

    play(scene)


def test_a_worker_is_scraped_every_second_and_asked_for_its_models_every_fifteen() -> None:
    async def scene(act: Live) -> None:
        await asyncio.sleep(200)
        assert all(0.8 <= gap <= 1.2 for gap in gaps(asked(act, "a", "/metrics")))
        assert all(15 <= gap <= 21 for gap in gaps(asked(act, "a", "/v1/models")))
        assert len(asked(act, "a", "/version")) == len(asked(act, "a", "/v1/models"))

    play(scene)


def test_two_workers_are_not_asked_in_step() -> None:
    async def scene(act: Live) -> None:
        await asyncio.sleep(60)
        first, second = (asked(act, name, "/health")[5:] for name in "ab")
        assert not set(first) & set(second)

    play(scene, {"a": talk, "b": talk})


def test_no_probe_is_needed_while_bytes_come() -> None:
    words = [word(number) for number in range(120)]

    async def scene(act: Live) -> None:
        task = act.asking(CHAT, STREAM)
        await asyncio.sleep(10)
        before = len(asked(act, "a", "/health"))
        await asyncio.sleep(40)
        assert len(asked(act, "a", "/health")) <= before + 1
        assert (await task).status == 200

    play(scene, {"a": streaming(ROLE, *words, STOP, DONE, gap_s=0.5)})


def test_the_health_path_is_found_by_asking() -> None:
    async def scene(act: Live) -> None:
        await asyncio.sleep(20)
        assert len(asked(act, "a", "/ready")) == 1  # 404, and not asked again
        assert len(asked(act, "a", "/health")) > 3

    play(scene)


def test_an_engine_with_a_ready_path_is_asked_there() -> None:
    async def scene(act: Live) -> None:
        await asyncio.sleep(20)
        paths = [seen.path for seen in act.mocks["a"].front.seen]
        assert "/ready" in paths
        assert "/health" not in paths

    play(scene, {"a": MockSettings(dialect="sglang")})


def test_an_engine_without_any_health_path_is_asked_for_its_models() -> None:
    async def scene(act: Live) -> None:
        await asyncio.sleep(10)
        assert act.state("a") == "ready"

    async def start(act: Live) -> None:
        act.puppets["a"].health = 404
        await act.until(lambda: act.state("a") == "ready")
        await scene(act)

    play(start, ready=False)


def test_a_refused_probe_takes_a_worker_out_at_once() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].refuse()
        before = act.now
        await act.until(lambda: act.state("a") == "ejected")
        assert act.now - before <= 6

    play(scene, {"a": talk, "b": talk})


def test_a_probe_that_times_out_three_times_takes_a_worker_out() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].mute_probes = True
        before = act.now
        await act.until(lambda: act.worker("a").health.timeouts == 2)
        assert act.state("a") == "ready"
        await act.until(lambda: act.state("a") == "ejected")
        assert 3 * 5 + 2 * 4 <= act.now - before <= 3 * 5 + 3 * 6 + 10

    play(scene, {"a": talk, "b": talk})


def test_one_good_probe_brings_a_worker_back_with_an_extra_cost_that_fades() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].refuse()
        await act.until(lambda: act.state("a") == "ejected")
        await asyncio.sleep(60)
        act.puppets["a"].accept()
        before = act.now
        await act.until(lambda: act.state("a") == "ready")
        assert act.now - before <= 6
        await act.ask(CHAT, ASK)
        assert act.worker("a").warmup == pytest.approx(2, rel=0.1)
        await asyncio.sleep(45)
        await act.ask(CHAT, ASK)
        assert act.worker("a").warmup == 1

    play(scene, {"a": talk, "b": talk})


def test_a_worker_that_came_back_gets_half_its_share_and_then_all_of_it() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].refuse()
        await act.until(lambda: act.state("a") == "ejected")
        act.puppets["a"].accept()
        await act.until(lambda: act.state("a") == "ready")
        for wanted in (range(25, 46), range(46, 55)):
            before = len(act.puppets["a"].asks)
            for _ in range(100):
                await act.ask(CHAT, ASK)
            assert len(act.puppets["a"].asks) - before in wanted
            await asyncio.sleep(50)

    play(scene, {"a": talk, "b": talk})


def test_waiting_requests_are_served_when_a_worker_comes_back() -> None:
    async def scene(act: Live) -> None:
        act.puppets["b"].refuse()
        await act.until(lambda: act.state("b") == "ejected")
        tasks = [act.asking(CHAT, ASK) for _ in range(2)]
        await act.until(lambda: act.pool.queued == 1)
        act.puppets["b"].accept()
        await act.until(lambda: act.pool.queued == 0)
        assert len(act.puppets["b"].asks) == 1
        for task in tasks:
            task.cancel()

    play(scene, {"a": hang, "b": hang}, pool={"slots": 1, "binding": "late"})


def test_a_503_of_the_health_path_takes_a_worker_out_but_not_half_of_the_pool() -> None:
    async def scene(act: Live) -> None:
        for name in "abcd":
            act.puppets[name].health = 503
        await asyncio.sleep(60)
        states = [act.state(name) for name in "abcd"]
        assert states.count("ready") == 2  # a fleet that is ill as a whole is not helped by having none
        assert states.count("ejected") == 2

    play(scene, dict.fromkeys("abcd", talk))


def test_failed_requests_take_a_worker_out() -> None:
    async def cut(ask: Ask) -> None:
        ask.close()

    async def scene(act: Live) -> None:
        for _ in range(8):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert act.state("a") == "ejected"
        assert len(act.puppets["a"].asks) == 3

    play(scene, {"a": cut, "b": talk}, **QUIET)


METRICS = """# HELP vllm:num_requests_running x
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} 2.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}
process_start_time_seconds {start}
"""


def text(*, running: float = 1, tokens: float = 10, start: float = 1000) -> str:
    return METRICS.format(running=running, tokens=tokens, start=start)


def test_what_an_engine_says_is_seen_and_what_it_does_not_say_is_missing() -> None:
    async def scene(act: Live) -> None:
        stats = act.worker("a").stats
        assert stats is not None
        assert (stats.running, stats.waiting, stats.kv_usage) == (None, None, None)
        act.puppets["a"].metrics = text(running=3)
        await asyncio.sleep(2)
        stats = act.worker("a").stats
        assert (stats.running, stats.waiting, stats.kv_usage) == (3, 2, 0.25)
        assert stats.kv_capacity_tokens is stats.preemptions is None
        assert await act.metric("pointsman_worker_engine_requests_running", worker="a") in (3, None)

    play(scene)


def test_an_engine_without_metrics_is_served_and_asked_more_rarely() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].metrics = None
        await asyncio.sleep(5)
        before = len(asked(act, "a", "/metrics"))
        await asyncio.sleep(60)
        assert len(asked(act, "a", "/metrics")) - before <= 6
        assert (await act.ask(CHAT, STREAM)).body == TALK

    play(scene)


def test_a_later_start_of_the_process_is_a_new_incarnation_and_loses_no_account() -> None:
    async def scene(act: Live) -> None:
        puppet = act.puppets["a"]
        puppet.metrics = text(start=1000)
        await asyncio.sleep(3)
        task = act.asking(CHAT, STREAM)
        await act.until(lambda: act.worker("a").in_flight == 1)
        puppet.metrics = text(start=2000, tokens=0)
        await act.until(lambda: act.worker("a").incarnation == 1)
        assert act.worker("a").in_flight == 0  # the new one holds nothing
        assert act.router.fleet.in_flight.used == 1
        task.cancel()
        await asyncio.sleep(0.1)
        act.assert_zero()

    play(scene, {"a": hang})


def test_a_crashed_mock_engine_is_a_new_incarnation() -> None:
    async def scene(act: Live) -> None:
        await asyncio.sleep(3)
        act.mocks["a"].process.die(None, reset=True, back_after_s=4)
        await act.until(lambda: act.state("a") == "ejected")
        await act.until(lambda: act.state("a") == "ready")
        await act.until(lambda: act.worker("a").incarnation == 1, 5)

    play(scene, {"a": MockSettings(), "b": MockSettings()})


def test_an_address_that_hides_several_processes_is_noticed() -> None:
    async def scene(act: Live) -> None:
        for turn in range(10):
            act.puppets["a"].metrics = text(start=1000 + turn % 2, tokens=turn)
            await asyncio.sleep(1.2)
        worker = act.worker("a")
        assert worker.shared_address
        assert worker.stats is None
        incarnation = worker.incarnation
        await asyncio.sleep(20)
        assert worker.incarnation == incarnation  # no longer born anew with every scrape
        assert (await act.ask(CHAT, STREAM)).body == TALK

    play(scene)


def test_a_worker_that_makes_no_progress_gets_nothing_new_and_keeps_its_streams() -> None:
    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, STREAM) for _ in range(2)]
        await act.until(lambda: act.state("a") == "suspect", 30)
        assert 10 <= act.now <= 12
        before = len(act.puppets["a"].asks)
        for _ in range(4):
            assert (await act.ask(CHAT, ASK)).status == 200
        assert len(act.puppets["a"].asks) == before
        assert act.worker("a").in_flight == before
        for task in tasks:
            task.cancel()
        await act.until(lambda: act.state("a") == "ready", 10)

    play(scene, {"a": hang, "b": talk})


def test_a_suspect_that_moves_again_is_believed_at_once() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].metrics = text(tokens=10)
        task = act.asking(CHAT, STREAM)
        await act.until(lambda: act.state("a") == "suspect", 30)
        act.puppets["a"].metrics = text(tokens=11)
        await act.until(lambda: act.state("a") == "ready", 1.3)
        task.cancel()

    play(scene, {"a": hang, "b": hang}, pool={"policy": "session_affinity"}, health={"min_in_rotation": 0.0})


def test_an_engine_that_answers_slowly_but_counts_is_no_suspect() -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, STREAM)
        for tokens in range(60):
            act.puppets["a"].metrics = text(tokens=tokens)
            await asyncio.sleep(1)
            assert act.state("a") == "ready"
        task.cancel()

    play(scene, {"a": hang})


def test_a_sleeping_engine_gets_nothing_and_wakes_as_a_new_incarnation() -> None:
    state = 'vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="awake"}} {}\n'

    async def scene(act: Live) -> None:
        act.puppets["a"].metrics = text() + state.format(0)
        await act.until(lambda: act.state("a") == "asleep")
        assert (await act.ask(CHAT, ASK)).status == 503
        act.puppets["a"].metrics = text() + state.format(1)
        await act.until(lambda: act.state("a") == "ready")
        assert act.worker("a").incarnation == 1
        assert (await act.ask(CHAT, ASK)).status == 200

    play(scene)


def test_a_worker_whose_list_came_late_serves_soon_after() -> None:
    async def scene(act: Live) -> None:
        puppet = act.puppets["a"]
        operate = puppet._operate
        starts = act.loop.time()

        def slow_start(path: str) -> tuple[int, bytes]:
            return (503, b"") if path == "/v1/models" and act.loop.time() - starts < 3 else operate(path)

        puppet._operate = slow_start  # type: ignore[method-assign]
        reply = await act.ask(CHAT, ASK)
        assert reply.status == 200
        assert act.now < 12

    play(scene, ready=False)


def test_a_list_of_models_that_cannot_be_read_changes_nothing() -> None:
    async def scene(act: Live) -> None:
        puppet = act.puppets["a"]
        operate = puppet._operate
        for broken in (b"<html>", b"[]", b'{"data": 7}', b'{"data": [{"name": "m"}]}'):
            puppet._operate = lambda path, broken=broken: (  # type: ignore[method-assign, misc]
                (200, broken) if path == "/v1/models" else operate(path)
            )
            await asyncio.sleep(25)
            assert act.worker("a").models == {"m"}

    play(scene)


def test_probes_of_garbage_are_timeouts_and_not_bugs() -> None:
    async def scene(act: Live) -> None:
        async def noise(ask: Ask) -> None:
            ask.send(b"\x00\x01\x02 not http\r\n\r\n")
            ask.ended = True

        act.puppets["a"].dispatch = noise  # type: ignore[method-assign]
        await act.until(lambda: act.state("a") == "ejected", 60)

    play(scene, {"a": talk, "b": talk})


@pytest.mark.parametrize(
    ("cards", "names"),
    [
        ([("b", "r", None), ("a", "r", None), ("lora", "x", "b")], {"a", "b"}),
        ([("b", None, None), ("a", None, None)], {"b"}),
        ([("b", "one", None), ("a", "two", None)], {"b"}),
        ([], set()),
    ],
)
def test_names_of_one_root_are_names_of_one_model(
    cards: list[tuple[str, str | None, str | None]], names: set[str]
) -> None:
    made = [_ModelCard(id=name, root=root, parent=parent) for name, root, parent in cards]
    assert _base_names(made) == names
