"""Laws of a whole calibration of mock engines, in virtual time: the engines' own laws are found again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from engines.mock.settings import MockSettings
from engines.model.handover import TransferLink
from engines.model.roofline import Roofline
from engines.model.specs import GPUS, MODELS
from router.core.worker import Role
from router.settings import Settings
from router.settings.calibration_file import CalibrationFile, WorkerMeasured
from router.studies.calibrate.fleet import fleet_of
from router.studies.calibrate.grid import Effort
from router.studies.calibrate.probe import ProbeFailed
from router.studies.calibrate.session import GatesFailed, Options, calibrate
from router.virtual.clock import run
from router.virtual.network import Network
from tests.studies.calibrate_stage import START, calibrated, colocated, engines, pair, world

QUICK = Effort(quick=True)
A40 = Roofline(MODELS["qwen2.5-3b"], GPUS["a40"])
BATCHED_TOKENS = 2048
"""Of one step of the mock on this GPU."""
NEAR = 0.10
SMALL: dict[str, Any] = {"kv_tokens": 20_000, "max_model_len": 1024}
"""An engine that is soon measured."""


def true_prefill_s(tokens: int, roofline: Roofline = A40) -> float:
    """A prompt in chunks, one a step."""
    starts = range(0, tokens, BATCHED_TOKENS)
    return math.fsum(roofline.step_s([(min(BATCHED_TOKENS, tokens - start), start)], []) for start in starts)


def error_of(worker: WorkerMeasured, roofline: Roofline = A40) -> tuple[float, float]:
    """Mean relative error of the prefill and of the step law over what was measured."""
    prefill, step = worker.prefill, worker.step
    assert prefill is not None
    assert step is not None
    lengths = [
        length for length in (128, 256, 512, 1024, 2048, 4096, 8192) if length <= prefill.longest_tokens
    ]
    prefills = [abs(prefill.seconds(p) / true_prefill_s(p, roofline) - 1) for p in lengths]
    points = [(n, context) for n in (1, 4, 16) for context in (128, 2048)]
    steps = [
        abs(step.seconds(n, n * context) / roofline.step_s([], [context] * n) - 1) for n, context in points
    ]
    return sum(prefills) / len(prefills), sum(steps) / len(steps)


@pytest.fixture(scope="module")
def two() -> CalibrationFile:
    """Two alike."""
    return calibrated(colocated("a", "b"), {name: MockSettings() for name in "ab"}, effort=QUICK)


def test_the_laws_of_an_engine_are_found_within_a_tenth(two: CalibrationFile) -> None:
    for worker in two.workers.values():
        prefill_error, step_error = error_of(worker)
        assert prefill_error < NEAR
        assert step_error < 0.01


def test_what_reads_memory_alone_has_no_cost_per_sequence(two: CalibrationFile) -> None:
    """The roofline of a decode step is weights and KV over bandwidth."""
    step = two.workers["a"].step
    assert step is not None
    assert step.per_sequence_s < 1e-6
    assert step.per_kv_token_s == pytest.approx(A40.step_s([], [10_000]) - A40.step_s([], [9_999]), rel=0.02)
    assert step.base_s == pytest.approx(A40.step_s([], [1]), rel=0.01)


def test_the_file_says_what_was_measured_and_when(two: CalibrationFile) -> None:
    worker = two.workers["a"]
    assert (worker.url, worker.role, worker.model) == ("http://a:8000", Role.BOTH, "qwen2.5-3b")
    assert worker.engine_version == "0.32.0"
    assert worker.kv_capacity_tokens == 1_030_480
    assert worker.bytes_per_token == pytest.approx(4.0, rel=0.01)
    assert two.measured > START
    assert two.notes == ()
    assert two.transfers == ()


def test_all_gates_are_passed_by_engines_that_are_alike(two: CalibrationFile) -> None:
    assert [gate.name for gate in two.gates] == ["token counts", "equal tokenizers", "greedy answers"]
    assert all(gate.passed for gate in two.gates)


def test_targets_rest_on_the_operating_point(two: CalibrationFile) -> None:
    slo = two.slo["qwen2.5-3b"]
    step_s = A40.step_s([], [slo.context_tokens] * slo.sequences)
    assert slo.tight.tpot_s == pytest.approx(2.5 * step_s, rel=0.02)
    assert slo.tight.ttft_s == pytest.approx(2.5 * (true_prefill_s(slo.prompt_tokens) + step_s), rel=0.02)
    assert slo.loose.tpot_s == pytest.approx(3 * slo.tight.tpot_s)


def test_kv_is_most_of_a_step_of_a_full_engine_with_so_much_kv(two: CalibrationFile) -> None:
    for share in two.kv_share:
        true = 1 - A40.step_s([], [1]) / A40.step_s([], [share.context_tokens] * share.sequences)
        assert share.share == pytest.approx(true, abs=0.02)


def test_a_faster_gpu_is_told_from_a_slower_one() -> None:
    found = calibrated(
        colocated("fast", "slow"),
        {
            "slow": MockSettings(),
            "fast": MockSettings(gpu="h100", kv_tokens=200_000, max_num_batched_tokens=2048),
        },
        effort=QUICK,
    )
    h100 = Roofline(MODELS["qwen2.5-3b"], GPUS["h100"])
    assert max(error_of(found.workers["slow"])) < NEAR
    assert max(error_of(found.workers["fast"], h100)) < NEAR
    fast, slow = found.workers["fast"].step, found.workers["slow"].step
    assert fast is not None
    assert slow is not None
    assert fast.base_s < slow.base_s / 3


def test_measured_alone_or_side_by_side_engines_give_the_same() -> None:
    mocks = {name: MockSettings(**SMALL) for name in "ab"}
    together = calibrated(colocated("a", "b"), mocks, effort=QUICK)
    alone = calibrated(colocated("a", "b"), mocks, effort=QUICK, one_at_a_time=True)
    for law, same in ((alone.workers[name].step, together.workers[name].step) for name in "ab"):
        assert law is not None
        assert same is not None
        assert law.seconds(16, 10_000) == pytest.approx(same.seconds(16, 10_000), rel=1e-6)
    assert alone.measured > together.measured


@cache
def handing_over(connector: str) -> CalibrationFile:
    """The measurement of one pair."""
    shared: dict[str, Any] = {"dialect": "sglang"} if connector == "sglang" else {"kv_connector": connector}
    mocks = {
        "p": MockSettings(role="prefill", **shared),
        "d": MockSettings(role="decode", **shared),
    }
    return calibrated(pair(["p"], ["d"], connector), mocks, effort=QUICK)


@pytest.mark.parametrize("connector", ["nixl", "mooncake", "sglang"])
def test_a_hand_over_takes_latency_and_bytes_over_bandwidth(connector: str) -> None:
    found = handing_over(connector)
    link = TransferLink(
        block_bytes=16 * MODELS["qwen2.5-3b"].kv_bytes_per_token, bytes_per_s=200e9 / 8, latency_s=0.002
    )
    (transfer,) = found.transfers
    assert (transfer.prefill, transfer.decode, transfer.connector) == ("p", "d", connector)
    for tokens in (256, 1024, 8192):
        assert transfer.model.transfer_s(tokens) == pytest.approx(link.seconds(tokens // 16), rel=NEAR)
    prefill, step = found.workers["p"].prefill, found.workers["d"].step
    assert prefill is not None
    assert step is not None
    errors = [abs(prefill.seconds(p) / true_prefill_s(p) - 1) for p in (256, 1024, 4096, 8192)]
    assert sum(errors) / len(errors) < NEAR
    assert step.base_s == pytest.approx(A40.step_s([], [1]), rel=0.01)


def test_engines_that_serve_nothing_alone_have_no_law_for_what_they_do_not_do() -> None:
    found = handing_over("sglang")
    assert found.workers["p"].step is None
    assert found.workers["d"].prefill is None
    assert found.slo["qwen2.5-3b"].tight.ttft_s > 0


def test_every_pair_is_measured() -> None:
    mocks = {
        **{name: MockSettings(role="prefill", **SMALL) for name in ("p", "q")},
        **{name: MockSettings(role="decode", **SMALL) for name in ("d", "e")},
    }
    found = calibrated(pair(["p", "q"], ["d", "e"], "nixl"), mocks, effort=QUICK)
    assert [(one.prefill, one.decode) for one in found.transfers] == [
        ("p", "d"), ("p", "e"), ("q", "d"), ("q", "e"),
    ]  # fmt: skip


def test_an_engine_too_small_for_the_grid_is_measured_all_the_same() -> None:
    small = MockSettings(kv_tokens=1600, max_model_len=512)
    found = calibrated(colocated("a"), {"a": small}, effort=QUICK)
    assert max(error_of(found.workers["a"])) < 0.25
    step = found.workers["a"].step
    assert step is not None
    assert step.most_kv_tokens <= 1600


def test_ranks_of_one_engine_are_measured_one_after_the_other() -> None:
    found = calibrated(colocated("a", dp_size=2, slots=64), {"a": MockSettings(dp_size=2)}, effort=QUICK)
    assert list(found.workers) == ["a@0", "a@1"]
    for rank in found.workers.values():
        assert max(error_of(rank)) < NEAR
    assert {share.sequences for share in found.kv_share} == {64}


def test_a_context_shorter_than_a_page_of_text_is_enough() -> None:
    found = calibrated(colocated("a"), {"a": MockSettings(max_model_len=300)}, effort=QUICK)
    worker = found.workers["a"]
    assert worker.bytes_per_token == pytest.approx(4.0, rel=0.02)
    assert worker.prefill is not None
    assert worker.prefill.longest_tokens < 300


def test_fewer_sequences_than_nobody_told_of_are_noticed() -> None:
    found = calibrated(colocated("a"), {"a": MockSettings(max_num_seqs=8, **SMALL)}, effort=QUICK)
    step = found.workers["a"].step
    assert step is not None
    assert step.most_sequences == 4
    assert any("did not run 16 sequences" in note for note in found.notes)


def test_slots_that_are_told_bound_what_is_tried() -> None:
    found = calibrated(colocated("a", slots=8), {"a": MockSettings(max_num_seqs=8)}, effort=QUICK)
    step = found.workers["a"].step
    assert step is not None
    assert step.most_sequences == found.slo["qwen2.5-3b"].sequences == 8
    assert found.notes == ()


def failed_gates(mocks: Mapping[str, MockSettings]) -> GatesFailed:
    with pytest.raises(GatesFailed) as caught:
        calibrated(colocated(*mocks), mocks, effort=QUICK)
    return caught.value


def test_an_engine_with_other_weights_fails_the_greedy_gate_by_name() -> None:
    error = failed_gates({"a": MockSettings(), "b": MockSettings(), "odd": MockSettings(seed=1)})
    (failed,) = [gate for gate in error.gates if not gate.passed]
    assert failed.name == "greedy answers"
    assert failed.workers == ("odd",)
    assert "odd answers greedy prompt 1 with" in str(error)


def test_a_failed_gate_can_be_overlooked_and_stays_in_the_file() -> None:
    mocks = {"a": MockSettings(**SMALL), "b": MockSettings(seed=1, **SMALL)}
    found = calibrated(colocated("a", "b"), mocks, effort=QUICK, despite_gates=True)
    assert [gate.workers for gate in found.gates if not gate.passed] == [("a", "b")]
    assert found.workers["b"].step is not None


def fails(settings: Settings, mocks: Mapping[str, MockSettings]) -> str:
    with pytest.raises(ProbeFailed) as caught:
        calibrated(settings, mocks, effort=QUICK)
    return str(caught.value)


def test_an_engine_that_is_not_there_is_named() -> None:
    assert "worker b at http://b:8000 does not answer /v1/models" in fails(
        colocated("a", "b"), {"a": MockSettings()}
    )


def test_a_model_that_is_not_served_is_a_sentence_with_those_that_are() -> None:
    said = fails(colocated("a", model="llama"), {"a": MockSettings()})
    assert said == "worker a does not serve llama; it serves qwen2.5-3b"


def test_a_missing_key_is_asked_for() -> None:
    assert "is --api-key right?" in fails(colocated("a"), {"a": MockSettings(api_key="secret")})


def test_engines_without_the_connector_are_told_of_it() -> None:
    mocks = {"p": MockSettings(role="prefill", kv_connector="none"), "d": MockSettings(role="decode")}
    assert "is nixl configured on both" in fails(pair(["p"], ["d"], "nixl"), mocks)


def test_cancelled_it_leaves_no_request_at_any_engine() -> None:
    async def main() -> None:
        network = Network()
        async with engines(network, {"a": MockSettings()}) as made:
            here = world(network)
            fleet = fleet_of(colocated("a"))
            task = asyncio.create_task(calibrate(Options(fleet=fleet, run="r", effort=QUICK), here))
            while made["a"].process.in_progress < 16:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await here.upstream.aclose()
            await asyncio.sleep(0.1)
            assert made["a"].process.in_progress == 0

    run(main())
