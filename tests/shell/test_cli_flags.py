"""The laws of the command line: every flag does something, and a wrong word is answered with a sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router import __version__
from router.__main__ import main
from router.cli.flags import FLAGS, REFUSED, given, notices, typed
from router.cli.parser import COMMANDS, module_of, parse
from router.settings import Settings, load
from router.settings.keys import all_keys


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("POINTSMAN_") or name == "WEB_CONCURRENCY":
            monkeypatch.delenv(name)


def usage_error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def settings_of(*words: str) -> Settings:
    _, args = parse(["serve", *words])
    return load(args.config, given(args))


def test_every_flag_sets_settings_that_exist() -> None:
    keys = {key.path for key in all_keys(Settings)}
    for flag in FLAGS:
        assert flag.keys
        assert set(flag.keys) <= keys, flag.name


def test_no_flag_is_both_taken_and_refused() -> None:
    names = [name for flag in FLAGS for name in flag.names]
    assert len(set(names)) == len(names)
    assert not set(names) & set(REFUSED)


VALUES = {
    "--port": "31000",
    "--admin-port": "0",
    "--prometheus-port": "29002",
    "--log-level": "DEBUG",
    "--log-format": "json",
    "--passthrough-paths": "/v1/custom",
    "--worker-urls": "http://a:1",
    "--policy": "random",
    "--slots": "64",
    "--dp-size": "2",
    "--cache-threshold": "0.3",
    "--balance-abs-threshold": "64",
    "--balance-rel-threshold": "1.1",
    "--max-tree-size": "10000",
    "--eviction-interval-secs": "30",
    "--prefill": "http://p:1",
    "--decode": "http://d:1",
    "--prefill-policy": "session_affinity",
    "--decode-policy": "least_tokens",
    "--kv-connector": "mooncake",
    "--pd-split-min-tokens": "0",
    "--pd-fallback": "strict",
    "--pd-binding": "early",
    "--max-payload-size": "4 MiB",
    "--max-concurrent-requests": "77",
    "--queue-size": "3",
    "--queue-timeout-secs": "4",
    "--request-timeout-secs": "5",
    "--retry-max-retries": "1",
    "--health-check-interval-secs": "6",
    "--health-check-timeout-secs": "7",
    "--health-check-endpoint": "/alive",
    "--health-failure-threshold": "8",
    "--seed": "9",
}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_flag_changes_the_settings(flag: object, tmp_path: Path) -> None:
    assert isinstance(flag, type(FLAGS[0]))
    for name in ("keys", "workers"):
        (tmp_path / name).write_text("http://a:1")
    (tmp_path / "calibration").write_text("version: 1\nmeasured: 2026-11-30T00:00:00Z\n")
    files = {
        "--client-api-keys": str(tmp_path / "keys"),
        "--workers-file": str(tmp_path / "workers"),
        "--request-log": str(tmp_path / "log"),
        "--calibration": str(tmp_path / "calibration"),
        "--decision-log": str(tmp_path / "decisions"),
        "--decision-sample": "0.5",
    }
    words = [flag.name]
    if flag.metavar:
        words.append({**VALUES, **files}.get(flag.name, "some-text"))
    base = ["--pd-disaggregation"] if flag.roles and flag.name != "--pd-disaggregation" else []
    if flag.name == "--decision-sample":
        base = ["--decision-log", files["--decision-log"]]
    assert settings_of(*base, *words) != settings_of(*base)


def test_flags_with_several_values_take_them_at_once_and_repeated() -> None:
    settings = settings_of("--worker-urls", "http://a:1", "http://b:1", "--worker-urls", "http://c:1")
    assert [worker.name for worker in settings.pools["default"].workers] == ["a:1", "b:1", "c:1"]


def test_the_request_timeout_bounds_first_events_and_whole_answers_and_says_so() -> None:
    _, args = parse(["serve", "--request-timeout-secs", "30"])
    timeouts = load(None, given(args)).timeouts
    assert (timeouts.first_event_s, timeouts.total_s, timeouts.idle_s) == (30, 30, 600)
    assert "never cuts a stream" in notices(args)[0]
    assert notices(parse(["serve"])[1]) == []


def test_flags_of_cache_aware_set_its_parameters_together() -> None:
    words = ["--cache-threshold", "0.3", "--balance-abs-threshold", "64", "--balance-rel-threshold", "1.1"]
    settings = settings_of(*words, "--eviction-interval", "30", "--max-tree-size", "10000")
    assert settings.pools["default"].policy_params == {
        "cache_threshold": 0.3,
        "balance_abs_threshold": 64,
        "balance_rel_threshold": 1.1,
        "eviction_interval_s": 30,
        "max_tree_size": 10_000,
    }


def test_flags_of_cache_aware_leave_the_parameters_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("pools: {mine: {policy_params: {guard: seconds, cache_threshold: 0.7}}}")
    settings = settings_of("--config", str(file), "--cache-threshold", "0.3")
    assert settings.pools["mine"].policy_params == {"guard": "seconds", "cache_threshold": 0.3}


def test_a_flag_of_cache_aware_is_refused_for_another_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--policy", "random", "--cache-threshold", "0.3"]) == 1
    assert "policy 'random' has no parameter 'cache_threshold'" in capsys.readouterr().err


def test_who_sets_both_thresholds_is_told_once_how_they_are_judged() -> None:
    _, args = parse(["serve", "--balance-abs-threshold", "64", "--balance-rel-threshold", "1.5"])
    (notice,) = notices(args)
    assert "judged for each request" in notice


def test_switches_turn_off_what_is_on() -> None:
    settings = settings_of("--disable-retries", "--no-usage-injection", "--expose-routing-headers")
    assert not settings.retry.enabled
    assert not settings.usage.inject
    assert settings.server.expose_routing_headers


@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_a_refused_flag_says_why(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = usage_error(capsys, "serve", flag, "http://a", "8998")
    assert said.startswith(f"pointsman serve: {flag} is refused: {REFUSED[flag]}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--prot", "1"], "pointsman serve: unknown flag --prot, did you mean --port?"),
        (["serve", "--hots=1"], "pointsman serve: unknown flag --hots, did you mean --host?"),
        (["serve", "--zzzzzzzz"], "pointsman serve: unknown flag --zzzzzzzz\n"),
        (["check", "extra"], "pointsman check: unexpected argument extra"),
        (["serve", "--port"], "pointsman serve: argument --port: expected one argument"),
        (["serv"], "pointsman: unknown command serv, did you mean serve?"),
        (["xyz"], "pointsman: unknown command xyz, known: serve"),
        ([], "pointsman: the following arguments are required: COMMAND"),
        (["--port", "1"], "pointsman: "),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = usage_error(capsys, *words)
    assert error.startswith(said)
    assert len(error.splitlines()) == 2, "the sentence, and where to look"


def test_flags_may_not_be_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown flag --work" in usage_error(capsys, "serve", "--work", "http://a:1")


def test_a_refused_configuration_is_exit_code_1_and_leaves_stdout_empty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "--port", "99999", "--seed", "x"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        'pointsman: seed is "x" (--seed); it must be a whole number, at least 0',
        'pointsman: server.port is "99999" (--port); it must be a whole number between 0 and 65535',
    ]


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"pointsman {__version__}\n"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_is_a_module_with_a_parser(command: str) -> None:
    assert callable(module_of(command).add_parser)


def test_help_says_what_each_command_does_beside_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.strip()]
    beside = {words[0]: words[1] for words in lines if len(words) == 2}
    for name, summary in COMMANDS.items():
        assert summary.startswith(beside[name])


def test_help_names_every_flag_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert [name for flag in FLAGS for name in flag.names if name not in text] == []
    assert [name for name in REFUSED if f"{name} " in text] == []
    assert "[30000]" in text


def test_flags_become_the_same_words_again() -> None:
    words = [
        "--port",
        "1",
        "--worker-urls",
        "http://a:1",
        "http://b:1",
        "--disable-retries",
        "--api-key",
        "-x",
    ]
    words[-2:] = ["--api-key=-x"]
    _, args = parse(["up", *words])
    _, again = parse(["up", *typed(args)])
    assert given(again) == given(args)
    assert typed(args) == [
        "--port=1",
        "--worker-urls=http://a:1",
        "--worker-urls=http://b:1",
        "--api-key=-x",
        "--disable-retries",
    ]


def test_mock_becomes_the_engine_with_all_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[str, list[str]]] = []

    class Became(Exception):
        pass

    def execv(path: str, words: list[str]) -> None:
        became.append((path, words))
        raise Became

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(Became):
        main(["mock", "--help", "--port", "9001"])
    ((path, words),) = became
    assert words[0] == path
    assert words[-5:] == ["-m", "engines.mock", "--help", "--port", "9001"]


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(module_of("check"), "run", interrupted)
    assert main(["check"]) == 130
