"""A router's metrics with everything in them: the exposition that dashboard and alerts are held to."""

from __future__ import annotations

from itertools import count

from router.core.engine_stats import EngineStats
from router.telemetry.metrics import Finish, Metrics, QueueSample, Snapshot, WorkerSample


def busy() -> Metrics:
    """Workers of which one says everything, one nothing and one prefills; the engine's counters move."""
    tick = count(1)

    def snapshot() -> Snapshot:
        n = next(tick)
        stats = EngineStats(
            taken=9.0, running=3, waiting=1, kv_usage=0.4, kv_capacity_tokens=60_000,
            generation_tokens=9.0 * n, prefix_queries=100.0 * n, prefix_hits=40.0 * n, preemptions=1.0 * n,
        )  # fmt: skip
        workers = [
            WorkerSample(
                name="w1", model="m", role="both", state="ready", eligible=True, in_flight=3, kv_tokens=900,
                kv_capacity_tokens=60_000, slots=64, stats=stats,
            ),
            WorkerSample(name="w2", model="m", role="both", state="ejected", eligible=False, in_flight=0),
            WorkerSample(
                name="w3", model="m", role="prefill", state="ready", eligible=True, in_flight=1,
                held_tokens=9, stranded_tokens=9, saturated=True, drift_tokens=-3.5,
            ),
        ]  # fmt: skip
        queue = QueueSample(model="m", depth=2, depth_capacity=256, oldest_wait_s=0.5, prompt_pool_entries=1)
        return Snapshot(
            now=10.0, ready=True, in_flight=3, in_flight_capacity=10_000, body_bytes=4096,
            body_capacity_bytes=2**30, workers=workers, queues=[queue], bindings=[("p", True)],
        )  # fmt: skip

    return Metrics(snapshot, lambda name: name == "m", version="0.1.0")


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
    for name in ("w1", "w2"):
        at = metrics.worker(name)
        at.chosen("least_requests", "least_load")
        at.responded(200)
        at.responded(503)
        at.entered("ready")
        at.ttft.observe(0.2)
        at.scraped("timeout")
        at.probed("refused")
    hand_over(metrics)
    metrics.decided("least_requests", 2e-5)
    metrics.client_left("queued")
    metrics.deadline_exceeded("idle")
    metrics.task_restarted("poller")
    metrics.request_log_dropped.add()


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
