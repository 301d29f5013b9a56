"""Laws of measuring split requests: what counts as a leg, and who is found out that does not split."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks import engine_bytes as says
from benchmarks.client import Load, Outcome, Spread, request_bytes
from benchmarks.engine import leg_of
from benchmarks.engine_bytes import Leg
from benchmarks.peers import report, rounds, split
from benchmarks.peers.targets import POINTSMAN, VLLM, Target
from benchmarks.processes import client_argv
from router.connectors import Pairing, build_connector
from router.core.request import Api

PAIRING = Pairing(Api.CHAT, says.MODEL, "xfer-0", 7)
NIXL = build_connector("nixl")


def body_of(message: bytes) -> bytes:
    return message.partition(b"\r\n\r\n")[2]


def client_body(*, events: int = 0, leg: Leg = Leg.WHOLE) -> bytes:
    return body_of(request_bytes(Load(1, 1, 1, events=events, leg=leg)))


def sample(course: rounds.Course, *, p50_s: float = 0.001, cpu_s: float | None = None) -> rounds.Sample:
    spread = Spread(p50_s, p50_s)
    outcome = Outcome(1.0, 100, 100 * course.events, spread, spread, spread)
    return rounds.Sample(course.units(outcome), cpu_s, outcome)


def test_the_answer_to_a_prefill_leg_has_a_handle_of_fourteen_keys_that_the_router_reads() -> None:
    handle = NIXL.read_prefill(body_of(says.prefilled_chat()), PAIRING)
    assert handle is not None
    assert msgspec.json.decode(handle.params) == says.HANDLE
    assert len(says.HANDLE) == 14
    assert handle.prompt_tokens == says.PROMPT_TOKENS


@pytest.mark.parametrize("events", [0, 16])
def test_the_legs_that_the_router_sends_are_counted_as_such(events: int) -> None:
    body = client_body(events=events)
    handle = NIXL.read_prefill(body_of(says.prefilled_chat()), PAIRING)
    assert leg_of(body) is Leg.WHOLE
    assert leg_of(NIXL.prefill_leg(body, PAIRING).body) is Leg.PREFILL
    assert leg_of(NIXL.decode_leg(body, PAIRING, handle).body) is Leg.DECODE


@pytest.mark.parametrize("leg", list(Leg))
def test_the_client_sends_each_leg_as_a_router_would(leg: Leg) -> None:
    assert leg_of(client_body(leg=leg)) is leg
    argv = client_argv(Load(1, 1, 1, leg=leg))
    assert argv[argv.index("--leg") + 1] == leg.value


def test_a_prefill_leg_that_streams_is_none() -> None:
    ask = {"model": says.MODEL, "stream": True, "kv_transfer_params": says.ASK_HANDLE}
    assert leg_of(msgspec.json.encode(ask)) is Leg.WHOLE


@pytest.mark.parametrize("key", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"])
def test_a_handle_that_lacks_what_an_engine_needs_makes_no_decode_leg(key: str) -> None:
    handle = {name: value for name, value in says.HANDLE.items() if name != key}
    ask = {"model": says.MODEL, "kv_transfer_params": handle}
    assert leg_of(msgspec.json.encode(ask)) is Leg.WHOLE


def test_legs_at_engines_of_the_other_role_and_whole_requests_are_strays() -> None:
    prefill = [{Leg.WHOLE: 1, Leg.PREFILL: 5, Leg.DECODE: 2}, {Leg.WHOLE: 0, Leg.PREFILL: 4, Leg.DECODE: 0}]
    decode = [{Leg.WHOLE: 3, Leg.PREFILL: 1, Leg.DECODE: 9}]
    assert split.tally(prefill, decode) == split.LegCounts(9, 9, 7)


@pytest.mark.parametrize("legs", [(99, 100, 0), (100, 99, 0), (101, 100, 0), (100, 100, 1)])
def test_a_router_that_did_not_split_every_request_is_refused(legs: tuple[int, int, int]) -> None:
    split.refuse_unsplit(VLLM, split.LegCounts(100, 100, 0), 100)
    with pytest.raises(RuntimeError, match="did not split all of 100"):
        split.refuse_unsplit(VLLM, split.LegCounts(*legs), 100)


def test_a_request_is_the_unit_of_a_split_course_and_an_event_that_of_other_streams() -> None:
    assert sample(split.STREAMS).units == 100
    assert sample(split.SMALL).units == 100
    assert sample(rounds.PACED).units == 100 * rounds.PACED.events


def test_single_legs_are_asked_one_at_a_time_only() -> None:
    alone = Target(split.PREFILL_LEG, 1, None, Leg.PREFILL)
    assert [course.includes(alone) for course in split.COURSES] == [True, False, False]
    assert all(course.includes(Target(VLLM, 1, None)) for course in split.COURSES)


def test_own_time_is_what_lies_above_both_legs_alone() -> None:
    found = report.split_verdicts(measured(own_p50_s=0.006), {POINTSMAN: 1})
    assert [verdict.figure for verdict in found] == [pytest.approx(3.0)]


def test_split_requests_are_judged_by_cpu_beside_the_router_that_splits_as_well() -> None:
    own, small, streams = report.split_verdicts(measured(cpu_s=1.7), {POINTSMAN: 1, VLLM: 1})
    assert small.figure == pytest.approx(1.7)
    assert (own.holds, small.holds, streams.bound) == (True, False, None)


def measured(*, own_p50_s: float = 0.002, cpu_s: float = 1.0) -> rounds.Samples:
    samples = {
        course.name: {
            POINTSMAN: [sample(course, p50_s=own_p50_s, cpu_s=cpu_s)],
            VLLM: [sample(course, cpu_s=1.0)],
        }
        for course in split.COURSES
    }
    samples[split.ALONE.name][split.PREFILL_LEG] = [sample(split.ALONE, p50_s=0.001)]
    samples[split.ALONE.name][split.DECODE_LEG] = [sample(split.ALONE, p50_s=0.002)]
    return samples
