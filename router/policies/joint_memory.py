"""What `joint` remembers: what is asked for how often, how long the answers are, and who shows no output yet.

Separate from the policy, which only compares: all that moves between two decisions is here, and bounded.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from router.core.lease import Lease, Outcome
from router.core.request import Request
from router.core.worker import WorkerView
from router.policies.output_length import OutputLengths
from router.policies.queued_hits import QueuedHits

_MAX_PORTIONS = 4_096
_RATE_MEMORY_S = 10.0  # over which arrivals are averaged
_CROWD_MEMORY_S = 1.0  # over which the load is averaged
_LEAST_AGE_S = 3.0  # arrivals in one burst, parallel samples say, are taken to be spread over so long
_LENGTH_MEMORY = 20  # answers that a mean remembers
_ENOUGH_LENGTHS = 4  # answers of a key portion before its own mean is believed
_UNKNOWN_TOKENS = 200.0  # output of a request that is like none before
_REUSE_MEMORY = 1.0 / 256.0  # weight of one request in the share of prompts that is found cached


class _Portion(msgspec.Struct):
    """`level`: arrivals after the first, each fading over `_RATE_MEMORY_S`, as of `at` (s)."""

    first: float
    at: float
    level: float = 0.0
    lengths: int = 0
    mean_tokens: float = 0.0


class Portions:
    """How often the key portions of prompts are asked for, and how long their answers are.

    State: the `_MAX_PORTIONS` that were asked for last.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Portion] = OrderedDict()

    def asked(self, key: int, now: float) -> None:
        """One more request came for it."""
        known = self._known.get(key)
        if known is None:
            self._known[key] = _Portion(now, now)
            if len(self._known) > _MAX_PORTIONS:
                self._known.popitem(last=False)
            return
        self._known.move_to_end(key)
        known.level = known.level * _faded(now - known.at) + 1.0
        known.at = now

    def rate_per_s(self, key: int | None, now: float) -> float:
        """Requests a second for it, of late; 0 for one that was asked for once."""
        known = self._known.get(key) if key is not None else None
        if known is None or not known.level:
            return 0.0
        seen = 1.0 - _faded(max(now - known.first, _LEAST_AGE_S))
        return known.level * _faded(now - known.at) / (_RATE_MEMORY_S * seen)

    def ended(self, key: int, tokens: float) -> None:
        """An answer to it was so long."""
        known = self._known.get(key)
        if known is not None:
            known.lengths += 1
            known.mean_tokens += (tokens - known.mean_tokens) / min(known.lengths, _LENGTH_MEMORY)

    def mean_tokens(self, key: int | None) -> float | None:
        """Of its answers; None while too few are known."""
        known = self._known.get(key) if key is not None else None
        return None if known is None or known.lengths < _ENOUGH_LENGTHS else known.mean_tokens

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"<Portions [{len(self._known)} of {_MAX_PORTIONS}]>"


def _faded(passed_s: float, memory_s: float = _RATE_MEMORY_S) -> float:
    return math.exp(-max(passed_s, 0.0) / memory_s)


class Silence:
    """Who was sent where and shows no output yet, of those whose first output is seen when it comes.

    State: by worker the requests in the order in which they were sent; empty when idle.
    """

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        self._sent: dict[str, OrderedDict[str, float]] = {}

    def sent(self, request_id: str, worker: str, now: float) -> None:
        self._sent.setdefault(worker, OrderedDict())[request_id] = now

    def broken(self, request_id: str, worker: str) -> None:
        """It shows output, or is over. A repeat changes nothing."""
        sent = self._sent.get(worker)
        if sent is not None and sent.pop(request_id, None) is not None and not sent:
            del self._sent[worker]

    def count(self, worker: WorkerView) -> int:
        """How many prompts wait there, at most as many as the ledger has."""
        sent = self._sent.get(worker.name)
        return min(len(sent), worker.in_flight) if sent is not None else 0

    def longest_s(self, workers: Sequence[WorkerView], now: float) -> list[float]:
        """How long the first of those that wait there has waited already; 0 where nobody does."""
        sent = self._sent
        if not sent:
            return [0.0] * len(workers)
        return [
            max(now - next(iter(sent[w.name].values())), 0.0) if w.name in sent and w.in_flight else 0.0
            for w in workers
        ]

    def __len__(self) -> int:
        return sum(map(len, self._sent.values()))

    def __repr__(self) -> str:
        return f"<Silence [{len(self)} requests at {len(self._sent)} workers]>"


