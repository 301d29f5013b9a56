"""The two opt-in logs of records, of requests and of decisions: opened, written in the background, reopened.

Separate from the composition root because they open, are rotated and end together.
"""

from __future__ import annotations

from collections.abc import Callable

from router.core.recording import Records
from router.settings.configuration import Settings
from router.supervisor import Supervisor
from router.telemetry.decision_log import DecisionLog, DecisionLogSettings, OthersOnly
from router.telemetry.line_log import LineLog
from router.telemetry.metrics import Metrics
from router.telemetry.request_log import RequestLog, RequestLogSettings


class RecordLogs:
    """Those that the settings ask for; `requests` and `decisions` are None otherwise.

    Raises OSError or ValueError when a file cannot be written, or a salt cannot be had.
    """

    def __init__(self, settings: Settings, metrics: Metrics, wall: Callable[[], float]) -> None:
        self.requests = _requests(settings, metrics)
        self.decisions = _decisions(settings, metrics, wall)

    @property
    def recorder(self) -> Records | None:
        """Who wants to know of every decision: the request log tells the best others, too."""
        if self.decisions is not None:
            return self.decisions
        return None if self.requests is None else OthersOnly()

    def _all(self) -> list[LineLog]:
        return [log for log in (self.requests, self.decisions) if log is not None]

    def start(self, supervisor: Supervisor) -> None:
        """Begins to write in the background."""
        for log in self._all():
            supervisor.start(log.name, log.run)

    def reopen(self) -> bool:
        """They go on in new files. False when there is no log at all."""
        for log in self._all():
            log.reopen()
        return bool(self._all())

    async def aclose(self) -> None:
        """Writes the rest."""
        for log in self._all():
            await log.aclose()

    def __repr__(self) -> str:
        return f"<RecordLogs {self._all()!r}>"


def _requests(settings: Settings, metrics: Metrics) -> RequestLog | None:
    path = settings.request_log.path
    if path is None:
        return None
    log_settings = RequestLogSettings(path=path, salt_file=settings.request_log.salt_file)
    return RequestLog(log_settings, on_drop=metrics.request_log_dropped.add)


def _decisions(settings: Settings, metrics: Metrics, wall: Callable[[], float]) -> DecisionLog | None:
    path = settings.decision_log.path
    if path is None:
        return None
    log_settings = DecisionLogSettings(path=path, sample=settings.decision_log.sample)
    return DecisionLog(log_settings, wall, on_drop=metrics.decision_log_dropped.add)
