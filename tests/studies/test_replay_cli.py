"""Laws of the command line of replay: flags become options, refusals are sentences, exit codes tell."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvicorn

from router.cli import replay as command
from router.cli.parser import parse
from router.studies.data import SYNTHETIC
from router.studies.replay.endpoint import Deadlines, EndpointError
from router.studies.replay.report import Report, RunFacts, TraceSource, build
from router.studies.replay.schedule import Pace
from router.studies.replay.session import Options
from router.studies.replay.settings import ReplaySettings, Slo
from router.studies.traces import read_trace, statistics
from tests.studies.fake_engine import FakeEngine, Seen

PACE = Pace(speed=2.0, jitter_s=3.0, duration_s=60.0)


def arguments(*words: str) -> argparse.Namespace:
    return parse(["replay", *words])[1]


def options(*words: str) -> Options:
    return command._options(arguments(*words))


def report(*, ok: bool = True, interrupted: bool = False) -> Report:
    trace = read_trace(SYNTHETIC, limit=1)
    return build(
        [],
        planned=[] if ok else [1],
        settings=ReplaySettings(url="http://e", model="m"),
        trace=TraceSource(
            name="t", format="mooncake", digest="", block_tokens=512, statistics=statistics(trace)
        ),
        run=RunFacts(version="0", started="then", runs=1, interrupted=interrupted),
    )


def test_nothing_given_replays_the_shipped_trace_against_the_local_router() -> None:
    found = options()
    assert (found.trace, found.url) == (SYNTHETIC, "http://127.0.0.1:30000")
    assert (found.pace, found.slo, found.deadlines) == (Pace(), Slo(), Deadlines())
    assert (found.seed, found.api, found.ignore_eos, found.limit) == (0, "chat", True, None)


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (("--trace", "t.csv"), "trace", Path("t.csv")),
        (("--format", "burstgpt"), "trace_format", "burstgpt"),
        (("--url", "http://h:1/v1"), "url", "http://h:1/v1"),
        (("--limit", "5"), "limit", 5),
        (("--seed", "9"), "seed", 9),
        (("--api", "completions"), "api", "completions"),
        (("--model", "m"), "model", "m"),
        (("--trace-models",), "trace_models", True),
        (("--send-session",), "send_session", True),
        (("--no-ignore-eos",), "ignore_eos", False),
        (("--speed", "2", "--jitter-s", "3", "--duration", "60"), "pace", PACE),
        (("--concurrency-cap", "7"), "concurrency_cap", 7),
        (("--bytes-per-token", "3.5"), "bytes_per_token", 3.5),
        (("--overhead-tokens", "0"), "overhead_tokens", 0),
        (("--slo-ttft-ms", "500"), "slo", Slo(ttft_ms=500)),
        (("--slo-tpot-ms", "50", "--slo-e2e-s", "9"), "slo", Slo(tpot_ms=50, e2e_s=9)),
        (
            ("--first-event-timeout-s", "1", "--idle-timeout-s", "2", "--timeout-s", "3"),
            "deadlines",
            Deadlines(1, 2, 3),
        ),
        (("--api-key", "k"), "headers", ((b"authorization", b"Bearer k"),)),
        (("--header", "X-A: b: c", "--header", "d:e"), "headers", ((b"x-a", b"b: c"), (b"d", b"e"))),
        (("--records", "r", "--resume"), "resume", True),
        (("--reset-prefix-cache", "--engine-url", "http://e"), "engine_urls", ["http://e"]),
    ],
)
def test_each_flag_sets_its_option(words: tuple[str, ...], field: str, value: Any) -> None:
    assert getattr(options(*words), field) == value


def test_a_key_file_gives_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("secret\nnot this\n", encoding="utf-8")
    assert options("--api-key-file", str(path)).headers == ((b"authorization", b"Bearer secret"),)


def test_the_cap_never_exceeds_the_sockets_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 500))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: raised.append(limits))
    assert options("--concurrency-cap", "9999").concurrency_cap == 500 - 64
    assert raised == [(500, 500)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--speed", "0"), "'0' is not a number above 0"),
        (("--speed", "nan"), "'nan' is not a number above 0"),
        (("--jitter-s", "-1"), "'-1' is not a number from 0"),
        (("--limit", "0"), "'0' is not a whole number from 1 up"),
        (("--limit", "1.5"), "'1.5' is not a whole number"),
        (("--seed", "x"), "'x' is not a whole number from 0 up"),
        (("--format", "csv"), "invalid choice: 'csv'"),
        (("--url", "localhost:30000"), "must begin with http"),
        (("--header", "nocolon"), "'nocolon' is not 'NAME: VALUE'"),
        (("--header", "a: b\nc"), "printable ASCII"),
        (("--sped", "2"), "did you mean --speed"),
    ],
)
def test_a_wrong_flag_is_refused_with_a_sentence(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        arguments(*words)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--resume",), "--resume needs --records"),
        (("--engine-url", "http://e"), "only for --reset-prefix-cache"),
        (("--api-key", "a", "--api-key-file", "b"), "not both"),
        (("--api-key", ""), "printable ASCII"),
        (("--api-key-file", "/no/such/file"), "--api-key-file /no/such/file"),
        (("--json", "/no/such/dir/r.json"), "no such directory"),
        (("--trace", "/no/such/trace.csv"), "cannot read the trace trace.csv"),
    ],
)
def test_what_cannot_be_run_exits_2_before_anything_is_sent(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(arguments(*words)) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "words", "code"),
    [
        (report(), (), 0),
        (report(ok=False), (), 1),
        (report(ok=False), ("--allow-errors",), 0),
        (report(interrupted=True), (), 130),
        (report(interrupted=True), ("--allow-errors",), 130),
    ],
)
def test_the_exit_code_says_whether_all_succeeded(
    found: Report, words: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_measure", lambda options, console: found)
    assert command.run(arguments(*words)) == code


def test_the_report_is_written_as_json_beside_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report()
    monkeypatch.setattr(command, "_measure", lambda options, console: found)
    command.run(arguments("--json", str(tmp_path / "r.json")))
    assert msgspec.json.decode((tmp_path / "r.json").read_bytes(), type=Report) == found
    assert "0 of 0 succeeded" in capsys.readouterr().out


@contextmanager
def served(engine: FakeEngine) -> Iterator[str]:
    """An engine behind a real socket, in a thread of its own."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(engine, log_config=None, lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listening.close()


