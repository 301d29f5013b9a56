"""The composition root: everything of one router, built from its settings.

The clock, the wall clock and the way to connect are arguments, so the same router runs on sockets and, whole,
on a virtual network in virtual time.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from router import __version__
from router.admission import Admission
from router.api.admin import admin_routes
from router.api.front import Front, Identity
from router.api.keys import Keys
from router.api.operations import Control, metrics_app, operations_app
from router.calibrations import Calibrations, online_calibration
from router.choosing import Choosing
from router.core.binding import Mode
from router.core.budget import Budget, RetryBudget
from router.core.errors import Overloaded
from router.core.health import State
from router.core.poison import PoisonGuard
from router.core.pool import Pool, PoolBudgets, PoolRules
from router.core.roster import Change, Roster
from router.core.slo import Slos
from router.core.token_book import TokenBook
from router.discovery import Discovery, resolve_with_system
from router.dispatch import Dispatcher, Turns
from router.explaining import Deciding, Explaining
from router.fleet import Fleet, Member
from router.journey import Telemetry
from router.kv_events.fleet_events import FleetEvents
from router.kv_events.lazy_wire import LazyWire, open_zmq, zmq_is_installed
from router.kv_events.listeners import KvEventListeners
from router.kv_events.locate import Locator
from router.kv_events.wire import Wire
from router.leg import Legs
from router.length_files import LengthFiles
from router.peers import Peers
from router.poller import Periods, Poller
from router.prefill_leg import PrefillLegs
from router.proxy import Bounds, Proxy
from router.reaper import reap
from router.record_logs import RecordLogs
from router.registration import Registration
from router.releases import WORKERS as RELEASES_AT_ONCE
from router.releases import Releases
from router.responses import ResponseOwners
from router.retries import Retries
from router.sending import LegSettings, Sender
from router.settings.configuration import Settings
from router.settings.pools import PoolSettings
from router.settings.workers import WorkerSettings
from router.snapshot import snapshot
from router.split import SplitParts, Splits
from router.supervisor import Supervisor
from router.telemetry.metrics import Metrics
from router.together import Together
from router.tokenizer.build import build_tokenizers
from router.topology import join_pools
from router.upstream.client import Upstream
from router.upstream.connect import Connect
from router.upstream.settings import UpstreamSettings

log = logging.getLogger("pointsman")

_CALM = frozenset({State.READY, State.STARTING, State.DRAINING, State.GONE, State.ASLEEP})


@dataclass(frozen=True, slots=True)
class World:
    """What a router gets from outside.

    Attributes:
        connect: makes connections to workers.
        now: monotonic seconds, the running loop's clock.
        wall: Unix time, for records that outlive the process.
        open_files: how many files the process may have open.
        chance: where names come from that no other router may give: of transfers, of rooms.
        wire: the way to engines' event streams; None: ZMQ, if pyzmq is installed.
        threads: where prompts are tokenized; None: in some of the router's own.
        stopwatch: seconds, to measure the router's own work by; None: `now`, which some loops count in whole
            milliseconds.
    """

    connect: Connect
    now: Callable[[], float]
    wall: Callable[[], float]
    open_files: int
    chance: random.Random = field(default_factory=random.SystemRandom)
    wire: Wire | None = None
    threads: Executor | None = None
    stopwatch: Callable[[], float] | None = None

    @property
    def measure(self) -> Callable[[], float]:
        """What the router's own work is measured by."""
        return self.stopwatch or self.now


