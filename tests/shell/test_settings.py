"""The laws of the sections: defaults, bounds, and what is refused between them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from router.settings import (
    AuthSettings,
    ClientKey,
    HealthSettings,
    LimitSettings,
    MockGroup,
    PoolSettings,
    RetrySettings,
    ServerSettings,
    Settings,
    WorkerSettings,
    parse_workers,
    read_workers_file,
)
from router.settings.section import parse_bytes


def refusal(error: pytest.ExceptionInfo[ValidationError]) -> str:
    return " / ".join(details["msg"] for details in error.value.errors())


def test_the_defaults_are_those_of_the_design() -> None:
    settings = Settings()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 30000)
    assert (settings.server.admin_host, settings.server.admin_port) == ("127.0.0.1", 29001)
    assert settings.server.prometheus is None
    assert settings.limits.queue_size == 256
    assert settings.limits.body_bytes == 64 * 2**20
    assert settings.timeouts.first_event_s == 600
    assert settings.timeouts.total_s == 3600
    assert settings.retry.budget_share == 0.2
    assert settings.health.min_in_rotation == 0.5


def test_a_router_without_pools_has_one_that_workers_can_be_added_to() -> None:
    assert list(Settings().pools) == ["default"]
    assert list(Settings.model_validate({"pools": {}}).pools) == ["default"]
    assert Settings().pools["default"].policy == "cache_aware"


def test_sections_without_keys_are_their_defaults() -> None:
    settings = Settings.model_validate({"server": None, "pools": {"a": None}})
    assert settings.server == ServerSettings()
    assert settings.pools == {"a": PoolSettings()}


def test_settings_never_change_after_the_start() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.server.port = 1
    with pytest.raises(ValidationError):
        settings.seed = 1


def test_building_settings_in_place_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_SERVER__PORT", "1234")
    assert Settings().server.port == 30000


def test_true_is_no_number() -> None:
    with pytest.raises(ValidationError, match="must not be true or false"):
        ServerSettings.model_validate({"port": True})


@pytest.mark.parametrize(
    ("text", "size"),
    [("64 MiB", 64 * 2**20), ("1gib", 2**30), ("1.5 KiB", 1536), ("2048", 2048), ("3 MB", 3_000_000)],
)
def test_sizes_may_carry_a_unit(text: str, size: int) -> None:
    assert parse_bytes(text) == size
    assert LimitSettings.model_validate({"body_bytes": text}).body_bytes == size


@given(st.integers(min_value=0, max_value=2**50))
def test_a_size_without_unit_is_itself(size: int) -> None:
    assert parse_bytes(str(size)) == size


@pytest.mark.parametrize("text", ["", "MiB", "12 parsecs", "-5", "0x10"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number of bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("open_files", "bound"),
    [(1_000_000, 10_000), (1024, 256), (256, 1), (0, 1), (30_256, 10_000), (30_253, 9_999)],
)
def test_requests_in_flight_follow_the_open_files(open_files: int, bound: int) -> None:
    assert LimitSettings().in_flight_bound(open_files) == bound


def test_a_configured_bound_on_requests_in_flight_is_taken_as_it_is() -> None:
    assert LimitSettings(max_in_flight=20_000).in_flight_bound(1024) == 20_000


def test_a_stall_has_its_bounds_in_order() -> None:
    with pytest.raises(ValidationError, match="must not be below"):
        HealthSettings(stall_min_s=20, stall_max_s=10)


def test_retries_that_are_off_allow_none() -> None:
    assert RetrySettings().allowed is None
    assert RetrySettings(max_retries=1).allowed == 1
    assert RetrySettings(enabled=False).allowed == 0
    assert RetrySettings(enabled=False, max_retries=3).allowed == 0


@pytest.mark.parametrize(
    ("given_keys", "listener"),
    [
        ({"prometheus_port": 1}, ("127.0.0.1", 1)),
        ({"prometheus_host": "::"}, ("::", 29000)),
        ({"prometheus_host": "h", "prometheus_port": 0}, ("h", 0)),
    ],
)
def test_half_a_metrics_listener_is_completed(
    given_keys: dict[str, object], listener: tuple[str, int]
) -> None:
    assert ServerSettings.model_validate(given_keys).prometheus == listener


def test_listeners_must_not_meet() -> None:
    with pytest.raises(ValidationError) as error:
        Settings(server=ServerSettings(port=29001))
    assert "server.port and server.admin_port are both 29001" in refusal(error)
    Settings(server=ServerSettings(port=0, admin_port=0))


@pytest.mark.parametrize("path", ["v1/custom", "/a/../b", "/a?b=c"])
def test_passthrough_paths_are_plain_paths(path: str) -> None:
    with pytest.raises(ValidationError, match="is no path"):
        ServerSettings(passthrough_paths=(path,))


def test_header_names_are_lower_case() -> None:
    assert ServerSettings(request_id_headers=("X-Call-Id",)).request_id_headers == ("x-call-id",)
    with pytest.raises(ValidationError, match="no header name"):
        ServerSettings(affinity_headers=("x session",))


# --- keys ---------------------------------------------------------------------------------------------


def test_client_keys_are_kept_as_hashes_only() -> None:
    auth = AuthSettings.model_validate({"client_api_keys": ["sk-first", {"key": "sk-second", "name": "bob"}]})
    assert auth.asks_clients
    assert "sk-first" not in repr(auth)
    assert "sk-first" not in auth.model_dump_json()
    assert auth.client("sk-second") == ClientKey.model_validate({"key": "sk-second", "name": "bob"})
    assert auth.client("sk-third") is None


def test_a_client_key_may_be_given_as_its_hash() -> None:
    hashed = "sha256:" + hashlib.sha256(b"sk-first").hexdigest().upper()
    auth = AuthSettings.model_validate(
        {"client_api_keys": [{"key": hashed, "trusted": True, "tenant": "t", "class": "batch"}]}
    )
    known = auth.client("sk-first")
    assert known is not None
    assert (known.trusted, known.tenant, known.slo) == (True, "t", "batch")


def test_a_file_of_client_keys_joins_those_written_in_place(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# who\nsk-a name=alice tenant=blue class=chat trusted\n\nsk-b\n")
    auth = AuthSettings.model_validate({"client_api_keys": "sk-c", "client_api_keys_file": str(file)})
    alice = auth.client("sk-a")
    assert alice is not None
    assert (alice.name, alice.tenant, alice.slo, alice.trusted) == ("alice", "blue", "chat", True)
    assert auth.client("sk-b")
    assert auth.client("sk-c")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no key"),
        ("# only a comment", "holds no key"),
        ("sk-a admin", "line 1: a key may be followed by"),
        ("sk-a\nsha256:12", "line 2: sha256: must be followed by 64 hex digits"),
    ],
)
def test_a_wrong_file_of_client_keys_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ValidationError, match=reason):
        AuthSettings(client_api_keys_file=file)


def test_a_missing_file_of_client_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="cannot be read"):
        AuthSettings(client_api_keys_file=tmp_path / "none")


@pytest.mark.parametrize("key", ["", " sk", "sk\n", "schlüssel"])
def test_a_key_that_fits_no_header_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ValidationError) as error:
        AuthSettings.model_validate({"api_key": key})
    assert "printable ASCII" in refusal(error)
    assert key.strip() == "" or key.strip() not in str(error.value)


# --- pools and workers --------------------------------------------------------------------------------


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


# --- workers files ------------------------------------------------------------------------------------


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


# --- mock ---------------------------------------------------------------------------------------------


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