def test_the_command_works_over_real_sockets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(FakeEngine(prefill_s=0, token_s=0)) as url:
        words = ("--url", url, "--limit", "20", "--speed", "1000", "--json", str(tmp_path / "r.json"))
        assert command.run(arguments(*words)) == 0
    assert "20 of 20 succeeded" in capsys.readouterr().out
    found = msgspec.json.decode((tmp_path / "r.json").read_bytes(), type=Report)
    assert found.run.cpu_share is not None
    assert found.prompt_fit is not None
    assert found.prompt_fit.exact == 20


def test_ctrl_c_prints_the_table_of_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    def press(seen: Seen) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "hang"

    with served(FakeEngine(behave=press)) as url:
        assert command.run(arguments("--url", url, "--limit", "2", "--speed", "0.001")) == 130
    shown = capsys.readouterr()
    assert "stopping" in shown.err
    assert "interrupted, 0 of 2 succeeded" in shown.out
    assert "1 interrupted, 1 not sent" in shown.out


def test_an_endpoint_that_refuses_is_a_sentence_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(options: Options, console: object) -> Report:
        raise EndpointError("http://e:1 serves no model yet")

    monkeypatch.setattr(command, "_measure", refuse)
    assert command.run(arguments()) == 2
    assert capsys.readouterr().err == "pointsman replay: http://e:1 serves no model yet\n"