class Unseen:
    """Requests whose first output is not seen: their answers come in one piece.

    To the ledger their prompts are queued until the end. Here they are taken to be prefilled one after the
    other, as fast as the coefficients say.

    State: by worker (when it was sent, missed tokens, prompt tokens) of each in the order in which they were
    sent, and the sums of both; empty when idle.
    """

    __slots__ = ("_sent", "_sums")

    def __init__(self) -> None:
        self._sent: dict[str, OrderedDict[str, tuple[float, int, int]]] = {}
        self._sums: dict[str, tuple[int, int]] = {}

    def sent(self, request: Request, worker: str, missed_tokens: int, now: float) -> None:
        self.over(request.id, worker)
        self._sent.setdefault(worker, OrderedDict())[request.id] = (now, missed_tokens, request.prompt_tokens)
        missed, prompt = self._sums.get(worker, (0, 0))
        self._sums[worker] = (missed + missed_tokens, prompt + request.prompt_tokens)

    def over(self, request_id: str, worker: str) -> None:
        """It has ended. A repeat changes nothing."""
        sent = self._sent.get(worker)
        gone = sent.pop(request_id, None) if sent is not None else None
        if gone is None:
            return
        if not sent:
            del self._sent[worker], self._sums[worker]
        else:
            missed, prompt = self._sums[worker]
            self._sums[worker] = (missed - gone[1], prompt - gone[2])

    def prompt_tokens(self, workers: Sequence[WorkerView]) -> list[int]:
        """That the ledger has queued at each worker for their sake."""
        sums = self._sums
        return [sums[w.name][1] if w.name in sums else 0 for w in workers] if sums else [0] * len(workers)

    def backlog_tokens(self, worker: str, most: int, token_s: float, now: float) -> int:
        """What of their prompts is still to be prefilled, at `token_s` a token; at most `most`."""
        sent = self._sent.get(worker)
        if sent is None:
            return 0
        # A queue that never idles while it holds work: what came since any moment, less what could be done.
        left, came, all_s = 0.0, 0, self._sums[worker][0] * token_s
        for at, missed, _ in reversed(sent.values()):
            if now - at > all_s or left >= most:
                break
            came += missed
            left = max(left, came - (now - at) / token_s)
        return min(round(left), most)

    def __len__(self) -> int:
        return sum(map(len, self._sent.values()))

    def __repr__(self) -> str:
        return f"<Unseen [{len(self)} requests at {len(self._sent)} workers]>"


class Crowd:
    """How many sequences run in all, on average of late: a lull between two bursts is no idle pool.

    State: their number by request, empty when idle, and the mean as of `_at` (s).
    """

    __slots__ = ("_at", "_count", "_mean", "_running", "_weight")

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._count = 0
        self._mean = self._weight = 0.0
        self._at: float | None = None

    def came(self, request: Request, now: float) -> None:
        """It runs from now on, if it did not already."""
        if request.id not in self._running:
            self._pass(now)
            self._running[request.id] = request.sequences
            self._count += request.sequences

    def left(self, request_id: str, now: float) -> None:
        """It is over. A repeat changes nothing."""
        sequences = self._running.pop(request_id, 0)
        if sequences:
            self._pass(now)
            self._count -= sequences

    def _pass(self, now: float) -> None:
        self._mean, self._weight, self._at = *self._averages(now), now

    def _averages(self, now: float) -> tuple[float, float]:
        """The mean, and how much of it was seen: a young one is that of the time since the beginning."""
        passed_s = 0.0 if self._at is None else now - self._at
        faded = _faded(passed_s, _CROWD_MEMORY_S)
        weight = 1.0 - faded + faded * self._weight
        if weight <= 0.0:
            return float(self._count), 0.0
        return (self._mean * faded * self._weight + self._count * (1.0 - faded)) / weight, weight

    def mean(self, now: float) -> float:
        """Of the last time, with all before fading over `_CROWD_MEMORY_S`."""
        return self._averages(now)[0]

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<Crowd [{self._count} sequences | {self._mean:.1f} on average]>"


