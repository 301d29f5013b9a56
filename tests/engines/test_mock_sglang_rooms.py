"""Two SGLang mock engines serve one request together: the room, the transfer, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engines.mock.settings import MockSettings, SettingsError
from tests.engines.mock_stage import Reply
from tests.engines.push_stage import (
    ASK,
    BOOTSTRAP,
    CHAT,
    COMPLETIONS,
    PROMPT,
    Act,
    in_room,
    play,
    room,
    text_of,
)
from tests.engines.room_stage import SGLANG, SLOW, message, split


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/generate"])
@pytest.mark.parametrize("stream", [False, True])
def test_two_engines_answer_as_one_does(path: str, stream: bool) -> None:
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 9},
        COMPLETIONS: {"prompt": PROMPT, "max_tokens": 9},
        "/generate": {"text": PROMPT, "sampling_params": {"max_new_tokens": 9}},
    }

    async def scene(act: Act) -> None:
        body = {**bodies[path], "stream": stream}
        expected = await act.alone(body, path)
        _, decode = await split(act, body, path)
        assert _essence(decode) == _essence(expected)
        assert act.state("d")["received"] == act.state("p")["sent"] == 1

    play(scene, **SGLANG)


def _essence(reply: Reply) -> Any:
    lines = [line.removeprefix(b"data: ") for line in reply.body.split(b"\n") if line]
    return [_nameless(json.loads(line)) for line in lines if line != b"[DONE]"]


def _nameless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nameless(one) for key, one in value.items() if key not in ("id", "created")}
    return [_nameless(one) for one in value] if isinstance(value, list) else value


def test_a_prefill_answers_its_one_token_when_the_decode_has_its_kv() -> None:
    async def scene(act: Act) -> None:
        both = in_room({**ASK, "stop": ["e"]}, room())
        prefill, decode = act.asking("p", COMPLETIONS, both), act.asking("d", COMPLETIONS, both)
        await act.until(lambda: act.state("p")["kept"] == 1)
        assert act.blocks("p") == 7
        assert not prefill.done()
        answer = json.loads((await prefill).body)
        assert answer["usage"]["completion_tokens"] == 1
        assert answer["choices"][0]["finish_reason"] == "length"
        assert act.blocks("p") == 0
        await decode

    play(scene, **SLOW)


def test_a_prefill_does_not_run_before_its_decode_has_come() -> None:
    async def scene(act: Act) -> None:
        both = in_room(ASK, room())
        prefill = act.asking("p", COMPLETIONS, both)
        await asyncio.sleep(100.0)
        assert act["p"].process.ticker.steps == 0
        assert act["p"].process.in_progress == 1
        reply = await act["d"].ask(COMPLETIONS, both)
        assert text_of(reply) == text_of(await act.alone())
        await prefill

    play(scene, **SGLANG)


def test_a_decode_waits_for_its_prefill_and_holds_room_meanwhile() -> None:
    async def scene(act: Act) -> None:
        both = in_room(ASK, room())
        decode = act.asking("d", COMPLETIONS, both)
        await asyncio.sleep(100.0)
        assert act.blocks("d") == 7
        await act["p"].ask(COMPLETIONS, both)
        assert text_of(await decode) == text_of(await act.alone())

    play(scene, **SGLANG)


@pytest.mark.parametrize("name", ["p", "d"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_without_a_room_is_refused(name: str, stream: bool) -> None:
    async def scene(act: Act) -> None:
        reply = await act[name].ask(COMPLETIONS, {**ASK, "stream": stream})
        assert reply.status == 400
        assert "Disaggregated request received without bootstrap room id" in message(reply)

    play(scene, **SGLANG)


def test_warm_ups_of_the_fake_host_transfer_nothing() -> None:
    async def scene(act: Act) -> None:
        for name in ("p", "d"):
            reply = await act[name].ask(COMPLETIONS, in_room(ASK, 0, "2.2.2.2"))
            assert reply.status == 200
        assert act.state("d")["received"] == 0

    play(scene, **SGLANG)


@pytest.mark.parametrize("name", ["p", "d"])
def test_health_checks_need_no_other_engine(name: str) -> None:
    async def scene(act: Act) -> None:
        assert (await act[name].ask("/health")).status == 200

    play(scene, **SGLANG)


def test_each_answer_of_a_batch_has_its_own_room() -> None:
    async def scene(act: Act) -> None:
        body = {**ASK, "n": 2, "temperature": 1.0, "prompt": [PROMPT, PROMPT[::-1]]}
        expected = text_of(await act.alone(body))
        for number in (room() * 1000, [7, 5, 3, 1]):
            prefill, decode = await split(act, body, number=number)
            assert text_of(decode) == expected
            assert prefill.status == 200
        assert act.state("d")["received"] == 8

    play(scene, **SGLANG)


def test_rooms_that_do_not_fit_the_batch_are_refused() -> None:
    async def scene(act: Act) -> None:
        for number in ([1], [1, 2, 3], ["a", "b"], [1, None], -1, 2**63, "five"):
            reply = await act["d"].ask(COMPLETIONS, in_room({**ASK, "n": 2}, number))  # type: ignore[arg-type]  # on purpose
            assert reply.status == 400, number

    play(scene, **SGLANG)


def test_a_second_request_in_a_room_is_turned_away() -> None:
    async def scene(act: Act) -> None:
        both = in_room(ASK, 5)
        first = act.asking("p", COMPLETIONS, both)
        await asyncio.sleep(1.0)
        second = await act["p"].ask(COMPLETIONS, both)
        assert second.status == 500
        assert "room 5" in message(second)
        assert (await act["d"].ask(COMPLETIONS, both)).status == 200
        assert (await first).status == 200

    play(scene, **SGLANG)


def test_the_transfer_takes_its_bytes_over_the_bandwidth() -> None:
    async def scene(act: Act) -> None:
        took = []
        for name in ("d", "e"):
            number = room()
            prefill = act.asking("p", COMPLETIONS, in_room(ASK, number))
            started = act.now
            reply = await act[name].ask(COMPLETIONS, in_room({**ASK, "max_tokens": 1}, number))
            assert reply.status == 200
            took.append(act.now - started)
            await prefill
        size = 7 * act["d"].process.hardware.link.block_bytes
        # The second prefill finds its prompt cached, which makes it a little faster.
        assert took[1] - took[0] == pytest.approx(size * 8 / 1e6 - size * 8 / 200e9, rel=0.05)

    each = {"e": {"kv_bandwidth_gbps": 0.001}}
    play(scene, names=("p", "d", "e"), each=each, **SGLANG)


def test_the_decode_reports_the_cached_tokens_of_the_prefill() -> None:
    async def scene(act: Act) -> None:
        cached = []
        for name in ("d", "e"):
            number = room()
            prefill = act.asking("p", COMPLETIONS, in_room(ASK, number))
            reply = await act[name].ask(COMPLETIONS, in_room(ASK, number))
            cached.append(json.loads(reply.body)["usage"]["prompt_tokens_details"]["cached_tokens"])
            await prefill
        assert cached == [0, 96]

    play(scene, names=("p", "d", "e"), **SGLANG)


# --- what is told ----------------------------------------------------------------------------------------


def test_a_disaggregated_engine_says_so() -> None:
    async def scene(act: Act) -> None:
        for name, mode in (("p", "prefill"), ("d", "decode"), ("alone", "null")):
            info = (await act[name].ask("/server_info")).json()
            assert info["disaggregation_mode"] == mode
            loads = (await act[name].ask("/v1/loads")).json()
            assert loads["loads"][0]["disaggregation"]["mode"] == mode

    play(scene, **SGLANG)


def test_the_queues_of_a_room_are_in_the_metrics() -> None:
    async def scene(act: Act) -> None:
        both = in_room(ASK, room())
        prefill = act.asking("p", COMPLETIONS, both)
        await asyncio.sleep(1.0)
        assert await _metric(act, "p", "num_prefill_bootstrap_queue_reqs") == 1.0
        decode = act.asking("d", COMPLETIONS, both)
        await act.until(lambda: act.state("p")["kept"] == 1)
        assert await _metric(act, "p", "num_prefill_inflight_queue_reqs") == 1.0
        assert await _metric(act, "d", "num_decode_transfer_queue_reqs") == 1.0
        await asyncio.gather(prefill, decode)
        assert await _metric(act, "d", "kv_transfer_latency_ms") == pytest.approx(2000.0, rel=0.01)
        act.fault("d", kind="transfer_failed", count=1)
        await split(act)
        assert await _metric(act, "d", "num_transfer_failed_reqs_total") == 1.0

    play(scene, **SLOW)


async def _metric(act: Act, name: str, metric: str) -> float:
    text = (await act[name].ask("/metrics")).body.decode()
    line = next(line for line in text.splitlines() if line.startswith(f"sglang:{metric}{{"))
    assert 'engine_type="prefill"' in line or 'engine_type="decode"' in line
    return float(line.rpartition(" ")[2])


def test_the_bootstrap_server_answers_as_sglangs_does() -> None:
    async def scene(act: Act) -> None:
        assert (await act.bootstrap("/health")).status == 200
        everything = "prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
        layout = (await act.bootstrap(f"/route?{everything}")).json()
        assert (layout["dp_size"], layout["page_size"], layout["follow_bootstrap_room"]) == (1, 16, True)
        rank = (await act.bootstrap(f"/route?{everything.replace('-1', '0')}")).json()
        assert rank == {"rank_ip": "p", "rank_port": 9000}
        assert (await act.bootstrap(f"/route?{everything.replace('-1', '3')}")).status == 404
        assert (await act.bootstrap("/route")).status == 400
        assert (await act.bootstrap("/route", {"rank_ip": "p"}, method="PUT")).status == 200
        await act.bootstrap("/register_dp_rank", {"bootstrap_room": 9, "dp_rank": 1})
        assert (await act.bootstrap("/query_dp_ranks", {"bootstrap_rooms": [9, 10]})).json() == {"9": 1}
        assert (await act.bootstrap("/query")).status == 404

    play(scene, **SGLANG)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dialect": "sglang", "kv_connector": "nixl"},
        {"dialect": "vllm", "kv_connector": "sglang", "role": "prefill"},
        {"dialect": "sglang", "kv_connector": "sglang"},
        {"dialect": "sglang", "role": "decode", "kv_load_failure_policy": "recompute"},
        {"disaggregation_bootstrap_port": 70_000},
        {"disaggregation_timeout_s": 0.0},
    ],
)
def test_settings_that_no_engine_has_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        MockSettings(**wrong)


def test_an_sglang_engine_of_one_role_is_disaggregated() -> None:
    prefill = MockSettings(dialect="sglang", role="prefill")
    assert (prefill.connector, prefill.has_bootstrap, prefill.disaggregation_bootstrap_port) == (
        "sglang",
        True,
        BOOTSTRAP,
    )
    assert not MockSettings(dialect="sglang", role="decode").has_bootstrap
