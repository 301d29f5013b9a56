"""When workers are asked how they are: probes, scrapes, and their lists of models.

Two loops for each address, with periods and jitter of their own, so that one slow answer delays nothing else
and many workers are not asked at the same instant. The ranks of an engine share an address, and hear the same
answers. What those mean is decided in the core.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from router.core.errors import ConnectFailed, DeadlineExceeded, UpstreamError
from router.core.exposition import read_ranks, read_stats
from router.core.health import Sign, State
from router.core.lives import Verdict
from router.core.worker import Role
from router.fleet import Fleet, Member
from router.settings.fleet import HealthSettings, PollingSettings
from router.supervisor import Supervisor
from router.telemetry.metrics import Metrics
from router.upstream.client import Answer, Upstream, WireRequest
from router.upstream.origin import Origin

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
class _Engine:
    """What listens at one address: its ranks, or the one worker that it is; and what is remembered of it."""

    members: list[Member]
    health_path: str | None = None
    probed: float = float("-inf")
    without_metrics: bool = False
    complaints: set[str] = field(default_factory=set)
    """Kinds of trouble that the operator was told of, and that have not gone away since."""

    @property
    def first(self) -> Member:
        """Whoever is asked for all: they have address and key in common."""
        return self.members[0]

    @property
    def in_rotation(self) -> bool:
        """Whether nothing is left to learn of any of them."""
        workers = [member.worker for member in self.members]
        return all(worker.state is State.READY and worker.models for worker in workers)

    @property
    def last_sign(self) -> float:
        return max(member.worker.last_sign for member in self.members)


class Poller:
    """Starts and stops the loops as workers join and leave the fleet. State: the engines, by address."""

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
        self._engines: dict[Origin, _Engine] = {}
        self.on_learned: Callable[[Member], None] = lambda member: None

    def watch(self, member: Member) -> None:
        """A worker joined."""
        engine = self._engines.get(member.origin)
        if engine is not None:
            engine.members.append(member)
            return
        engine = self._engines[member.origin] = _Engine([member], self._health.path)
        self._supervisor.start(f"probe {member.engine_name}", lambda: self._probe_loop(engine))
        self._supervisor.start(f"scrape {member.engine_name}", lambda: self._scrape_loop(engine))

    def unwatch(self, member: Member) -> None:
        """A worker left. As long as it has streams, somebody looks whether its process is still there."""
        engine = self._engines[member.origin]
        if engine.members == [member]:
            del self._engines[member.origin]
            for kind in ("probe", "scrape"):
                self._supervisor.stop(f"{kind} {member.engine_name}")
        else:
            engine.members.remove(member)
        if not member.worker.mirror.idle:
            self._supervisor.start(f"farewell {member.name}", lambda: self._see_off(member))

    async def refresh_models(self, member: Member) -> None:
        """Reads a worker's list of models now: it answered that it does not know one."""
        await self._learn_models(_Engine(self._fleet.at(member.origin)))

    # --- loops ----------------------------------------------------------------------------------------

    async def _probe_loop(self, engine: _Engine) -> None:
        next_models = float("-inf")
        while True:
            now = self._now()
            if now >= next_models or not all(member.worker.models for member in engine.members):
                next_models = now + self._polling.models_interval_s
                await self._learn_models(engine)
            await self._probe(engine)
            await asyncio.sleep(self._jittered(self._health.interval_s, self._health.jitter))

    async def _scrape_loop(self, engine: _Engine) -> None:
        while True:
            await self._scrape(engine)
            period_s = self._scrape_period_s(engine)
            period_s *= _METRICS_LOST_PERIODS if engine.without_metrics else 1
            await asyncio.sleep(self._jittered(period_s, self._polling.jitter))

    def _scrape_period_s(self, engine: _Engine) -> float:
        """A prefill worker that holds something is asked more often: its usage decides who gets more."""
        workers = [member.worker for member in engine.members]
        busy = any(worker.role is Role.PREFILL and not worker.mirror.idle for worker in workers)
        interval_s = self._polling.interval_s
        return min(self._polling.prefill_scrape_s, interval_s) if busy else interval_s

    async def _see_off(self, member: Member) -> None:
        """Until the last stream of a worker that left has ended, or its port refuses: what is silent then
        will not speak again."""
        roster = member.dispatcher.pool.roster
        engine = _Engine([member], self._health.path)
        while True:
            await asyncio.sleep(self._jittered(self._health.interval_s, self._health.jitter))
            if roster.workers.get(member.name) is not member.worker:
                return
            try:
                await self._ask_health(engine)
            except ConnectFailed as error:
                if error.refused and roster.workers.get(member.name) is member.worker:
                    roster.sign(member.name, Sign.REFUSED, self._now(), "refused a probe")
                    return
            except UpstreamError as error:
                log.debug("worker %s, which left, answers no probe: %s", member.name, error.message)

    def _jittered(self, period_s: float, jitter: float) -> float:
        return period_s * self._random.uniform(1 - jitter, 1 + jitter)

    # --- probe ----------------------------------------------------------------------------------------

    async def _probe(self, engine: _Engine) -> None:
        if engine.in_rotation and engine.last_sign > engine.probed:
            engine.probed = self._now()  # bytes came since the last probe: nothing tells more
            return
        engine.probed = self._now()
        try:
            answer = await self._ask_health(engine)
        except ConnectFailed as error:
            self._not_answered(engine, "refused" if error.refused else "unreachable", refused=error.refused)
        except DeadlineExceeded:
            self._not_answered(engine, "timeout")
        except UpstreamError as error:
            self._not_answered(engine, error.code or "error")
        else:
            self._judge(engine, answer)

    def _not_answered(self, engine: _Engine, outcome: str, *, refused: bool = False) -> None:
        for member in list(engine.members):
            roster = member.dispatcher.pool.roster
            self._metrics.worker(member.name).probed(outcome)
            if refused:
                roster.sign(member.name, Sign.REFUSED, self._now(), "refused a probe")
            else:
                roster.probe_timed_out(member.name, self._now())

    def _judge(self, engine: _Engine, answer: Answer) -> None:
        good = answer.status < 400
        for member in list(engine.members):
            roster = member.dispatcher.pool.roster
            self._metrics.worker(member.name).probed("ok" if good else str(answer.status))
            if good:
                roster.probed(member.name, self._now())
                member.dispatcher.wake()
            else:
                why = f"a probe was answered with {answer.status}"
                roster.sign(member.name, Sign.BAD, self._now(), why)

    async def _ask_health(self, engine: _Engine) -> Answer:
        if engine.health_path is not None:
            return await self._get(engine, engine.health_path, self._health.timeout_s, _MAX_SMALL_BYTES)
        for path in _HEALTH_PATHS:
            answer = await self._get(engine, path, self._health.timeout_s, _MAX_SMALL_BYTES)
            if answer.status not in (404, 405):
                if answer.status < 400:
                    engine.health_path = path
                break
        return answer

    # --- scrape ---------------------------------------------------------------------------------------

    async def _scrape(self, engine: _Engine) -> None:
        try:
            answer = await self._get(engine, "/metrics", self._polling.timeout_s, _MAX_METRICS_BYTES)
        except UpstreamError as error:
            self._scraped(engine, error.code or "error")
            return
        if answer.status != 200:
            self._scraped(engine, str(answer.status))
            engine.without_metrics = answer.status in (404, 405, 501)
            return
        engine.without_metrics = False
        self._scraped(engine, "ok")
        verdict = self._observe(engine, answer.body, self._now())
        if verdict is Verdict.SHARED:
            what = "several processes seem to answer at its address; its metrics are not used"
            self._complain(engine, "address", what)
        elif verdict is Verdict.RESTARTED:
            engine.health_path = self._health.path
            await self._learn_models(engine)

    def _scraped(self, engine: _Engine, outcome: str) -> None:
        for member in engine.members:
            self._metrics.worker(member.name).scraped(outcome)

    def _observe(self, engine: _Engine, body: bytes, now: float) -> Verdict:
        """Tells each rank what the engine said of it, and whether it is still the same process."""
        first = engine.first
        if first.dp_rank is None:
            return first.dispatcher.pool.observe(first.name, read_stats(body, now), now)
        whole, ranks = read_ranks(body, now)
        verdict = first.dispatcher.pool.roster.see(first.name, whole, now)
        unnamed = []
        for member in list(engine.members):
            stats = next((ranks[label] for label in member.labels if label in ranks), None)
            if stats is None:
                unnamed.append(member.name)
            else:
                member.dispatcher.pool.observe(member.name, stats, now)
        if unnamed:
            named = ", ".join(ranks) or "none"
            what = f"its metrics do not name {', '.join(unnamed)}; the ranks in them: {named}"
            self._complain(engine, "ranks", what)
        else:
            engine.complaints.discard("ranks")
        return verdict

    # --- models ---------------------------------------------------------------------------------------

    async def _learn_models(self, engine: _Engine) -> None:
        try:
            answer = await self._get(engine, "/v1/models", self._health.timeout_s, _MAX_SMALL_BYTES)
        except UpstreamError:
            return  # the probe that follows says what is wrong
        if answer.status in (401, 403):
            self._complain(engine, "models", f"it refuses the worker key ({answer.status} on /v1/models)")
            return
        try:
            cards = _models.decode(answer.body).data
        except msgspec.MsgspecError:
            self._complain(engine, "models", f"its /v1/models cannot be read (status {answer.status})")
            return
        engine.complaints.discard("models")
        version = await self._ask_version(engine)
        for member in list(engine.members):
            self._told_models(member, cards, version)

    def _told_models(self, member: Member, cards: Sequence[_ModelCard], version: str | None) -> None:
        """The revision before the models, so that nobody is chosen whose revision is not known. A version
        that was told once is believed until another one is."""
        roster = member.dispatcher.pool.roster
        base = next((card for card in cards if card.parent is None), None)
        member.base_models = frozenset([member.model]) if member.model is not None else _base_names(cards)
        member.engine_version = version or member.engine_version
        roster.learn_revision(member.name, member.engine_version, base.root if base is not None else None)
        listed = {card.id: card.max_model_len for card in cards}
        if member.model is not None:
            listed = {member.model: listed.get(member.model)}
        roster.learn_models(member.name, listed)
        self.on_learned(member)

    async def _ask_version(self, engine: _Engine) -> str | None:
        try:
            answer = await self._get(engine, "/version", self._health.timeout_s, _MAX_SMALL_BYTES)
            return _version.decode(answer.body).version if answer.status == 200 else None
        except (UpstreamError, msgspec.MsgspecError) as error:
            log.debug("worker %s does not tell its version: %s", engine.first.name, error)
            return None

    def _complain(self, engine: _Engine, kind: str, what: str) -> None:
        if kind not in engine.complaints:
            engine.complaints.add(kind)
            log.warning("worker %s: %s", engine.first.engine_name, what)

    def _get(self, engine: _Engine, path: str, total_s: float, max_bytes: int) -> Awaitable[Answer]:
        member = engine.first
        headers = [(b"accept", b"*/*"), (b"user-agent", b"pointsman")]
        if member.key is not None:
            headers.append((b"authorization", b"Bearer " + member.key))
        request = WireRequest(b"GET", path.encode(), headers)
        return self._upstream.fetch(member.origin, request, total_s=total_s, max_bytes=max_bytes)


def _base_names(cards: Sequence[_ModelCard]) -> frozenset[str]:
    """Names of the weights themselves: of the first card that is no adapter, and of those with its root."""
    base = [card for card in cards if card.parent is None]
    return frozenset(
        card.id for card in base if card is base[0] or (card.root is not None and card.root == base[0].root)
    )
