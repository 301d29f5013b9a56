"""A log that the live router wrote runs through the user's own fleet under every policy that fits."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.mock.settings import MockSettings
from router.__main__ import main
from router.policies import POLICIES
from router.telemetry.record import Header, Phases, RequestRecord, read_records
from tests.shell.live import CHAT, Live, play
from tests.shell.puppet import MODEL

FLEET = """
pools:
  default:
    policy: cache_aware
    workers: [http://w0:9001, http://w1:9002]
mock: {fleet: [{port: 9001, count: 2, kv_tokens: 60000}]}
"""
BATCHING = {"balance_route_0", "balance_route_h"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    return file


async def inline(call: Callable[[], None]) -> None:
    call()


def live_log(path: Path, asks: int = 24) -> list[RequestRecord]:
    """Conversations of four users with long instructions of their own, through a live router."""

    async def ask(act: Live, number: int) -> None:
        await asyncio.sleep(0.4 * number)
        user = number % 4
        system = f"You are the assistant of user {user}. " + f"Rule {user}: answer in short words. " * 150
        body = {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": f"Question {number}"},
            ],
            "max_tokens": 20 + number,
            "ignore_eos": True,
            "stream": True,
        }
        assert (await act.ask(CHAT, body)).status == 200

    async def scene(act: Live) -> None:
        assert act.router.logs.requests is not None
        act.router.logs.requests._offload = inline  # there are no threads in virtual time
        await asyncio.gather(*(ask(act, number) for number in range(asks)))
        await asyncio.sleep(2)
        assert act.router.logs.reopen()

    mock = MockSettings(served_model_name=MODEL, kv_tokens=60_000)
    play(scene, {"w0": mock, "w1": mock}, pool={"policy": "cache_aware"}, request_log={"path": path})
    return list(read_records(path))


def whatif(*words: object) -> int:
    return main(["whatif", *(str(word) for word in words), "--jobs", "1"])


def figures(file: Path) -> dict[str, Any]:
    return {cell["task"]["policy"]: cell["figures"] for cell in json.loads(file.read_text())["cells"]}


def test_a_live_log_is_run_under_all_policies_that_fit(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out, page = tmp_path / "requests.jsonl", tmp_path / "out.json", tmp_path / "page.html"
    records = live_log(log)
    assert len(records) == 24
    assert whatif("--log", log, "--config", config, "--json", out, "--html", page) == 0
    found = figures(out)
    assert next(iter(found)) == "cache_aware"
    assert set(found) == set(POLICIES) - BATCHING
    assert all(each["answered"] == 24 for each in found.values())
    # The same traffic under the policy that it was recorded under: the same cache hits, the same times.
    prompts = sum(record.prompt_tokens or 0 for record in records)
    hits = sum(record.cached_tokens or 0 for record in records) / prompts
    assert hits > 0.5
    assert found["cache_aware"]["hit_rate"] == pytest.approx(hits, abs=0.05)
    e2e_s = math.fsum(record.phases.total_s for record in records) / len(records)
    assert found["cache_aware"]["latencies"]["e2e_s"]["mean"] == pytest.approx(e2e_s, rel=0.1)
    told = capsys.readouterr().out
    assert "trace:requests.jsonl" in told
    assert "balance_route_h is left out" in told
    assert all(name in page.read_text() for name in found)


def test_traffic_can_come_faster_than_it_was_recorded(tmp_path: Path, config: Path) -> None:
    log, out = tmp_path / "requests.jsonl", tmp_path / "out.json"
    write_log(log)
    words = ("--policies", "least_requests", "--speeds", "1,4", "--json", out)
    assert whatif("--log", log, "--config", config, *words) == 0
    slow, fast = json.loads(out.read_text())["cells"]
    assert fast["task"]["rate"] == pytest.approx(4 * slow["task"]["rate"])
    assert fast["figures"]["duration_s"] < slow["figures"]["duration_s"]


def write_log(path: Path, **fields: Any) -> None:
    """Thirty requests, two a second."""
    lines = [msgspec.json.encode(Header())]
    for number in range(30):
        record: dict[str, Any] = {
            "arrival": 1.7e9 + number / 2,
            "id": str(number),
            "model": "m",
            "api": "chat",
            "stream": True,
            "prompt_tokens": 200,
            "output_tokens": 20,
            "phases": Phases(total_s=1.0),
            "outcome": "ok",
            "status": 200,
        } | {name: value(number) for name, value in fields.items()}
        lines.append(msgspec.json.encode(RequestRecord(**record)))
    path.write_bytes(b"\n".join(lines) + b"\n")


def test_what_the_log_lacks_is_said(tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "requests.jsonl"
    write_log(log, model=lambda n: "m" if n % 3 else "other", output_tokens=lambda n: 20 if n % 5 else None)
    assert whatif("--log", log, "--config", config, "--policies", "random") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "requests.jsonl has 24 requests, which came within 14.0 seconds" in told
    assert "requests that are left out: 6 × no output" in told
    assert "several models, and all requests go to the same workers: m (16), other (8)" in told
    assert "it knows no shared prefixes" in told


def test_of_several_models_one_is_run_before_its_own_pools(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = tmp_path / "requests.jsonl", tmp_path / "out.json"
    write_log(log, model=lambda n: "m" if n % 3 else "other")
    config.write_text(
        """
pools:
  one: {model: m, workers: [http://w0:9001]}
  two: {model: other, workers: [http://w1:9002]}
mock: {fleet: [{port: 9001, count: 2}]}
"""
    )
    words = ["--log", log, "--config", config, "--policies", "random", "--json", out]
    assert whatif(*words, "--model", "other") == 0
    [cell] = json.loads(out.read_text())["cells"]
    assert cell["figures"]["answered"] == 10
    assert list(cell["breakdown"]["workers"]) == ["w1:9002"]
    assert "requests.jsonl has 10 requests of other" in capsys.readouterr().out
    assert whatif(*words) == 2
    assert "name their model, in workload.model or with --model (m, other)" in capsys.readouterr().err
    assert whatif(*words, "--model", "third") == 2
    assert "has too few requests of third" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--policies", "balance_route_0"], "has no slots, but its policy balance_route_0"),
        (["--policies", "prebel"], "did you mean preble?"),
        (["--speeds", "0"], "--speeds is '0': numbers above 0"),
        (["--html", "no/such/folder/page.html"], "there is no folder no/such/folder"),
    ],
)
def test_flags_that_mean_nothing_are_refused(
    words: list[str], sentence: str, tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "requests.jsonl"
    write_log(log)
    assert whatif("--log", log, "--config", config, *words) == 2
    assert sentence in capsys.readouterr().err


def test_a_file_that_is_no_log_is_refused(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "requests.jsonl"
    log.write_text("hello\n")
    assert whatif("--log", log, "--config", config) == 2
    assert "is no trace that is known here" in capsys.readouterr().err
    assert whatif("--log", tmp_path / "gone", "--config", config) == 2
    assert "cannot read the trace gone" in capsys.readouterr().err
