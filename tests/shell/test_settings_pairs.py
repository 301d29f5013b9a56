"""The laws of prefill and decode pools: which are partners, what each may say, and what must agree."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from router.connectors import CONNECTORS
from router.connectors.nixl import NixlConnector
from router.core.binding import Mode
from router.core.local_queue import LocalQueueRules, Order
from router.core.worker import Role
from router.policies import POLICIES, Shape
from router.settings import Pair, PoolSettings, Settings, SettingsError, WorkerSettings, load

Pool = dict[str, Any]
PREFILL: Pool = {"role": "prefill", "workers": ["http://p:1"]}
DECODE: Pool = {"role": "decode", "workers": ["http://d:1", "http://d:2"]}


def pair(prefill: Pool | None = None, decode: Pool | None = None, **sections: Any) -> Settings:
    pools = {"p": {**PREFILL, **(prefill or {})}, "d": {**DECODE, **(decode or {})}}
    return Settings.model_validate({"pools": pools, **sections})


def refused(pools: dict[str, Pool], **sections: Any) -> str:
    with pytest.raises(ValidationError) as error:
        Settings.model_validate({"pools": pools, **sections})
    return "\n".join(details["msg"] for details in error.value.errors())


def refused_pair(prefill: Pool | None = None, decode: Pool | None = None, **sections: Any) -> str:
    return refused({"p": {**PREFILL, **(prefill or {})}, "d": {**DECODE, **(decode or {})}}, **sections)


# --- local queues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fcfs", "priority_groups"])
def test_a_local_queue_needs_a_bound_on_what_is_sent(order: str) -> None:
    assert "set pools.a.slots or pools.a.max_dispatched" in refused({"a": {"local_queue": order}})
    for bound in ({"slots": 8}, {"max_dispatched": 3}):
        Settings.model_validate({"pools": {"a": {"local_queue": order, **bound}}})
    Settings.model_validate({"pools": {"a": {"policy": "preble"}}})


def test_decode_pools_have_no_local_queue() -> None:
    said = refused_pair(decode={"max_dispatched": 3})
    assert (
        "pools.d.max_dispatched is for pools of role both and prefill, and this one is of role decode" in said
    )
    settings = pair({"local_queue": "fcfs", "max_dispatched": 3})
    assert settings.pools["p"].local_rules(9) == LocalQueueRules(Order.FCFS, 3, 5.0, 9)
    assert settings.pools["d"].local_rules(9).order is Order.OFF


# --- partners -----------------------------------------------------------------------------------------


def test_a_prefill_and_a_decode_pool_without_a_model_are_a_pair_over_nixl() -> None:
    assert pair().pairs == (Pair("p", "d", None, NixlConnector(lease_s=30.0)),)


def test_every_connector_can_be_named() -> None:
    for name in CONNECTORS:
        assert pair({"connector": name}).pairs[0].connector.name == name


def test_pools_of_one_model_are_partners_and_of_another_are_not() -> None:
    settings = Settings.model_validate(
        {
            "pools": {
                "d2": {"role": "decode", "model": "n"},
                "p1": {"role": "prefill", "model": "m"},
                "p2": {"role": "prefill", "model": "n", "connector": "mooncake"},
                "d1": {"role": "decode", "model": "m"},
                "rest": {"model": "k"},
            }
        }
    )
    assert [(each.prefill, each.decode, each.connector.name) for each in settings.pairs] == [
        ("p2", "d2", "mooncake"),
        ("p1", "d1", "nixl"),
    ]


def test_pools_of_role_both_are_no_pair() -> None:
    assert Settings().pairs == ()
    assert Settings.model_validate({"pools": {"a": {}, "b": {}}}).pairs == ()


@pytest.mark.parametrize(("role", "wanted"), [("prefill", "decode"), ("decode", "prefill")])
def test_half_a_pair_is_refused(role: str, wanted: str) -> None:
    said = refused({"half": {"role": role}, "rest": {"model": "m"}})
    assert (
        f"pools.half has the role {role}, and needs a pool of role {wanted} that has no model either" in said
    )
    assert f"--{wanted} makes one" in said


def test_a_pair_whose_models_differ_is_refused_with_the_pool_that_was_meant() -> None:
    said = refused_pair({"model": "m"})
    assert "pools.p has the role prefill, and needs a pool of role decode of model m" in said
    assert "there is none (pool d has no model)" in said


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_model_has_one_pair(role: str) -> None:
    for model in ("m", None):
        pools: dict[str, Pool] = {
            "p": {"role": "prefill", "model": model},
            "d": {"role": "decode", "model": model},
            "x": {"role": role, "model": model},
        }
        assert f"and x are both of role {role}" in refused(pools)


def test_whole_requests_beside_a_pair_belong_into_its_decode_pool() -> None:
    said = refused(
        {
            "whole": {"model": "m"},
            "p": {"role": "prefill", "model": "m"},
            "d": {"role": "decode", "model": "m"},
        }
    )
    assert "pools whole and p both serve m" in said
    assert "belongs into the decode pool, with role: both" in said


# --- connectors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connector", "concurrent", "lease_s"),
    [("nixl", False, 30.0), ("mooncake", False, 480.0), ("sglang", True, None), ("none", False, None)],
)
def test_the_connector_says_whether_the_legs_run_at_once_and_how_long_kv_is_held(
    connector: str, concurrent: bool, lease_s: float | None
) -> None:
    for settings in (
        pair({"connector": connector}),
        pair(None, {"connector": connector}),
        pair({"connector": connector}, {"connector": connector}),
    ):
        made = settings.pairs[0].connector
        assert (made.name, made.concurrent, made.lease_s) == (connector, concurrent, lease_s)


def test_the_two_pools_of_a_pair_agree_on_the_connector() -> None:
    said = refused_pair({"connector": "nixl"}, {"connector": "sglang"})
    assert "pools.p.connector is nixl, but pools.d.connector is sglang" in said


def test_mooncake_runs_its_legs_at_once_where_it_is_told_to() -> None:
    assert pair(None, {"connector": "mooncake", "mooncake_concurrent": True}).pairs[0].connector.concurrent
    assert "pools.d.mooncake_concurrent is for the connector mooncake, and this one is nixl" in refused_pair(
        None, {"mooncake_concurrent": True}
    )


def test_a_lease_is_what_the_engines_were_told() -> None:
    assert pair(None, {"kv_lease_s": 120}).pairs[0].connector.lease_s == 120
    said = refused_pair(None, {"kv_lease_s": 9, "connector": "none"})
    assert "pools.d.kv_lease_s is for the connector nixl or mooncake, and this one is none" in said


def test_a_lease_that_leaves_no_time_is_refused() -> None:
    said = refused_pair(None, {"kv_lease_s": 5})
    assert "pools.d.kv_lease_s is 5 s, and must be above timeouts.lease_margin_s, which is 5 s" in said
    said = refused_pair(timeouts={"lease_margin_s": 30})
    assert "the lease of connector nixl is 30 s, and must be above" in said
    pair({"connector": "mooncake"}, timeouts={"lease_margin_s": 30})


def test_a_bootstrap_port_is_the_workers_the_pools_or_8998() -> None:
    settings = pair(
        {
            "connector": "mooncake",
            "bootstrap_port": 7000,
            "workers": ["http://p:1", {"url": "http://p:2", "bootstrap_port": 7001}],
        }
    )
    pool = settings.pools["p"]
    assert [pool.bootstrap_port_of(worker) for worker in pool.workers] == [7000, 7001]
    assert PoolSettings(role=Role.PREFILL).bootstrap_port_of(pool.workers[0]) == 8998


@pytest.mark.parametrize("connector", ["nixl", "none"])
def test_a_bootstrap_port_that_nobody_would_use_is_refused(connector: str) -> None:
    for keys in (
        {"bootstrap_port": 8998},
        {"workers": [{"url": "http://p:1", "bootstrap_port": 8998}]},
    ):
        said = refused_pair({"connector": connector, **keys})
        assert f"has a bootstrap port, which the connector {connector} does not use" in said


@pytest.mark.parametrize(
    "keys",
    [{"may_prefill": True}, {"workers": ["http://d:1", {"url": "http://d:2", "role": "both"}]}],
)
def test_a_decode_server_of_sglang_serves_no_whole_request(keys: Pool) -> None:
    said = refused_pair(None, {"connector": "sglang", **keys})
    assert "which a decode server with the connector sglang refuses" in said
    pair(None, keys)


# --- keys and roles -----------------------------------------------------------------------------------


DECODE_KEYS: Pool = {
    "pd_split_min_tokens": 512,
    "fallback": "strict",
    "may_prefill": False,
    "max_transfers_per_worker": 4,
    "kv_lease_s": 30,
    "mooncake_concurrent": False,
}
PREFILL_KEYS: Pool = {"bootstrap_port": 1, "prefill_budget_high": 0.9, "prefill_budget_low": 0.5}


@pytest.mark.parametrize(
    ("key", "value", "roles"),
    [
        *((key, value, "decode") for key, value in DECODE_KEYS.items()),
        *((key, value, "prefill") for key, value in PREFILL_KEYS.items()),
        ("connector", "nixl", "prefill and decode"),
    ],
)
def test_a_key_in_a_pool_where_it_means_nothing_is_refused(key: str, value: object, roles: str) -> None:
    for role in set(Role) - {Role(word) for word in roles.split(" and ")}:
        said = refused({"a": {"role": role.value, key: value}})
        assert f"pools.a.{key} is for pools of role {roles}, and this one is of role {role.value}" in said


def test_the_defaults_of_a_pair_are_those_of_the_design() -> None:
    pool = PoolSettings()
    assert (pool.prefill_budget_high, pool.prefill_budget_low) == (0.85, 0.75)
    assert (pool.pd_split_min_tokens, pool.fallback, pool.max_transfers_per_worker) == (512, "aggregated", 4)
    settings = Settings()
    assert (settings.timeouts.prefill_s, settings.timeouts.decode_first_event_s) == (300, 60)
    assert (settings.timeouts.lease_margin_s, settings.polling.prefill_scrape_s) == (5, 0.25)


def test_a_prefill_worker_gets_more_only_below_where_it_got_none() -> None:
    said = refused_pair({"prefill_budget_high": 0.7})
    assert "pools.p.prefill_budget_low is 0.75 and must be below prefill_budget_high, which is 0.7" in said
    pair({"prefill_budget_high": 0.7, "prefill_budget_low": 0.6})


@pytest.mark.parametrize(
    ("pool", "worker", "fits"),
    [
        ("both", "both", True),
        ("both", "prefill", False),
        ("both", "decode", False),
        ("prefill", "prefill", True),
        ("prefill", "both", False),
        ("prefill", "decode", False),
        ("decode", "decode", True),
        ("decode", "both", True),
        ("decode", "prefill", False),
    ],
)
def test_a_worker_has_the_role_of_its_pool_or_serves_whole_requests_beside_decodes(
    pool: str, worker: str, fits: bool
) -> None:
    misfit = PoolSettings(role=Role(pool)).misfit(WorkerSettings(url="http://a:1", role=Role(worker)))
    assert (misfit is None) is fits
    assert misfit is None or f"it has the role {worker}" in misfit


def test_a_worker_that_does_not_fit_is_refused_by_its_place() -> None:
    said = refused_pair(None, {"workers": [{"url": "http://d:1", "role": "prefill"}]})
    assert "pools.d.workers[0] cannot be in this pool: it has the role prefill" in said


def test_a_worker_of_a_file_that_does_not_fit_is_refused_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "workers").write_text("[{url: 'http://d:1'}, {url: 'http://d:2', role: prefill}]")
    (tmp_path / "config").write_text(
        f"pools: {{p: {{role: prefill}}, d: {{role: decode, workers_file: {tmp_path}/workers}}}}"
    )
    with pytest.raises(SettingsError) as error:
        load(tmp_path / "config")
    assert error.value.problems == (
        "pools.d.workers_file: worker d:2 cannot be in this pool: it has the role prefill, "
        "but a pool of role decode takes decode or both",
    )


@pytest.mark.parametrize(
    ("pool", "worker", "clause"),
    [
        ("prefill", {"may_prefill": True}, "may_prefill, which is for workers of role decode, not prefill"),
        ("both", {"may_prefill": False}, "may_prefill, which is for workers of role decode, not both"),
        ("decode", {"role": "both", "may_prefill": False}, "for workers of role decode, not both"),
        ("decode", {"bootstrap_port": 1}, "bootstrap_port, which is for workers of role prefill, not decode"),
    ],
)
def test_what_a_worker_says_in_vain_is_refused(pool: str, worker: Pool, clause: str) -> None:
    misfit = PoolSettings(role=Role(pool)).misfit(WorkerSettings(url="http://a:1", **worker))
    assert misfit is not None
    assert clause in misfit


@pytest.mark.parametrize(
    ("pool", "worker", "whole"),
    [
        ({}, {}, True),
        ({"role": "prefill"}, {}, False),
        ({"role": "decode"}, {}, False),
        ({"role": "decode"}, {"may_prefill": True}, True),
        ({"role": "decode"}, {"role": "both"}, True),
        ({"role": "decode", "may_prefill": True}, {}, True),
        ({"role": "decode", "may_prefill": True}, {"may_prefill": False}, False),
    ],
)
def test_a_worker_serves_whole_requests_where_it_is_said(pool: Pool, worker: Pool, whole: bool) -> None:
    settings = WorkerSettings.model_validate({"url": "http://a:1", **worker})
    assert PoolSettings.model_validate(pool).serves_whole(settings) is whole


@pytest.mark.parametrize("revision", ["", "a b", "ä", "x" * 65])
def test_a_revision_is_a_short_word(revision: str) -> None:
    with pytest.raises(ValidationError, match="1 to 64 visible ASCII"):
        WorkerSettings(url="http://a:1", revision=revision)
    assert WorkerSettings(url="http://a:1", revision="2026-11.3").revision == "2026-11.3"


# --- binding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "mode"),
    [
        ({"role": "decode"}, "early"),
        ({"role": "decode", "slots": 8}, "early"),
        ({"role": "decode", "binding": "late", "slots": 8}, "late"),
        ({"role": "decode", "binding": "adaptive", "slots": 8}, "adaptive"),
        ({"role": "decode", "barrier_group": "g"}, "early"),
        ({"role": "decode", "barrier_group": "g", "slots": 8}, "late"),
        ({"role": "decode", "barrier_group": "g", "slots": 8, "binding": "early"}, "early"),
        ({"role": "decode", "workers": [{"url": "http://a:1", "barrier_group": "g", "slots": 8}]}, "late"),
        (
            {"role": "decode", "workers": [{"url": "http://a:1", "barrier_group": "g"}, "http://b:1"]},
            "early",
        ),
        ({"role": "prefill", "barrier_group": "g", "slots": 8}, "early"),
        ({"role": "prefill", "binding": "late", "slots": 8}, "late"),
        ({"barrier_group": "g"}, "late"),
    ],
)
def test_a_decode_pool_binds_late_for_a_barrier_group_with_known_slots(pool: Pool, mode: str) -> None:
    settings = PoolSettings.model_validate(pool)
    assert settings.mode.value == mode
    assert settings.late_binding is (mode == "late")


@pytest.mark.parametrize("binding", ["late", "adaptive"])
def test_waiting_for_a_slot_needs_slots(binding: str) -> None:
    said = refused_pair(None, {"binding": binding})
    assert f"pools.d.workers[1] has no slots, but binding {binding} needs them" in said


def test_only_decode_pools_adapt() -> None:
    for role in ("prefill", "both"):
        said = refused({"a": {"role": role, "binding": "adaptive"}})
        assert f"pools.a.binding is adaptive, which is for pools of role decode, not {role}" in said


# --- policies -----------------------------------------------------------------------------------------


def test_a_policy_for_another_role_is_refused() -> None:
    said = refused_pair(None, {"policy": "session_affinity"})
    assert "pools.d.policy is session_affinity, which is for the roles both, prefill, not decode" in said
    pair({"policy": "session_affinity"})


@pytest.fixture
def batch_policy(monkeypatch: pytest.MonkeyPatch) -> str:
    spec = dataclasses.replace(POLICIES["least_tokens"], name="in_batches", shape=Shape.BATCH)
    monkeypatch.setitem(POLICIES, "in_batches", spec)
    return "in_batches"


def test_a_batch_policy_places_decodes_late_and_no_prefills(batch_policy: str) -> None:
    assert PoolSettings(role=Role.DECODE, policy=batch_policy, slots=8).mode is Mode.LATE
    said = refused_pair(None, {"policy": batch_policy})
    assert "has no slots, but its policy in_batches, which fills slots, needs them" in said
    said = refused_pair({"policy": batch_policy, "slots": 8})
    assert "pools.p.policy is in_batches, which places whole batches of decodes" in said
