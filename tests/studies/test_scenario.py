"""A configuration becomes the fleet that it describes, or a sentence says what it lacks."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mock.__main__ import parser, settings_of
from engines.mock.hardware import Hardware
from engines.model.roofline import StepLoad
from router.core.binding import Mode
from router.core.split_rule import Fallback
from router.core.step_model import StepModel
from router.core.worker import Role
from router.policies import POLICIES
from router.settings import Settings, WorkloadSettings
from router.studies.scenario import Scenario, ScenarioError, scenario_of
from router.studies.scenario_engines import MeasuredClock
from router.studies.scenario_load import Load
from router.studies.setups import Choosing
from router.studies.simulation.fleet import Trouble, WorkerPlan

LOAD = Load(workload="chat_short", requests=40, rate=5.0)
ONE: dict[str, Any] = {
    "pools": {"default": {"model": "m", "policy": "least_requests", "workers": ["http://a:9001", "http://a:9002"]}},
    "mock": {"fleet": [{"port": 9001, "count": 2}]},
}  # fmt: skip
PAIR: dict[str, Any] = {
    "pools": {
        "p": {"role": "prefill", "policy": "cache_aware", "workers": ["http://a:9001"]},
        "d": {"role": "decode", "policy": "least_requests", "workers": ["http://a:9002", "http://a:9003"]},
    },
    "mock": {"fleet": [{"port": 9001, "count": 3, "kv_bandwidth_gbps": 8}]},
}
CALIBRATION = """
version: 1
measured: 2026-11-29T10:00:00Z
workers:
  "a:9001":
    url: http://a:9001
    role: both
    model: m
    kv_capacity_tokens: 60000
    prefill: {base_s: 0.004, per_token_s: 6.0e-5, per_token_squared_s: 1.0e-9}
    step: {base_s: 0.0155, per_sequence_s: 1.2e-4, per_kv_token_s: 1.2e-7}
