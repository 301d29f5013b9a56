"""A router in front of engines with data-parallel ranks: each rank a worker of its own behind one port."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engines.mock.faults import Fault
from engines.mock.settings import MockSettings
from tests.shell.live import ADMIN, ASK, CHAT, STREAM, Live, play
from tests.shell.pair import asks, play_pair, prefill
from tests.shell.puppet import WHOLE, Ask, Puppet, answering, hang, talk

RANKS = MockSettings(served_model_name="m", dp_size=2, max_num_seqs=4, kv_tokens=10_000)
TWO: dict[str, Any] = {"dp_size": 2, "slots": 4}


def rank_of(ask: Ask) -> str | None:
    return ask.header("x-data-parallel-rank")


def names(act: Live) -> list[str]:
    return [member.name for member in act.router.fleet]


# --- addresses and headers -------------------------------------------------------------------------------


def test_every_request_to_a_rank_says_which() -> None:
    async def scene(act: Live) -> None:
        for _ in range(4):
            await act.ask(CHAT, STREAM)
        assert Counter(rank_of(ask) for ask in act.puppets["a"].asks) == {"0": 2, "1": 2}

    play(scene, pool={"dp_size": 2})


def test_under_hybrid_balancing_the_number_is_that_of_the_whole_engine() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, STREAM)
        assert names(act) == ["b@0", "b@1"]
        await act.ask(CHAT, STREAM)
        assert {rank_of(ask) for ask in act.puppets["a"].asks} == {"8", "9"}

    worker = {"url": "http://a:8000", "name": "b", "dp_size": 2, "dp_rank_offset": 8}
    play(scene, pool={"workers": [worker]})


@pytest.mark.parametrize("trusted", [True, False])
def test_a_clients_own_wish_for_a_rank_ends_where_the_router_chooses(trusted: bool) -> None:
    async def scene(act: Live) -> None:
        headers = {"x-data-parallel-rank": "7", "authorization": "Bearer key-of-a-client"}
        await act.ask(CHAT, STREAM, headers)
        (ask,) = act.puppets["a"].asks
        assert [value for name, value in ask.headers if name == "x-data-parallel-rank"] == ["0"]

    key = {"tenant": "c", "key": "key-of-a-client", "trusted": trusted}
    play(scene, pool={"dp_size": 2}, auth={"client_api_keys": [key]})


def test_a_whole_engine_is_told_no_rank() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, STREAM)
        assert rank_of(act.puppets["a"].asks[0]) is None

    play(scene)


def test_some_ranks_of_an_engine_may_be_written_down_alone() -> None:
    async def scene(act: Live) -> None:
        assert names(act) == ["a:8000@3", "a:8000@5"]
        for _ in range(2):
            await act.ask(CHAT, STREAM)
        assert {rank_of(ask) for ask in act.puppets["a"].asks} == {"3", "5"}

    play(scene, pool={"workers": ["http://a:8000@3", "http://a:8000@5"]})


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_ranks_that_an_engine_does_not_have_cost_no_client_its_answer(dialect: str) -> None:
    async def scene(act: Live) -> None:
        replies = [await act.ask(CHAT, ASK) for _ in range(24)]
        assert {reply.status for reply in replies} == {200}
        states = {member.name: member.worker.state.value for member in act.router.fleet}
        assert states["a@2"] == states["a@3"] == "ejected"
        assert states["a@0"] == states["a@1"] == "ready"

    engine = MockSettings(served_model_name="m", dp_size=2, max_num_seqs=4, dialect=dialect)  # type: ignore[arg-type]  # one of two
    play(scene, {"a": engine}, pool={"dp_size": 4}, health={"interval_s": 3000.0})


# --- one process -----------------------------------------------------------------------------------------


def test_an_engine_is_probed_and_scraped_once_for_all_its_ranks() -> None:
    async def scene(act: Live) -> None:
        await asyncio.sleep(60)
        paths = Counter(path for path, _ in act.puppets["a"].probes)
        assert paths["/health"] <= 16
        assert paths["/metrics"] <= 76
        assert paths["/v1/models"] <= 6

    play(scene, pool={"dp_size": 8})


def test_each_rank_hears_what_the_engine_says_of_it() -> None:
    async def scene(act: Live) -> None:
        task = act.asking(CHAT, {**STREAM, "max_tokens": 400, "ignore_eos": True})
        await act.until(lambda: act.worker("a@0").in_flight == 1)
        await asyncio.sleep(2.5)
        first, second = (act.worker(name).stats for name in ("a@0", "a@1"))
        assert (first.running, second.running) == (1, 0)
        assert first.kv_usage > 0.0 == second.kv_usage
        assert [act.worker(name).kv_capacity_tokens for name in ("a@0", "a@1")] == [10_000, 10_000]
        assert (await task).status == 200

    play(scene, {"a": RANKS}, pool=TWO)


def test_ranks_that_metrics_do_not_name_are_told_to_the_operator(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(act: Live) -> None:
        await asyncio.sleep(5)
        said = [record.message for record in caplog.records if "do not name" in record.message]
        assert said == [
            "worker http://a:8000: its metrics do not name a@2; the ranks in them: 0, 1",
        ]
        assert act.worker("a@2").stats is None

    play(scene, {"a": RANKS}, pool={"dp_size": 3})


def test_a_restarted_engine_is_a_new_incarnation_at_every_rank() -> None:
    async def scene(act: Live) -> None:
        await asyncio.sleep(3)
        act.mocks["a"].process.crash(Fault(kind="crash", delay_s=5.0))
        await act.until(lambda: act.state("a@0") != "ready", 15)
        assert act.state("a@1") != "ready"
        await act.until(lambda: act.state("a@0") == act.state("a@1") == "ready", 60)
        await asyncio.sleep(3)
        assert [act.worker(name).incarnation for name in ("a@0", "a@1")] == [1, 1]

    play(scene, {"a": RANKS}, pool=TWO)


def test_a_port_that_refuses_takes_all_its_ranks_out_at_once() -> None:
    async def scene(act: Live) -> None:
        act.puppets["a"].refuse()
        reply = await act.ask(CHAT, ASK)
        assert reply.status == 200  # the other engine
        assert [act.state(name) for name in ("a@0", "a@1", "b@0", "b@1")] == [
            "ejected",
            "ejected",
            "ready",
            "ready",
        ]

    play(scene, {"a": talk, "b": talk}, pool={"dp_size": 2}, health={"interval_s": 3000.0})


def test_ranks_share_the_connections_to_their_port() -> None:
    async def scene(act: Live) -> None:
        for _ in range(4):
            await act.ask(CHAT, STREAM)
        assert len({ask.transport for ask in act.puppets["a"].asks}) == 1

    play(scene, pool={"dp_size": 2})


def test_one_rank_leaves_and_the_others_stay_connected_and_asked() -> None:
    async def scene(act: Live) -> None:
        await act.ask(CHAT, STREAM)
        act.router.fleet.leave("a@0", act.loop.time())
        assert (await act.ask(CHAT, STREAM)).status == 200
        first, second = act.puppets["a"].asks
        assert rank_of(second) == "1"
        assert first.transport is second.transport
        before = len(act.puppets["a"].probes)
        await asyncio.sleep(20)
        assert len(act.puppets["a"].probes) > before
        act.router.fleet.leave("a@1", act.loop.time())
        await asyncio.sleep(1)
        before = len(act.puppets["a"].probes)
        await asyncio.sleep(20)
        assert len(act.puppets["a"].probes) == before

    play(scene, pool={"dp_size": 2})


# --- where ranks come from --------------------------------------------------------------------------------


def test_ranks_may_join_by_hand_all_or_none() -> None:
    async def scene(act: Live) -> None:
        act.puppets["b"] = Puppet(act.network, "b", talk)
        new = {"url": "http://b:8000", "dp_size": 2, "slots": 3}
        reply = await act.ask("/workers", new, origin=ADMIN)
        assert reply.status == 202
        assert [one["name"] for one in reply.json()["workers"]] == ["b:8000@0", "b:8000@1"]
        again = await act.ask("/workers", {**new, "dp_size": 4}, origin=ADMIN)
        assert again.status == 400
        assert names(act) == ["a", "b:8000@0", "b:8000@1"]
        await act.until(lambda: act.state("b:8000@1") == "ready")
        assert act.worker("b:8000@1").slots == 3

    play(scene)


@pytest.mark.parametrize("url", ["http://a:8000", "http://a:8000@1"])
def test_an_address_is_one_worker_or_several_ranks(url: str) -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask("/workers", {"url": url, "name": "x"}, origin=ADMIN)).status == 400

    play(scene, pool={"dp_size": 2})


def test_an_engine_is_drained_and_removed_by_its_own_name() -> None:
    async def scene(act: Live) -> None:
        drained = (await act.ask("/workers/drain", {"worker": "a"}, origin=ADMIN)).json()
        assert [one["name"] for one in drained["workers"]] == ["a@0", "a@1"]
        assert [act.state(name) for name in ("a@0", "a@1", "b@0")] == ["draining", "draining", "ready"]
        assert (await act.ask("/workers/a", method="DELETE", origin=ADMIN)).status == 200
        assert names(act) == ["b@0", "b@1"]
        assert (await act.ask("/workers/b@0", method="DELETE", origin=ADMIN)).status == 200
        assert names(act) == ["b@1"]
        assert (await act.ask("/workers/a", method="DELETE", origin=ADMIN)).status == 404

    play(scene, {"a": talk, "b": talk}, pool={"dp_size": 2})


def test_a_workers_file_may_hold_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def in_place(work: Any, *args: Any, **options: Any) -> Any:
        return work(*args, **options)

    monkeypatch.setattr(asyncio, "to_thread", in_place)
    path = tmp_path / "workers"
    path.write_text('[{"url": "http://a:8000", "dp_size": 2}]')

    async def scene(act: Live) -> None:
        act.puppets["a"] = Puppet(act.network, "a", talk)
        await act.until(lambda: names(act) == ["a:8000@0", "a:8000@1"], 3)
        kept = act.router.fleet.member("a:8000@0")
        path.write_text("http://a:8000@0\n")
        await act.until(lambda: names(act) == ["a:8000@0"], 3)
        assert act.router.fleet.member("a:8000@0") is not kept  # it says less of itself now

    play(scene, {}, pool={"workers_file": path}, ready=False)


# --- what BalanceRoute makes of them ------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["balance_route_0", "balance_route_h"])
def test_balance_route_fills_the_ranks_of_an_engine_by_one_flag(policy: str) -> None:
    async def scene(act: Live) -> None:
        body = {**STREAM, "max_tokens": 40, "ignore_eos": True}
        tasks = [act.asking(CHAT, body) for _ in range(20)]
        most = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.02)
            running = [act.worker(name).sequences for name in ("a@0", "a@1")]
            most = max(most, *running)
            assert max(running) <= 4
        assert most == 4
        assert all(task.result().status == 200 for task in tasks)
        sent = [seen for seen in act.mocks["a"].front.seen if seen.path == CHAT]
        ranks = Counter(dict(seen.headers).get("x-data-parallel-rank") for seen in sent)
        assert ranks["0"] + ranks["1"] == 20
        assert abs(ranks["0"] - ranks["1"]) <= 4

    play(scene, {"a": RANKS}, pool={**TWO, "policy": policy})


def test_a_full_rank_counts_among_the_peers_of_those_that_are_offered() -> None:
    async def scene(act: Live) -> None:
        tasks = [act.asking(CHAT, STREAM) for _ in range(3)]
        await act.until(lambda: act.pool.in_flight == 2)
        peers = act.worker("a@0").barrier_peers
        assert [peer.name for peer in peers] == ["a@0", "a@1"]
        assert [peer.free_slots for peer in peers] == [0, 0]
        for task in tasks:
            task.cancel()

    play(scene, {"a": hang}, pool={"dp_size": 2, "slots": 1, "policy": "balance_route_0"})


# --- pairs -------------------------------------------------------------------------------------------------


def test_each_leg_tells_its_own_rank() -> None:
    async def scene(act: Live) -> None:
        for _ in range(6):
            assert (await act.ask(CHAT, STREAM)).status == 200
        for name, ranks in (("p", {"0", "1"}), ("d", {"4", "5", "6"})):
            told = [
                value
                for ask in act.puppets[name].asks
                for header, value in ask.headers
                if header == "x-data-parallel-rank"
            ]
            assert (len(told), set(told)) == (6, ranks)

    play_pair(
        scene,
        {"p": prefill},
        {"d": talk},
        prefill_pool={"dp_size": 2},
        decode_pool={"dp_size": 3},
        each={"d": {"dp_rank_offset": 4}},
    )


def test_a_room_of_sglang_is_one_that_its_prefill_rank_follows() -> None:
    async def scene(act: Live) -> None:
        for _ in range(6):
            assert (await act.ask(CHAT, STREAM)).status == 200
        legs = act.puppets["p"].asks
        assert {rank_of(ask) for ask in legs} == {"0", "1", "2"}
        for ask in legs:
            body = ask.json()
            assert str(body["bootstrap_room"] % 3) == rank_of(ask) == str(body["disagg_prefill_dp_rank"])
        assert {rank_of(ask) for ask in act.puppets["d"].asks} == {None}

    sglang = {"connector": "sglang", "fallback": "strict"}
    play_pair(scene, {"p": talk}, {"d": talk}, prefill_pool={"dp_size": 3}, decode_pool=sglang)


def test_a_producer_of_mooncake_is_known_by_the_id_of_its_rank() -> None:
    async def kept(ask: Ask) -> None:
        ask.answer(200, WHOLE.replace(b'"stop"', b'"length"'))

    async def scene(act: Live) -> None:
        table = {str(rank): {"engine_id": f"engine-{rank}"} for rank in range(4)}
        server = answering(200, json.dumps(table).encode())
        act.puppets["bootstrap"] = Puppet(act.network, "p", server, port=8998)
        for _ in range(4):
            assert (await act.ask(CHAT, STREAM)).status == 200
        told = [rank_of(ask) for ask in asks(act, "p")]
        fetched = [ask.json()["kv_transfer_params"]["remote_engine_id"] for ask in asks(act, "d")]
        assert set(told) == {"2", "3"}
        assert fetched == [f"engine-{rank}" for rank in told]

    mooncake = {"connector": "mooncake", "mooncake_concurrent": True}
    each = {"p": {"dp_size": 2, "dp_rank_offset": 2}}
    play_pair(scene, {"p": kept}, {"d": talk}, decode_pool=mooncake, each=each)
