"""Series bound to what they are about: one (api, model), or one worker.

Separate because this is the hot path. A holder is looked up once a request or kept by the worker's owner; an
event then costs one observe, and a finished request a dozen additions.
"""

from __future__ import annotations

import msgspec

from router.telemetry.families import Families
from router.telemetry.series import Counter, Histogram


class Finish(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known of a request when it is over. None where it does not apply or was not measured.

    Attributes:
        status: HTTP status that the client got, 499 when it left.
        duration_s: first byte of the request to the last of the answer.
        queue_s: waiting in the router for a worker.
        overhead_s: the router's own share of the time to the first byte: from the last byte of the request
            to the choice of a worker; None for a request that had to wait for one.
        ttft_s: first byte of the request to the first data event, or to the body when not streamed.
        tpot_s: mean time per output token after the first.
        prompt_tokens, output_tokens: as the engine reported them, else as counted.
        cached_tokens: prompt tokens found in the engine's cache, None when it did not say.
    """

    status: int
    duration_s: float
    queue_s: float | None = None
    overhead_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


class RequestSeries:
    """Counts the requests of one api for one model.

    Attributes:
        inter_token: observe each gap between two events that carry output, in seconds.
    """

    __slots__ = (
        "_duration", "_families", "_hit_tokens", "_miss_tokens", "_model", "_output_tokens", "_overhead",
        "_queue", "_requests", "_tpot", "_ttft", "_unreported_tokens", "api", "inter_token",
    )  # fmt: skip

    def __init__(self, families: Families, api: str, model: str) -> None:
        self.api = api
        self._model = model
        self._families = families
        self._requests: dict[int, Counter] = {}
        self.inter_token: Histogram = families.inter_token.series(api, model)
        self._duration = families.duration.series(api, model)
        self._ttft = families.ttft.series(api, model)
        self._tpot = families.tpot.series(api, model)
        self._queue = families.queue.series(model)
        self._overhead = families.overhead.series(model)
        self._output_tokens = families.output_tokens.series(model)
        self._hit_tokens = families.prompt_tokens.series(model, "hit")
        self._miss_tokens = families.prompt_tokens.series(model, "miss")
        self._unreported_tokens = families.prompt_tokens.series(model, "unreported")

    def finished(self, finish: Finish) -> None:
        """Count one request that is over; once for each request, however it ended."""
        status = finish.status
        requests = self._requests.get(status)
        if requests is None:
            requests = self._families.requests.series(self.api, self._model, str(status))
            self._requests[status] = requests
        requests.add()
        self._duration.observe(finish.duration_s)
        if finish.queue_s is not None:
            self._queue.observe(finish.queue_s)
        if finish.overhead_s is not None:
            self._overhead.observe(finish.overhead_s)
        if finish.ttft_s is not None:
            self._ttft.observe(finish.ttft_s)
        if finish.tpot_s is not None:
            self._tpot.observe(finish.tpot_s)
        self._count_tokens(finish)

    def judged(self, slo: str, *, met: bool) -> None:
        """Count whether a request got what its class is promised."""
        self._families.slo.series(self._model, slo, "yes" if met else "no").add()

    def failed(self, code: str, phase: str) -> None:
        """Count the error that a request ended in; `code` is the one in the error body."""
        self._families.errors.series(self._model, code, phase).add()

    def retried(self, reason: str) -> None:
        """Count one more attempt."""
        self._families.retries.series(self._model, reason).add()

    def _count_tokens(self, finish: Finish) -> None:
        if finish.output_tokens is not None:
            self._output_tokens.add(finish.output_tokens)
        prompt, cached = finish.prompt_tokens, finish.cached_tokens
        if prompt is None:
            return
        if cached is None:
            self._unreported_tokens.add(prompt)
            return
        # An engine that recomputed a preempted prompt has been seen to report more hits than prompt.
        hit = min(cached, prompt)
        if hit:
            self._hit_tokens.add(hit)
        self._miss_tokens.add(prompt - hit)

    def __repr__(self) -> str:
        return f"<RequestSeries {self.api} {self._model}>"


class HandoverSeries:
    """Counts the split requests of one model.

    Attributes:
        prefill, pool_wait, transfer: observe the three stretches before the first data event, in seconds.
    """

    __slots__ = ("_families", "_model", "pool_wait", "prefill", "split", "transfer")

    def __init__(self, families: Families, model: str) -> None:
        self._families = families
        self._model = model
        self.split = families.split.series(model)
        self.prefill: Histogram = families.prefill.series(model)
        self.pool_wait: Histogram = families.pool_wait.series(model)
        self.transfer: Histogram = families.transfer.series(model)

    def unsplit(self, reason: str) -> None:
        self._families.unsplit.series(self._model, reason).add()

    def refused(self, reason: str) -> None:
        self._families.split_refused.series(self._model, reason).add()

    def pool_expired(self) -> None:
        self._families.pool_expired.series(self._model).add()

    def failed(self, leg: str, reason: str) -> None:
        self._families.handover_failures.series(self._model, leg, reason).add()

    def offered_again(self) -> None:
        self._families.handover_retries.series(self._model).add()

    def prefilled_again(self, reason: str) -> None:
        self._families.reprefills.series(self._model, reason).add()

    def __repr__(self) -> str:
        return f"<HandoverSeries {self._model}>"


class WorkerSeries:
    """Counts what happens at one worker.

    After the worker has left, a holder that somebody still keeps counts into nothing that is exposed.

    Attributes:
        ttft: observe the time from sending a request to its first data event, in seconds.
        turn: observe how long a request of its own waited in the router, in seconds.
    """

    __slots__ = ("_codes", "_decisions", "_families", "_name", "ttft", "turn")

    def __init__(self, families: Families, name: str) -> None:
        self._families = families
        self._name = name
        self._codes: dict[int | None, Counter] = {}
        self._decisions: dict[tuple[str, str], Counter] = {}
        self.ttft: Histogram = families.worker_ttft.series(name)
        self.turn: Histogram = families.turn.series(name)

    def chosen(self, policy: str, reason: str) -> None:
        """Count a choice that put a request here."""
        counter = self._decisions.get((policy, reason))
        if counter is None:
            counter = self._families.decisions.series(policy, reason, self._name)
            self._decisions[policy, reason] = counter
        counter.add()

    def responded(self, code: int | None) -> None:
        """Count one answer by its status; None when the connection failed or broke before one."""
        counter = self._codes.get(code)
        if counter is None:
            label = "none" if code is None else str(code)
            counter = self._codes[code] = self._families.upstream_responses.series(self._name, label)
        counter.add()

    def entered(self, state: str) -> None:
        """Count a change of the worker's state."""
        self._families.transitions.series(self._name, state).add()

    def scraped(self, outcome: str) -> None:
        """Count a scrape: "ok", or one word for what went wrong."""
        self._families.scrapes.series(self._name, outcome).add()

    def probed(self, outcome: str) -> None:
        """Count a probe: "ok", or one word for what went wrong."""
        self._families.probes.series(self._name, outcome).add()

    def __repr__(self) -> str:
        return f"<WorkerSeries {self._name}>"