"""


def made(tree: dict[str, Any], **more: Any) -> Scenario:
    return scenario_of(Settings(**{**tree, **more}), "fleet.yaml", LOAD)


def with_pool(name: str, tree: dict[str, Any] = ONE, **keys: Any) -> dict[str, Any]:
    pools = {**tree["pools"], name: {**tree["pools"][name], **keys}}
    return {**tree, "pools": pools}


def with_group(**keys: Any) -> dict[str, Any]:
    return {**ONE, "mock": {"fleet": [{**ONE["mock"]["fleet"][0], **keys}]}}


def workers(scenario: Scenario) -> list[WorkerPlan]:
    return [worker for pool in scenario.fleet.pools for worker in pool.workers]


# --- engines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "group",
    [
        {},
        {"model": "llama-3-8b", "gpu": "h100", "kv_tokens": 40_000, "max_num_seqs": 32},
        {"flags": {"step-times": "measured", "block-size": 32, "max-model-len": 8192}},
        {"flags": {"max-num-batched-tokens": 512, "scheduling_policy": "priority-groups"}},
        {"flags": {"kv-latency-s": 0}, "kv_bandwidth_gbps": 25.0},
        {"max_num_seqs": 4, "flags": {"max-num-queued-reqs": 9}},
        {"kv_load_failure_policy": "recompute"},
    ],
)
def test_a_simulated_engine_is_the_mock_that_the_file_starts(group: dict[str, Any]) -> None:
    tree = with_group(**group)
    arguments = Settings(**tree).mock.fleet[0].arguments
    mock = Hardware.of(settings_of(parser().parse_args(arguments)))
    for worker in workers(made(tree)):
        same = dataclasses.replace(
            worker.engine,
            output_lengths=mock.config.output_lengths,  # calls say how long their answers are
            kv_connector=mock.config.kv_connector,
        )
        assert same == mock.config
        for load in (StepLoad.of([(700, 30)], []), StepLoad.of([], [400] * 9)):
            assert worker.clock.step_from_totals(load) == mock.clock.step_from_totals(load)


def test_a_time_scale_slows_steps_transfers_and_what_the_router_knows_of_them() -> None:
    slow = scenario_of(
        Settings(**{**PAIR, "mock": {"fleet": [{**PAIR["mock"]["fleet"][0], "time_scale": 2.0}]}}), "f", LOAD
    )
    normal = made(PAIR)
    assert {worker.slow for worker in workers(slow)} == {2.0}
    assert slow.fleet.split is not None
    assert normal.fleet.split is not None
    assert slow.fleet.split.link.seconds(100) == pytest.approx(2 * normal.fleet.split.link.seconds(100))
    known, plain = workers(slow)[0].calibrated, workers(normal)[0].calibrated
    assert known is not None
    assert plain is not None
    assert known.step_s(8, 4_000) == pytest.approx(2 * plain.step_s(8, 4_000))
    assert known.prefill_s(900) == pytest.approx(2 * plain.prefill_s(900))


def test_without_a_mock_the_engine_is_the_one_that_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "calibration.yaml"
    file.write_text(CALIBRATION)
    tree = {"pools": {"default": {"workers": ["http://a:9001"], "slots": 12}}, "calibration": {"file": file}}
    [worker] = workers(made(tree))
    assert worker.clock.step_from_totals(StepLoad.of([], [1_000] * 10)) == pytest.approx(0.0179)
    assert worker.engine.max_num_seqs == 12
    assert (worker.engine.num_blocks - 1) * worker.engine.block_size == 60_000
    assert worker.calibrated is not None
    assert worker.calibrated.step_s(10, 10_000) == pytest.approx(0.0179)


@given(cached=st.integers(0, 5_000), new=st.integers(1, 5_000))
def test_a_measured_clock_charges_a_chunk_what_its_law_says(cached: int, new: int) -> None:
    model = StepModel(4e-3, 6e-5, 15e-3, 1e-4, 1e-7, prefill_per_token_squared_s=1e-8)
    chunk = MeasuredClock(model).step_from_totals(StepLoad.of([(new, cached)], []))
    assert chunk == pytest.approx(model.prefill_s(new, cached))


def test_the_router_knows_nothing_of_times_when_it_may_not_learn() -> None:
    assert all(worker.calibrated is None for worker in workers(made(ONE, calibration={"online": False})))
    assert all(worker.calibrated is not None for worker in workers(made(ONE)))


# --- pools ----------------------------------------------------------------------------------------------


def test_ranks_are_workers_that_step_together() -> None:
    tree = with_group(flags={"dp-size": 2})
    scenario = made(with_pool("default", tree, dp_size=2, slots=64, policy="balance_route_0"))
    names = [worker.name for worker in workers(scenario)]
    assert names == ["a:9001@0", "a:9001@1", "a:9002@0", "a:9002@1"]
    assert [worker.barrier_group for worker in workers(scenario)] == ["http://a:9001"] * 2 + [
        "http://a:9002"
    ] * 2
    assert scenario.fleet.pools[0].mode is Mode.LATE
    assert {worker.slots for worker in workers(scenario)} == {64}


def test_a_pair_has_a_wire_and_splits_as_its_decode_pool_says() -> None:
    plain = made(PAIR).fleet
    assert [pool.role for pool in plain.pools] == [Role.PREFILL, Role.DECODE]
    assert plain.split is not None
    assert plain.split.link.bytes_per_s == pytest.approx(1e9)
    # No decode worker may serve whole requests while another one prefills, so none is too short to be split.
    assert (plain.split.min_tokens, plain.split.fallback) == (512, Fallback.AGGREGATED)
    assert not any(worker.may_prefill for worker in plain.pools[1].workers)
    rooms = made(with_pool("d", PAIR, connector="sglang")).fleet.split
    assert rooms is not None
    assert (rooms.concurrent, rooms.takes_whole, rooms.sequences_on_handle) == (True, False, True)
    able = made(with_pool("d", PAIR, may_prefill=True, pd_split_min_tokens=300)).fleet
    assert able.split is not None
    assert able.split.min_tokens == 300
    assert all(worker.may_prefill for worker in able.pools[1].workers)
    assert all(worker.engine.kv_connector for worker in workers(made(PAIR)))


def test_the_router_knows_how_long_a_transfer_takes() -> None:
    split = made(PAIR).fleet.split
    assert split is not None
    assert split.known.keys() == {"a:9002", "a:9003"}
    for known in split.known.values():
        [(producer, model)] = known.items()
        assert producer == "a:9001"
        assert model.transfer_s(1_600) == pytest.approx(split.link.seconds(100))
    blind = made(PAIR, calibration={"online": False}).fleet.split
    assert blind is not None
    assert not any(blind.known.values())


def test_limits_and_the_scrape_period_are_the_configurations() -> None:
    limits = {"queue_size": 7, "queue_timeout_s": 3, "max_in_flight": 11}
    fleet = made(ONE, limits=limits, polling={"interval_s": 5}).fleet
    assert (fleet.max_queued, fleet.max_wait_s, fleet.in_flight) == (7, 3.0, 11)
    assert fleet.delays.scrape_s == 5.0


# --- policies -------------------------------------------------------------------------------------------


def test_a_policy_decides_in_the_pools_that_it_is_for() -> None:
    scenario = made(PAIR)
    preble = scenario.under(Choosing(policy="preble", params={"window_s": 60}))
    assert [(pool.policy, dict(pool.params)) for pool in preble.pools] == [
        ("preble", {"window_s": 60}),
        ("least_requests", {}),
    ]
    assert [pool.policy for pool in scenario.under(Choosing(policy="random")).pools] == ["random", "random"]
    assert scenario.under(scenario.configured) is scenario.fleet
    assert scenario.configured.policy == "cache_aware + least_requests"


def test_what_fits_is_what_the_configuration_would_take() -> None:
    fitting, left_out = made(ONE).fitting()
    assert fitting[0] == Choosing(policy="least_requests")
    assert {each.policy for each in fitting} == set(POLICIES) - {"balance_route_0", "balance_route_h"}
    assert all("set pools.default.slots" in sentence for sentence in left_out)
    fitting, left_out = made(with_pool("default", slots=8)).fitting()
    assert {each.policy for each in fitting} == set(POLICIES)
    assert left_out == []


def test_a_policy_that_fits_nowhere_is_refused_in_the_words_of_the_configuration() -> None:
    with pytest.raises(ScenarioError, match=r"pools\.d\.workers\[0\] has no slots"):
        made(PAIR).under(Choosing(policy="balance_route_0"))
    with pytest.raises(ScenarioError, match="policy 'prebel' is unknown"):
        made(PAIR).under(Choosing(policy="prebel"))


# --- promises -------------------------------------------------------------------------------------------


def test_classes_come_from_keys_and_what_is_promised_from_the_slo_section() -> None:
    scenario = made(
        ONE,
        slo={"tight": {"ttft_s": 0.2, "tpot_s": 0.04}, "default_class": "loose"},
        auth={"client_api_keys": [{"key": "k", "tenant": "acme", "class": "tight"}]},
    )
    assert scenario.targets["tight"].ttft_s == 0.2
    assert scenario.targets[""].ttft_s == pytest.approx(0.6)
    assert scenario.classes == {"acme": "tight", "": "loose"}
    toolbench = dataclasses.replace(scenario, load=Load(workload="toolbench", requests=20, rate=5.0))
    assert {call.slo for call in toolbench.calls(20, 5.0, 1)} == {"loose"}
    assert {call.slo for call in scenario.calls(20, 5.0, 1)} == {"loose", "tight"}
    assert made(ONE).targets == {}


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        (
            {"pools": {"default": {"workers": ["http://gpu-1:8000"]}}},
            "nothing says how fast the worker gpu-1:8000 is: no group of mock.fleet has the port 8000, and "
            "calibration.file is not set; describe it in mock.fleet",
        ),
        ({"pools": {"default": {}}}, "a pool has no workers, so there is nothing to simulate"),
        (with_group(model="gpt-7"), r"mock.fleet\[0\]: model gpt-7: not known. Known: .*qwen2.5-3b"),
        (with_group(kv_tokens=100, flags={"max-model-len": 4096}), "kv_tokens 100, max_model_len"),
        (with_group(flags={"block-size": "big"}), r"fleet\[0\]: block-size is 'big', and must be"),
        (with_group(flags={"block-size": 1.5}), "block-size is 1.5, and must be a whole number"),
        (with_group(flags={"scheduling": "lifo"}), "scheduling-policy lifo is not known. Known: fcfs"),
        (with_group(flags={"dp-size": 4}), "has 4 data-parallel ranks, but the worker a:9001 1; .*dp_size"),
        (
            {"pools": {"a": {"model": "a", "workers": ["http://a:9001"]}, "b": {"model": "b"}}},
            "there are the pools a, b, and a simulation has one pool or one pair",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_refused_with_what_it_lacks(tree: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        made(tree)


def test_measured_engines_of_a_pair_need_measured_transfers(tmp_path: Path) -> None:
    file = tmp_path / "calibration.yaml"
    workers = CALIBRATION + "\n".join(
        line.replace("9001", "9002") for line in CALIBRATION.splitlines() if line.startswith("  ")
    )
    file.write_text(workers)
    tree = {
        "pools": {
            "p": {"role": "prefill", "workers": ["http://a:9001"]},
            "d": {"role": "decode", "workers": ["http://a:9002"]},
        },
        "calibration": {"file": file},
    }
    with pytest.raises(ScenarioError, match="nothing says how long a KV transfer to a:9002 takes"):
        made(tree)
    file.write_text(
        workers
        + '\ntransfers: [{prefill: "a:9001", decode: "a:9002", connector: nixl, base_s: 0.01, '
        + "per_token_s: 1.0e-6}]\n"
    )
    split = made(tree).fleet.split
    assert split is not None
    assert split.link.seconds(10) == pytest.approx(0.01 + 160e-6)


def test_troubles_happen_to_workers_that_are_there() -> None:
    crash = {"at_s": 3, "worker": "a:9002", "what": "crash"}
    scenario = made(ONE, workload={"name": "chat_short", "rate": 5, "troubles": [crash]})
    assert scenario.fleet.troubles == (Trouble(3.0, "a:9002", "crash"),)
    wrong = {**crash, "worker": "a:9003"}
    with pytest.raises(ScenarioError, match=r"troubles\[0\].worker is 'a:9003', which is no worker; did you"):
        made(ONE, workload={"name": "chat_short", "rate": 5, "troubles": [wrong]})


# --- loads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({}, "it has no workload, and so is a configuration but no scenario"),
        ({"name": "toolbenhc"}, "workload.name is 'toolbenhc', which is unknown; did you mean toolbench?"),
        ({"name": "toolbench"}, "workload.rate is required: how many calls of toolbench come per second"),
        ({"name": "classic_heavy_tail"}, "whose calls have no tokens; it is for pointsman compare alone"),
    ],
)
def test_a_load_that_says_too_little_is_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        Load.of(WorkloadSettings(**keys))


def test_the_arrival_process_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    times = tmp_path / "times.csv"
    rows = "".join(f"2023-11-16 18:17:0{at},100,10\n" for at in (0, 1, 2, 6))
    times.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)

    def arrivals(**keys: Any) -> list[float]:
        load = Load.of(WorkloadSettings(name="chat_short", **keys))
        return [call.at for call in load.calls(5, load.rate, 1)]

    assert arrivals(arrivals="saturated") == [0.0] * 5
    stretched = arrivals(rate=0.5, arrivals="trace", arrivals_file=times)
    gaps = [after - before for before, after in pairwise(stretched)]
    assert gaps == pytest.approx([1.0, 1.0, 4.0, 2.0])
    processes = [arrivals(rate=2.0, arrivals=process) for process in ("poisson", "gamma", "bursts")]
    assert len({tuple(each) for each in processes}) == 3
    assert arrivals(rate=2.0, arrivals="gamma", arrivals_cv=9.0) != processes[1]
    times.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:00,100,10\n")
    with pytest.raises(ScenarioError, match=r"workload\.arrivals_file cannot be used: .* at least two times"):
        arrivals(rate=0.5, arrivals="trace", arrivals_file=times)
