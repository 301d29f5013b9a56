"""A leg of a split request that fails before the commit: what is tried again, where, with which handle."""

from __future__ import annotations

import pytest

from tests.shell.live import ASK, CHAT, STREAM, Live
from tests.shell.pair import (
    STRICT,
    asks,
    counts,
    decode,
    of_decode,
    of_prefill,
    play_pair,
    prefill,
    prefilled,
    refusing_releases,
    shown,
    stranded,
    whole,
)
from tests.shell.puppet import (
    DONE,
    TALK,
    WHOLE,
    Ask,
    Serve,
    answering,
    close,
    failure,
    failure_event,
    half_a_body,
    in_turn,
    reset,
    streaming,
)


async def head_then_reset(ask: Ask) -> None:
    ask.begin()
    ask.reset()


FAULTS: dict[str, Serve] = {
    "reset": reset,
    "closed": close,
    "head_then_reset": head_then_reset,
    "half_a_body": half_a_body,
    "500": answering(500, failure(500)),
    "502": answering(502, failure(502)),
    "503": answering(503, failure(503)),
    "504": answering(504, failure(504)),
    "429": answering(429, failure(429)),
}
OF_A_DECODE: dict[str, Serve] = {
    **FAULTS,
    "error_event_500": streaming(failure_event(500), DONE),
    "error_event_503": streaming(failure_event(503), DONE),
    "stream_without_an_event": streaming(),
    "whole_answer_aborted": answering(200, WHOLE.replace(b'"stop"', b'"abort"')),
    "error_in_a_200_body": answering(200, failure(500)),
}
SAID_SO = {"503", "429", "error_event_503"}
"""Faults of a decode engine that has told the producer that it will not fetch the KV."""


# --- the prefill leg -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_prefill_that_failed_is_done_once_more_by_another_worker(fault: str) -> None:
    async def scene(act: Live) -> None:
        before = act.now
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.body, reply.broken) == (200, TALK, None)
        assert sorted(counts(act, "p", "q", "r")) == [0, 1, 1]
        assert counts(act, "d") == [1]
        assert act.now - before == pytest.approx(0.06)  # a prefill and an answer: no wait between the tries
        assert await act.metric("pointsman_reprefills_total") == 1
        assert await act.metric("pointsman_handover_failures_total", leg="prefill") == 1
        assert await act.metric("pointsman_split_requests_total") == 1

    play_pair(scene, dict.fromkeys("pqr", in_turn(FAULTS[fault], prefill)))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_second_failed_prefill_goes_to_the_client(fault: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.status >= 429
        assert "message" in reply.error
        assert b"8000" not in reply.body
        assert sum(counts(act, "p", "q", "r")) == 2
        assert counts(act, "d") == [0]

    play_pair(scene, dict.fromkeys("pqr", FAULTS[fault]))


@pytest.mark.parametrize("fault", FAULTS)
def test_without_another_prefill_worker_one_that_decodes_serves_all_of_it(fault: str) -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "p") == [1]
        (ask,) = asks(act, "d")
        assert whole(ask)
        assert await act.metric("pointsman_unsplit_requests_total", reason="no_prefill") == 1

    play_pair(scene, {"p": FAULTS[fault]})


@pytest.mark.parametrize("fault", FAULTS)
def test_in_strict_mode_it_is_the_failure_that_the_client_learns(fault: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.status >= 429
        assert reply.error["code"] != "internal_error"
        assert counts(act, "p", "d") == [1, 0]
        assert await act.metric("pointsman_split_refused_total", reason="no_prefill") == 1

    play_pair(scene, {"p": FAULTS[fault]}, decode_pool=STRICT)


def test_a_prefill_worker_that_refuses_connections_costs_no_new_prefill() -> None:
    async def scene(act: Live) -> None:
        act.puppets["p"].refuse()
        act.puppets["q"].refuse()
        for _ in range(3):  # round_robin begins each one elsewhere
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "p", "q", "r", "d") == [0, 0, 3, 3]
        assert await act.metric("pointsman_reprefills_total") is None
        assert act.state("p") == act.state("q") == "ejected"

    play_pair(scene, dict.fromkeys("pqr", prefill))


