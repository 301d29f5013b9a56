"""Two vLLM mock engines hand KV over as the Mooncake connector does: by a transfer id, in either order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engines.mock.server import Fleet
from engines.mock.settings import MockSettings
from tests.engines.mock_stage import Reply
from tests.engines.pd_stage import prefill_body
from tests.engines.push_stage import ASK, BOOTSTRAP, CHAT, COMPLETIONS, PROMPT, Act, play, text_of

MOONCAKE: dict[str, Any] = {"kv_connector": "mooncake"}
SLOW: dict[str, Any] = {"kv_connector": "mooncake", "kv_latency_s": 2.0}
SHORT: dict[str, Any] = {"kv_connector": "mooncake", "kv_abort_timeout_s": 20.0}
"""Engines that do not wait long: their decode engines wait for 80 s."""


def asked(name: str = "xfer-1", body: Any = ASK, **fields: Any) -> dict[str, Any]:
    """The body of a prefill leg."""
    params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": name}
    return {**prefill_body(body), "ignore_eos": True, "kv_transfer_params": params, **fields}


async def fetching(act: Act, name: str = "xfer-1", body: Any = ASK, **params: Any) -> dict[str, Any]:
    """The body of a decode leg."""
    engines = (await act.bootstrap("/query")).json()
    ready = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_bootstrap_addr": f"http://p:{BOOTSTRAP}",
        "remote_engine_id": engines["0"]["engine_id"],
        "transfer_id": name,
    }
    return {**body, "kv_transfer_params": {**ready, **params}}


async def split(act: Act, name: str = "xfer-1", body: Any = ASK, path: str = COMPLETIONS) -> Reply:
    """Both legs, one after the other; what the decode engine answers."""
    reply = await act["p"].ask(path, asked(name, body))
    assert reply.status == 200, reply.body
    return await act["d"].ask(path, await fetching(act, name, body))


def is_load_failure(reply: Reply) -> bool:
    return reply.status == 500 and json.loads(reply.body)["error"]["message"] == "Internal server error"


def test_the_bootstrap_server_names_the_engine_and_its_worker() -> None:
    async def scene(act: Act) -> None:
        engines = (await act.bootstrap("/query")).json()
        engine_id = act["p"].process.engine_id
        assert engines == {"0": {"engine_id": engine_id, "worker_addr": {"0": {"0": "tcp://p:9000"}}}}
        act.crash("p", back_after_s=1.0)
        await asyncio.sleep(2.0)
        assert (await act.bootstrap("/query")).json()["0"]["engine_id"] != engine_id
        assert (await act.bootstrap("/route")).status == 404

    play(scene, **MOONCAKE)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_two_engines_answer_as_one_does(path: str, together: bool, stream: bool) -> None:
    async def scene(act: Act) -> None:
        prompt = {"messages": [{"role": "user", "content": PROMPT}]} if path == CHAT else {"prompt": PROMPT}
        body = {**prompt, "max_tokens": 9, "temperature": 0, "stream": stream}
        expected = await act.alone(body, path)
        prefill = act.asking("p", path, asked(body=body))
        if not together:
            await prefill
        decode = await act["d"].ask(path, await fetching(act, body=body))
        assert _said(decode) == _said(expected)
        answer = json.loads((await prefill).body)
        assert answer["kv_transfer_params"] is None
        assert answer["choices"][0]["finish_reason"] == "length"

    play(scene, **MOONCAKE)


def _said(reply: Reply) -> Any:
    if reply.headers["content-type"].startswith("text/event-stream"):
        return reply.text()
    return text_of(reply)


def test_a_decode_that_comes_first_waits_for_its_prefill() -> None:
    async def scene(act: Act) -> None:
        decode = act.asking("d", COMPLETIONS, await fetching(act))
        await asyncio.sleep(400.0)
        assert act.blocks("d") == 7
        await act["p"].ask(COMPLETIONS, asked())
        assert text_of(await decode) == text_of(await act.alone())

    play(scene, **MOONCAKE)


def test_a_decode_reports_its_whole_prompt_as_cached() -> None:
    async def scene(act: Act) -> None:
        usage = json.loads((await split(act)).body)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]

    play(scene, **MOONCAKE)


def test_the_blocks_of_a_prefill_are_kept_until_they_are_taken_or_the_time_is_over() -> None:
    async def scene(act: Act) -> None:
        await act["p"].ask(COMPLETIONS, asked())
        await asyncio.sleep(479.0)
        assert act.blocks("p") == 7
        await asyncio.sleep(2.0)
        assert act.blocks("p") == 0
        assert act.state("p")["expired"] == 1
        await split(act, "xfer-2")
        assert act.blocks("p") == 0

    play(scene, **MOONCAKE)


def test_a_prefill_that_ends_before_its_limit_keeps_nothing() -> None:
    async def scene(act: Act) -> None:
        token = json.loads((await act["p"].ask(COMPLETIONS, asked("a", return_token_ids=True))).body)
        stops = token["choices"][0]["token_ids"]
        blocks = act.blocks("p")
        reply = await act["p"].ask(COMPLETIONS, asked("b", stop_token_ids=stops))
        assert json.loads(reply.body)["choices"][0]["finish_reason"] == "stop"
        assert act.blocks("p") == blocks == 7
        assert len(act["p"].process.engine.kept) == 1

    play(scene, settled_s=500.0, **MOONCAKE)


def test_a_prefill_without_a_transfer_id_keeps_nothing() -> None:
    async def scene(act: Act) -> None:
        params = {"do_remote_decode": True, "do_remote_prefill": False}
        await act["p"].ask(COMPLETIONS, asked(kv_transfer_params=params))
        assert act.blocks("p") == 0

    play(scene, **MOONCAKE)


# --- failures ---------------------------------------------------------------------------------------------


def test_an_unknown_transfer_fails_when_the_prefill_engine_has_waited_enough() -> None:
    async def scene(act: Act) -> None:
        started = act.now
        assert is_load_failure(await act["d"].ask(COMPLETIONS, await fetching(act, "nobody's")))
        assert act.now - started == pytest.approx(480.0, abs=0.1)

    play(scene, **MOONCAKE)


def test_another_engine_id_fails_at_once() -> None:
    async def scene(act: Act) -> None:
        started = act.now
        wrong = await fetching(act, remote_engine_id="somebody else")
        assert is_load_failure(await act["d"].ask(COMPLETIONS, wrong))
        assert act.now - started < 0.1

    play(scene, **MOONCAKE)


def test_a_bootstrap_server_that_was_never_there_fails_soon() -> None:
    async def scene(act: Act) -> None:
        wrong = await fetching(act, remote_bootstrap_addr=f"http://nowhere:{BOOTSTRAP}")
        started = act.now
        assert is_load_failure(await act["d"].ask(COMPLETIONS, wrong))
        assert act.now - started < 20.0

    play(scene, **MOONCAKE)


def test_a_prefill_engine_that_was_known_and_died_is_waited_for() -> None:
    async def scene(act: Act) -> None:
        await split(act)
        body = await fetching(act, "xfer-2")
        act.crash("p", back_after_s=1000.0)
        started = act.now
        assert is_load_failure(await act["d"].ask(COMPLETIONS, body))
        assert act.now - started == pytest.approx(80.0, abs=0.1)

    play(scene, **SHORT)


def test_a_prefill_engine_that_comes_back_is_another_one() -> None:
    async def scene(act: Act) -> None:
        await act["p"].ask(COMPLETIONS, asked())
        body = await fetching(act)
        act.crash("p", back_after_s=1.0)
        await asyncio.sleep(2.0)
        assert is_load_failure(await act["d"].ask(COMPLETIONS, body))
        assert text_of(await split(act, "xfer-2")) == text_of(await act.alone())

    play(scene, **SHORT)


def test_a_transfer_is_taken_once() -> None:
    async def scene(act: Act) -> None:
        await split(act)
        assert is_load_failure(await act["d"].ask(COMPLETIONS, await fetching(act, body={**ASK, "seed": 1})))

    play(scene, **SHORT)


def test_the_kv_of_another_prompt_garbles_the_answer() -> None:
    async def scene(act: Act) -> None:
        await act["p"].ask(COMPLETIONS, asked(body={**ASK, "prompt": PROMPT[::-1]}))
        reply = await act["d"].ask(COMPLETIONS, await fetching(act))
        assert reply.status == 200
        assert text_of(reply) != text_of(await act.alone())

    play(scene, **MOONCAKE)


def test_a_decode_that_is_refused_lets_the_prefill_engine_go() -> None:
    async def scene(act: Act) -> None:
        await act["p"].ask(COMPLETIONS, asked())
        assert act.blocks("p") == 7
        reply = await act["d"].ask(
            COMPLETIONS, await fetching(act, body={**ASK, "max_tokens": 1_000_000_000})
        )
        assert reply.status == 400
        await asyncio.sleep(0.1)
        assert act.blocks("p") == 0

    play(scene, **MOONCAKE)


def test_a_decode_that_leaves_the_queue_lets_the_prefill_engine_go() -> None:
    async def scene(act: Act) -> None:
        full = act.asking("d", COMPLETIONS, {**ASK, "max_tokens": 300, "ignore_eos": True, "stream": True})
        await asyncio.sleep(0.5)
        await act["p"].ask(COMPLETIONS, asked())
        decode = act.asking("d", COMPLETIONS, await fetching(act))
        await asyncio.sleep(0.1)
        decode.cancel()
        await asyncio.sleep(0.2)
        assert act.blocks("p") == 0
        await full

    play(scene, each={"d": {"max_num_seqs": 1}}, **MOONCAKE)


def test_a_decode_that_leaves_while_it_waits_holds_its_blocks_until_the_end() -> None:
    async def scene(act: Act) -> None:
        decode = act.asking("d", COMPLETIONS, await fetching(act))
        await asyncio.sleep(0.5)
        decode.cancel()
        await asyncio.sleep(0.5)
        assert (act.blocks("d"), act["d"].process.in_progress) == (7, 0)
        await act["p"].ask(COMPLETIONS, asked())
        await asyncio.sleep(0.5)
        assert (act.blocks("d"), act.blocks("p")) == (0, 0)

    play(scene, **MOONCAKE)


def test_a_prefill_that_is_left_tells_nobody() -> None:
    async def scene(act: Act) -> None:
        decode = act.asking("d", COMPLETIONS, await fetching(act))
        prefill = act.asking("p", COMPLETIONS, asked(body={**ASK, "prompt": PROMPT * 4}))
        await act.until(lambda: act["p"].process.engine.running == 1)
        started = act.now
        prefill.cancel()
        assert is_load_failure(await decode)
        assert act.now - started == pytest.approx(20.0, abs=1.0)
        assert act.blocks("p") == 0

    play(scene, **SHORT)


def test_a_failed_transfer_leaves_the_blocks_until_their_time_is_over() -> None:
    async def scene(act: Act) -> None:
        act.fault("d", kind="transfer_failed", count=1)
        assert is_load_failure(await split(act))
        await asyncio.sleep(2.0)
        assert act.blocks("p") == 7

    play(scene, settled_s=40.0, **SHORT)


def test_a_request_whose_kv_is_lost_may_be_computed_again() -> None:
    async def scene(act: Act) -> None:
        act.fault("d", kind="transfer_failed", count=1)
        assert text_of(await split(act)) == text_of(await act.alone())

    play(scene, settled_s=40.0, each={"d": {"kv_load_failure_policy": "recompute"}}, **SHORT)


def test_a_slow_transfer_outlives_the_lease() -> None:
    async def scene(act: Act) -> None:
        act.fault("d", kind="transfer_slow", delay_s=30.0, count=1)
        assert text_of(await split(act)) == text_of(await act.alone())

    play(scene, **SHORT)


def test_a_lost_handle_and_a_lease_cut_short_fail_the_decode() -> None:
    async def scene(act: Act) -> None:
        act.fault("p", kind="lose_handle", count=1)
        assert is_load_failure(await split(act, "xfer-1"))
        act.fault("p", kind="lease_cut", delay_s=1.0, count=1)
        await act["p"].ask(COMPLETIONS, asked("xfer-2"))
        await asyncio.sleep(2.0)
        assert act.blocks("p") == 0
        assert is_load_failure(await act["d"].ask(COMPLETIONS, await fetching(act, "xfer-2")))

    play(scene, **SHORT)


def test_an_engine_dies_of_a_request_for_the_other_role() -> None:
    async def scene(act: Act) -> None:
        assert (await act["d"].ask(COMPLETIONS, asked())).status == 500
        assert not act["d"].process.up

    play(scene, **MOONCAKE)


def test_params_that_are_not_complete_are_ignored() -> None:
    async def scene(act: Act) -> None:
        for wrong in ({"transfer_id": None}, {"remote_bootstrap_addr": "p"}, {"remote_bootstrap_addr": 3}):
            reply = await act["d"].ask(COMPLETIONS, await fetching(act, **wrong))
            assert text_of(reply) == text_of(await act.alone())

    play(scene, **MOONCAKE)


def test_engines_that_may_prefill_have_a_bootstrap_server() -> None:
    roles = {
        role: MockSettings(role=role, **MOONCAKE).has_bootstrap for role in ("both", "prefill", "decode")
    }
    assert roles == {"both": True, "prefill": True, "decode": False}


def test_several_engines_have_consecutive_bootstrap_ports() -> None:
    settings = MockSettings(role="prefill", disaggregation_bootstrap_port=9100, **MOONCAKE)
    servers = Fleet(settings, 3, "127.0.0.1", 9000).servers
    assert [server.bootstrap.port for server in servers if server.bootstrap is not None] == [9100, 9101, 9102]
    (decode,) = Fleet(MockSettings(role="decode", **MOONCAKE), 1, "127.0.0.1", 9000).servers
    assert decode.bootstrap is None
