"""Laws of the command line of calibrate: flags become options, refusals are sentences, exit codes tell."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from engines.mock.server import Fleet
from engines.mock.settings import MockSettings
from router.__main__ import main
from router.cli import calibrate as command
from router.cli.flags import FLAGS
from router.cli.parser import parse
from router.settings.calibration_file import (
    CalibrationFile,
    GateResult,
    KvShare,
    PrefillLaw,
    StepLaw,
    TransferMeasured,
    WorkerMeasured,
    dumped,
    read_calibration,
)
from router.studies.calibrate.grid import Effort
from router.studies.calibrate.probe import ProbeFailed
from router.studies.calibrate.session import GatesFailed, Options
from router.studies.calibrate.table import render
from router.studies.calibrate.verdict import OperatingPoint, slo_of
from router.studies.data import SYNTHETIC

LAW = StepLaw(
    base_s=0.012, per_sequence_s=1e-5, per_kv_token_s=6e-8, most_sequences=64, most_kv_tokens=65_000
)
WORKER: dict[str, Any] = {"url": "http://a:1", "role": "both", "model": "m", "bytes_per_token": 4.1}
FOUND = CalibrationFile(
    measured=datetime(2026, 11, 30, 2, 0, tzinfo=UTC),
    workers={
        "a": WorkerMeasured(**WORKER, prefill=PrefillLaw(base_s=0.004, per_token_s=5e-5), step=LAW),
        "b": WorkerMeasured(
            **{**WORKER, "url": "http://b:1"}, step=LAW.model_copy(update={"mean_error": 0.3})
        ),
        "c": WorkerMeasured(
            **{**WORKER, "url": "http://c:1"}, step=LAW.model_copy(update={"tokens_per_step": 2.5})
        ),
    },
    transfers=(
        TransferMeasured(prefill="p", decode="a", connector="nixl", base_s=0.002, per_token_s=1.5e-6),
    ),
    slo={"m": slo_of(OperatingPoint(32, 1227, 2735), 0.16, 0.014)},
    kv_share=(
        KvShare(worker="a", sequences=256, context_tokens=1227, share=0.61, least=0.6, most=0.62),
        KvShare(worker="b", sequences=256, context_tokens=1227, share=0.01, least=0.0, most=0.02),
    ),
    gates=(
        GateResult(name="token counts", passed=True),
        GateResult(name="greedy answers", passed=False, workers=("b",), said="b answers otherwise"),
    ),
    notes=("a did not reset its prefix cache",),
)
ENGINE = ("--worker-urls", "http://a:1")


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("POINTSMAN_"):
            monkeypatch.delenv(name)


def arguments(*words: str) -> argparse.Namespace:
    return parse(["calibrate", *words])[1]


def measured(monkeypatch: pytest.MonkeyPatch, outcome: CalibrationFile | Exception = FOUND) -> list[Options]:
    """Options that the measuring is called with; it has this outcome."""
    seen: list[Options] = []

    def measure(options: Options, progress: Console) -> CalibrationFile:
        seen.append(options)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(command, "_measure", measure)
    return seen


def options(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> Options:
    (seen,) = (measured(monkeypatch), command.run(arguments("--out", str(folder / "c.yaml"), *words)))[0]
    return seen


def test_every_flag_of_the_fleet_is_one_of_serve() -> None:
    assert set(command.FLEET_FLAGS) <= {flag.name for flag in FLAGS}


def test_the_workers_come_from_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ("--prefill", "http://p:1", "9001", "--decode", "http://d:1", "--kv-connector", "mooncake")
    found = options(monkeypatch, tmp_path, *words)
    (couple,) = found.fleet.couples
    assert (couple.prefill.bootstrap_port, couple.connector.name) == (9001, "mooncake")


def test_the_workers_come_from_a_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("pools: {chat: {workers: [http://a:1, http://b:1]}}\n", encoding="utf-8")
    found = options(monkeypatch, tmp_path, "--config", str(config))
    assert [engine.name for engine in found.fleet.engines] == ["a:1", "b:1"]


def test_the_workers_come_from_a_running_router(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = {"name": "a", "url": "http://a:1", "role": "both", "pool": "x", "models": ["m"], "slots": 4}

    def get(url: str, **named: Any) -> httpx.Response:
        assert url == "http://router:29001/workers"
        assert named["headers"] == {"authorization": "Bearer k"}
        return httpx.Response(200, json={"workers": [said]})

    monkeypatch.setattr(httpx, "get", get)
    words = ("--url", "http://router:29001/", "--admin-api-key", "k")
    (engine,) = options(monkeypatch, tmp_path, *words).fleet.engines
    assert (engine.name, engine.slots) == ("a", 4)


def test_each_flag_sets_its_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = options(monkeypatch, tmp_path, *ENGINE)
    assert (plain.effort, plain.one_at_a_time, plain.despite_gates) == (Effort(), False, False)
    assert (plain.prompt_tokens, plain.context_tokens) == (2735, 1227)
    words = ("--quick", "--one-at-a-time", "--despite-gates", "--prompt-tokens", "9", "--context-tokens", "8")
    found = options(monkeypatch, tmp_path, *ENGINE, *words)
    assert (found.effort, found.one_at_a_time, found.despite_gates) == (Effort(quick=True), True, True)
    assert (found.prompt_tokens, found.context_tokens) == (9, 8)
    assert plain.run != found.run


def test_a_trace_tells_the_expected_prompts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = options(monkeypatch, tmp_path, *ENGINE, "--trace", str(SYNTHETIC))
    assert (found.prompt_tokens, found.context_tokens) != (2735, 1227)
    told = options(monkeypatch, tmp_path, *ENGINE, "--trace", str(SYNTHETIC), "--prompt-tokens", "77")
    assert (told.prompt_tokens, told.context_tokens) == (77, found.context_tokens)


def test_the_file_the_json_and_the_tables_say_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch)
    out, other = tmp_path / "c.yaml", tmp_path / "c.json"
    assert command.run(arguments(*ENGINE, "--out", str(out), "--json", str(other))) == 0
    assert dumped(read_calibration(out)) == dumped(FOUND)
    assert CalibrationFile.model_validate(json.loads(other.read_text(encoding="utf-8"))) == FOUND
    assert "pointsman serve --calibration" in capsys.readouterr().out


def shown(found: CalibrationFile) -> str:
    """The tables, on a wide terminal."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(width=140, record=True, file=nowhere)
        console.print(render(found))
        return console.export_text()