def test_a_prefill_request_that_the_engine_refuses_is_the_clients_to_read() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["message"]) == (400, "temperature is odd")
        assert sum(counts(act, "p", "q", "d")) == 1

    play_pair(scene, dict.fromkeys("pq", answering(400, failure(400, "temperature is odd"))))


@pytest.mark.parametrize("side", ["p", "d"])
def test_a_refused_worker_key_is_the_operators_fault_on_either_leg(side: str) -> None:
    async def scene(act: Live) -> None:
        act.puppets[side].serve = answering(401, failure(401, "wrong key"))
        reply = await act.ask(CHAT, STREAM)
        assert reply.status == 502
        assert b"wrong key" not in reply.body
        assert sum(counts(act, "p", "d")) == (1 if side == "p" else 2)

    play_pair(scene, auth={"api_key": "of-the-fleet"}, strands=side == "d")


UNKNOWN = answering(404, failure(404, "The model `m` does not exist."))


def test_a_prefill_worker_that_does_not_know_the_model_is_left_out_and_its_list_read_again() -> None:
    async def scene(act: Live) -> None:
        act.puppets["p"].models = {"another": None}
        for _ in range(4):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "p", "q") == [1, 4]
        assert act.worker("p").models == {"another"}

    play_pair(scene, {"p": UNKNOWN, "q": prefill})


def test_a_decode_worker_that_does_not_know_the_model_is_left_out_and_its_list_read_again() -> None:
    async def scene(act: Live) -> None:
        act.puppets["d"].models = {"another": None}
        for _ in range(4):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "d", "e") == [1, 4]
        assert act.worker("d").models == {"another"}

    play_pair(scene, decodes={"d": UNKNOWN, "e": decode})


TOO_LONG = answering(400, failure(400, "This model's maximum context length is 10 tokens."))


def test_a_prompt_too_long_for_a_prefill_worker_goes_to_a_larger_one_only() -> None:
    async def scene(act: Live) -> None:
        for name, length in (("p", 10), ("q", 10), ("r", 20)):
            act.worker(name).max_model_len = {"m": length}
        for _ in range(3):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "r") == [3]

    play_pair(scene, {"p": TOO_LONG, "q": TOO_LONG, "r": prefill})


def test_a_prompt_too_long_for_all_prefill_workers_is_the_clients_to_cut() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.status == 400
        assert sum(counts(act, "p", "q")) == 1
        assert counts(act, "d") == [0]

    play_pair(scene, {"p": TOO_LONG, "q": TOO_LONG})


LOST = answering(200, prefilled(None))


def test_a_prefill_without_a_handle_is_tried_once_elsewhere() -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "p", "q", "d") == [1, 1, 1]
        assert await act.metric("pointsman_reprefills_total", reason="no_handle") == 1
        assert stranded(act) > 0  # somewhere there its KV is

    play_pair(scene, dict.fromkeys("pq", in_turn(LOST, prefill)), strands=True)


@pytest.mark.parametrize("names", ["p", "pq", "pqr"])
def test_when_nobody_gives_a_handle_the_request_is_served_whole(names: str) -> None:
    async def scene(act: Live) -> None:
        assert (await act.ask(CHAT, STREAM)).body == TALK
        assert sum(counts(act, *names)) == min(len(names), 2)
        (ask,) = asks(act, "d")
        assert whole(ask)
        assert await act.metric("pointsman_unsplit_requests_total", reason="no_handle") == 1

    play_pair(scene, dict.fromkeys(names, LOST), strands=True)


@pytest.mark.parametrize("names", ["p", "pq"])
def test_in_strict_mode_a_missing_handle_is_an_error_that_says_so(names: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["code"]) == (502, "upstream_broken")
        assert "KV" in reply.error["message"]
        assert counts(act, "d") == [0]
        assert await act.metric("pointsman_split_refused_total", reason="no_handle") == 1

    play_pair(scene, dict.fromkeys(names, LOST), decode_pool=STRICT, strands=True)