class Router:
    """One router. `data` and `admin` are its ASGI applications; `start` and `aclose` frame its life."""

    def __init__(self, settings: Settings, world: World) -> None:
        self.settings = settings
        self._world = world
        self.draining = False
        self.keys = Keys(settings.auth)
        in_flight = Budget("requests in flight", settings.limits.in_flight_bound(world.open_files))
        self.bodies = Budget("bytes of bodies", settings.limits.buffered_bytes)
        self.fleet = Fleet(in_flight)
        self.tokens = TokenBook()
        self.calibrations = Calibrations(settings.calibration.file, self.tokens)
        self.metrics = Metrics(
            lambda: snapshot(
                self.fleet, self.bodies, self.events, world.now(), ready=self.why_not_ready() is None
            ),
            self.fleet.serves,
            version=__version__,
        )
        self.supervisor = Supervisor(world.now, on_restart=self.metrics.task_restarted)
        self.upstream = Upstream(
            world.connect,
            world.now,
            UpstreamSettings(
                idle_s=settings.timeouts.upstream_idle_s, write_stall_s=settings.timeouts.write_stall_s
            ),
        )
        self.logs = RecordLogs(settings, self.metrics, world.wall)
        self.choosing = Choosing(self.fleet, settings, world.measure, self.metrics.rounds)
        self._make_pools(in_flight)
        self.length_files = self._length_files()
        self._make_topologies()
        self._make_path(in_flight)
        self.poller = self._make_poller()
        self._make_events()
        self.registration = Registration(self.fleet, settings, world.now, self.calibrations.joined)
        self.discovery = Discovery(self.fleet, self.registration, world.now)
        self._make_doors()
        self.fleet.on_join = self.poller.watch
        self.poller.on_learned = self.calibrations.met
        self.fleet.on_leave = self._left

    # --- building --------------------------------------------------------------------------------------

    def _make_poller(self) -> Poller:
        settings = self.settings
        periods = Periods(settings.health, settings.polling, random.Random(settings.seed))
        return Poller(self.fleet, self.upstream, self.supervisor, self.metrics, periods, self._world.now)

    def _make_pools(self, in_flight: Budget) -> None:
        settings = self.settings
        budgets = PoolBudgets(in_flight, Budget("queued bytes", settings.limits.queue_bytes))
        for name, pool in settings.pools.items():
            rules = PoolRules(
                name=name,
                policy=pool.policy,
                role=pool.role,
                mode=Mode(pool.mode),
                max_transfers=pool.max_transfers_per_worker,
                max_queued=settings.limits.queue_size,
                max_wait_s=settings.limits.queue_timeout_s,
                stall_min_s=settings.health.stall_min_s,
                stall_max_s=settings.health.stall_max_s,
                prefix_index=settings.prefix_index.core,
                local=pool.local_rules(settings.limits.queue_size),
            )
            roster = Roster(min_share=settings.health.min_in_rotation, on_change=self._changed)
            made = Pool(rules, self.choosing.build(name), budgets, self.tokens.expected, roster)
            made.ledger.online = online_calibration(settings.calibration)
            dispatcher = Dispatcher(
                made,
                self._world.now,
                on_room=self.fleet.wake,
                on_decided=self.metrics.decided,
                turns=Turns(made, self._world.now, self.metrics.waited_turn),
            )
            dispatcher.stopwatch = self._world.measure
            self.fleet.add_pool(dispatcher, pool.model)
        self.choosing.adopt(self.logs.recorder)

    def _length_files(self) -> LengthFiles | None:
        state, world = self.settings.state, self._world
        if state.dir is None:
            return None
        pools = {name: d.pool.ledger.forecasts for name, d in self.fleet.dispatchers.items()}
        return LengthFiles(state.dir, pools, world.now, world.wall, interval_s=state.save_interval_s)

    def _make_topologies(self) -> None:
        for pair in self.settings.pairs:
            topology = join_pools(self.fleet.dispatchers, pair, self.settings, self._world.now)
            self.fleet.add_topology(topology)

    def _make_path(self, in_flight: Budget) -> None:
        settings = self.settings
        slos = Slos(settings.slo.configured, self.calibrations.slos, settings.slo.default_class)
        telemetry = Telemetry(self.metrics, self._world.now, self._world.wall, self.logs.requests, slos)
        owners = ResponseOwners(self.fleet)
        admission = Admission(self.fleet, settings, self.tokens, owners, self._world.now, self.choosing)
        self.deciding = Deciding(self.choosing, Explaining(admission, self._world.now))
        admission.log_salt = self.logs.requests.salt if self.logs.requests is not None else None
        admission.tokenizers = self.tokenizers = build_tokenizers(
            settings, self._world.threads, self._world.now, self._world.wall, self.metrics.tokenized
        )
        legs = LegSettings(
            timeouts=settings.timeouts,
            pass_client_key=not settings.auth.asks_clients,
            expose=settings.server.expose_routing_headers,
        )
        sender = Sender(self.upstream, legs)
        self.legs = Legs(self.fleet, sender, self.tokens, owners, telemetry, legs)
        budget = RetryBudget(in_flight, share=settings.retry.budget_share, floor=settings.retry.budget_min)
        self.retries = Retries(settings.retry, budget)
        guard = settings.retry.poison_guard
        self.poison = PoisonGuard(hold_s=settings.retry.poison_guard_s) if guard else None
        bounds = Bounds(self.bodies, self.poison, settings.timeouts.early_keep_alive_s)
        self.proxy = Proxy(
            admission, self.legs, self._splits(sender, telemetry), telemetry, bounds, self.retries
        )
        self.retries.on_model_unknown = self._relearn

    def _splits(self, sender: Sender, telemetry: Telemetry) -> Splits:
        prefills = PrefillLegs(sender)
        self.peers = Peers(self.upstream, self._world.chance)
        self.releases = Releases(
            self.fleet,
            self.upstream,
            self.metrics,
            per_s=self.settings.limits.handover_releases_per_s,
        )
        together = Together(self.legs, prefills, self.fleet, self.peers, telemetry)
        parts = SplitParts(self.legs, prefills, together, self.fleet, self.peers, self.releases, self.retries)
        return Splits(parts)

    def _make_events(self) -> None:
        settings, now, wire = self.settings.kv_events, self._world.now, self._world.wire
        self.wire = wire or LazyWire(lambda: open_zmq(settings.core, now))
        self.events = FleetEvents(
            self.fleet,
            KvEventListeners(self.wire, self.supervisor, settings.core, now),
            Locator(self.upstream, asks=settings.follow == "auto"),
            follows=settings.follow != "never",
            can_listen=lambda: wire is not None or zmq_is_installed(),
            tokenizes=lambda pool: self.tokenizers is not None and self.tokenizers.serves(pool),
        )

    def _make_doors(self) -> None:
        now, server = self._world.now, self.settings.server
        control = Control(
            self.fleet, self.keys, self.register, self.why_not_ready, self.metrics.exposition, self.deciding
        )
        # The data port is open to strangers: without a key there are no admin routes on it at all.
        guarded = admin_routes(control, now, guarded=True) if self.keys.has_admin else None
        rest = operations_app(control, guarded)
        identity = Identity(
            prefix=secrets.token_hex(8),
            headers=server.request_id_headers,
            passthrough=server.passthrough_paths,
        )
        self.data = Front(self.proxy, self.keys, rest, now, identity)
        self.admin = operations_app(control, admin_routes(control, now, guarded=self.keys.has_admin))
        self.metrics_only = metrics_app(control)

    # --- life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins the background work and registers the workers of the configuration."""
        self.supervisor.start("reaper", lambda: reap(self.fleet), vital=True)
        self.supervisor.start("kv events", self.events.run)
        self.logs.start(self.supervisor)
        if self.length_files is not None:
            self.length_files.restore()
            self.supervisor.start("length files", self.length_files.run)
        for number in range(RELEASES_AT_ONCE if self.settings.pairs else 0):
            self.supervisor.start(f"releases {number}", self.releases.work)
        for name, pool in self.settings.pools.items():
            self._start_pool(name, pool)

    def _start_pool(self, name: str, pool: PoolSettings) -> None:
        for worker in pool.workers:
            if worker.resolves:
                self._follow_name(name, worker)
            else:
                self.register(name, worker, "config")
        if pool.workers_file is not None:
            path = pool.workers_file
            self.supervisor.start(f"file {path}", lambda: self.discovery.follow_file(name, path))

    def _follow_name(self, pool: str, worker: WorkerSettings) -> None:
        period_s = self.settings.discovery.dns_interval_s
        self.supervisor.start(
            f"dns {worker.url}",
            lambda: self.discovery.follow_name(pool, worker, resolve_with_system, period_s=period_s),
        )

    async def aclose(self) -> None:
        """Ends the background work and every connection to a worker."""
        await self.supervisor.aclose()
        self.wire.close()
        if self.tokenizers is not None:
            self.tokenizers.close()
        for dispatcher in self.fleet.dispatchers.values():
            dispatcher.refuse_all(Overloaded("The router is shutting down."))
        await self.upstream.aclose()
        if self.length_files is not None:
            self.length_files.save()
        await self.logs.aclose()

    def why_not_ready(self) -> str | None:
        """None when the router should get traffic, otherwise the reason why not."""
        if self.draining:
            return "shutting down"
        if self.supervisor.why_unwell is not None:
            return self.supervisor.why_unwell
        if not len(self.fleet):
            return "no worker is registered"
        return None if self.fleet.ready else "no worker is ready"

    # --- workers ---------------------------------------------------------------------------------------

    def register(self, pool: str, settings: WorkerSettings, source: str) -> list[Member]:
        """Adds a worker to a pool, or each rank of it. Raises BadRequest for an unknown pool, or a name or
        address in use."""
        return self.registration.register(pool, settings, source)

    def _left(self, member: Member) -> None:
        self.poller.unwatch(member)
        self.events.left(member.name)
        if not self.fleet.at(member.origin):
            self.upstream.forget(member.origin)
        self.tokens.streams.forget(member.name)
        self._forget_handovers(member.name)

    def _forget_handovers(self, name: str) -> None:
        """A worker left."""
        self.peers.forget(name)
        for topology in self.fleet.topologies:
            topology.partners.forget(name)

    def _relearn(self, name: str) -> None:
        member = self.fleet.member(name)
        if member is not None:
            self.supervisor.start(f"models {name}", lambda: self.poller.refresh_models(member))

    def _changed(self, change: Change) -> None:
        level = logging.INFO if change.after in _CALM else logging.WARNING
        log.log(level, "worker %s is %s: %s", change.worker, change.after.value, change.reason)
        self.metrics.worker(change.worker).entered(change.after.value)
        if change.lost:
            self.legs.lost_worker(change.worker)
            self.tokens.streams.forget(change.worker)
            self.peers.forget(change.worker)
            if self.poison is not None:
                self.poison.lost(change.worker, self._world.now())
        self.events.changed(change.worker)
        if change.after is State.READY:
            self.fleet.wake()

    def __repr__(self) -> str:
        return f"<Router {self.fleet!r} {self.upstream!r} {self.supervisor!r}>"
