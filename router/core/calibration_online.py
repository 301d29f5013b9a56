"""Calibration from live traffic: which moments of which streams say something about a worker's coefficients.

Separate from the fit, which believes every sample: what a client's pause, a prompt in between, a grammar that
is compiled or speculation does to a sample is known here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from router.core.calibration import CalibrationState
from router.core.calibration_fit import OnlineSettings, WorkerFit
from router.core.health import State
from router.core.lease import Lease
from router.core.worker import Worker

_WINDOW_S = 0.25
_WINDOW_STEPS = 16  # over all streams; fewer are blurred by when their events happened to arrive
_PAUSE_S = 2.0
"""Of a stream that goes on after so much silence, client or network stood still, and a burst follows."""
_PUBLISH_S = 1.0
_MAX_UNTOLD = 64
_NEARLY_FULL = 0.95
_CACHES_LITTLE = 0.02


class StepWindow:
    """What the streams of one worker showed of its steps within a short time.

    All streams of a worker see the same steps, so they are one sample together: their times over their steps.
    Samples do not overlap, or a step that is longer than a window would be as many samples as it has streams.

    State: sums over intervals, those of load weighed by their length, and when the last sample ended (s).
    """

    __slots__ = ("_began", "_ended", "_kv_s", "_sequence_s", "_steps", "_stream_s")

    def __init__(self) -> None:
        self._ended = float("-inf")
        self.clear()

    def clear(self) -> None:
        self._began: float | None = None
        self._stream_s = self._steps = self._sequence_s = self._kv_s = 0.0

    def add(self, elapsed_s: float, steps: float, load: tuple[int, int], now: float) -> bool:
        """Takes in one interval of one stream; True when there is enough for a sample."""
        if now - elapsed_s < self._ended:
            return False
        if self._began is None:
            self._began = now - elapsed_s
        self._stream_s += elapsed_s
        self._steps += steps
        self._sequence_s += load[0] * elapsed_s
        self._kv_s += load[1] * elapsed_s
        return self._steps >= _WINDOW_STEPS and now - self._began >= _WINDOW_S

    def take(self, now: float) -> tuple[float, float, float]:
        """(sequences, KV tokens, seconds per step), and begins anew. Only when there is enough."""
        time_s, self._ended = self._stream_s, now
        sample = (self._sequence_s / time_s, self._kv_s / time_s, time_s / self._steps)
        self.clear()
        return sample


class Watch:
    """What is kept of one worker.

    State:
        window: intervals of its streams.
        alone: the prompt that found no other, as long as none has come since.
        prefilled: when a prompt was last done (s).
        unsteady: streams whose next interval says nothing: it holds a first output, or the end of a pause.
        untold: lone prefills whose uncached tokens the engine has not told yet, with their time (s).
        warm: producers whose first transfer is over.
    """

    __slots__ = (
        "alone", "fit", "incarnation", "prefilled", "publish_at", "seen", "unsteady", "untold", "warm",
        "window", "worker",
    )  # fmt: skip

    def __init__(self, worker: Worker, settings: OnlineSettings) -> None:
        self.worker = worker
        self.publish_at = 0.0
        self.load(settings)
        self.window = StepWindow()
        self.forget_streams()

    def load(self, settings: OnlineSettings) -> None:
        """Begins from what is known of the worker."""
        self.seen = self.worker.calibration
        self.fit = WorkerFit(self.seen, self.worker.role, settings)

    def forget_streams(self) -> None:
        """The process is another one. It runs on the same hardware, so what was learned still holds."""
        self.incarnation = self.worker.incarnation
        self.window.clear()
        self.alone: Lease | None = None
        self.prefilled = float("-inf")
        self.unsteady: set[Lease] = set()
        self.untold: OrderedDict[Lease, float] = OrderedDict()
        self.warm: set[str] = set()

    def load_now(self) -> tuple[int, int]:
        """(sequences, KV tokens) of its steps: those of the whole group where the slowest decides, and
        without what is still on its way."""
        peers = self.worker.barrier_peers
        if peers:
            return max(p.sequences for p in peers), max(p.kv_tokens for p in peers)
        mirror = self.worker.mirror
        sequences, kv_tokens, on_the_way = mirror.sequences, self.worker.kv_tokens, mirror.transfers
        if on_the_way:
            for lease in reversed(mirror.leases):
                if lease.transferring:
                    sequences -= lease.request.sequences
                    kv_tokens -= lease.prompt_tokens
                    on_the_way -= 1
                    if not on_the_way:
                        break
        return max(sequences, 1), max(kv_tokens, 0)

    @property
    def crowded(self) -> bool:
        """Whether requests may wait inside the engine, so that a first output says nothing of work."""
        worker, stats = self.worker, self.worker.stats
        capacity = worker.kv_capacity_tokens
        return (
            worker.free_slots == 0
            or (stats is not None and bool(stats.waiting))
            or (capacity is not None and worker.kv_tokens > _NEARLY_FULL * capacity)
        )


class OnlineCalibration:
    """Learns the coefficients of one pool's workers. The ledger tells it of every lease, and nobody else.

    Args:
        on_change: told (worker, state before, state now) when what is known of a worker becomes of another
            kind.

    State: a watch per worker.
    """

    __slots__ = ("_on_change", "_settings", "_watches")

    def __init__(
        self,
        settings: OnlineSettings | None = None,
        on_change: Callable[[str, CalibrationState, CalibrationState], None] | None = None,
    ) -> None:
        self._settings = settings or OnlineSettings()
        self._on_change = on_change
        self._watches: dict[str, Watch] = {}

    def _watch(self, worker: Worker) -> Watch:
        watch = self._watches.get(worker.name)
        if watch is None or watch.worker is not worker:
            self._watches = {
                name: known for name, known in self._watches.items() if known.worker.state is not State.GONE
            }
            watch = self._watches[worker.name] = Watch(worker, self._settings)
        elif watch.incarnation != worker.incarnation:
            watch.forget_streams()
        if watch.seen is not worker.calibration:
            watch.load(self._settings)  # somebody else has said what is known
        return watch

    # --- steps -------------------------------------------------------------------------------------------

    def advanced(
        self, lease: Lease, worker: Worker, generated_tokens: int, elapsed_s: float, now: float
    ) -> None:
        """A stream is about to be moved on to `generated_tokens`, `elapsed_s` after its last event."""
        if not lease.streamed or not lease.answered or lease.request.sequences != 1:
            return
        watch = self._watch(worker)
        if watch.unsteady and lease in watch.unsteady:
            watch.unsteady.remove(lease)
            return
        if elapsed_s > _PAUSE_S:
            watch.unsteady.add(lease)
            return
        # A prompt that is prefilled meanwhile makes steps longer than decoding does.
        if elapsed_s <= 0.0 or worker.mirror.queued_tokens or watch.prefilled > now - elapsed_s:
            return
        steps = (generated_tokens - lease.generated_tokens) / watch.fit.tokens_per_step
        if steps >= 0.0 and watch.window.add(elapsed_s, steps, watch.load_now(), now):
            watch.fit.add_step(*watch.window.take(now), now)
            self._publish(watch, now)

    # --- prefills ----------------------------------------------------------------------------------------

    def charged(self, lease: Lease, worker: Worker) -> None:
        """A lease was granted."""
        if lease.prefilled:
            return  # its KV comes from another worker
        watch = self._watch(worker)
        lone = worker.mirror.queued_tokens == lease.prompt_tokens
        watch.alone = lease if lone and (lease.request.stream or lease.prefill_only) else None

    def started(self, lease: Lease, worker: Worker, now: float) -> None:
        """The first output of a prompt that this worker prefilled."""
        watch = self._watch(worker)
        watch.prefilled = now
        if lease.streamed:
            watch.unsteady.add(lease)
        lone, watch.alone = watch.alone is lease, None
        if not lone or watch.crowded or not lease.request.api.generates:
            return
        watch.untold[lease] = now - lease.granted
        if lease.cached_tokens is not None or lease.prefill_only:
            self.told(lease, worker, lease.cached_tokens, now)
        elif len(watch.untold) > _MAX_UNTOLD:
            watch.untold.popitem(last=False)

    def told(self, lease: Lease, worker: Worker, cached_tokens: int | None, now: float) -> None:
        """The engine has said all that it will of the prompt of a lease, settled or not."""
        watch = self._watch(worker)
        prefill_s = watch.untold.pop(lease, None)
        if prefill_s is None:
            return
        if cached_tokens is None:
            if not _caches_little(worker):
                return
            cached_tokens = 0
        tokens = lease.prompt_tokens - cached_tokens
        if tokens > 0:
            watch.fit.add_prefill(tokens, cached_tokens, prefill_s, now)
            self._publish(watch, now)

    # --- transfers ---------------------------------------------------------------------------------------

    def arrived(self, lease: Lease, worker: Worker, began: float, now: float) -> None:
        """The first output of a lease whose KV another worker has sent, on its way since `began`."""
        watch = self._watch(worker)
        watch.unsteady.add(lease)
        producer = lease.prefill.worker if lease.prefill is not None else None
        if producer is None or began > now or not lease.streamed or watch.crowded:
            return
        if producer not in watch.warm:
            # The first one over a pair sets up the connection.
            watch.warm.add(producer)
            return
        step_s = watch.fit.predicted_step_s(*map(float, watch.load_now()))
        watch.fit.add_transfer(producer, lease.prompt_tokens, now - began - step_s)

    # --- the rest ----------------------------------------------------------------------------------------

    def settled(self, lease: Lease, worker: Worker, now: float) -> None:
        """A lease has ended."""
        watch = self._watch(worker)
        watch.unsteady.discard(lease)
        if watch.alone is lease:
            watch.alone = None
        if lease in watch.untold and lease.cached_tokens is not None:
            self.told(lease, worker, lease.cached_tokens, now)

    def speculates(self, worker: Worker, tokens_per_step: float) -> None:
        """How many tokens a step of a worker gives a sequence, as its engine counts them."""
        self._watch(worker).fit.tokens_per_step = max(tokens_per_step, 1.0)

    def _publish(self, watch: Watch, now: float) -> None:
        """Lets the worker know what is known, at once when that is of another kind and else now and then."""
        before, state = watch.worker.calibration.state, watch.fit.state
        if before is state and now < watch.publish_at:
            return
        watch.publish_at = now + _PUBLISH_S
        watch.seen = watch.fit.calibration()
        watch.worker.calibrate(watch.seen)
        if before is not state and self._on_change is not None:
            self._on_change(watch.worker.name, before, state)

    def __repr__(self) -> str:
        states = [watch.fit.state.value for watch in self._watches.values()]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return f"<OnlineCalibration [{counts or 'nobody seen'}]>"


def _caches_little(worker: Worker) -> bool:
    """Whether a prompt of which the engine does not say what it had cached can be taken for uncached."""
    stats = worker.stats
    if stats is None or not stats.prefix_queries or stats.prefix_hits is None:
        return True
    return stats.prefix_hits <= _CACHES_LITTLE * stats.prefix_queries
