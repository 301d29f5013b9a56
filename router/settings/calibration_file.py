"""`calibration.yaml`: what was measured of a fleet, as it is written and read.

Separate from the measuring, so that the router reads the file without it, and from the settings, which only
name the file. People read it too: every number has its unit in its name, and stands beside its error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import AwareDatetime, Field, ValidationError, field_validator

from router.core.calibration import StepErrors
from router.core.step_model import StepModel, TransferModel
from router.core.worker import Role
from router.settings.refusals import sentences
from router.settings.section import Section

VERSION: Final = 1
"""Of the format. A file of another version is refused: coefficients that mean something else are worse than
none."""

_HEADER: Final = """\
# Measured by `pointsman calibrate`. Load it with `pointsman serve --calibration FILE`, or calibration.file in
# the configuration. Measure again after a change of model, engine, its flags, or hardware.
"""

Seconds = Annotated[float, Field(ge=0, le=86_400)]
Error = Annotated[float, Field(ge=0)] | None
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0.1, le=1_000)]
"""Bytes of a token, or tokens of a step. What is beyond was never measured, and lengths that are divided by
it would be no numbers any more."""

_CLOCKS_APART_DAYS = 1.0
"""A file from a machine whose clock is ahead is no file from the future."""


class Quality(Section):
    """How well a law fits what was measured."""

    r_squared: Annotated[float, Field(le=1)] | None = None
    """Share of the variance that the law explains; null when nothing varied."""
    mean_error: Annotated[float, Field(ge=0)] = 0.0
    """Mean of |predicted / measured - 1|."""
    samples: Count = 0
    """Points that the law was fitted to."""


class PrefillErrors(Section):
    """One standard error of each coefficient; null: not known, or the term was left out."""

    base_s: Error = None
    per_token_s: Error = None
    per_token_squared_s: Error = None


class PrefillLaw(Quality):
    """Seconds of a prefill of p tokens on an idle engine with an empty cache:
    base + per token * p + per token squared * p^2."""

    base_s: Seconds
    per_token_s: Seconds
    per_token_squared_s: Seconds = 0.0
    errors: PrefillErrors = PrefillErrors()
    longest_tokens: Count = 0
    """Longest prompt that was measured; beyond it the law is a guess."""

    def seconds(self, tokens: int) -> float:
        """A prefill of so many tokens."""
        return self.base_s + self.per_token_s * tokens + self.per_token_squared_s * tokens**2


class StepErrorsLaw(Section):
    """One standard error of each coefficient; null: not known, or the term was left out."""

    base_s: Error = None
    per_sequence_s: Error = None
    per_kv_token_s: Error = None


class StepLaw(Quality):
    """Seconds of one decode step while n sequences hold KV tokens:
    base + per sequence * n + per KV token * KV."""

    base_s: Seconds
    per_sequence_s: Seconds
    per_kv_token_s: Seconds
    errors: StepErrorsLaw = StepErrorsLaw()
    most_sequences: Count = 0
    most_kv_tokens: Count = 0
    """Largest batch that was measured; beyond it the law is a guess."""
    tokens_per_step: Rate = 1.0
    """Tokens that a step gives each sequence; above 1 the engine decodes speculatively."""

    def seconds(self, sequences: int, kv_tokens: int) -> float:
        """A step with so many sequences over so many tokens of KV."""
        return self.base_s + self.per_sequence_s * sequences + self.per_kv_token_s * kv_tokens


class WorkerMeasured(Section):
    """One worker."""

    url: str
    role: Role
    model: str
    engine_version: str | None = None
    kv_capacity_tokens: Annotated[int, Field(ge=1)] | None = None
    prefill: PrefillLaw | None = None
    """null: this worker does not prefill by itself."""
    step: StepLaw | None = None
    """null: this worker does not decode by itself."""
    bytes_per_token: Rate | None = None
    """Of text in several languages; code and JSON among it."""

    @property
    def step_model(self) -> StepModel | None:
        """The coefficients as policies take them. What this worker does not do costs nothing in it; None when
        nothing was measured."""
        prefill, step = self.prefill, self.step
        if prefill is None and step is None:
            return None
        return StepModel(
            prefill_base_s=prefill.base_s if prefill else 0.0,
            prefill_per_token_s=prefill.per_token_s if prefill else 0.0,
            prefill_per_token_squared_s=prefill.per_token_squared_s if prefill else 0.0,
            step_base_s=step.base_s if step else 0.0,
            step_per_sequence_s=step.per_sequence_s if step else 0.0,
            step_per_kv_token_s=step.per_kv_token_s if step else 0.0,
            tokens_per_step=step.tokens_per_step if step else 1.0,
        )

    @property
    def step_errors(self) -> StepErrors:
        """The errors of the same coefficients."""
        prefill = self.prefill.errors if self.prefill else PrefillErrors()
        step = self.step.errors if self.step else StepErrorsLaw()
        return StepErrors(
            prefill_base_s=prefill.base_s,
            prefill_per_token_s=prefill.per_token_s,
            prefill_per_token_squared_s=prefill.per_token_squared_s,
            step_base_s=step.base_s,
            step_per_sequence_s=step.per_sequence_s,
            step_per_kv_token_s=step.per_kv_token_s,
        )


class TransferErrors(Section):
    """One standard error of each coefficient; null: not known, or the term was left out."""

    base_s: Error = None
    per_token_s: Error = None


class TransferMeasured(Quality):
    """Seconds to get the KV of p tokens from one worker to another: base + per token * p."""

    prefill: str
    decode: str
    connector: str
    base_s: Seconds
    per_token_s: Seconds
    errors: TransferErrors = TransferErrors()
    first_s: Seconds = 0.0
    """Time of the first hand-over of this pair, which sets up the connection and is not in the law."""

    @property
    def model(self) -> TransferModel:
        return TransferModel(self.base_s, self.per_token_s)


class Targets(Section):
    """What a request of one class should get."""

    ttft_s: Seconds
    tpot_s: Seconds


class SloMeasured(Section):
    """Targets of one model: tight is 2.5 times what was measured, at the median of its workers; loose is
    three times that."""

    sequences: Annotated[int, Field(ge=1)]
    """The operating point n*: sequences that run at once on one engine."""
    context_tokens: Annotated[int, Field(ge=1)]
    """Context of each of them."""
    prompt_tokens: Annotated[int, Field(ge=1)]
    """Prompt length that the TTFT is for."""
    tight: Targets
    loose: Targets


class GateResult(Section):
    """One gate that an engine has to pass before its times mean anything."""

    name: str
    passed: bool
    workers: tuple[str, ...] = ()
    """Whose fault it is that it failed."""
    said: str = ""


class KvShare(Section):
    """How much of a step of a full engine is spent on reading KV."""

    worker: str
    sequences: Annotated[int, Field(ge=1)]
    context_tokens: Annotated[int, Field(ge=1)]
    share: Annotated[float, Field(ge=0, le=1)]
    """Per KV token * KV over the whole step."""
    least: Annotated[float, Field(ge=0, le=1)]
    """The same with two standard errors less per KV token …"""
    most: Annotated[float, Field(ge=0, le=1)]
    """… and with two more."""


class CalibrationFile(Section):
    """All that was measured at one time."""

    version: Literal[1] = 1
    measured: AwareDatetime
    workers: dict[str, WorkerMeasured] = Field(default_factory=dict)
    transfers: tuple[TransferMeasured, ...] = ()
    slo: dict[str, SloMeasured] = Field(default_factory=dict)
    """By model."""
    kv_share: tuple[KvShare, ...] = ()
    gates: tuple[GateResult, ...] = ()
    notes: tuple[str, ...] = ()

    @field_validator("measured")
    @classmethod
    def _in_utc(cls, value: datetime) -> datetime:
        try:
            return value.astimezone(UTC)
        except OverflowError:
            raise ValueError("it is no time of this calendar") from None

    def worker(self, name: str, url: str) -> tuple[str, WorkerMeasured] | None:
        """A worker of the fleet as it was measured, and the name it had then: the same name, else the same
        URL."""
        if name in self.workers:
            return name, self.workers[name]
        return next(((known, one) for known, one in self.workers.items() if one.url == url.rstrip("/")), None)

    def transfers_to(self, decode: str) -> Mapping[str, TransferModel]:
        """What it takes to get KV to a decode worker, by prefill worker; names are those of the file."""
        return {one.prefill: one.model for one in self.transfers if one.decode == decode}

    def age_days(self, now: datetime) -> float:
        """Days since it was measured."""
        return (now - self.measured).total_seconds() / 86_400


class CalibrationFileError(ValueError):
    """The file cannot be used. The message says why, and what to do."""


def read_calibration(path: Path) -> CalibrationFile:
    """The measurements in a file.

    Raises:
        CalibrationFileError: it cannot be read, is no calibration, or one of another version.
    """
    again = "measure again with pointsman calibrate"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationFileError(f"the calibration {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise CalibrationFileError(f"the calibration {path} is no YAML: {said}") from error
    except RecursionError:
        raise CalibrationFileError(f"the calibration {path} is nested too deeply to be read") from None
    if not isinstance(content, dict) or not isinstance(content.get("version"), int):
        raise CalibrationFileError(f"{path} is no calibration: it has no version; {again}")
    if content["version"] != VERSION:
        raise CalibrationFileError(
            f"the calibration {path} has version {content['version']}, this router reads {VERSION}; {again}"
        )
    try:
        return CalibrationFile.model_validate(content)
    except ValidationError as error:
        first = sentences(error, CalibrationFile, lambda _: "")[0]
        raise CalibrationFileError(f"the calibration {path} is refused: {first}; {again}") from None


def write_calibration(path: Path, calibration: CalibrationFile) -> None:
    """Writes it, whole or not at all. Raises OSError."""
    beside = path.with_name(f".{path.name}.{calibration.measured:%H%M%S}.part")
    try:
        beside.write_text(_HEADER + dumped(calibration), encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def dumped(calibration: CalibrationFile) -> str:
    """The file's YAML, without what is absent."""
    tree = _rounded(calibration.model_dump(mode="json", exclude_none=True))
    text: str = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)
    return text


def _rounded(value: Any) -> Any:
    """Five digits: far more than a measurement is good for, and a file that people can read."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def old_or_foreign(
    calibration: CalibrationFile, max_age_days: float, now: datetime, names: Mapping[str, str]
) -> Iterator[str]:
    """What somebody who loads it should know, one sentence each.

    Args:
        now: in UTC.
        names: URL of each worker of the fleet, by name.
    """
    age = calibration.age_days(now)
    if age < -_CLOCKS_APART_DAYS:
        measured = f"{calibration.measured:%Y-%m-%d %H:%M} UTC"
        yield f"the calibration was measured at {measured}, which is yet to come"
    elif age > max_age_days:
        yield f"the calibration is {age:.0f} days old; measure again with pointsman calibrate"
    missing = [name for name, url in names.items() if calibration.worker(name, url) is None]
    if missing:
        yield f"the calibration does not know {', '.join(missing)}; live traffic must teach what they take"
    failed = [gate.name for gate in calibration.gates if not gate.passed]
    if failed:
        yield f"the calibration was made although gates failed: {', '.join(failed)}"
