"""Gives each worker that joins what `pointsman calibrate` has measured of it, and says when that may be
wrong.

Separate from the roster, which takes coefficients from anywhere, and from the file, which knows no fleet.
"""

from __future__ import annotations

import logging
from pathlib import Path

from router.core.calibration import CalibrationState
from router.core.calibration_online import OnlineCalibration
from router.core.slo import LOOSE, TIGHT, Targets
from router.core.token_book import TokenBook
from router.fleet import Member
from router.settings.calibration import CalibrationSettings
from router.settings.calibration_file import CalibrationFile, WorkerMeasured, read_calibration

log = logging.getLogger("pointsman.calibration")


def online_calibration(settings: CalibrationSettings) -> OnlineCalibration | None:
    """What learns the coefficients of one pool; None when that is switched off."""
    return OnlineCalibration(settings.fit, _changed) if settings.online else None


def _changed(worker: str, before: CalibrationState, now: CalibrationState) -> None:
    level = logging.WARNING if now is CalibrationState.DRIFTED else logging.INFO
    log.log(level, "coefficients of worker %s are %s now, %s before", worker, now.value, before.value)


class Calibrations:
    """What one file says of the workers of a fleet.

    State: `_told`, so that each doubt about a worker is logged once.

    Args:
        path: the file; None for none.
        tokens: learns how many bytes are a token.

    Raises:
        CalibrationFileError: the file cannot be used.
    """

    def __init__(self, path: Path | None, tokens: TokenBook) -> None:
        self._source = "" if path is None else path.name
        self._file: CalibrationFile | None = None if path is None else read_calibration(path)
        self._tokens = tokens
        self._told: set[tuple[str, str]] = set()

    @property
    def slos(self) -> dict[str, dict[str, Targets]]:
        """What was found to be fair to promise, by model and class."""
        measured = {} if self._file is None else self._file.slo
        return {
            model: {name: Targets(t.ttft_s, t.tpot_s) for name, t in ((TIGHT, slo.tight), (LOOSE, slo.loose))}
            for model, slo in measured.items()
        }

    def joined(self, member: Member) -> None:
        """A worker joined: it gets its coefficients, and those of the hand-overs to it."""
        found = self._measured(member)
        if self._file is None or found is None:
            return
        name, measured = found
        roster = member.dispatcher.pool.roster
        transfers = self._file.transfers_to(name)
        roster.calibrate(member.name, measured.step_model, transfers, self._source, measured.step_errors)
        if measured.bytes_per_token is not None:
            self._tokens.prompts.presume(measured.model, measured.bytes_per_token)

    def met(self, member: Member) -> None:
        """A worker has told its version and its models: are they those that were measured?"""
        found = self._measured(member)
        if found is None:
            return
        measured = found[1]
        version, models = member.engine_version, member.worker.models
        if None not in (version, measured.engine_version) and version != measured.engine_version:
            self._doubt(member, f"engine {measured.engine_version}", f"runs {version}")
        if models and measured.model not in models:
            self._doubt(member, f"model {measured.model}", f"serves {', '.join(sorted(models))}")

    def _doubt(self, member: Member, measured: str, now: str) -> None:
        if (member.name, measured + now) not in self._told:
            self._told.add((member.name, measured + now))
            log.warning(
                "worker %s was measured with %s and %s now; its step times may be wrong until live traffic "
                "corrects them. Measure again with pointsman calibrate",
                member.name,
                measured,
                now,
            )

    def _measured(self, member: Member) -> tuple[str, WorkerMeasured] | None:
        return None if self._file is None else self._file.worker(member.name, member.url)

    def __repr__(self) -> str:
        known = 0 if self._file is None else len(self._file.workers)
        return f"<Calibrations {self._source or 'none'} [{known} workers]>"
