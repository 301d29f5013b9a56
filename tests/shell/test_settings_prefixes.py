"""Settings of prefix index, KV events and tokenizers: their bounds, and what is refused before the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from router.cli.check import warnings
from router.core.prefix_settings import PrefixSettings
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from router.settings.configuration import Settings
from router.settings.refusals import SettingsError
from router.settings.workers import WorkerSettings
from router.tokenizer.build import build_tokenizers
from tests.tokenizer.prompts import directory
from tests.tokenizer.threads import Threads


def worker(**fields: Any) -> WorkerSettings:
    return WorkerSettings(url="http://e:8000", **fields)


def test_the_defaults_are_those_of_the_core() -> None:
    settings = Settings()
    assert settings.prefix_index.core == PrefixSettings()
    assert settings.kv_events.core == KvEventsSettings()
    assert settings.prefix_index.max_bytes == 256 * 2**20


def test_every_bound_reaches_the_index_of_a_pool() -> None:
    section = {"max_bytes": "64 MiB", "ttl_s": 60, "capacity_share": 0.5, "block_tokens": 32}
    core = Settings.model_validate({"prefix_index": section}).prefix_index.core
    assert (core.max_bytes, core.ttl_s, core.capacity_share, core.block_tokens) == (64 * 2**20, 60, 0.5, 32)


@pytest.mark.parametrize(
    "sections",
    [
        {"prefix_index": {"max_bytes": "1 KiB"}},
        {"prefix_index": {"capacity_share": 0}},
        {"prefix_index": {"block_tokens": 0}},
        {"kv_events": {"follow": "sometimes"}},
        {"kv_events": {"resync_min_s": 100, "resync_max_s": 50}},
        {"kv_events": {"queue_messages": 0}},
        {"tokenizers": {"threads": 0}},
    ],
)
def test_what_is_out_of_bounds_is_refused(sections: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(sections)


def test_a_worker_may_say_where_it_publishes() -> None:
    assert worker().event_source is None
    told = worker(
        kv_events_endpoint="tcp://e:1", kv_events_replay_endpoint="tcp://e:2", kv_events_topic="kv@"
    )
    assert told.event_source == EventSource("tcp://e:1", "tcp://e:2", "kv@")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kv_events_endpoint": "http://e:1"}, "must begin with tcp:// or ipc://"),
        ({"kv_events_endpoint": "tcp://e:1", "kv_events_replay_endpoint": "tcp://*:2"}, "name its host"),
        ({"kv_events_replay_endpoint": "tcp://e:2"}, "of no use without kv_events_endpoint"),
    ],
)
def test_an_endpoint_that_is_none_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        worker(**fields)


def test_an_endpoint_without_pyzmq_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    told = worker(kv_events_endpoint="tcp://e:1")
    settings = Settings.model_validate({"pools": {"a": {"workers": [told.model_dump(exclude_unset=True)]}}})
    assert not any("pyzmq" in warning for warning in warnings(settings, 100_000))
    monkeypatch.setattr("router.cli.check.zmq_is_installed", lambda: False)
    assert any("pyzmq is missing (the extra kv-events)" in warning for warning in warnings(settings, 100_000))


def of_pool(path: Path) -> Settings:
    return Settings.model_validate({"pools": {"a": {"tokenizer": str(path)}, "b": {"tokenizer": str(path)}}})


def test_a_tokenizer_needs_its_files(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"it holds no tokenizer\.json"):
        of_pool(tmp_path)


def built(settings: Settings) -> Any:
    return build_tokenizers(settings, Threads(), lambda: 0.0, lambda: 0.0, lambda *_: None)


def test_pools_with_the_same_files_share_a_tokenizer(tmp_path: Path) -> None:
    tokenizers = built(of_pool(directory(tmp_path)))
    assert tokenizers.serves("a")
    assert tokenizers._by_pool["a"] is tokenizers._by_pool["b"]
    assert built(Settings()) is None


def test_files_that_cannot_be_read_refuse_the_start(tmp_path: Path) -> None:
    settings = of_pool(directory(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(SettingsError, match=r"pools\.a\.tokenizer: .*tokenizer\.json cannot be read"):
        built(settings)
