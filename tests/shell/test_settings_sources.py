"""The laws of where settings come from, and of the sentences that refuse them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.settings import Given, Settings, SettingsError, load


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("POINTSMAN_") or name == "WEB_CONCURRENCY":
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def problems(config: Path | None = None, *flags: Given) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as error:
        load(config, flags)
    assert str(error.value) == "\n".join(error.value.problems)
    return error.value.problems


def test_nothing_given_is_the_defaults() -> None:
    assert load() == Settings()


def test_no_file_is_read_that_was_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text("server: {port: 1}")
    monkeypatch.chdir(tmp_path)
    assert load().server.port == 30000


def test_flags_win_over_the_environment_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("server: {port: 1, admin_port: 2, host: a}\nlimits: {queue_size: 9}")
    monkeypatch.setenv("POINTSMAN_SERVER__PORT", "11")
    monkeypatch.setenv("POINTSMAN_SERVER__ADMIN_PORT", "12")
    settings = load(file, [Given("--port", "server.port", "21")])
    assert (settings.server.port, settings.server.admin_port, settings.server.host) == (21, 12, "a")
    assert settings.limits.queue_size == 9


def test_an_empty_file_is_no_settings(file: Path) -> None:
    file.write_text("# nothing yet\n")
    assert load(file) == Settings()


def test_lists_are_replaced_and_not_joined(file: Path) -> None:
    file.write_text("pools: {a: {workers: [http://x:1]}}")
    settings = load(file, [Given("--worker-urls", "pools.*.workers", ["http://y:1"])])
    assert [worker.url for worker in settings.pools["a"].workers] == ["http://y:1"]


# --- environment --------------------------------------------------------------------------------------


def test_lists_in_the_environment_are_words_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_SERVER__PASSTHROUGH_PATHS", "/a, /b")
    monkeypatch.setenv("POINTSMAN_POOLS__CHAT__WORKERS", '["http://x:1", {"url": "http://y:1", "slots": 3}]')
    settings = load()
    assert settings.server.passthrough_paths == ("/a", "/b")
    assert [worker.slots for worker in settings.pools["chat"].workers] == [None, 3]


def test_a_section_as_json_gives_way_to_its_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_SERVER", '{"port": 1, "host": "a"}')
    monkeypatch.setenv("POINTSMAN_SERVER__PORT", "2")
    server = load().server
    assert (server.port, server.host) == (2, "a")


def test_empty_variables_are_not_set_and_null_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_AUTH__API_KEY", "")
    monkeypatch.setenv("POINTSMAN_TIMEOUTS__KEEP_ALIVE_S", "null")
    settings = load()
    assert settings.auth.api_key is None
    assert settings.timeouts.keep_alive_s is None


def test_variables_find_pools_whatever_their_case_and_dashes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("pools: {Qwen-chat: {model: m}}")
    monkeypatch.setenv("POINTSMAN_POOLS__QWEN_CHAT__SLOTS", "7")
    settings = load(file)
    assert list(settings.pools) == ["Qwen-chat"]
    assert settings.pools["Qwen-chat"].slots == 7


def test_names_that_kubernetes_sets_for_a_service_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "POINTSMAN_SERVICE_HOST": "10.0.0.1",
        "POINTSMAN_SERVICE_PORT": "30000",
        "POINTSMAN_SERVICE_PORT_HTTP": "30000",
        "POINTSMAN_PORT": "tcp://10.0.0.1:30000",
        "POINTSMAN_PORT_30000_TCP": "tcp://10.0.0.1:30000",
        "POINTSMAN_PORT_30000_TCP_PROTO": "tcp",
        "POINTSMAN_PORT_30000_TCP_PORT": "30000",
        "POINTSMAN_PORT_30000_TCP_ADDR": "10.0.0.1",
        "POINTSMAN_ROUTER_SERVICE_HOST": "10.0.0.2",
        "POINTSMAN_ROUTER_PORT": "tcp://10.0.0.2:1",
    }.items():
        monkeypatch.setenv(name, value)
    assert load() == Settings()


def test_a_variable_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_PORT", "8000")
    monkeypatch.setenv("POINTSMAN_SERVR__HOST", "a")
    monkeypatch.setenv("POINTSMAN_SERVER__HOSTS", "a")
    assert set(problems()) == {
        "unknown key server.hosts, did you mean server.host? (environment POINTSMAN_SERVER__HOSTS)",
        "unknown key servr, did you mean server? (environment POINTSMAN_SERVR)",
        "unknown key port, did you mean server.port? (environment POINTSMAN_PORT)",
    }


def test_a_variable_that_begins_like_json_and_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_SERVER__PASSTHROUGH_PATHS", "[/a")
    assert "POINTSMAN_SERVER__PASSTHROUGH_PATHS begins like JSON" in problems()[0]


def test_a_variable_below_a_plain_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_SEED", "1")
    monkeypatch.setenv("POINTSMAN_SEED__X", "1")
    assert problems() == (
        "environment POINTSMAN_SEED__X sets a part of seed, which is already given as one value",
    )


@pytest.mark.parametrize("count", ["2", "many"])
def test_more_than_one_process_is_refused_with_the_reason(
    count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", count)
    assert problems()[0].startswith(
        f"WEB_CONCURRENCY is {count}, and must be 1 or unset: pointsman runs as one process"
    )


def test_one_process_may_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "1")
    assert load() == Settings()


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "server: {port: 99999}",
            "server.port is 99999 ({f}); it must be a whole number between 0 and 65535",
        ),
        ("server: {port: 1.5}", "server.port is 1.5 ({f}); it must be a whole number between 0 and 65535"),
        ("server: {host: 5}", "server.host is 5 ({f}); it must be text"),
        ("server: {prot: 1}", "unknown key server.prot, did you mean server.port? ({f})"),
        ("usage: {zzz: 1}", "unknown key usage.zzz, known here: inject ({f})"),
        ("server: 5", "server is 5 ({f}); it must be a mapping"),
        (
            "server: {log_format: jsn}",
            'server.log_format is "jsn" ({f}); it must be one of text, json; did you mean json?',
        ),
        ("health: {jitter: 1}", "health.jitter is 1 ({f}); it must be a number, at least 0 and below 1"),
        (
            "timeouts: {keep_alive_s: 0}",
            "timeouts.keep_alive_s is 0 ({f}); it must be a number, above 0 and at most 86400 s, or null",
        ),
        (
            "limits: {body_bytes: 3x}",
            'limits.body_bytes is "3x" ({f}); '
            'it must be a number of bytes, or one with a unit such as "64 MiB"',
        ),
        (
            "limits: {body_bytes: 1}",
            "limits.body_bytes is 1 ({f}); it must be a whole number between 1 KiB and 1 TiB",
        ),
        ("pools: [a]", 'pools is ["a"] ({f}); it must be a mapping'),
        ("pools: {a: {workers: 5}}", "pools.a.workers is 5 ({f}); it must be a list"),
        ("pools: {a: {workers: [5]}}", "pools.a.workers[0] is 5 ({f}); it must be a mapping of keys"),
        (
            "server: {passthrough_paths: [5]}",
            "server.passthrough_paths[0] is 5 ({f}); it must be text; put it into quotes",
        ),
        ("pools: {a: {slots: yes}}", "pools.a.slots is true ({f}); it must not be true or false"),
        ("pools: {a: {workers: [{name: b}]}}", "pools.a.workers[0].url is required ({f})"),
        (
            "pools: {a: {workers: [{url: 'http://a:1', slot: 1}]}}",
            "unknown key pools.a.workers[0].slot, did you mean pools.a.workers[0].slots? ({f})",
        ),
        (
            "pools: {a: {kv_connector: nixl}}",
            "pools.a.kv_connector is refused: the key is called connector ({f})",
        ),
        (
            "pools: {a: {connector: nixl}}",
            "pools.a.connector is for pools of role prefill and decode, and this one is of role both",
        ),
        (
            "pools: {a: {workers: [{url: 'http://a:1', dp_size: 0}]}}",
            "pools.a.workers[0].dp_size is 0 ({f}); it must be a whole number between 1 and 1024, or null",
        ),
        ("workers: [a]", "workers is refused: workers belong to a pool; write pools.NAME.workers ({f})"),
        ("workload: {rate: 3}", "workload.name is required where workload says anything"),
        (
            "workload: {name: toolbench, arrivals_cv: 3}",
            "workload.arrivals_cv is for arrivals gamma, and workload.arrivals is own",
        ),
        (
            "workload: {name: toolbench, arrivals: trace}",
            "workload.arrivals_file belongs to arrivals trace; set both or neither",
        ),
        (
            "workload: {name: toolbench, arrivals: saturated, rate: 3}",
            "workload.rate means nothing where workload.arrivals is saturated: all calls come at once",
        ),
        (
            "workload: {name: toolbench, arrivals: 7}",
            "workload.arrivals is 7 ({f}); it must be one of own, poisson, gamma, bursts, trace, saturated",
        ),
        (
            "limits: {body_bytes: 2 GiB}",
            "limits.body_bytes is above limits.buffered_bytes, so its largest body would never be taken",
        ),
    ],
)
def test_a_refusal_names_the_key_the_value_and_what_is_allowed(file: Path, text: str, problem: str) -> None:
    file.write_text(text)
    assert problems(file) == (problem.replace("{f}", str(file)),)


def test_server_workers_is_refused_because_there_is_one_process(file: Path) -> None:
    file.write_text("server: {workers: 4}")
    assert problems(file)[0].startswith("server.workers is refused: pointsman runs as one process")


def test_everything_that_is_wrong_is_said_at_once(file: Path) -> None:
    file.write_text("server: {port: -1, prot: 1}\nretry: {max_retries: many}")
    assert len(problems(file)) == 3


def test_a_refusal_names_the_flag(file: Path) -> None:
    file.write_text("server: {port: 1}")
    assert problems(file, Given("--port", "server.port", "x")) == (
        'server.port is "x" (--port); it must be a whole number between 0 and 65535',
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("auth: {api_key: ' hush-hush'}", "auth.api_key"),
        ("auth: {admin_api_key: [hush-hush]}", "auth.admin_api_key"),
        (
            "auth: {client_api_keys: [{key: hush-hush, trusted: hush-hush}]}",
            "auth.client_api_keys[0].trusted",
        ),
        ("pools: {a: {workers: [{url: 'http://a:1', api_key: 'hush-hush '}]}}", "pools.a.workers[0].api_key"),
    ],
)
def test_a_refusal_never_shows_a_secret(file: Path, text: str, key: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        load(file)
    assert key in str(error.value)
    assert "hush" not in str(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


def test_a_long_value_is_cut(file: Path) -> None:
    file.write_text(f"server: {{log_level: {'x' * 500}}}")
    assert len(problems(file)[0]) < 300


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("server: [", "is no YAML"),
        ("[" * 5_000, "nested too deeply"),
        ("- a", "must hold a mapping"),
        ("1: a", "must hold a mapping"),
        ("server: {port: 1}\nserver: {port: 2}", "the key server stands twice in one mapping"),
        ("server: {port: 1, port: 2}", "the key port stands twice in one mapping"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(file: Path, text: str, reason: str) -> None:
    file.write_text(text)
    (problem,) = problems(file)
    assert reason in problem
    assert str(file) in problem


def test_a_file_that_does_not_exist_is_refused(file: Path) -> None:
    assert problems(file) == (f"the configuration file {file} does not exist",)


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    assert "cannot be read" in problems(tmp_path)[0]


# --- flags of pools -----------------------------------------------------------------------------------


def test_a_flag_for_a_pool_makes_the_default_pool() -> None:
    settings = load(None, [Given("--policy", "pools.*.policy", "random")])
    assert settings.pools["default"].policy == "random"


def test_a_flag_for_a_pool_means_the_only_one_there_is(file: Path) -> None:
    file.write_text("pools: {chat: {model: m}}")
    settings = load(file, [Given("--policy", "pools.*.policy", "random")])
    assert (settings.pools["chat"].policy, settings.pools["chat"].model) == ("random", "m")


def test_a_flag_for_a_pool_is_refused_when_there_are_several(file: Path) -> None:
    file.write_text("pools: {a: {model: m}, b: {model: n}}")
    assert problems(file, Given("--policy", "pools.*.policy", "random")) == (
        "--policy speaks of one pool, but there are several (a, b); set pools.*.policy",
    )


# --- files that settings name -------------------------------------------------------------------------


def test_files_are_looked_at_before_the_start(file: Path, tmp_path: Path) -> None:
    file.write_text(
        f"pools: {{a: {{workers_file: {tmp_path}/none}}}}\n"
        f"request_log: {{path: {tmp_path}/no/log, salt_file: {tmp_path}/no/salt}}"
    )
    found = problems(file)
    assert len(found) == 3
    assert found[0].startswith("pools.a.workers_file: the workers file")
    assert found[1].startswith("request_log.path is")
    assert found[2].startswith("request_log.salt_file is")


def test_files_that_are_there_are_taken(file: Path, tmp_path: Path) -> None:
    (tmp_path / "workers").write_text("http://a:1")
    file.write_text(
        f"pools: {{a: {{workers_file: {tmp_path}/workers}}}}\n"
        f"request_log: {{path: {tmp_path}/log, salt_file: {tmp_path}/salt}}"
    )
    assert load(file).request_log.path == tmp_path / "log"


def test_logs_that_are_one_file_or_a_folder_are_refused_before_the_start(file: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    file.write_text(f"request_log: {{path: {tmp_path}/log}}\ndecision_log: {{path: {tmp_path}/x/../log}}")
    (found,) = problems(file)
    assert found.startswith("request_log.path and decision_log.path are both")
    file.write_text(f"decision_log: {{path: {tmp_path}}}")
    (found,) = problems(file)
    assert found == f"decision_log.path is {tmp_path}, which is a folder"


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("decision_log: {sample: 0.5}", "decision_log.sample is given, but no decision log"),
        ("decision_log: {path: null, sample: 0.5}", "decision_log.sample is given, but no decision log"),
        ("request_log: {salt_file: salt}", "request_log.salt_file is given, but no request log"),
    ],
)
def test_what_a_log_that_there_is_not_would_say_is_refused(section: str, words: str, file: Path) -> None:
    file.write_text(section)
    (found,) = problems(file)
    assert found.startswith(words)
