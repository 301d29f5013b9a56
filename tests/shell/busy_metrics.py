"""A router's metrics with everything in them: the exposition that dashboard and alerts are held to."""

from __future__ import annotations

from dataclasses import fields
from itertools import count

from router.core.calibration import COEFFICIENTS, Calibration, CalibrationState, Samples, StepErrors
from router.core.engine_stats import EngineStats
from router.core.policy import Choice
from router.core.predict_error import Errors
from router.core.step_model import StepModel
from router.kv_events.counters import KvEventCounters
from router.policies.round_watch import STAGES, RoundResult
from router.telemetry.choosing_gauges import ChoosingSample, ShadowSample
from router.telemetry.forecast_gauges import ForecastSample
from router.telemetry.metrics import Finish, Metrics, QueueSample, Snapshot, WorkerSample
from router.telemetry.prefix_gauges import PrefixPoolSample, PrefixSnapshot, PrefixWorkerSample


def busy() -> Metrics:
    """Workers of which one says everything, one nothing and one prefills; what others count moves."""
    tick = count(1)

    def snapshot() -> Snapshot:
        n = next(tick)
        queue = QueueSample(model="m", depth=2, depth_capacity=256, oldest_wait_s=0.5, prompt_pool_entries=1)
        return Snapshot(
            now=10.0, ready=True, in_flight=3, in_flight_capacity=10_000, body_bytes=4096,
            body_capacity_bytes=2**30, workers=workers(n), queues=[queue], bindings=[("p", True)],
            prefixes=prefixes(n), choosing=choosing(n), forecasts=forecasts(n),
        )  # fmt: skip

    return Metrics(snapshot, lambda name: name == "m", version="0.1.0")


def workers(n: int) -> list[WorkerSample]:
    stats = EngineStats(
        taken=9.0, running=3, waiting=1, kv_usage=0.4, kv_capacity_tokens=60_000,
        generation_tokens=9.0 * n, prefix_queries=100.0 * n, prefix_hits=40.0 * n, preemptions=1.0 * n,
    )  # fmt: skip
    known = Calibration(
        state=CalibrationState.ONLINE,
        step=StepModel(4e-3, 60e-6, 0.02, 1e-4, 1e-7, tokens_per_step=1.5),
        errors=StepErrors(**dict.fromkeys(COEFFICIENTS, 1e-9)),
        samples=Samples(step=120, prefill=30, transfer=7),
        updated=4.0, step_ratio=1.02, prefill_ratio=0.9,
    )  # fmt: skip
    return [
        WorkerSample(
            name="w1", model="m", role="both", state="ready", eligible=True, in_flight=3, kv_tokens=900,
            kv_capacity_tokens=60_000, slots=64, turns_waited_for=1, stats=stats, calibration=known,
        ),
        WorkerSample(name="w2", model="m", role="both", state="ejected", eligible=False, in_flight=0),
        WorkerSample(
            name="w3", model="m", role="prefill", state="ready", eligible=True, in_flight=1,
            held_tokens=9, stranded_tokens=9, saturated=True, drift_tokens=-3.5,
        ),
    ]  # fmt: skip


def prefixes(n: int) -> PrefixSnapshot:
    """An index, a worker whose events are followed and were compared, and one that publishes none."""
    numbers = {field.name: n for field in fields(KvEventCounters) if field.name != "up"}
    return PrefixSnapshot(
        pools=[
            PrefixPoolSample(
                pool="p", used_bytes=900, capacity_bytes=1000, evicted=n,
                entries={"text": 10, "blocks": 10, "events": 10},
            )
        ],
        workers=[
            PrefixWorkerSample(
                name="w1", model="m", role="both", trust=2, inexact=None, held_tokens=90.0,
                resident_tokens=96, errors={"events": 0.01, "dispatches": 0.2},
                biases={"events": -0.01, "dispatches": 0.2}, counters=KvEventCounters(up=True, **numbers),
            ),
            PrefixWorkerSample(
                name="w2", model="m", role="both", trust=1, inexact="no_endpoint", held_tokens=9.0,
                resident_tokens=None,
            ),
        ],
    )  # fmt: skip


def choosing(n: int) -> list[ChoosingSample]:
    verdicts = dict.fromkeys(("agreed", "equal", "dearer", "outranked", "refused"), n)
    shadow = ShadowSample(policy="preble", unit="seconds", verdicts=verdicts, regret=0.1 * n, busy_s=1e-3 * n)
    return [ChoosingSample(pool="p", policy="balance_route_h", shape="batch", shadows=[shadow])]


def forecasts(n: int) -> list[ForecastSample]:
    errors = Errors(
        samples=n, brier=0.1, baseline_brier=0.1, bias_steps=-2.0, length_error=0.2,
        baseline_length_error=0.2, mae_tokens=30.0,
    )  # fmt: skip
    return [
        ForecastSample(pool="p", trust=2, residents=3, known=2, errors={"overall": errors, "model": errors})
    ]


def live(metrics: Metrics) -> None:
    """A moment of life: one success, one failure, and one of everything else."""
    request = metrics.request("chat", "m")
    request.finished(
        Finish(status=200, duration_s=2.0, queue_s=0.01, overhead_s=0.0004, ttft_s=0.3, tpot_s=0.02,
               prompt_tokens=100, output_tokens=50, cached_tokens=64)
    )  # fmt: skip
    request.finished(Finish(status=502, duration_s=0.1, prompt_tokens=9))
    request.failed("upstream_closed", "decoding")
    request.retried("refused")
    request.inter_token.observe(0.02)
    request.judged("tight", met=True)
    request.judged("loose", met=False)
    for name in ("w1", "w2"):
        at = metrics.worker(name)
        at.chosen("least_requests", "least_load")
        at.chosen("calibrated", "fallback:scarcity")
        at.responded(200)
        at.responded(503)
        at.entered("ready")
        at.ttft.observe(0.2)
        at.scraped("timeout")
        at.probed("refused")
    hand_over(metrics)
    choose(metrics)
    metrics.client_left("queued")
    metrics.deadline_exceeded("idle")
    metrics.task_restarted("poller")
    metrics.request_log_dropped.add()
    metrics.decision_log_dropped.add()


def choose(metrics: Metrics) -> None:
    """A moment of decisions: one alone, one round, a turn and a tokenizer."""
    metrics.decided("least_requests", 2e-5)
    metrics.waited_turn("w1", 0.1)
    metrics.tokenized("p", "tokenized", 0.002)
    watch = metrics.rounds("p", lambda: 0.0)
    watch.began()
    for stage in STAGES:
        watch.stage_ended(stage)
    placed = [Choice("r1", "w1", reason="guard"), Choice("r2", "w1", reason="greedy")]
    watch.ended(RoundResult(3, placed, 5.0, 1.0))


def hand_over(metrics: Metrics) -> None:
    """A moment of prefill and decode workers: one of everything."""
    series = metrics.handover("m")
    series.split.add()
    series.unsplit("short")
    series.refused("no_prefill")
    for stretch in (series.prefill, series.pool_wait, series.transfer):
        stretch.observe(0.1)
    series.pool_expired()
    series.failed("decode", "timeout")
    series.offered_again()
    series.prefilled_again("failed")
    metrics.leg_cancelled("prefill", "client_left")
    metrics.released("stranded")
