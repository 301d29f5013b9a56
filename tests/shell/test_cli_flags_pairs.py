"""The laws of the flags for prefill and decode on different workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.__main__ import main
from router.cli.flags import given, read_prefills, typed
from router.cli.parser import parse
from router.core.worker import Role
from router.policies import POLICIES
from router.settings import Settings, SettingsError, load


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("POINTSMAN_") or name == "WEB_CONCURRENCY":
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(
        "pools:\n"
        "  front: {role: prefill, model: m, workers: ['http://p:1']}\n"
        "  back: {role: decode, model: m, workers: ['http://d:1']}\n"
    )
    return path


def settings_of(*words: str) -> Settings:
    _, args = parse(["serve", *words])
    return load(args.config, given(args))


def refused(*words: str) -> str:
    with pytest.raises(SettingsError) as error:
        settings_of(*words)
    return "\n".join(error.value.problems)


DEMO = Path(__file__).parents[2] / "config.yaml"
PAIR = ("--prefill", "http://p:1", "--decode", "http://d:1", "http://d:2")


@pytest.mark.parametrize("switch", [(), ("--pd-disaggregation",), ("--vllm-pd-disaggregation",)])
def test_prefill_and_decode_workers_make_a_pair_with_the_switch_and_without(switch: tuple[str, ...]) -> None:
    settings = settings_of(*switch, *PAIR)
    assert {name: pool.role for name, pool in settings.pools.items()} == {
        "prefill": Role.PREFILL,
        "decode": Role.DECODE,
    }
    assert [worker.url for worker in settings.pools["decode"].workers] == ["http://d:1", "http://d:2"]
    (pair,) = settings.pairs
    assert (pair.prefill, pair.decode, pair.connector.name) == ("prefill", "decode", "nixl")


def test_the_switch_alone_makes_a_pair_that_workers_can_be_added_to() -> None:
    settings = settings_of("--pd-disaggregation")
    assert len(settings.pairs) == 1
    assert [pool.workers for pool in settings.pools.values()] == [(), ()]


def test_half_a_pair_is_refused_with_the_flag_that_makes_the_other_half() -> None:
    assert "needs a pool of role decode" in refused("--prefill", "http://p:1")
    assert "--prefill makes one" in refused("--decode", "http://d:1")


def test_prefill_workers_take_ports_at_once_and_repeated() -> None:
    words = ["--kv-connector", "sglang", "--decode", "http://d:1"]
    for flags in (
        ["--prefill", "http://a:1", "8997", "http://b:1", "--prefill", "http://c:1", "none"],
        ["--prefill", "http://a:1", "8997", "--prefill=http://b:1", "--prefill", "http://c:1"],
    ):
        pool = settings_of(*words, *flags).pools["prefill"]
        assert [(worker.url, worker.bootstrap_port) for worker in pool.workers] == [
            ("http://a:1", 8997),
            ("http://b:1", None),
            ("http://c:1", None),
        ]
        assert [pool.bootstrap_port_of(worker) for worker in pool.workers] == [8997, 8998, 8998]


@pytest.mark.parametrize("words", [["8998"], ["8998", "http://a:1"], ["http://a:1", "8998", "8999"]])
def test_a_bootstrap_port_without_its_worker_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"899[89] must follow the URL of the worker"):
        read_prefills(words)
    assert "--prefill: 899" in refused("--pd-disaggregation", "--prefill", *words)


def test_a_bootstrap_port_under_a_connector_that_has_none_is_refused() -> None:
    said = refused(*PAIR, "--prefill", "http://q:1", "8998")
    assert "pools.prefill has a bootstrap port, which the connector nixl does not use" in said


def test_each_side_has_its_policy_and_one_policy_is_that_of_both() -> None:
    settings = settings_of(*PAIR, "--policy", "round_robin", "--decode-policy", "least_tokens")
    assert (settings.pools["prefill"].policy, settings.pools["decode"].policy) == (
        "round_robin",
        "least_tokens",
    )


def test_the_model_is_that_of_both_sides_and_slots_are_those_of_decode_workers() -> None:
    settings = settings_of(*PAIR, "--model", "m", "--slots", "64", "--pd-binding", "late")
    prefill, decode = settings.pools["prefill"], settings.pools["decode"]
    assert (prefill.model, decode.model) == ("m", "m")
    assert (prefill.slots, decode.slots, decode.mode.value) == (None, 64, "late")


def test_prefill_pools_follow_prefixes_and_take_the_flags_for_it() -> None:
    settings = settings_of(*PAIR, "--cache-threshold", "0.3")
    prefill, decode = settings.pools["prefill"], settings.pools["decode"]
    assert (prefill.policy, decode.policy) == ("cache_aware", "least_requests")
    assert (prefill.policy_params, decode.policy_params) == ({"cache_threshold": 0.3}, {})


def test_flags_of_the_split_are_those_of_the_decode_pool() -> None:
    settings = settings_of(*PAIR, "--pd-split-min-tokens", "0", "--pd-fallback", "strict", "--pd-may-prefill")
    decode = settings.pools["decode"]
    assert (decode.pd_split_min_tokens, decode.fallback, decode.may_prefill) == (0, "strict", True)


def test_the_connector_of_a_flag_wins_over_either_pool_of_the_file(file: Path) -> None:
    text = file.read_text().replace("role: decode,", "role: decode, connector: nixl,")
    file.write_text(text)
    (pair,) = settings_of("--config", str(file), "--kv-connector", "mooncake").pairs
    assert pair.connector.name == "mooncake"


def test_flags_of_a_pair_mean_the_one_of_the_file_whatever_its_pools_are_called(file: Path) -> None:
    settings = settings_of("--config", str(file), "--decode", "http://x:1", "--prefill-policy", "random")
    assert list(settings.pools) == ["front", "back"]
    assert [worker.url for worker in settings.pools["back"].workers] == ["http://x:1"]
    assert settings.pools["front"].policy == "random"
    assert settings_of("--config", str(file), "--policy", "random").pools["back"].policy == "random"


def test_a_flag_of_a_side_that_exists_twice_is_refused(file: Path) -> None:
    file.write_text(
        "pools: {p: {role: prefill, model: m}, d: {role: decode, model: m}, "
        "q: {role: prefill, model: n}, e: {role: decode, model: n}}"
    )
    said = refused("--config", str(file), "--prefill-policy", "random")
    assert said == (
        "--prefill-policy speaks of one prefill pool, but there are several (p, q); set pools.*.policy"
    )


@pytest.mark.parametrize("words", [["--worker-urls", "http://w:1"], ["--workers-file", "workers"]])
def test_workers_that_serve_whole_requests_are_not_given_beside_a_pair(words: list[str]) -> None:
    said = refused(*PAIR, *words)
    assert said.startswith(
        f"{words[0]} is for workers that serve whole requests, but there is a pair of pools "
        "(prefill, decode); name their workers with --prefill and --decode"
    )


def test_a_flag_for_the_one_pool_is_refused_beside_a_pair_and_another(file: Path) -> None:
    file.write_text("pools: {rest: {model: n}}")
    assert "--policy speaks of one pool, but there are several (rest, prefill, decode)" in refused(
        "--config", str(file), *PAIR, "--policy", "random"
    )


def test_a_wrong_value_is_refused_with_the_flag_that_gave_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["check", *PAIR, "--policy", "random", "--kv-connector", "moriio", "--prefill-policy", "x"]) == 1
    )
    lines = capsys.readouterr().err.splitlines()
    assert (
        'pointsman: pools.prefill.connector is "moriio" (--kv-connector); '
        "it must be one of nixl, mooncake, sglang, none" in lines
    )
    assert any(
        line.startswith('pointsman: pools.prefill.policy is "x" (--prefill-policy); ') for line in lines
    )


def test_flags_of_a_pair_become_the_same_words_again() -> None:
    words = [*PAIR, "--prefill", "http://q:1", "8998", "--vllm-pd-disaggregation", "--pd-may-prefill"]
    _, args = parse(["up", *words])
    _, again = parse(["up", *typed(args)])
    assert given(again) == given(args)
    assert "--pd-disaggregation" in typed(args)


def test_a_pair_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "P__ROLE": "prefill",
        "P__WORKERS": "http://p:1,http://p:2",
        "D__ROLE": "decode",
        "D__WORKERS": "http://d:1",
        "D__MAY_PREFILL": "true",
        "D__KV_LEASE_S": "null",
        "D__CONNECTOR": "none",
    }.items():
        monkeypatch.setenv(f"POINTSMAN_POOLS__{name}", value)
    settings = settings_of("--decode-policy", "random")
    (pair,) = settings.pairs
    assert (pair.prefill, pair.decode, pair.connector.name) == ("p", "d", "none")
    decode = settings.pools["d"]
    assert (decode.policy, decode.may_prefill, decode.kv_lease_s) == ("random", True, None)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_put_in_front_of_the_demo_fleet_by_one_flag(policy: str) -> None:
    settings = settings_of("--config", str(DEMO), "--policy", policy)
    for name, role in (("prefill", Role.PREFILL), ("decode", Role.DECODE)):
        own = POLICIES[policy].fits(role)
        assert settings.pools[name].policy == (policy if own else "least_tokens")
    assert policy in {pool.policy for pool in settings.pools.values()}


@pytest.mark.parametrize(("side", "pool"), [("prefill", "front"), ("decode", "back")])
def test_help_names_the_default_policy_of_each_side(
    side: str, pool: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    default = settings_of("--config", str(file)).pools[pool].policy
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Policy of the {side} pool. [{default}]" in printed