def test_the_tables_say_all_that_a_reader_must_know() -> None:
    text = shown(FOUND)
    for said in (
        "p → a",
        "token counts: passed",
        "greedy answers: FAILED: b answers otherwise",
        "m: 4.10 bytes a token",
        "tight TTFT 400 ms, TPOT 35.0 ms; loose TTFT 1,200 ms, TPOT 105.0 ms",
        "with 32 sequences of 1,227 tokens",
        "Reading KV is 61% of a step",
        "BalanceRoute pays",
        "b: the step law is off by 30% on average",
        "c: a step brings 2.50 tokens",
        "a did not reset its prefix cache",
    ):
        assert said in text, said


def test_no_verdict_rests_on_a_law_that_does_not_fit() -> None:
    doubtful = FOUND.model_copy(update={"kv_share": FOUND.kv_share[1:]})
    assert "cannot be told: no step law fits well" in shown(doubtful)


def test_a_hand_over_that_does_not_fit_is_told() -> None:
    (transfer,) = FOUND.transfers
    doubtful = FOUND.model_copy(update={"transfers": (transfer.model_copy(update={"mean_error": 0.4}),)})
    assert "p → a: the hand-over law is off by 40%" in shown(doubtful)


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (ProbeFailed("worker a does not answer"), 1, "worker a does not answer"),
        (GatesFailed(FOUND.gates), 1, "did not pass"),
        (KeyboardInterrupt(), 130, "nothing was written"),
        (asyncio.CancelledError(), 130, "nothing was written"),
    ],
)
def test_what_goes_wrong_is_a_sentence_an_exit_code_and_no_file(
    outcome: Exception,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measure(options: Options, progress: Console) -> CalibrationFile:
        raise outcome

    monkeypatch.setattr(command, "_measure", measure)
    assert command.run(arguments(*ENGINE, "--out", str(tmp_path / "c.yaml"))) == code
    shown = capsys.readouterr()
    assert said in shown.err
    assert list(tmp_path.iterdir()) == []
    if isinstance(outcome, GatesFailed):
        assert "b answers otherwise" in shown.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is no worker to measure"),
        ((*ENGINE, "--out", "/no/such/folder/c.yaml"), "no such directory"),
        ((*ENGINE, "--json", "/no/such/folder/c.json"), "no such directory"),
        ((*ENGINE, "--trace", "/no/such/trace.csv"), "cannot read the trace"),
        (("--url", "http://127.0.0.1:1"), "no router answers at http://127.0.0.1:1"),
    ],
)
def test_what_cannot_be_measured_exits_2_before_anything_is_sent(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(arguments(*words)) == 2
    assert said in capsys.readouterr().err


def test_a_router_that_refuses_tells_of_its_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(httpx, "get", lambda url, **named: httpx.Response(401))
    assert command.run(arguments("--url", "http://router:29001")) == 2
    assert "--admin-api-key" in capsys.readouterr().err


def test_numbers_must_be_whole(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments("--prompt-tokens", "0")
    assert "'0' is not a whole number from 1 up" in capsys.readouterr().err


@contextmanager
def served(settings: MockSettings) -> Iterator[list[str]]:
    """Mock engines behind real sockets, in a thread of their own."""
    urls: list[str] = []
    ready = threading.Event()
    stop: list[Callable[[], None]] = []

    async def serve() -> None:
        fleet = Fleet(settings, 1, "127.0.0.1", 0)
        await fleet.start()
        urls.extend(server.url for server in fleet.servers)
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(fleet.signal, signal.SIGINT))
        ready.set()
        await fleet.serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield urls
    finally:
        stop[0]()
        thread.join()


def test_the_command_works_over_real_sockets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How exactly is not asked here: the machine that runs tests is busy."""
    out = tmp_path / "c.yaml"
    with served(MockSettings(time_scale=0.01, kv_tokens=20_000, max_model_len=1024)) as urls:
        assert main(["calibrate", "--worker-urls", *urls, "--quick", "--out", str(out)]) == 0
    (worker,) = read_calibration(out).workers.values()
    assert worker.step is not None
    assert worker.prefill is not None
    assert "written to" in capsys.readouterr().out


def test_ctrl_c_ends_the_requests_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c.yaml"
    with served(MockSettings(time_scale=5.0, max_model_len=1024)) as urls:

        def await_progress(*, wanted: bool) -> None:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                state = httpx.get(f"{urls[0]}/mock/state", params={"requests": "false"}).json()
                if (state["in_progress"] > 0) is wanted:
                    return
                time.sleep(0.02)
            raise AssertionError(f"not within 60 s: requests in progress is {wanted}")

        def press() -> None:
            await_progress(wanted=True)
            os.kill(os.getpid(), signal.SIGINT)

        presser = threading.Thread(target=press)
        presser.start()
        assert main(["calibrate", "--worker-urls", *urls, "--out", str(out)]) == 130
        presser.join()
        await_progress(wanted=False)
    assert not out.exists()
    assert "stopped; nothing was written" in capsys.readouterr().err
