"""How long a worker may be silent before it is taken for stalled.

Separate because two rules rest on it: a silent worker gets no new requests, and a deadline that ran out is
held against a worker only when it was silent for that long.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.core.worker import Worker

# Until a worker is calibrated, a prefill is assumed to take at most this long per token (slow end of the
# GPUs in the specs table); it only widens the patience with a silent worker.
_PREFILL_PRIOR_S = 0.3e-3
_PREFILLS = 3


@dataclass(frozen=True, slots=True)
class Patience:
    """Three times the predicted prefill of what waits at the worker, within [min_s, max_s]."""

    min_s: float = 10.0
    max_s: float = 120.0

    def of(self, worker: Worker) -> float:
        """Seconds of silence that the work of this worker explains."""
        queued = worker.queued_tokens
        prefill_s = worker.step.prefill_s(queued) if worker.step else queued * _PREFILL_PRIOR_S
        return min(max(self.min_s, _PREFILLS * prefill_s), self.max_s)

    def exhausted(self, worker: Worker, now: float) -> bool:
        """Whether it has work and was silent for longer than that explains.

        Silence is heard only where something could speak: streams do until now, a progress counter until the
        last scrape. Without either it says nothing.
        """
        if not worker.mirror.working:
            return False
        heard_until = now if worker.mirror.streams else None
        if heard_until is None and worker.stats is not None and worker.stats.generation_tokens is not None:
            heard_until = worker.stats.taken
        return heard_until is not None and heard_until - worker.last_sign > self.of(worker)