# --- the decode leg --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", OF_A_DECODE)
def test_a_decode_that_failed_begins_again_with_a_new_prefill(fault: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.body, reply.broken) == (200, TALK, None)
        assert sorted(counts(act, "d", "e", "f")) == [0, 1, 1]
        assert counts(act, "p") == [2]
        first, second = (shown(ask) for ask in asks(act, "d", "e", "f") if of_decode(ask))
        assert first != second
        assert await act.metric("pointsman_reprefills_total") == 1
        assert await act.metric("pointsman_handover_failures_total", leg="decode") == 1

    serve = refusing_releases(in_turn(OF_A_DECODE[fault], decode))
    play_pair(scene, decodes=dict.fromkeys("def", serve), strands=fault not in SAID_SO)


@pytest.mark.parametrize("fault", OF_A_DECODE)
def test_a_second_failed_decode_goes_to_the_client(fault: str) -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.status >= 429
        assert "message" in reply.error
        assert (sum(counts(act, "d", "e", "f")), sum(counts(act, "p", "q"))) == (2, 2)

    serve = refusing_releases(OF_A_DECODE[fault])
    play_pair(scene, dict.fromkeys("pq", prefill), dict.fromkeys("def", serve), strands=fault not in SAID_SO)


def test_a_decode_request_that_the_engine_refuses_is_the_clients_to_read() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["message"]) == (400, "min_tokens is odd")
        assert counts(act, "p", "d") == [1, 1]

    play_pair(scene, decodes={"d": answering(400, failure(400, "min_tokens is odd"))})


def test_an_error_event_of_the_clients_fault_is_answered_as_such() -> None:
    async def scene(act: Live) -> None:
        reply = await act.ask(CHAT, STREAM)
        assert reply.status == 400
        assert counts(act, "p", "d") == [1, 1]

    play_pair(scene, decodes={"d": streaming(failure_event(400), DONE)})


def test_a_handle_of_which_nothing_left_goes_to_another_decode_worker() -> None:
    async def scene(act: Live) -> None:
        act.puppets["d"].refuse()
        act.puppets["e"].refuse()
        for _ in range(3):
            assert (await act.ask(CHAT, STREAM)).body == TALK
        assert counts(act, "p", "d", "e", "f") == [3, 0, 0, 3]
        assert all(of_prefill(ask) for ask in asks(act, "p"))
        assert await act.metric("pointsman_handover_retries_total") == 2
        assert await act.metric("pointsman_reprefills_total") is None

    play_pair(scene, decodes=dict.fromkeys("def", decode))


@pytest.mark.parametrize("names", ["d", "de", "def", "defg"])
def test_when_the_decode_workers_refuse_connections_the_client_learns_that(names: str) -> None:
    async def scene(act: Live) -> None:
        for name in names:
            act.puppets[name].refuse()
        reply = await act.ask(CHAT, STREAM)
        assert (reply.status, reply.error["code"]) == (502, "upstream_unreachable")
        assert counts(act, "p") == [1]
        assert [act.state(name) for name in names].count("ejected") == min(len(names), 3)

    play_pair(scene, decodes=dict.fromkeys(names, decode), strands=True)


def test_a_decode_worker_that_does_not_accept_is_left_after_the_connect_deadline() -> None:
    async def scene(act: Live) -> None:
        act.puppets["d"].hang()
        times = []
        for _ in range(2):
            before = act.now
            assert (await act.ask(CHAT, STREAM)).body == TALK
            times.append(round(act.now - before, 2))
        assert sorted(times) == [0.06, 1.06]
        assert counts(act, "p") == [2]

    play_pair(scene, decodes={"d": decode, "e": decode}, polling={"interval_s": 100})


def test_a_stale_connection_to_a_decode_worker_is_not_used_twice_for_one_handle() -> None:
    async def scene(act: Live) -> None:
        puppet = act.puppets["d"]
        await act.ask(CHAT, ASK)
        puppet.serve = in_turn(reset, decode)
        assert (await act.ask(CHAT, ASK)).status == 200
        assert counts(act, "p", "q", "d") == [2, 1, 3]

    play_pair(scene, {"p": prefill, "q": prefill}, strands=True)
