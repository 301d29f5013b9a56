"""Laws of `pointsman explain`: a stranger learns why, and whether the record leads to the same choice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.__main__ import main
from router.core.binding import Mode
from router.core.pool import Pool
from router.core.recording import Recording
from router.policies import build
from router.telemetry.decision_log import DecisionLog, DecisionLogSettings
from router.virtual.clock import run
from tests.core.fleet_examples import pool, request


async def inline(call: Callable[[], None]) -> None:
    call()


def written(path: Path, policy: str, count: int = 3, *, sample: float = 1.0, **rules: Any) -> Path:
    """The log of a pool that has placed so many requests."""
    made: Pool = pool("a", "b", "c", policy=build(policy, {}, 5), **rules)
    made.use(made.policy, policy)

    async def scene() -> None:
        settings = DecisionLogSettings(path=path, sample=sample)
        log = DecisionLog(settings, lambda: 1_700_000_000.0, offload=inline)
        made.chooser.recorder = Recording(log, lambda error: None)
        for number in range(count):
            made.submit(request(f"r{number}#{number + 1}", sequence=number, arrived=0.5), 1.0)
        made.assign(1.0)
        await log.aclose()

    run(scene())
    return path


def changed(path: Path, change: Callable[[Any], None]) -> Path:
    """The same file with something else in its last line."""
    lines = path.read_text().splitlines()
    record = json.loads(lines[-1])
    change(record)
    path.write_text("\n".join([*lines[:-1], json.dumps(record)]) + "\n")
    return path


def test_a_log_whose_decisions_are_the_same_again_is_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(written(tmp_path / "d", "least_requests"))]) == 0
    out = capsys.readouterr().out
    assert "3 decisions, of which 3 are kept whole, and 0 rounds." in out
    assert "Made again, 3 of 3 are the same." in out
    assert "least_requests" in out


def test_a_decision_that_is_another_one_again_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(
        written(tmp_path / "d", "least_requests"), lambda record: record["table"]["rows"][0].update(total=-9)
    )
    assert main(["explain", str(path)]) == 1
    out = capsys.readouterr().out
    assert "Made again, 2 of 3 are the same." in out
    assert "r2#3 was given" in out
    assert "its table picks a" in out


@pytest.mark.parametrize("request_id", ["r1", "r1#2"])
def test_one_request_is_shown_with_every_term_of_every_worker(
    request_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "d", "session_affinity")
    assert main(["explain", str(path), "--request-id", request_id]) == 0
    out = capsys.readouterr().out
    assert "r1#2 in pool p, 2023-11-14 22:13:20 UTC" in out
    same = "Made again from this table, it is the same"
    for words in ("in_flight_requests", "warmup", "capacity", "no_key", "tier", same):
        assert words in out
    assert "load_factor 1.25" in out
    assert "r0#1" not in out


def test_terms_that_are_0_for_all_need_no_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "d", "least_requests", 1)
    assert main(["explain", str(path), "--request-id", "r0"]) == 0
    assert "0 for all: in_flight_requests." in capsys.readouterr().out


def test_a_decision_outside_of_the_sample_shows_the_best_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "d", "least_requests", sample=0.0)
    assert main(["explain", str(path), "--request-id", "r0"]) == 0
    out = capsys.readouterr().out
    assert "Not of the sample that is kept whole" in out
    assert "Cost in requests in flight" in out


@pytest.mark.parametrize("policy", ["balance_route_0", "balance_route_h"])
def test_a_round_is_shown_with_who_waited_and_made_again(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "d", policy, 5, slots=1, mode=Mode.LATE)
    assert main(["explain", str(path)]) == 0
    assert "3 decisions, of which 0 are kept whole, and 1 rounds." in capsys.readouterr().out
    assert main(["explain", str(path), "--request-id", "r0"]) == 0
    out = capsys.readouterr().out
    assert "Chosen in round 1" in out
    assert "left queued" in out
    assert "Made again, it is the same." in out


def another(path: Path) -> Path:
    """The same file with somebody else chosen in its first round."""
    lines = path.read_text().splitlines()
    record = json.loads(lines[1])
    made = record["choices"][0]
    made["worker"] = "a" if made["worker"] == "b" else "b"
    path.write_text("\n".join([lines[0], json.dumps(record), *lines[2:]]) + "\n")
    return path


def test_a_round_of_the_run_before_is_not_taken_for_that_of_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A router that starts appends to the file of the one before, and numbers its rounds anew."""
    path = another(written(tmp_path / "d", "balance_route_0", 5, slots=1, mode=Mode.LATE))
    written(path, "balance_route_0", 5, slots=1, mode=Mode.LATE)
    assert main(["explain", str(path), "--request-id", "r0"]) == 1
    out = capsys.readouterr().out
    assert out.count("Made again, it is another one.") == 1
    assert out.count("Made again, it is the same.") == 1


def test_a_round_that_is_another_one_again_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = another(written(tmp_path / "d", "balance_route_0", 5, slots=1, mode=Mode.LATE))
    assert main(["explain", str(path)]) == 1
    assert "round 1 of pool p places others when made again" in capsys.readouterr().out
    assert main(["explain", str(path), "--request-id", "r0"]) == 1
    assert "Made again, it is another one." in capsys.readouterr().out


def test_what_cannot_be_explained_is_said_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "d", "random")
    assert main(["explain", str(path), "--request-id", "unheard-of"]) == 1
    assert "no decision about unheard-of is in this file" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "nowhere")]) == 1
    assert "nowhere cannot be read: No such file" in capsys.readouterr().err
    for line in ("", "{}\n", "no json\n"):
        (tmp_path / "other").write_text(line)
        assert main(["explain", str(tmp_path / "other")]) == 1
        assert "is not a decision log" in capsys.readouterr().err


def test_a_policy_of_another_version_is_not_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "d", "balance_route_0", 5, slots=1, mode=Mode.LATE)
    path.write_text(path.read_text().replace('"params":{', '"params":{"unheard_of": 1,'))
    assert main(["explain", str(path)]) == 1
    assert "this version cannot make it again" in capsys.readouterr().err