class Memory:
    """All of it, moved by the policy's `committed`, `started` and `settled`.

    State: `crowd`, who runs; `hits`, `silence` and `unseen` of what shows no output yet; `portions`, the mean
    answers of other kinds, the key portion of each request that runs; and `reuse`, the share of all prompts
    that was found cached of late.
    """

    __slots__ = ("_keys", "_outputs", "crowd", "hits", "portions", "reuse", "silence", "unseen")

    def __init__(self) -> None:
        self.crowd = Crowd()
        self.hits = QueuedHits()
        self.silence = Silence()
        self.unseen = Unseen()
        self.portions = Portions()
        self.reuse = 0.0
        self._keys: dict[str, int] = {}
        self._outputs = OutputLengths(_UNKNOWN_TOKENS)

    def placed(self, request: Request, worker: str, held_tokens: int, now: float, *, shown: bool) -> None:
        """A request was charged to a worker that holds so much of it.

        Args:
            shown: its first output will be seen when it comes, and not with the rest of its answer.
        """
        self.crowd.came(request, now)
        if shown:
            self.hits.placed(request.id, worker, held_tokens)
            self.silence.sent(request.id, worker, now)
        elif request.handover is None:
            self.unseen.sent(request, worker, request.prompt_tokens - held_tokens, now)

    def asked(self, request: Request, key: int | None, held_tokens: int, now: float) -> None:
        """A new request, no retry: what it asks for is counted."""
        if request.prompt_tokens > 0:
            self.reuse += _REUSE_MEMORY * (held_tokens / request.prompt_tokens - self.reuse)
        if key is not None:
            self.portions.asked(key, now)
            self._keys[request.id] = key

    def started(self, lease: Lease) -> None:
        """Its prompt waits no more; nor does it where it was prefilled, for a lease that follows another."""
        leases = [lease] if lease.prefill is None else [lease, lease.prefill]
        for one in leases:
            self.hits.ended(one)
            self.silence.broken(one.request.id, one.worker)
            self.unseen.over(one.request.id, one.worker)

    def ended(self, lease: Lease, outcome: Outcome, now: float) -> None:
        """A lease was settled. One that is not known (any more) changes nothing."""
        self.started(lease)
        self.crowd.left(lease.request.id, now)
        request = lease.request
        key = self._keys.pop(request.id, None)
        if outcome is Outcome.OK and lease.generated_tokens and not lease.prefill_only:
            self._outputs.learn(lease)
            if key is not None:
                self.portions.ended(key, lease.generated_tokens / request.sequences)

    def output_tokens(self, request: Request, key: int | None) -> float:
        """Expected of each sequence: the mean of its key portion, else of requests like it, within what the
        client demands. 0 for a call that generates none."""
        expected = self._outputs.expected(request)
        own = self.portions.mean_tokens(key)
        if own is None or not expected or request.ignore_eos:
            return expected
        own = max(own, float(request.min_tokens or 1))
        return own if request.max_tokens is None else min(own, float(request.max_tokens))

    @property
    def idle(self) -> bool:
        """Whether nothing is kept of any request that runs."""
        kept = (self.crowd, self.hits, self.silence, self.unseen, self._keys)
        return not any(len(one) for one in kept)

    def __repr__(self) -> str:
        return f"<Memory {self.crowd!r} {self.hits!r} {self.silence!r} {self.portions!r}>"
