"""Laws of the words in queries and advice: each is one that the program says, or the title of a panel."""

from __future__ import annotations

import re

import pytest

from router.core.calibration import CalibrationState
from router.core.health import State
from router.core.shadows import Verdict
from router.kv_events.reasons import Reason
from router.policies import POLICIES
from tests.shell.deploy_queries import alert_queries, alerts, dashboard, exported, panel_queries, read

LEFT_OUT = {
    "pointsman_build_info", "process_start_time_seconds", "process_virtual_memory_bytes",  # tell nothing
    "pointsman_ready", "pointsman_worker_incarnation",  # seen in scrapes, and in changes of state
    "pointsman_body_capacity_bytes", "pointsman_worker_slot_capacity",  # constants of the configuration
    "pointsman_worker_sequences", "pointsman_worker_queued_tokens",  # follow the requests in flight
    "pointsman_worker_engine_kv_capacity_tokens",  # the router's own account has it
    "pointsman_worker_coefficient_error_seconds",  # shown relative to the coefficient
    "pointsman_worker_kv_events_batches_total", "pointsman_worker_kv_events_replayed_total",  # as blocks
}  # fmt: skip
"""Metrics for queries by hand."""


def test_every_metric_is_on_the_dashboard_or_left_out_for_a_reason() -> None:
    known = exported()
    named = {name for _, expr, _ in panel_queries() for name in read(expr).metrics}
    histograms = {name.removesuffix("_bucket") for name in known if name.endswith("_bucket")}
    parts = {f"{name}_{part}" for name in histograms for part in ("count", "sum")}
    assert set(known) - parts - named == LEFT_OUT


WORDS = {
    ("pointsman_worker_prefix_inexact", "reason"): {reason.value for reason in Reason},
    ("pointsman_worker_calibration_state", "state"): {state.value for state in CalibrationState},
    ("pointsman_worker_state", "state"): {state.value for state in State},
    ("pointsman_policy_decisions_total", "policy"): set(POLICIES),
    ("pointsman_pool_policy_info", "policy"): set(POLICIES),
    ("pointsman_shadow_decisions_total", "verdict"): {verdict.value for verdict in Verdict},
}
"""What a label may say, where the program has a list of it."""


def words(queries: list[str], metric: str, label: str) -> set[str]:
    """The words that matchers of a label ask for, one by one."""
    matcher = re.compile(rf'{metric}{{[^}}]*?{label}=~?"([\w|]+)"')
    return {word for query in queries for found in matcher.findall(query) for word in found.split("|")}


@pytest.mark.parametrize(("metric", "label"), WORDS)
def test_every_word_that_a_query_asks_for_is_one_that_the_program_says(metric: str, label: str) -> None:
    asked = words([expr for _, expr, _ in panel_queries()] + alert_queries(), metric, label)
    assert asked
    assert asked <= WORDS[metric, label]


def test_every_fallback_that_an_alert_passes_over_is_one_that_a_policy_names() -> None:
    (passed,) = re.findall(r'reason!~"fallback:\(([\w|]+)\)"', "".join(alert_queries()))
    named = f"{POLICIES['calibrated'].page} {POLICIES['balance_route_h'].page}"
    assert [word for word in passed.split("|") if word not in re.findall(r"\w+", named)] == []


def test_advice_names_only_panels_that_exist() -> None:
    titles = {panel["title"] for panel in dashboard()["panels"]}
    actions = "".join(rule["annotations"]["action"] for rule in alerts())
    descriptions = "".join(panel.get("description", "") for panel in dashboard()["panels"])
    found = re.findall(r'"([^"]+)"', actions + descriptions)
    assert len(found) > 10
    assert [title for title in found if title not in titles] == []
