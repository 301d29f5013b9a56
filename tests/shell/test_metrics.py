"""Laws of /metrics. The reader of prometheus-client is the independent judge of our text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from router.core.engine_stats import EngineStats
from router.core.errors import InternalError
from router.telemetry.exposition import SampleFamily, render_number
from router.telemetry.families import REQUEST_BOUNDS_S, Families
from router.telemetry.metrics import Finish, Metrics, QueueSample, Snapshot, WorkerSample
from router.telemetry.series import Counter, CounterFamily, Histogram, HistogramFamily

IDLE = Snapshot(now=10.0, ready=True, in_flight=0)


def worker(name: str, **given: object) -> WorkerSample:
    fields: dict[str, object] = {
        "name": name, "model": "m", "role": "both", "state": "ready", "eligible": True, "in_flight": 0,
    }  # fmt: skip
    return WorkerSample(**{**fields, **given})  # type: ignore[arg-type]  # a builder of examples


def metrics(
    snapshot: Snapshot = IDLE, *, models: frozenset[str] = frozenset({"m"}), limit: int = 256
) -> Metrics:
    return Metrics(lambda: snapshot, models.__contains__, version="0.1.0", max_request_series=limit)


def read(text: str) -> Mapping[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(of: Metrics, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(of.exposition().decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return None


def rendered(lines: Iterator[str]) -> str:
    return "".join(lines)


# --- series -------------------------------------------------------------------------------------------


def test_a_counter_refuses_to_fall() -> None:
    counter = Counter()
    counter.add(2)
    with pytest.raises(InternalError, match="fall by 1"):
        counter.add(-1)
    assert repr(counter) == "<Counter 2>"


def test_a_histogram_refuses_negative_time() -> None:
    with pytest.raises(InternalError, match="negative"):
        Histogram((1.0,)).observe(-1e-9)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(1, 5)), max_size=30))
def test_buckets_count_what_is_at_most_their_bound(observed: list[tuple[float, int]]) -> None:
    family = HistogramFamily("pointsman_x_seconds", "X.", REQUEST_BOUNDS_S, ("model",))
    series = family.series("m")
    for seconds, count in observed:
        series.observe(seconds, count)
    samples = read(rendered(family.render()))["pointsman_x_seconds"].samples
    for sample in samples:
        if sample.name.endswith("_bucket"):
            bound = float(sample.labels["le"])
            assert sample.value == sum(count for seconds, count in observed if seconds <= bound)
    total = next(s.value for s in samples if s.name.endswith("_sum"))
    assert total == pytest.approx(sum(seconds * count for seconds, count in observed))
    assert next(s.value for s in samples if s.name.endswith("_count")) == series.count


def test_bounds_reach_from_a_millisecond_to_an_hour() -> None:
    assert REQUEST_BOUNDS_S[0] == 0.001
    assert REQUEST_BOUNDS_S[-1] == 3600
    for family in Families():
        if isinstance(family, HistogramFamily):
            bounds = family.series(*("x" for _ in family.labels)).bounds
            assert list(bounds) == sorted(set(bounds))


def test_a_family_at_its_limit_counts_into_other() -> None:
    family = CounterFamily("pointsman_x_total", "X.", ("code",), limit=2)
    for code in ("a", "b", "c", "d", "a"):
        family.series(code).add()
    samples = {s.labels["code"]: s.value for s in read(rendered(family.render()))["pointsman_x"].samples}
    assert samples == {"a": 2, "b": 1, "other": 2}


# --- text ---------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False), max_size=5))
def test_any_label_and_any_number_read_back(samples: dict[str, float]) -> None:
    family = SampleFamily("pointsman_x", 'Quotes " and \\ and\nlines.', ("worker",))
    for label, number in samples.items():
        family.set(number, label)
    got = read(rendered(family.render()))["pointsman_x"]
    assert {s.labels["worker"]: s.value for s in got.samples} == samples
    assert got.documentation == 'Quotes " and \\ and\nlines.'


def test_a_lone_surrogate_costs_one_letter_and_not_the_scrape() -> None:
    family = SampleFamily("pointsman_x", "X.", ("model",))
    family.set(1, "bad\ud800name")
    assert 'model="bad?name"' in rendered(family.render()).encode().decode()


def test_numbers_are_short() -> None:
    assert [render_number(n) for n in (3, 3.0, 0.1, math.inf, -math.inf, math.nan)] == [
        "3", "3", "0.1", "+Inf", "-Inf", "NaN",
    ]  # fmt: skip


def test_two_samples_with_equal_labels_become_one() -> None:
    snapshot = Snapshot(now=0, ready=True, in_flight=0, workers=[worker("w"), worker("w", in_flight=1)])
    assert (
        value(metrics(snapshot), "pointsman_worker_requests_in_flight", worker="w", model="m", role="both")
        == 1
    )


# --- state --------------------------------------------------------------------------------------------


def test_an_idle_router_shows_zero_everywhere() -> None:
    snapshot = Snapshot(
        now=0, ready=True, in_flight=0, workers=[worker("w")], queues=[QueueSample(model="m", depth=0)]
    )
    families = read(metrics(snapshot).exposition().decode())
    for name in (
        "pointsman_requests_in_flight",
        "pointsman_worker_requests_in_flight",
        "pointsman_worker_kv_tokens",
        "pointsman_prompt_pool_entries",
        "pointsman_queue_depth",
    ):
        assert [s.value for s in families[name].samples] == [0], name


def test_gauges_follow_the_snapshot_and_nothing_else() -> None:
    now = IDLE
    counted = Metrics(lambda: now, lambda name: True, version="0")
    now = Snapshot(
        now=0, ready=False, in_flight=7, workers=[worker("w", in_flight=4, kv_tokens=99, slots=16)]
    )
    labels = {"worker": "w", "model": "m", "role": "both"}
    assert value(counted, "pointsman_requests_in_flight") == 7
    assert value(counted, "pointsman_worker_kv_tokens", **labels) == 99
    assert value(counted, "pointsman_worker_slot_capacity", **labels) == 16
    assert value(counted, "pointsman_ready") == 0
    now = IDLE
    assert value(counted, "pointsman_requests_in_flight") == 0
    assert value(counted, "pointsman_worker_kv_tokens", **labels) is None


def test_what_is_unknown_is_absent_and_not_zero() -> None:
    snapshot = Snapshot(now=5.0, ready=True, in_flight=0, workers=[worker("w")])
    families = read(metrics(snapshot).exposition().decode())
    for name in ("worker_kv_capacity_tokens", "worker_slot_capacity", "requests_in_flight_capacity"):
        assert families[f"pointsman_{name}"].samples == [], name
    assert families["pointsman_worker_engine_running"].samples == []
    assert families["pointsman_worker_scrape_age_seconds"].samples == []


def test_a_missing_signal_says_so() -> None:
    stats = EngineStats(taken=3.0, running=0, kv_usage=0.25, preemptions=4.0)
    snapshot = Snapshot(now=5.0, ready=True, in_flight=0, workers=[worker("w", stats=stats)])
    scraped = metrics(snapshot)
    assert value(scraped, "pointsman_worker_engine_running", worker="w") == 0
    assert value(scraped, "pointsman_worker_engine_waiting", worker="w") is None
    assert value(scraped, "pointsman_worker_signal_missing", worker="w", signal="running") == 0
    assert value(scraped, "pointsman_worker_signal_missing", worker="w", signal="waiting") == 1
    assert value(scraped, "pointsman_worker_engine_preemptions_total", worker="w") == 4
    assert value(scraped, "pointsman_worker_scrape_age_seconds", worker="w") == 2


def test_a_worker_is_in_one_state() -> None:
    snapshot = Snapshot(
        now=0, ready=True, in_flight=0, workers=[worker("w", state="ejected", eligible=False)]
    )
    families = read(metrics(snapshot).exposition().decode())
    assert [s.labels["state"] for s in families["pointsman_worker_state"].samples] == ["ejected"]
    assert [s.value for s in families["pointsman_worker_eligible"].samples] == [0]


# --- events -------------------------------------------------------------------------------------------


def test_a_finished_request_is_counted_once_in_every_place() -> None:
    counted = metrics()
    counted.request("chat", "m").finished(
        Finish(
            status=200, duration_s=2.0, queue_s=0.0, overhead_s=0.0004, ttft_s=0.3, tpot_s=0.02,
            prompt_tokens=100, output_tokens=50, cached_tokens=64,
        )
    )  # fmt: skip
    assert value(counted, "pointsman_requests_total", api="chat", model="m", status="200") == 1
    for name in ("request_duration", "ttft", "tpot"):
        assert value(counted, f"pointsman_{name}_seconds_count", api="chat", model="m") == 1, name
    for name in ("queue", "overhead"):
        assert value(counted, f"pointsman_{name}_seconds_count", model="m") == 1, name
    tokens = {c: value(counted, "pointsman_prompt_tokens_total", model="m", cache=c) for c in ("hit", "miss")}
    assert tokens == {"hit": 64, "miss": 36}
    assert value(counted, "pointsman_output_tokens_total", model="m") == 50


def test_what_was_not_measured_is_not_observed() -> None:
    counted = metrics()
    counted.request("chat", "m").finished(Finish(status=499, duration_s=0.1, prompt_tokens=7))
    assert value(counted, "pointsman_ttft_seconds_count", api="chat", model="m") == 0
    assert value(counted, "pointsman_queue_seconds_count", model="m") == 0
    assert value(counted, "pointsman_prompt_tokens_total", model="m", cache="unreported") == 7
    assert value(counted, "pointsman_prompt_tokens_total", model="m", cache="hit") == 0


def test_more_hits_than_prompt_never_make_a_negative_miss() -> None:
    counted = metrics()
    counted.request("chat", "m").finished(
        Finish(status=200, duration_s=1, prompt_tokens=10, cached_tokens=12)
    )
    assert value(counted, "pointsman_prompt_tokens_total", model="m", cache="hit") == 10
    assert value(counted, "pointsman_prompt_tokens_total", model="m", cache="miss") == 0


def test_every_event_has_its_counter() -> None:
    counted = metrics(Snapshot(now=0, ready=True, in_flight=0, workers=[worker("w")]))
    request, at = counted.request("chat", "m"), counted.worker("w")
    request.failed("upstream_closed", "decode")
    request.retried("refused")
    request.inter_token.observe(0.02, 3)
    at.chosen("least_requests", "least_load")
    at.responded(503)
    at.responded(None)
    at.entered("ejected")
    at.scraped("timeout")
    at.probed("ok")
    at.ttft.observe(0.1)
    counted.decided("least_requests", 2e-5)
    counted.client_left("queued")
    counted.deadline_exceeded("idle")
    counted.task_restarted("poller")
    counted.request_log_dropped.add(3)
    counted.decision_log_dropped.add(2)
    for expected, name, labels in (
        (1, "request_errors_total", {"model": "m", "code": "upstream_closed", "phase": "decode"}),
        (1, "retries_total", {"model": "m", "reason": "refused"}),
        (3, "inter_token_seconds_count", {"api": "chat", "model": "m"}),
        (1, "policy_decisions_total", {"policy": "least_requests", "reason": "least_load", "worker": "w"}),
        (1, "upstream_responses_total", {"worker": "w", "code": "503"}),
        (1, "upstream_responses_total", {"worker": "w", "code": "none"}),
        (1, "worker_transitions_total", {"worker": "w", "state": "ejected"}),
        (1, "worker_scrapes_total", {"worker": "w", "outcome": "timeout"}),
        (1, "worker_probes_total", {"worker": "w", "outcome": "ok"}),
        (1, "worker_ttft_seconds_count", {"worker": "w"}),
        (1, "decision_seconds_count", {"policy": "least_requests"}),
        (1, "client_disconnects_total", {"phase": "queued"}),
        (1, "deadline_exceeded_total", {"phase": "idle"}),
        (1, "task_restarts_total", {"task": "poller"}),
        (3, "request_log_dropped_lines_total", {}),
        (2, "decision_log_dropped_lines_total", {}),
    ):
        assert value(counted, f"pointsman_{name}", **labels) == expected, (name, labels)


# --- labels -------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=8), max_size=40))
def test_names_made_up_by_clients_never_become_labels(names: list[str]) -> None:
    counted = metrics()
    for name in names:
        counted.request("chat", name).finished(Finish(status=404, duration_s=0.001))
    samples = read(counted.exposition().decode())["pointsman_requests"].samples
    assert {s.labels["model"] for s in samples} <= {"m", "other"}
    assert sum(s.value for s in samples) == len(names)


def test_models_beyond_the_limit_share_one_label() -> None:
    counted = metrics(models=frozenset({"a", "b", "c"}), limit=2)
    for name in ("a", "b", "c", "a"):
        counted.request("chat", name).finished(Finish(status=200, duration_s=0.001))
    samples = read(counted.exposition().decode())["pointsman_requests"].samples
    assert {s.labels["model"]: s.value for s in samples} == {"a": 2, "b": 1, "other": 1}


def test_a_model_that_appears_later_gets_its_own_label() -> None:
    models: set[str] = set()
    counted = Metrics(lambda: IDLE, lambda name: name in models, version="0")
    counted.request("chat", "late").retried("refused")
    models.add("late")
    counted.request("chat", "late").retried("refused")
    assert value(counted, "pointsman_retries_total", model="other", reason="refused") == 1
    assert value(counted, "pointsman_retries_total", model="late", reason="refused") == 1


def test_series_of_a_worker_leave_with_it() -> None:
    now = Snapshot(now=0, ready=True, in_flight=0, workers=[worker("stays"), worker("leaves")])
    counted = Metrics(lambda: now, lambda name: True, version="0")
    for name in ("stays", "leaves"):
        counted.worker(name).chosen("random", "random")
        counted.worker(name).ttft.observe(1.0)
    assert b'"leaves"' in counted.exposition()
    kept = counted.worker("leaves")
    now = Snapshot(now=1, ready=True, in_flight=0, workers=[worker("stays")])
    assert b'"leaves"' not in counted.exposition()
    kept.responded(200)
    counted.worker("leaves").responded(200)
    text = counted.exposition()
    assert b'"leaves"' not in text
    assert b'"stays"' in text


def test_a_worker_that_comes_back_starts_at_zero() -> None:
    now = Snapshot(now=0, ready=True, in_flight=0, workers=[worker("w")])
    counted = Metrics(lambda: now, lambda name: True, version="0")
    counted.worker("w").responded(200)
    now = IDLE
    counted.exposition()
    now = Snapshot(now=2, ready=True, in_flight=0, workers=[worker("w")])
    counted.worker("w").responded(200)
    assert value(counted, "pointsman_upstream_responses_total", worker="w", code="200") == 1


# --- the whole ----------------------------------------------------------------------------------------


def test_every_name_has_our_prefix_or_is_of_the_process() -> None:
    for name in read(metrics().exposition().decode()):
        assert name.startswith(("pointsman_", "process_")), name


def test_every_family_is_announced_before_its_first_series() -> None:
    announced = read(metrics().exposition().decode())
    for family in Families():
        assert family.name.removesuffix("_total") in announced
        assert family.description.endswith(".")


def test_capacities_carry_the_word_in_their_name() -> None:
    names = {name for name in read(metrics().exposition().decode()) if "capacity" in name}
    assert {"pointsman_requests_in_flight_capacity", "pointsman_queue_capacity"} <= names


def test_two_routers_in_one_process_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/nonexistent")
    first, second = metrics(), metrics()
    first.client_left("queued")
    assert value(first, "pointsman_client_disconnects_total", phase="queued") == 1
    assert value(second, "pointsman_client_disconnects_total", phase="queued") is None


def test_state_is_visible_in_the_repr() -> None:
    counted = metrics()
    counted.request("chat", "m")
    counted.worker("w")
    assert repr(counted) == "<Metrics [1 apis and models | 1 workers]>"
    assert repr(counted.request("chat", "m")) == "<RequestSeries chat m>"
    assert repr(counted.worker("w")) == "<WorkerSeries w>"
    assert repr(CounterFamily("pointsman_x_total", "X.")) == "<CounterFamily pointsman_x_total [0 series]>"
    assert repr(SampleFamily("pointsman_x", "X.")) == "<SampleFamily pointsman_x [0 samples]>"
    assert repr(Histogram((1.0,))) == "<Histogram [0 observed | sum 0]>"
