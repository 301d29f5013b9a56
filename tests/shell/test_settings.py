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
    PoolSettings,
    RetrySettings,
    ServerSettings,
    Settings,
)
from router.settings.section import parse_bytes
from tests.shell.settings_examples import refusal


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


# --- keys ------------------------------------------------------------------------------------------------


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
