"""When workers are asked how they are: probes, scrapes, and their lists of models.

Three loops per worker, each with its own period and jitter, so that one slow answer delays nothing else and
many workers are not asked at the same instant. What the answers mean is decided in the core.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from router.core.errors import ConnectFailed, DeadlineExceeded, UpstreamError
from router.core.exposition import read_stats
from router.core.health import Sign, State
from router.core.lives import Verdict
from router.core.worker import Role
from router.fleet import Fleet, Member
from router.settings.fleet import HealthSettings, PollingSettings
from router.supervisor import Supervisor
from router.telemetry.metrics import Metrics
from router.upstream.client import Answer, Upstream, WireRequest

log = logging.getLogger("pointsman.poller")

_MAX_METRICS_BYTES = 16 * 1024 * 1024
_MAX_SMALL_BYTES = 4 * 1024 * 1024
_METRICS_LOST_PERIODS = 15
_HEALTH_PATHS = ("/ready", "/health", "/v1/models")
"""Tried in this order until one exists: SGLang's `/health` generates a token, its `/ready` does not; some
servers have neither."""


class _ModelCard(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _ModelList(msgspec.Struct):
    data: list[_ModelCard]


class _Version(msgspec.Struct):
    version: str | None = None


_models = msgspec.json.Decoder(_ModelList)
_version = msgspec.json.Decoder(_Version)


@dataclass(frozen=True, slots=True)
class Periods:
    """How often, how patiently, and with which jitter."""

    health: HealthSettings
    polling: PollingSettings
    generator: random.Random


@dataclass(slots=True)
class _Asked:
    """What is remembered of one worker between rounds."""

    health_path: str | None = None
    probed: float = float("-inf")
    without_metrics: bool = False
    complaints: set[str] = field(default_factory=set)
    """Kinds of trouble that the operator was told of, and that have not gone away since."""


class Poller:
    """Starts and stops the loops as workers join and leave the fleet."""

    def __init__(
        self,
        fleet: Fleet,
        upstream: Upstream,
        supervisor: Supervisor,
        metrics: Metrics,
        periods: Periods,
        now: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._upstream = upstream
        self._supervisor = supervisor
        self._metrics = metrics
        self._health = periods.health
        self._polling = periods.polling
        self._random = periods.generator
        self._now = now
        self.on_learned: Callable[[Member], None] = lambda member: None

    def watch(self, member: Member) -> None:
        """A worker joined."""
        asked = _Asked(health_path=self._health.path)
        self._supervisor.start(f"probe {member.name}", lambda: self._probe_loop(member, asked))
        self._supervisor.start(f"scrape {member.name}", lambda: self._scrape_loop(member, asked))

    def unwatch(self, member: Member) -> None:
        """A worker left. As long as it has streams, somebody looks whether its process is still there."""
        for kind in ("probe", "scrape"):
            self._supervisor.stop(f"{kind} {member.name}")
        if not member.worker.mirror.idle:
            self._supervisor.start(f"farewell {member.name}", lambda: self._see_off(member))

    async def refresh_models(self, member: Member) -> None:
        """Reads a worker's list of models now: it answered that it does not know one."""
        await self._learn_models(member, _Asked())

    # --- loops ----------------------------------------------------------------------------------------

    async def _probe_loop(self, member: Member, asked: _Asked) -> None:
        next_models = float("-inf")
        while True:
            now = self._now()
            if now >= next_models or not member.worker.models:
                next_models = now + self._polling.models_interval_s
                await self._learn_models(member, asked)
            await self._probe(member, asked)
            await asyncio.sleep(self._jittered(self._health.interval_s, self._health.jitter))

    async def _scrape_loop(self, member: Member, asked: _Asked) -> None:
        while True:
            await self._scrape(member, asked)
            period_s = self._scrape_period_s(member) * (_METRICS_LOST_PERIODS if asked.without_metrics else 1)
            await asyncio.sleep(self._jittered(period_s, self._polling.jitter))

    def _scrape_period_s(self, member: Member) -> float:
        """A prefill worker that holds something is asked more often: its usage decides who gets more."""
        busy = member.worker.role is Role.PREFILL and not member.worker.mirror.idle
        return (
            min(self._polling.prefill_scrape_s, self._polling.interval_s)
            if busy
            else self._polling.interval_s
        )

    async def _see_off(self, member: Member) -> None:
        """Until the last stream of a worker that left has ended, or its port refuses: what is silent then
        will not speak again."""
        roster = member.dispatcher.pool.roster
        asked = _Asked(health_path=self._health.path)
        while True:
            await asyncio.sleep(self._jittered(self._health.interval_s, self._health.jitter))
            if roster.workers.get(member.name) is not member.worker:
                return
            try:
                await self._ask_health(member, asked)
            except ConnectFailed as error:
                if error.refused and roster.workers.get(member.name) is member.worker:
                    roster.sign(member.name, Sign.REFUSED, self._now(), "refused a probe")
                    return
            except UpstreamError as error:
                log.debug("worker %s, which left, answers no probe: %s", member.name, error.message)

    def _jittered(self, period_s: float, jitter: float) -> float:
        return period_s * self._random.uniform(1 - jitter, 1 + jitter)

    # --- probe ----------------------------------------------------------------------------------------

    async def _probe(self, member: Member, asked: _Asked) -> None:
        worker = member.worker
        if worker.state is State.READY and worker.last_sign > asked.probed and worker.models:
            asked.probed = self._now()  # bytes came since the last probe: nothing tells more
            return
        asked.probed = self._now()
        roster = member.dispatcher.pool.roster
        series = self._metrics.worker(member.name)
        try:
            answer = await self._ask_health(member, asked)
        except ConnectFailed as error:
            series.probed("refused" if error.refused else "unreachable")
            if error.refused:
                roster.sign(member.name, Sign.REFUSED, self._now(), "refused a probe")
            else:
                roster.probe_timed_out(member.name, self._now())
        except DeadlineExceeded:
            series.probed("timeout")
            roster.probe_timed_out(member.name, self._now())
        except UpstreamError as error:
            series.probed(error.code or "error")
            roster.probe_timed_out(member.name, self._now())
        else:
            self._judge(member, answer)

    def _judge(self, member: Member, answer: Answer) -> None:
        roster = member.dispatcher.pool.roster
        good = answer.status < 400
        self._metrics.worker(member.name).probed("ok" if good else str(answer.status))
        if good:
            roster.probed(member.name, self._now())
            member.dispatcher.wake()
        else:
            roster.sign(member.name, Sign.BAD, self._now(), f"a probe was answered with {answer.status}")

    async def _ask_health(self, member: Member, asked: _Asked) -> Answer:
        if asked.health_path is not None:
            return await self._get(member, asked.health_path, self._health.timeout_s, _MAX_SMALL_BYTES)
        for path in _HEALTH_PATHS:
            answer = await self._get(member, path, self._health.timeout_s, _MAX_SMALL_BYTES)
            if answer.status not in (404, 405):
                if answer.status < 400:
                    asked.health_path = path
                break
        return answer

    # --- scrape ---------------------------------------------------------------------------------------

    async def _scrape(self, member: Member, asked: _Asked) -> None:
        series = self._metrics.worker(member.name)
        try:
            answer = await self._get(member, "/metrics", self._polling.timeout_s, _MAX_METRICS_BYTES)
        except UpstreamError as error:
            series.scraped(error.code or "error")
            return
        if answer.status != 200:
            series.scraped(str(answer.status))
            asked.without_metrics = answer.status in (404, 405, 501)
            return
        asked.without_metrics = False
        now = self._now()
        series.scraped("ok")
        stats = read_stats(answer.body, now)
        verdict = member.dispatcher.pool.observe(member.name, stats, now)
        if verdict is Verdict.SHARED:
            self._complain(
                member,
                asked,
                "address",
                "several processes seem to answer at its address; its metrics are not used",
            )
        elif verdict is Verdict.RESTARTED:
            asked.health_path = self._health.path
            await self._learn_models(member, asked)

    # --- models ---------------------------------------------------------------------------------------

    async def _learn_models(self, member: Member, asked: _Asked) -> None:
        try:
            answer = await self._get(member, "/v1/models", self._health.timeout_s, _MAX_SMALL_BYTES)
        except UpstreamError:
            return  # the probe that follows says what is wrong
        if answer.status in (401, 403):
            self._complain(
                member, asked, "models", f"it refuses the worker key ({answer.status} on /v1/models)"
            )
            return
        try:
            cards = _models.decode(answer.body).data
        except msgspec.MsgspecError:
            self._complain(member, asked, "models", f"its /v1/models cannot be read (status {answer.status})")
            return
        asked.complaints.discard("models")
        listed = {card.id: card.max_model_len for card in cards}
        member.base_model = member.model or next((card.id for card in cards if card.parent is None), None)
        await self._learn_version(member, next((card.root for card in cards if card.parent is None), None))
        if member.model is not None:
            listed = {member.model: listed.get(member.model)}
        member.dispatcher.pool.roster.learn_models(member.name, listed)
        self.on_learned(member)

    async def _learn_version(self, member: Member, root: str | None) -> None:
        """Before the models are known, so that nobody is chosen whose revision is not. A version that was
        told once is believed until another one is."""
        try:
            answer = await self._get(member, "/version", self._health.timeout_s, _MAX_SMALL_BYTES)
            if answer.status == 200:
                member.engine_version = _version.decode(answer.body).version
        except (UpstreamError, msgspec.MsgspecError) as error:
            log.debug("worker %s does not tell its version: %s", member.name, error)
        member.dispatcher.pool.roster.learn_revision(member.name, member.engine_version, root)

    def _complain(self, member: Member, asked: _Asked, kind: str, what: str) -> None:
        if kind not in asked.complaints:
            asked.complaints.add(kind)
            log.warning("worker %s: %s", member.name, what)

    def _get(self, member: Member, path: str, total_s: float, max_bytes: int) -> Awaitable[Answer]:
        headers = [(b"accept", b"*/*"), (b"user-agent", b"pointsman")]
        if member.key is not None:
            headers.append((b"authorization", b"Bearer " + member.key))
        request = WireRequest(b"GET", path.encode(), headers)
        return self._upstream.fetch(member.origin, request, total_s=total_s, max_bytes=max_bytes)
