"""Laws of calibration.yaml: written whole, read strictly, and what is said of it before a start."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.__main__ import main
from router.core.step_model import StepModel
from router.core.worker import Role
from router.settings import SettingsError, load
from router.settings.calibration_file import (
    CalibrationFile,
    CalibrationFileError,
    GateResult,
    PrefillErrors,
    PrefillLaw,
    StepErrorsLaw,
    StepLaw,
    TransferMeasured,
    WorkerMeasured,
    dumped,
    old_or_foreign,
    read_calibration,
    write_calibration,
)

NOW = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)
PREFILL = PrefillLaw(
    base_s=0.004, per_token_s=5e-5, per_token_squared_s=1e-9, errors=PrefillErrors(base_s=1e-4), samples=8
)
STEP = StepLaw(
    base_s=0.012,
    per_sequence_s=1e-5,
    per_kv_token_s=6e-8,
    errors=StepErrorsLaw(per_kv_token_s=1e-9),
    tokens_per_step=1.5,
    samples=24,
)


def measured(**changes: Any) -> WorkerMeasured:
    fields = {"url": "http://a:1", "role": Role.BOTH, "model": "m", "prefill": PREFILL, "step": STEP}
    return WorkerMeasured(**{**fields, **changes})


def calibration(**changes: Any) -> CalibrationFile:
    transfer = TransferMeasured(prefill="p", decode="a", connector="nixl", base_s=0.002, per_token_s=1e-6)
    fields = {"measured": NOW, "workers": {"a": measured()}, "transfers": (transfer,)}
    return CalibrationFile(**{**fields, **changes})


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("POINTSMAN_"):
            monkeypatch.delenv(name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.yaml"
    write_calibration(path, calibration())
    return path


def test_what_was_written_is_read_again(path: Path) -> None:
    assert read_calibration(path) == calibration()


def test_nothing_is_left_beside_the_file(path: Path) -> None:
    assert [one.name for one in path.parent.iterdir()] == ["calibration.yaml"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "calibration.yaml"
    folder.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_calibration(folder, calibration())
    assert [one.name for one in tmp_path.iterdir()] == ["calibration.yaml"]


def test_absent_is_absent_and_numbers_are_short() -> None:
    text = dumped(calibration(workers={"a": measured(prefill=None, engine_version=None)}))
    assert "null" not in text
    assert "prefill:\n" not in text.partition("transfers:")[0]
    assert "per_kv_token_s: 6.0e-08" in text


def test_a_worker_becomes_the_model_that_policies_compute_with() -> None:
    assert measured().step_model == StepModel(0.004, 5e-5, 0.012, 1e-5, 6e-8, 1e-9, 1.5)
    assert measured().step_errors.prefill_base_s == 1e-4
    assert measured().step_errors.step_per_kv_token_s == 1e-9
    assert measured().step_errors.step_base_s is None


def test_what_a_worker_does_not_do_costs_nothing_and_nothing_measured_is_no_model() -> None:
    model = measured(step=None).step_model
    assert model is not None
    assert (model.step_base_s, model.prefill_base_s) == (0.0, 0.004)
    assert measured(step=None, prefill=None).step_model is None


def test_a_worker_is_found_by_name_then_by_url() -> None:
    file = calibration()
    assert file.worker("a", "http://elsewhere:9") == ("a", file.workers["a"])
    assert file.worker("renamed", "http://a:1/") == ("a", file.workers["a"])
    assert file.worker("other", "http://b:1") is None


def test_hand_overs_are_those_to_the_worker_that_decodes() -> None:
    file = calibration()
    assert file.transfers_to("a")["p"].transfer_s(1000) == pytest.approx(0.003)
    assert file.transfers_to("p") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no YAML"),
        ("[]", "is no calibration: it has no version"),
        ("workers: {}", "is no calibration: it has no version"),
        ("version: 2", "has version 2, this router reads 1; measure again"),
        ("[" * 5_000, "nested too deeply"),
        ("version: [1]", "has no version"),
        ("version: 1", "measured"),
        ("version: 1\nmeasured: 0001-01-01T00:00:00+14:00", "measured"),
        ("version: 1\nmeasured: 2026-11-30T02:00:00", "measured"),
        ("version: 1\nmeasured: 2026-11-30T02:00:00Z\nextra: 1", "extra"),
    ],
)
def test_what_is_no_calibration_is_refused_with_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CalibrationFileError, match=said) as caught:
        read_calibration(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        (["step"], "base_s", -0.001),
        (["step"], "per_kv_token_s", float("nan")),
        (["prefill"], "base_s", 1e300),
        (["step"], "tokens_per_step", 1e-300),
        (["step"], "tokens_per_step", float("inf")),
        ([], "bytes_per_token", 1e-300),
    ],
)
def test_a_coefficient_that_nobody_measured_is_refused(
    path: Path, place: list[str], key: str, value: float
) -> None:
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    inner = tree["workers"]["a"]
    for name in place:
        inner = inner[name]
    inner[key] = value
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(CalibrationFileError, match=key):
        read_calibration(path)


def test_a_missing_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    from router.settings import Given

    flag = Given("--calibration", "calibration.file", str(tmp_path / "none.yaml"))
    with pytest.raises(SettingsError, match=r"calibration\.file: the calibration .* cannot be read"):
        load(None, [flag])


def said(**changes: Any) -> list[str]:
    names = {"a": "http://a:1"}
    return list(old_or_foreign(calibration(**changes), 30.0, NOW, changes.pop("names", names)))


def test_a_fresh_file_that_knows_everybody_raises_no_doubt() -> None:
    assert said() == []


def test_an_old_file_is_told_by_its_age() -> None:
    assert said(measured=NOW - timedelta(days=31)) == [
        "the calibration is 31 days old; measure again with pointsman calibrate"
    ]


def test_a_file_from_the_future_is_doubted() -> None:
    assert said(measured=NOW + timedelta(hours=20)) == []
    assert said(measured=NOW + timedelta(days=400)) == [
        "the calibration was measured at 2028-01-04 02:00 UTC, which is yet to come"
    ]


def test_workers_that_it_does_not_know_are_named() -> None:
    found = list(old_or_foreign(calibration(), 30.0, NOW, {"a": "http://a:1", "b": "http://b:1"}))
    assert found == ["the calibration does not know b; live traffic must teach what they take"]


def test_gates_that_failed_are_named() -> None:
    gates = (GateResult(name="greedy answers", passed=False), GateResult(name="token counts", passed=True))
    assert said(gates=gates) == ["the calibration was made although gates failed: greedy answers"]


def test_check_shows_what_was_measured_of_each_worker(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "--worker-urls", "http://a:1", "http://b:1", "--calibration", str(path)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert f"{path}, measured 2026-11-30 02:00 UTC" in printed
    assert "a:1  prefill of 1,000 tokens 55 ms, step 12 ms + 10 µs per sequence + 60 µs per 1,000" in printed
    assert "p, a  hand-over 2 ms + 1 ms per 1,000 tokens" in printed
    assert "warning: the calibration does not know b:1" in printed


def test_check_says_nothing_of_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--worker-urls", "http://a:1"]) == 0
    assert "calibration" not in capsys.readouterr().out
