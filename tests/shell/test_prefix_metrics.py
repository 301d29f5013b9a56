"""Laws of the figures of prefix index and KV events: all are there, and absent is not 0."""

from __future__ import annotations

from dataclasses import fields

from prometheus_client.parser import text_string_to_metric_families

from router.kv_events.counters import KvEventCounters
from router.telemetry.prefix_gauges import (
    COUNTERS,
    PrefixPoolSample,
    PrefixSnapshot,
    PrefixWorkerSample,
    prefix_gauges,
)


def shown(snapshot: PrefixSnapshot) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by the name of their series."""
    text = "".join("".join(family.render()) for family in prefix_gauges(snapshot))
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def worker(**given: object) -> PrefixWorkerSample:
    known: dict[str, object] = {
        "name": "a", "model": "m", "role": "both", "trust": 1, "inexact": "no_endpoint",
        "held_tokens": 12.5, "resident_tokens": None,
    }  # fmt: skip
    return PrefixWorkerSample(**{**known, **given})  # type: ignore[arg-type]  # a builder of examples


def test_everything_that_is_counted_is_shown() -> None:
    counted = {field.name for field in fields(KvEventCounters)} - {"up"}
    assert set(COUNTERS) == counted
    numbers = {name: place for place, name in enumerate(sorted(counted), start=1)}
    samples = shown(PrefixSnapshot(workers=[worker(counters=KvEventCounters(up=True, **numbers))]))
    for name, number in numbers.items():
        assert samples[f"pointsman_worker_kv_events_{name}_total"] == [({"worker": "a"}, number)]


def test_of_a_worker_that_is_not_followed_nothing_is_claimed() -> None:
    samples = shown(PrefixSnapshot(workers=[worker()]))
    labels = {"worker": "a", "model": "m", "role": "both"}
    assert samples == {
        "pointsman_worker_prefix_held_tokens": [(labels, 12.5)],
        "pointsman_worker_prefix_trust": [(labels, 1)],
        "pointsman_worker_prefix_inexact": [({**labels, "reason": "no_endpoint"}, 1)],
    }


def test_errors_are_shown_by_what_predicted() -> None:
    one = worker(inexact=None, errors={"events": 0.1, "dispatches": 0.2}, biases={"events": -0.1})
    samples = shown(PrefixSnapshot(workers=[one]))
    assert {labels["by"]: value for labels, value in samples["pointsman_worker_prefix_error_ratio"]} == {
        "events": 0.1,
        "dispatches": 0.2,
    }
    assert samples["pointsman_worker_prefix_bias_ratio"] == [({"worker": "a", "by": "events"}, -0.1)]
    assert "pointsman_worker_prefix_inexact" not in samples


def test_an_index_shows_its_size_and_its_bound() -> None:
    pool = PrefixPoolSample(
        pool="p", used_bytes=10, capacity_bytes=100, entries={"text": 1, "events": 2}, evicted=3
    )
    samples = shown(PrefixSnapshot(pools=[pool]))
    assert samples["pointsman_prefix_index_bytes"] == [({"pool": "p"}, 10)]
    assert samples["pointsman_prefix_index_capacity_bytes"] == [({"pool": "p"}, 100)]
    assert samples["pointsman_prefix_index_evictions_total"] == [({"pool": "p"}, 3)]
    assert {labels["kind"]: value for labels, value in samples["pointsman_prefix_index_entries"]} == {
        "text": 1,
        "events": 2,
    }
