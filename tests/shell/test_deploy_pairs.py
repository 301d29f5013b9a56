"""Laws of the examples for prefill and decode on different workers: the two sides find each other."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from router.cli.check import warnings
from router.core.worker import Role
from router.settings import PoolSettings, Settings, load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "pairs.compose.yaml").read_text(encoding="utf-8"))
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def option(command: list[str], name: str) -> str:
    """The value of an engine's flag written as --name=value; fails when there is none, or more."""
    (value,) = [word.removeprefix(f"--{name}=") for word in command if word.startswith(f"--{name}=")]
    return value


@pytest.fixture
def settings() -> Settings:
    return load(DEPLOY / "pairs.yaml")


@pytest.fixture
def in_a_cluster(tmp_path: Path) -> Settings:
    document = yaml.safe_load((DEPLOY / "kubernetes/pairs.yaml").read_text(encoding="utf-8"))
    (tmp_path / "config.yaml").write_text(document["data"]["config.yaml"])
    return load(tmp_path / "config.yaml")


def pools(settings: Settings) -> dict[str, PoolSettings]:
    (pair,) = settings.pairs
    return {"prefill": settings.pools[pair.prefill], "decode": settings.pools[pair.decode]}


def test_both_examples_are_a_pair_over_nixl_whose_decode_workers_may_serve_whole_requests(
    settings: Settings, in_a_cluster: Settings
) -> None:
    for each in (settings, in_a_cluster):
        (pair,) = each.pairs
        assert pair.connector.name == "nixl"
        assert all(map(pools(each)["decode"].serves_whole, pools(each)["decode"].workers))
        assert [line for line in warnings(each, 1_000_000) if "one worker" not in line] == []


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_each_worker_is_an_engine_of_its_role(role: Role, settings: Settings) -> None:
    for worker in pools(settings)[role.value].workers:
        parts = urlsplit(worker.url)
        engine = COMPOSE["services"][parts.hostname]
        assert int(option(engine["command"], "port")) == parts.port
        config = json.loads(option(engine["command"], "kv-transfer-config"))
        assert config == {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[role.value]}


def test_every_engine_serves_the_model_of_its_pool(settings: Settings) -> None:
    for role, pool in pools(settings).items():
        assert COMPOSE["services"][role]["command"][0] == pool.model


def test_engines_tell_each_other_an_address_that_is_theirs() -> None:
    (network,) = COMPOSE["networks"]["default"]["ipam"]["config"]
    addresses = [COMPOSE["services"][role]["networks"]["default"]["ipv4_address"] for role in KV_ROLES]
    assert len(set(addresses)) == len(addresses)
    for role, address in zip(KV_ROLES, addresses, strict=True):
        told = COMPOSE["services"][role]["environment"]["VLLM_NIXL_SIDE_CHANNEL_HOST"]
        assert told == address
        assert ipaddress.ip_address(told) in ipaddress.ip_network(network["subnet"])


def test_engines_do_not_share_a_gpu_and_are_of_one_version() -> None:
    engines = [COMPOSE["services"][role] for role in KV_ROLES]
    gpus = [
        gpu
        for engine in engines
        for device in engine["deploy"]["resources"]["reservations"]["devices"]
        for gpu in device["device_ids"]
    ]
    assert len(set(gpus)) == len(gpus) == len(engines)
    assert len({engine["image"] for engine in engines}) == 1


def test_the_configuration_of_a_cluster_takes_the_place_of_the_plain_one() -> None:
    plain, *_ = yaml.safe_load_all((DEPLOY / "kubernetes/pointsman.yaml").read_text(encoding="utf-8"))
    pairs = yaml.safe_load((DEPLOY / "kubernetes/pairs.yaml").read_text(encoding="utf-8"))
    assert {key: value for key, value in pairs.items() if key != "data"} == {
        key: value for key, value in plain.items() if key != "data"
    }
    assert set(pairs["data"]) == set(plain["data"])
