"""The laws of `pointsman check`, and of the reference that it prints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engines.mock.__main__ import parser as mock_parser
from router.__main__ import main
from router.cli.check import report, warnings
from router.cli.flags import FLAGS
from router.cli.reference import reference
from router.policies import POLICIES
from router.settings import Settings, load
from router.settings.keys import all_keys

ROOT = Path(__file__).parents[2]
MANY_FILES = 1_000_000


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("POINTSMAN_") or name == "WEB_CONCURRENCY":
            monkeypatch.delenv(name)


def pool(**keys: object) -> Settings:
    return Settings.model_validate({"pools": {"chat": {"workers": ["http://a:1", "http://b:1"], **keys}}})


def warned(settings: Settings, open_files: int = MANY_FILES) -> str:
    return "\n".join(warnings(settings, open_files))


def test_the_demo_configuration_is_good_and_warns_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(ROOT / "config.yaml")]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("good: ")
    assert "127.0.0.1:9006" in printed.out
    assert "warning" not in printed.out


def test_the_demo_fleet_is_a_pair_of_pools_whose_workers_are_its_engines() -> None:
    settings = load(ROOT / "config.yaml")
    (pair,) = settings.pairs
    for group, name in zip(settings.mock.fleet, (pair.prefill, pair.decode), strict=True):
        pool = settings.pools[name]
        assert group.role == pool.role.value
        assert [worker.url for worker in pool.workers] == [f"http://127.0.0.1:{port}" for port in group.ports]
        assert (group.model, group.gpu, group.kv_tokens) == (pool.model, "a40", 60_000)
        assert mock_parser().parse_args(group.arguments).role == group.role
    assert [len(settings.pools[name].workers) for name in (pair.prefill, pair.decode)] == [2, 4]


def test_the_report_says_which_policy_each_pool_runs_with_which_parameters() -> None:
    settings = pool(policy="session_affinity", policy_params={"load_factor": 2})
    text = "\n".join(report(settings, MANY_FILES))
    assert "pool chat" in text
    rule = (POLICIES["session_affinity"].page or "").splitlines()[0]
    assert f"session_affinity: {rule}" in text
    assert "load_factor 2, min_in_flight 4" in text
    assert "at most 10,000" in text


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"policy": "random"}, "  decides     one request at a time, as it comes"),
        (
            {"policy": "random", "binding": "late", "slots": 2},
            "  decides     the oldest first, when a slot is free, as configured",
        ),
        (
            {"policy": "balance_route_0", "slots": 2},
            "  decides     all that wait at once, when a slot is free, as its policy asks for it",
        ),
        (
            {"policy": "random", "slots": 2, "barrier_group": "g", "workers": ["http://a:1"]},
            "  decides     the oldest first, when a slot is free, as its barrier group asks for it",
        ),
        (
            {"shadow_policies": ["preble", "random"], "shadow_sample": 0.25},
            "  shadows     preble, random, asked about 25% of the decisions",
        ),
        ({"shadow_policies": ["preble"]}, "  shadows     preble"),
        ({}, "  calibrated  from live traffic, once there is enough"),
    ],
)
def test_the_report_says_how_each_pool_really_chooses(given: dict[str, object], line: str) -> None:
    assert line in list(report(pool(**given), MANY_FILES))


def test_the_report_says_which_workers_were_measured(tmp_path: Path) -> None:
    measured = tmp_path / "calibration.yaml"
    measured.write_text("version: 1\nmeasured: 2026-01-01T00:00:00Z\n")
    workers = [f"http://w{number}:1" for number in range(5)]
    settings = Settings.model_validate(
        {"pools": {"chat": {"workers": workers}}, "calibration": {"file": measured, "online": False}}
    )
    found = f"  calibrated  0 of 5 workers by {measured}; w0:1, w1:1, w2:1 …: no"
    assert found in list(report(settings, MANY_FILES))


def test_the_report_says_what_each_worker_has() -> None:
    settings = pool(
        binding="late", slots=8, workers=[{"url": "http://a:1", "capacity": 2.0, "slots": 4}, "http://b:1"]
    )
    lines = list(report(settings, MANY_FILES))
    assert "  binding     late" in lines
    assert "    a:1  http://a:1  slots 4  capacity 2.0" in lines
    assert "    b:1  http://b:1  slots 8" in lines


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"policy": "preble", "slots": 8}, "priority_groups, slots + 2"),
        ({"policy": "random", "local_queue": "fcfs", "max_dispatched": 5}, "fcfs, 5"),
    ],
)
def test_the_report_says_what_is_held_back(words: dict[str, object], line: str) -> None:
    settings = pool(**words)
    assert f"  local queue {line} requests are sent to a worker at most" in list(report(settings, MANY_FILES))
    assert not any("holds nothing back" in warning for warning in warnings(settings, MANY_FILES))


def test_a_local_queue_that_cannot_hold_anything_is_warned_of_and_none_is_not() -> None:
    assert any("holds nothing back" in warning for warning in warnings(pool(policy="preble"), MANY_FILES))
    assert not any("holds nothing back" in warning for warning in warnings(pool(), MANY_FILES))
    assert not any("local queue" in line for line in report(pool(), MANY_FILES))


def test_workers_of_a_file_are_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "workers").write_text("http://c:1")
    text = "\n".join(report(pool(workers_file=str(tmp_path / "workers")), MANY_FILES))
    assert "2 and a file" in text
    assert "c:1" in text


def test_the_report_never_shows_a_key() -> None:
    settings = Settings.model_validate(
        {
            "auth": {"api_key": "hush-1", "admin_api_key": "hush-2", "client_api_keys": ["hush-3"]},
            "pools": {"a": {"workers": [{"url": "http://a:1", "api_key": "hush-4"}]}},
        }
    )
    text = "\n".join([*report(settings, MANY_FILES), *warnings(settings, MANY_FILES)])
    assert "hush" not in text
    assert "one of 1 keys" in text


def test_a_plain_pool_of_two_warns_of_nothing() -> None:
    assert warned(pool()) == ""


@pytest.mark.parametrize(
    ("keys", "warning"),
    [
        ({"server": {"host": "0.0.0.0"}}, "server.host 0.0.0.0 is open to the network"),
        ({"server": {"host": "gpu-box"}}, "server.host gpu-box is open to the network"),
        ({"server": {"admin_host": "::"}}, "server.admin_host :: is open to the network"),
        ({"auth": {"client_api_keys": ["k"]}}, "without auth.api_key workers get no key"),
        ({"timeouts": {"idle_s": 5}}, "timeouts.idle_lost_worker_s is above"),
        ({"timeouts": {"upstream_idle_s": 5}}, "timeouts.upstream_idle_s is not below 5 s"),
        ({"pools": {"a": {}}}, "pool a starts with no worker"),
        ({"pools": {"a": {"workers": ["http://a:1"]}}}, "pool a has one worker"),
        ({"pools": {"a": {"model": "m"}, "b": {}}}, "of several pools, b must learn"),
        (
            {"pools": {"a": {"workers": [{"url": "http://a:1", "capacity": 2}, "http://b:1"]}}},
            "pool a gives a capacity for some workers only",
        ),
        (
            {
                "server": {"affinity_headers": ["x-request-id"]},
                "pools": {"a": {"policy": "session_affinity"}},
            },
            "keeps sessions together by x-request-id, which differs for every request",
        ),
        (
            {"pools": {"a": {"policy": "balance_route_0", "slots": 2}}},
            "pool a runs balance_route_0, and the barrier group of workers to come is not declared",
        ),
        (
            {
                "pools": {
                    "a": {
                        "policy": "balance_route_h",
                        "slots": 2,
                        "workers": ["http://a:1", "http://b:1", "http://c:1", "http://d:1", "http://e:1@0"],
                    }
                }
            },
            "the barrier group of a:1, b:1, c:1 and 1 more is not declared; they are taken to wait",
        ),
        (
            {"pools": {"a": {"workers": ["http://a:1"], "dp_size": 8}}},
            "step together (a:1@0, a:1@1, a:1@2 and 5 more) but not the slots of each",
        ),
    ],
)
def test_what_is_probably_not_meant_is_warned_of(keys: dict[str, object], warning: str) -> None:
    assert warning in warned(Settings.model_validate(keys))


def test_addresses_of_this_machine_are_not_open() -> None:
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert "open to the network" not in warned(Settings.model_validate({"server": {"host": host}}))


def test_a_worker_that_late_binding_cannot_use_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "workers").write_text("http://c:1")
    settings = pool(
        binding="late", workers=[{"url": "http://a:1", "slots": 2}], workers_file=str(tmp_path / "workers")
    )
    assert "waits for slots, but c:1 has none" in warned(settings)


def pair(prefill: dict[str, object] | None = None, decode: dict[str, object] | None = None) -> Settings:
    return Settings.model_validate(
        {
            "pools": {
                "p": {"role": "prefill", "workers": ["http://p:1", "http://p:2"], **(prefill or {})},
                "d": {"role": "decode", "workers": ["http://d:1", "http://d:2"], **(decode or {})},
            }
        }
    )


def test_a_plain_pair_warns_of_nothing() -> None:
    assert warned(pair()) == ""


@pytest.mark.parametrize(
    ("prefill", "decode", "lines"),
    [
        (
            {},
            {},
            [
                "pair p, d",
                "  connector   nixl, decode after prefill, KV held for 30 s",
                "  split       every prompt",
                "  no prefill  requests are served whole",
            ],
        ),
        (
            {"connector": "sglang"},
            {},
            ["  connector   sglang, both legs at once", "  split       every prompt"],
        ),
        (
            {},
            {"may_prefill": True, "pd_split_min_tokens": 300},
            [
                "  split       prompts of 300 tokens and more; "
                "shorter ones are served whole by decode workers that may prefill",
                "  no prefill  requests are served whole",
            ],
        ),
        (
            {},
            {
                "workers": [{"url": "http://d:1", "role": "both", "revision": "r7"}],
                "pd_split_min_tokens": 0,
                "fallback": "strict",
            },
            [
                "  role        decode",
                "    d:1  http://d:1  role both  revision r7",
                "  split       every prompt",
                "  no prefill  requests are refused",
            ],
        ),
        ({}, {"may_prefill": True, "workers": []}, ["  no prefill  requests are served whole"]),
        ({}, {"binding": "adaptive", "slots": 8}, ["  binding     adaptive"]),
    ],
)
def test_the_report_says_what_happens_between_the_pools_of_a_pair(
    prefill: dict[str, object], decode: dict[str, object], lines: list[str]
) -> None:
    printed = list(report(pair(prefill, decode), MANY_FILES))
    assert [line for line in lines if line not in printed] == []


@pytest.mark.parametrize(
    ("prefill", "decode", "warning"),
    [
        (
            {},
            {"pd_split_min_tokens": 300},
            "pool d has no worker that may serve whole requests, so pd_split_",
        ),
        (
            {"connector": "sglang"},
            {"fallback": "aggregated"},
            "pool d has no worker that may serve whole requests, so fallback",
        ),
        ({}, {"barrier_group": "g"}, "pool d has workers that step together (d:1, d:2) but not the slots"),
        (
            {"connector": "mooncake", "workers": ["http://localhost:1", "http://p:2"]},
            {},
            "pool p has the worker localhost:1; decode workers elsewhere are told that address",
        ),
    ],
)
def test_what_is_probably_not_meant_of_a_pair_is_warned_of(
    prefill: dict[str, object], decode: dict[str, object], warning: str
) -> None:
    assert warning in warned(pair(prefill, decode))


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({}, {"pd_split_min_tokens": 0, "fallback": "strict"}),
        ({}, {"pd_split_min_tokens": 300, "fallback": "aggregated", "may_prefill": True}),
        ({}, {"barrier_group": "g", "slots": 8}),
        ({}, {"barrier_group": "g", "binding": "early"}),
        ({"workers": ["http://localhost:1", "http://p:2"]}, {}),
        (
            {"connector": "sglang", "workers": ["http://localhost:1", "http://127.0.0.1:2"]},
            {"workers": ["http://127.0.0.1:3", "http://[::1]:4"]},
        ),
    ],
)
def test_what_is_meant_of_a_pair_is_not_warned_of(
    prefill: dict[str, object], decode: dict[str, object]
) -> None:
    assert warned(pair(prefill, decode)) == ""


def test_few_open_files_are_warned_of() -> None:
    assert "limit of 300 open files leaves room for 14" in warned(pool(), 300)


def test_notices_and_warnings_are_part_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--request-timeout-secs", "30"]) == 0
    out = capsys.readouterr().out
    assert "note: --request-timeout-secs bounds" in out
    assert "warning: pool default starts with no worker" in out


# --- the reference ------------------------------------------------------------------------------------


def test_the_reference_in_docs_is_the_one_that_the_settings_make() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == reference(), "run: pointsman check --print-reference > docs/configuration.md"


def test_the_reference_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--print-reference"]) == 0
    assert capsys.readouterr().out == reference()


def test_every_key_has_a_meaning() -> None:
    assert [key.path for key in all_keys(Settings) if not key.meaning] == []


def test_every_key_and_every_flag_is_in_the_reference() -> None:
    page = reference()
    assert [key.path for key in all_keys(Settings) if f"| `{key.path}` |" not in page] == []
    assert [flag.name for flag in FLAGS if f"`{flag.name}`" not in page] == []


def test_the_reference_shows_default_bounds_unit_flag_and_variable() -> None:
    page = reference()
    row = next(line for line in page.splitlines() if line.startswith("| `limits.queue_timeout_s` |"))
    for cell in (
        "`30`",
        "above 0 and at most 86400 s",
        "`--queue-timeout-secs`",
        "`POINTSMAN_LIMITS__QUEUE_TIMEOUT_S`",
    ):
        assert cell in row
