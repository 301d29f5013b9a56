"""What was dispatched within the window H, in whole tokens: the memory of `preble`.

Separate from the policy, which turns tokens into seconds: the sums are integers, so that what expires takes
away exactly what it added, and a new calibration judges the past anew.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import msgspec

_ENOUGH_LENGTHS = 4  # finished requests of a prefix before its own mean is believed
_SLICES = 16  # of the window, in which waits are summed
_ENOUGH_WAITS = 4  # samples in each half of the window


class Sums(msgspec.Struct):
    """What a worker was sent.

    Attributes:
        missed_tokens: prompt tokens that were not cached there.
        output_tokens: of all sequences whose length is known, or was expected for a reason of their own.
        kv_reads: each of these output tokens times the context it was generated at.
        open_sequences, open_context_tokens: sequences of which nothing is known, and their prompts' tokens.
    """

    requests: int = 0
    missed_tokens: int = 0
    output_tokens: int = 0
    kv_reads: int = 0
    open_sequences: int = 0
    open_context_tokens: int = 0

    def add(self, other: Sums, sign: int = 1) -> None:
        self.requests += sign * other.requests
        self.missed_tokens += sign * other.missed_tokens
        self.output_tokens += sign * other.output_tokens
        self.kv_reads += sign * other.kv_reads
        self.open_sequences += sign * other.open_sequences
        self.open_context_tokens += sign * other.open_context_tokens


class Dispatch(msgspec.Struct):
    """One request within the window.

    Attributes:
        key, own_tokens: its key portion; None and 0 without one.
        output_tokens: of all sequences; 0 if somebody else decodes it, None while nothing is known of it.
        counts: False once it was withdrawn.
    """

    id: str
    at: float
    worker: str
    key: int | None
    own_tokens: int
    missed_tokens: int
    prompt_tokens: int
    sequences: int
    output_tokens: int | None
    running: bool = True
    finished: bool = False
    counts: bool = True

    @property
    def sums(self) -> Sums:
        """What it adds to those of its worker."""
        sequences, output = self.sequences, self.output_tokens
        if output is None:
            return Sums(1, self.missed_tokens, 0, 0, sequences, sequences * self.prompt_tokens)
        # From the prompt to the last token the context grows evenly.
        return Sums(1, self.missed_tokens, output, output * (self.prompt_tokens + output // sequences // 2))


class Slice(msgspec.Struct):
    """Waits that ended within one slice of the window, `begin` being its beginning (s)."""

    begin: float
    samples: int = 0
    seconds: float = 0.0


class Use(msgspec.Struct):
    """A key portion at a worker.

    Attributes:
        requests, running: of the window, and of these those that have not ended.
        waits: from dispatch to the first output, oldest first.
    """

    tokens: int
    requests: int = 0
    running: int = 0
    waits: deque[Slice] = msgspec.field(default_factory=deque)


class Prefix(msgspec.Struct):
    """A key portion at all workers.

    Attributes:
        finished, output_tokens: requests that ended well, and what they generated per sequence.
        copied: when it was last sent to a worker that did not hold it.
    """

    requests: int = 0
    finished: int = 0
    output_tokens: int = 0
    copied: float | None = None


NOTHING = Sums()


@dataclass(slots=True)
class Window:
    """The last `length_s` seconds, and of those at most the last `max_requests` requests.

    `uses` lists the key portions of a worker, least recently used first; `used_tokens` is their sum.
    """

    length_s: float
    max_requests: int
    sums: dict[str, Sums] = field(default_factory=dict)
    uses: dict[str, OrderedDict[int, Use]] = field(default_factory=dict)
    used_tokens: dict[str, int] = field(default_factory=dict)
    prefixes: dict[int, Prefix] = field(default_factory=dict)
    pool: Prefix = field(default_factory=Prefix)
    dispatches: deque[Dispatch] = field(default_factory=deque, repr=False)
    by_id: dict[str, Dispatch] = field(default_factory=dict, repr=False)

    # --- reading -------------------------------------------------------------------------------------

    def lapsed(self, now: float) -> dict[str, Sums]:
        """What `sums` still hold although it is older than the window, until the next dispatch."""
        lapsed: dict[str, Sums] = {}
        before = now - self.length_s
        for one in self.dispatches:
            if one.at > before:
                break
            if one.counts:
                lapsed.setdefault(one.worker, Sums()).add(one.sums)
        return lapsed

    @property
    def mean_tokens(self) -> float | None:
        """Mean output per sequence within the window, None before any is known."""
        return self.pool.output_tokens / self.pool.finished if self.pool.finished else None

    def mean_tokens_of(self, key: int | None) -> float | None:
        """The same of requests with this key portion, None while too few of them have finished."""
        prefix = None if key is None else self.prefixes.get(key)
        if prefix is None or prefix.finished < _ENOUGH_LENGTHS:
            return None
        return prefix.output_tokens / prefix.finished

    def copied_since(self, key: int, since: float) -> bool:
        """Whether a key portion was sent to a new worker after `since`."""
        prefix = self.prefixes.get(key)
        return prefix is not None and prefix.copied is not None and prefix.copied > since

    def waits_s(self, key: int, worker: str, now: float) -> tuple[float, float] | None:
        """Mean wait for the first output in the older and the newer half of the window, None without enough
        samples in both."""
        use = self._at(worker, key)
        if use is None:
            return None
        oldest, middle = now - self.length_s, now - self.length_s / 2
        older = _mean([one for one in use.waits if oldest < one.begin <= middle])
        newer = _mean([one for one in use.waits if one.begin > middle])
        return None if older is None or newer is None else (older, newer)

    # --- writing -------------------------------------------------------------------------------------

    def knows(self, request_id: str) -> bool:
        """Whether a request is counted already."""
        one = self.by_id.get(request_id)
        return one is not None and one.counts

    def add(self, one: Dispatch, now: float) -> None:
        """A request was dispatched. What is too old, or too much, goes."""
        self.expire(now)
        if len(self.dispatches) >= self.max_requests:
            self._drop(self.dispatches.popleft())
        self.dispatches.append(one)
        self.by_id[one.id] = one
        self.sums.setdefault(one.worker, Sums()).add(one.sums)
        if one.key is not None:
            self.prefixes.setdefault(one.key, Prefix()).requests += 1
            self._use(one, one.key)

    def expire(self, now: float) -> None:
        before = now - self.length_s
        while self.dispatches and self.dispatches[0].at <= before:
            self._drop(self.dispatches.popleft())

    def copied(self, key: int, now: float) -> None:
        """A key portion goes to a worker that did not hold it: waits at the others begin anew."""
        if key in self.prefixes:
            self.prefixes[key].copied = now
        for uses in self.uses.values():
            if key in uses:
                uses[key].waits.clear()

    def started(self, request_id: str, worker: str, wait_s: float, now: float) -> None:
        """The first output of a request was seen, so long after its dispatch."""
        one = self._dispatch(request_id, worker)
        use = self._use_of(one) if one is not None else None
        if use is None:
            return
        begin = now - now % (self.length_s / _SLICES)
        if not use.waits or use.waits[-1].begin != begin:
            use.waits.append(Slice(begin))
            if len(use.waits) > _SLICES:
                use.waits.popleft()
        use.waits[-1].samples += 1
        use.waits[-1].seconds += wait_s

    def ended(self, request_id: str, worker: str, output_tokens: int, *, whole: bool) -> None:
        """A request was computed. One that is not known (any more) changes nothing.

        Args:
            output_tokens: of all sequences; 0 leaves what was expected.
            whole: it ended by itself, so its length teaches something.
        """
        one = self._dispatch(request_id, worker)
        if one is None or not one.running:
            return
        self._stop(one)
        if not output_tokens or one.output_tokens == 0:
            return
        sums = self.sums[worker]
        sums.add(one.sums, -1)
        one.output_tokens = output_tokens
        sums.add(one.sums)
        if whole:
            one.finished = True
            self._learn(one, 1)

    def withdraw(self, request_id: str, worker: str) -> None:
        """A request never came to be computed. One that is not known (any more) changes nothing."""
        one = self._dispatch(request_id, worker)
        if one is not None:
            self._drop(one)

    # --- the parts -----------------------------------------------------------------------------------

    def _dispatch(self, request_id: str, worker: str) -> Dispatch | None:
        one = self.by_id.get(request_id)
        return one if one is not None and one.counts and one.worker == worker else None

    def _use_of(self, one: Dispatch) -> Use | None:
        return self._at(one.worker, one.key)

    def _at(self, worker: str, key: int | None) -> Use | None:
        uses = self.uses.get(worker)
        return None if uses is None or key is None else uses.get(key)

    def _use(self, one: Dispatch, key: int) -> None:
        uses = self.uses.setdefault(one.worker, OrderedDict())
        use = uses.get(key)
        if use is None:
            use = uses[key] = Use(one.own_tokens)
            self.used_tokens[one.worker] = self.used_tokens.get(one.worker, 0) + use.tokens
        uses.move_to_end(key)
        use.requests += 1
        use.running += 1

    def _stop(self, one: Dispatch) -> None:
        if one.running:
            one.running = False
            use = self._use_of(one)
            if use is not None:
                use.running -= 1

    def _learn(self, one: Dispatch, sign: int) -> None:
        prefixes = [self.pool] if one.key is None else [self.pool, self.prefixes[one.key]]
        for prefix in prefixes:
            prefix.finished += sign
            prefix.output_tokens += sign * ((one.output_tokens or 0) // one.sequences)

    def _drop(self, one: Dispatch) -> None:
        """Takes away all that a request added; again changes nothing."""
        if not one.counts:
            return
        self._stop(one)
        if one.finished:
            self._learn(one, -1)
        one.counts = False
        if self.by_id.get(one.id) is one:
            del self.by_id[one.id]
        sums = self.sums[one.worker]
        sums.add(one.sums, -1)
        if not sums.requests:
            del self.sums[one.worker]
        if one.key is not None:
            self._unuse(one, one.key)

    def _unuse(self, one: Dispatch, key: int) -> None:
        prefix = self.prefixes[key]
        prefix.requests -= 1
        if not prefix.requests:
            del self.prefixes[key]
        uses = self.uses[one.worker]
        use = uses[key]
        use.requests -= 1
        if not use.requests:
            del uses[key]
            self.used_tokens[one.worker] -= use.tokens
        if not uses:
            del self.uses[one.worker], self.used_tokens[one.worker]


def _mean(slices: list[Slice]) -> float | None:
    samples = sum(one.samples for one in slices)
    return sum(one.seconds for one in slices) / samples if samples >= _ENOUGH_WAITS else None
