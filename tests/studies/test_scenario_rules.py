"""Every setting that changes where or when a request is served is simulated, or said not to be."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from router.settings import Settings
from router.settings.keys import all_keys
from router.studies.scenario import Scenario, scenario_of
from router.studies.scenario_load import Load

LOAD = Load(workload="chat_short", requests=40, rate=5.0)
BASE: dict[str, Any] = {
    "pools": {
        "p": {"role": "prefill", "model": "m", "slots": 8, "workers": [{"url": "http://a:9001"}]},
        "d": {
            "role": "decode",
            "model": "m",
            "slots": 8,
            "workers": [{"url": "http://a:9002"}, {"url": "http://a:9003"}],
        },
    },
    "mock": {"fleet": [{"port": 9001, "count": 3}, {"port": 9101, "count": 3}]},
}
"""A pair, as most settings are about one."""

SIMULATED: dict[str, Any] = {
    "limits.max_in_flight": 11,
    "limits.queue_size": 7,
    "limits.queue_bytes": 4096,
    "limits.queue_timeout_s": 3,
    "timeouts.first_event_s": 9,
    "timeouts.idle_s": 9,
    "timeouts.prefill_s": 9,
    "timeouts.decode_first_event_s": 9,
    "timeouts.lease_margin_s": 9,
    "retry.enabled": False,
    "retry.max_retries": 1,
    "retry.budget_share": 0.5,
    "retry.budget_min": 3,
    "health.interval_s": 2,
    "health.timeouts_to_eject": 2,
    "health.failures_to_eject": 1,
    "health.warmup_s": 10,
    "health.stall_min_s": 5,
    "health.stall_max_s": 50,
    "health.min_in_rotation": 0.25,
    "polling.interval_s": 2,
    "polling.prefill_scrape_s": 0.5,
    "prefix_index.max_bytes": 2**21,
    "prefix_index.ttl_s": 60,
    "prefix_index.capacity_share": 0.5,
    "prefix_index.block_tokens": 64,
    "calibration.online": False,
    "pools.p.policy": "least_tokens",
    "pools.p.policy_params": {"cache_threshold": 0.4},
    "pools.d.slots": 16,
    "pools.d.barrier_group": "g",
    "pools.d.binding": "late",
    "pools.d.connector": "sglang",
    "pools.p.prefill_budget_high": 0.9,
    "pools.p.prefill_budget_low": 0.5,
    "pools.d.pd_split_min_tokens": 0,
    "pools.d.fallback": "strict",
    "pools.d.may_prefill": True,
    "pools.d.max_transfers_per_worker": 2,
    "pools.d.kv_lease_s": 60,
    "pools.p.local_queue": "fcfs",
    "pools.p.max_dispatched": 2,
    "pools.p.local_queue_ageing_s": 1,
    "pools.d.workers.0.url": "http://a:9101",
    "pools.d.workers.0.name": "x",
    "pools.d.workers.0.role": "both",
    "pools.d.workers.0.revision": "r2",
    "pools.d.workers.0.capacity": 2,
    "pools.d.workers.0.slots": 4,
    "pools.d.workers.0.barrier_group": "g",
    "pools.d.workers.0.may_prefill": True,
}
"""Another value of each setting that a simulated router keeps to."""

SIMULATED_ELSEWHERE = {
    "seed": "the seeds of a scenario are its runs",
    "calibration.file": "tests of engines",
    "pools.*.dp_size": "tests of ranks",
    "pools.*.workers[*].dp_size": "tests of ranks",
    "pools.*.mooncake_concurrent": "asks for the connector mooncake",
    "pools.*.role": "tests of pairs",
    "pools.*.model": "tests of models",
    "pools.*.workers": "every test",
    "pools.*.workers_file": "tests of workers files",
    "auth.client_api_keys": "tests of classes",
    "auth.client_api_keys[*].tenant": "tests of classes",
    "auth.client_api_keys[*].class": "tests of classes",
    "slo.default_class": "tests of classes",
}

IGNORED: dict[str, Any] = {
    "retry.poison_guard": True,
    "calibration.half_life_s": 60,
    "calibration.min_samples": 20,
    "calibration.max_relative_error": 0.2,
    "calibration.drift_ratio": 3.0,
    "pools.d.workers.0.kv_events_endpoint": "tcp://a:5557",
}
"""What would change something, is not simulated, and is said so when somebody sets it."""

NOT_ITS_BUSINESS = (
    "server.", "discovery.", "usage.", "request_log.", "decision_log.", "tokenizers.", "kv_events.", "auth.",
    "mock.", "workload.", "slo.tight.", "slo.loose.", "limits.handover_releases_per_s", "limits.body_bytes",
    "limits.buffered_bytes", "limits.multipart_bytes", "limits.stream_buffer_bytes", "timeouts.connect_s",
    "timeouts.tls_s", "timeouts.write_stall_s", "timeouts.total_s", "timeouts.idle_lost_worker_s",
    "timeouts.comment_commit_s", "timeouts.keep_alive_s", "timeouts.early_keep_alive_s",
    "timeouts.slow_client_s", "timeouts.client_keep_alive_s", "timeouts.client_head_s",
    "timeouts.upstream_idle_s", "timeouts.shutdown_accept_s", "timeouts.shutdown_drain_s",
    "retry.poison_guard_s", "health.jitter", "health.timeout_s", "health.path", "polling.jitter",
    "polling.timeout_s", "polling.models_interval_s", "calibration.max_age_days", "state.",
    "pools.*.shadow_policies", "pools.*.shadow_sample", "pools.*.bootstrap_port", "pools.*.tokenizer",
    "pools.*.workers[*].model", "pools.*.workers[*].dp_rank_offset", "pools.*.workers[*].bootstrap_port",
    "pools.*.workers[*].kv_events_replay_endpoint", "pools.*.workers[*].kv_events_topic",
    "pools.*.workers[*].api_key",
)  # fmt: skip
"""Bytes, sockets, clients that leave, logs, and what stands beside a scenario: docs/studies.md."""


def path_of(key: str) -> str:
    """The key as the settings list it."""
    parts = key.split(".")
    if parts[0] != "pools":
        return key
    return ".".join(["pools", "*", *parts[2:]]).replace("workers.0.", "workers[*].")


def with_value(key: str, value: Any) -> Scenario:
    tree = copy.deepcopy(BASE)
    *parts, last = key.split(".")
    at: Any = tree
    for part in parts:
        at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
    at[last] = value
    return scenario_of(Settings(**tree), "fleet.yaml", LOAD)


def test_every_setting_is_accounted_for() -> None:
    known = {path_of(key) for key in (*SIMULATED, *IGNORED)} | SIMULATED_ELSEWHERE.keys()
    paths = [key.path for key in all_keys(Settings)]
    unknown = [path for path in paths if path not in known and not path.startswith(NOT_ITS_BUSINESS)]
    assert unknown == []
    assert known <= set(paths)


@pytest.mark.parametrize("key", SIMULATED)
def test_a_setting_that_matters_reaches_the_simulated_router(key: str) -> None:
    plain, other = scenario_of(Settings(**BASE), "fleet.yaml", LOAD), with_value(key, SIMULATED[key])
    assert other.fleet != plain.fleet
    assert other.notes == plain.notes == ()


@pytest.mark.parametrize("key", IGNORED)
def test_a_setting_that_is_not_simulated_is_named(key: str) -> None:
    [note] = with_value(key, IGNORED[key]).notes
    assert "not simulated" in note


def test_a_history_of_lengths_is_not_read_and_said_so(tmp_path: Path) -> None:
    [note] = with_value("state.dir", tmp_path).notes
    assert "state.dir is not read" in note
