"""Laws of pools and workers as they are written down, in the configuration or in a file of workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from router.settings import (
    MockGroup,
    PoolSettings,
    Settings,
    WorkerSettings,
    parse_workers,
    read_workers_file,
)
from tests.shell.settings_examples import refusal

# --- pools and workers -----------------------------------------------------------------------------------


def test_a_worker_is_named_after_its_address() -> None:
    names = [
        WorkerSettings.model_validate(url).name
        for url in ("http://a:1", "http://a:1/", "https://b/base/", "http://[::1]:8000", "dns+http://svc:80")
    ]
    assert names == ["a:1", "a:1", "b/base", "[::1]:8000", "svc:80"]
    assert WorkerSettings(url="http://a:1", name="left").name == "left"


def test_a_name_that_is_resolved_is_told_from_an_address() -> None:
    worker = WorkerSettings.model_validate("dns+http://svc:80")
    assert worker.resolves
    assert worker.origin_url == "http://svc:80"
    assert not WorkerSettings.model_validate("http://svc:80").resolves


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("a:1", "must be a URL"),
        ("ftp://a", "must be a URL"),
        ("http://", "must be a URL"),
        ("http://a:0", "must be a URL"),
        ("http://a:99999", "is no URL"),
        ("http://[::1", "is no URL"),
        ("http://user:pw@a:1", "no user"),
        ("http://a:1?x=1", "no user, query"),
        ("http://a:1/v1", "ends before /v1"),
        ("http://a:1@2@3", "no user"),
        ("http://a:1/x@2/y", "a rank is a number after the whole URL"),
        ("http://a:1@1024", "ranks go from 0 to 1023"),
    ],
)
def test_a_url_that_is_no_worker_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        WorkerSettings.model_validate(url)


def test_two_workers_with_one_name_or_url_are_refused() -> None:
    with pytest.raises(ValidationError, match="two workers have the url http://a:1"):
        PoolSettings.model_validate({"workers": ["http://a:1", {"url": "http://a:1/", "name": "b"}]})
    with pytest.raises(ValidationError) as error:
        Settings.model_validate(
            {
                "pools": {
                    "a": {"workers": ["http://x:1"]},
                    "b": {"workers": [{"url": "http://y:1", "name": "x:1"}]},
                }
            }
        )
    assert "pools a and b both have a worker of name x:1" in refusal(error)


def test_two_pools_of_one_model_are_refused() -> None:
    with pytest.raises(ValidationError, match="both serve m; put the workers into one"):
        Settings.model_validate({"pools": {"a": {"model": "m"}, "b": {"model": "m"}}})


def test_a_worker_of_another_model_than_its_pool_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"pools.a.workers\[0\].model is n, but pools.a.model is m"):
        Settings.model_validate(
            {"pools": {"a": {"model": "m", "workers": [{"url": "http://x:1", "model": "n"}]}}}
        )


def test_a_pool_needs_a_plain_name() -> None:
    with pytest.raises(ValidationError, match="is no pool name"):
        Settings.model_validate({"pools": {"a b": {}}})


@pytest.mark.parametrize(
    ("pool", "late"),
    [
        ({}, False),
        ({"binding": "late", "slots": 8}, True),
        ({"barrier_group": "g", "slots": 8}, True),
        ({"workers": [{"url": "http://a:1", "barrier_group": "g", "slots": 8}]}, True),
        ({"barrier_group": "g", "binding": "early"}, False),
    ],
)
def test_binding_is_late_where_it_is_asked_for_or_a_group_is_declared(
    pool: dict[str, object], late: bool
) -> None:
    assert PoolSettings.model_validate(pool).late_binding is late


def test_late_binding_without_slots_is_refused() -> None:
    for pool in ({"binding": "late"}, {"barrier_group": "g"}):
        with pytest.raises(ValidationError, match=r"pools.a.workers\[1\] has no slots"):
            Settings.model_validate(
                {"pools": {"a": {**pool, "workers": [{"url": "http://x:1", "slots": 4}, "http://y:1"]}}}
            )


def test_an_unknown_policy_is_refused_with_the_near_one() -> None:
    with pytest.raises(ValidationError, match="did you mean round_robin"):
        PoolSettings(policy="roundrobin")


def test_parameters_are_checked_by_the_policy() -> None:
    pool = PoolSettings(policy="session_affinity", policy_params={"load_factor": "1.5", "min_in_flight": "2"})
    assert pool.policy_params == {"load_factor": 1.5, "min_in_flight": 2}
    with pytest.raises(ValidationError, match="no parameter 'factor'"):
        PoolSettings(policy="session_affinity", policy_params={"factor": 2})


# --- workers files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "http://a:1\nhttp://b:2\n",
        "# comment\nhttp://a:1   # left\nhttp://b:2",
        "- http://a:1\n- url: http://b:2\n",
        "workers:\n- http://a:1\n- http://b:2\n",
        '["http://a:1", {"url": "http://b:2"}]',
    ],
)
def test_a_workers_file_may_be_lines_or_yaml_or_json(text: str) -> None:
    assert [worker.name for worker in parse_workers(text)] == ["a:1", "b:2"]


def test_an_empty_workers_file_is_no_worker() -> None:
    assert parse_workers("") == ()
    assert parse_workers("# nobody\n") == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- htp://a", r"workers\[0\].url: it must be a URL"),
        ("- url: http://a:1\n  slot: 3", r"workers\[0\].slot"),
        ("3", "must be a list of workers"),
        ("[", "no YAML"),
        ("[" * 5_000, "nested too deeply"),
        ("- http://a:1\n- http://a:1", "two workers have the url"),
    ],
)
def test_a_wrong_workers_file_is_refused_in_one_sentence(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=reason) as error:
        read_workers_file(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_workers_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_workers_file(tmp_path / "none.yaml")


# --- mock ------------------------------------------------------------------------------------------------


def test_a_mock_group_says_itself_in_flags() -> None:
    group = MockGroup(
        port=9001, count=2, kv_tokens=100, flags={"max_model_len": 8192, "quiet": True, "no": False}
    )
    assert list(group.ports) == [9001, 9002]
    words = group.arguments
    assert words[:6] == ["--model", "qwen2.5-3b", "--gpu", "a40", "--dialect", "vllm"]
    assert words[6:] == ["--kv-tokens", "100", "--max-model-len", "8192", "--quiet", "--no-no"]


def test_a_mock_group_of_one_role_says_so_in_flags() -> None:
    group = MockGroup(
        role="prefill",
        kv_connector="nixl",
        kv_lease_s=12,
        kv_bandwidth_gbps=25.5,
        kv_load_failure_policy="recompute",
    )
    assert " ".join(group.arguments[6:]) == (
        "--role prefill --kv-connector nixl --kv-lease-s 12.0 --kv-bandwidth-gbps 25.5 "
        "--kv-load-failure-policy recompute"
    )


def test_ports_of_mock_groups_must_exist_and_differ() -> None:
    with pytest.raises(ValidationError, match="end above 65535"):
        MockGroup(port=65535, count=2)
    with pytest.raises(ValidationError, match="want port 9002"):
        Settings.model_validate({"mock": {"fleet": [{"port": 9001, "count": 2}, {"port": 9002}]}})
    with pytest.raises(ValidationError, match="without the dashes"):
        MockGroup(flags={"--x": 1})
