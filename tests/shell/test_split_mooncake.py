"""Hand-overs by transfer id (vLLM's Mooncake connector): the producer's bootstrap server is asked
first, and both engines know the transfer by the name that the router gave it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.shell.live import CHAT, QUIET, STREAM, Live
from tests.shell.pair import asks, counts, play_pair
from tests.shell.puppet import TALK, WHOLE, Ask, Puppet, answering, talk

MOONCAKE: dict[str, Any] = {"connector": "mooncake", "mooncake_concurrent": True}


def bootstrap(act: Live, table: object, host: str = "p") -> Puppet:
    """The bootstrap server of a prefill worker."""
    server = Puppet(act.network, host, answering(200, json.dumps(table).encode()), port=8998)
    act.puppets[f"bootstrap of {host}"] = server
    return server


def play_mooncake(scene: Any, prefills: str = "p", decodes: str = "d", **options: Any) -> None:
    options = {"decode_pool": MOONCAKE, **QUIET, **options}
    play_pair(scene, dict.fromkeys(prefills, kept), dict.fromkeys(decodes, talk), **options)


async def kept(ask: Ask) -> None:
    """A prefill that ended as it should, so that its KV is kept."""
    ask.answer(200, WHOLE.replace(b'"stop"', b'"length"'))


TABLE = {"0": {"engine_id": "engine-7", "worker_addr": {"0": {"0": "tcp://p:1"}}}}


def test_both_engines_know_a_transfer_by_one_id_and_the_decode_engine_its_producer() -> None:
    async def scene(act: Live) -> None:
        server = bootstrap(act, TABLE)
        for _ in range(3):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        names = set()
        for first, second in zip(asks(act, "p"), asks(act, "d"), strict=True):
            made, fetched = first.json()["kv_transfer_params"], second.json()["kv_transfer_params"]
            assert made["transfer_id"] == fetched["transfer_id"]
            assert (made["do_remote_decode"], fetched["do_remote_prefill"]) == (True, True)
            assert fetched["remote_engine_id"] == "engine-7"
            assert fetched["remote_bootstrap_addr"] == "http://p:8998"
            assert first.at == second.at
            names.add(made["transfer_id"])
        assert len(names) == 3
        assert [ask.path for ask in server.asks] == ["/query"]  # asked once, and remembered

    play_mooncake(scene)


@pytest.mark.parametrize("concurrent", [True, False])
@pytest.mark.parametrize("table", [{}, [], "refused"], ids=str)
def test_a_bootstrap_server_that_does_not_know_its_engine_means_another_producer(
    table: object, concurrent: bool
) -> None:
    async def scene(act: Live) -> None:
        if table != "refused":
            bootstrap(act, table)
        bootstrap(act, TABLE, "q")
        for _ in range(2):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "p", "q") == [0, 2]

    play_mooncake(scene, "pq", decode_pool={**MOONCAKE, "mooncake_concurrent": concurrent})


def test_one_after_the_other_the_decode_leg_has_the_id_of_its_prefill() -> None:
    async def scene(act: Live) -> None:
        bootstrap(act, TABLE)
        assert (await act.ask(CHAT, STREAM)).body == TALK
        (first,), (second,) = asks(act, "p"), asks(act, "d")
        ids = [ask.json()["kv_transfer_params"]["transfer_id"] for ask in (first, second)]
        assert ids[0] == ids[1]
        assert first.number < second.number

    play_mooncake(scene, decode_pool={"connector": "mooncake"})


def test_a_producer_that_was_born_anew_is_asked_for_its_engine_again() -> None:
    async def scene(act: Live) -> None:
        server = bootstrap(act, TABLE)
        await act.ask(CHAT, STREAM)
        server.serve = answering(200, json.dumps({"0": {"engine_id": "engine-8"}}).encode())
        act.puppets["p"].kill()
        assert (await act.ask(CHAT, STREAM)).status == 200  # whole: it is found to be down
        act.puppets["p"].accept()
        await act.until(lambda: act.state("p") == "ready")
        await act.ask(CHAT, STREAM)
        last = asks(act, "d")[-1].json()["kv_transfer_params"]
        assert last["remote_engine_id"] == "engine-8"
        assert len(server.asks) == 2

    play_mooncake(scene, health={"interval_s": 1}, decode_pool={"connector": "mooncake"})
