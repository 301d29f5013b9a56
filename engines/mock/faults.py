"""Faults that a test switches on: what they are, which requests they hit, how often.

Separate from their effects so that the table is plain data: the admin route fills it, `/mock/state` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.mock.errors import bad_request
from engines.mock.fields import Fields

ENGINE_FAULTS: Mapping[str, str] = {
    "refuse": "the listener is closed for `delay_s` (null: until cleared); open connections stay",
    "slow": "steps last `factor` times as long, for `delay_s` (null: until cleared)",
    "crash": "the process dies: state lost, connections reset, back after `delay_s` (null: the "
    "engine's own restart delay); with `after_events` it dies when a stream has sent that many",
    "engine_death": "the engine core dies: streams get an error event and [DONE], bodies a 500, "
    "then the process exits and comes back like a crash",
    "drop_events": "the next `count` batches of KV events (null: one) of every rank are lost on the way; "
    "they can still be replayed",
    "sigterm_abort": "as vLLM on SIGTERM: streams end with finish_reason abort and [DONE], the port "
    "refuses, back after `delay_s` (null: never)",
    "sigterm_silence": "as vLLM on SIGTERM, seen too: the port refuses, streams get no further byte "
    "and no end; back after `delay_s` (null: never)",
}
"""Faults of the whole engine, carried out when they are posted."""

REQUEST_FAULTS: Mapping[str, str] = {
    "reset": "the connection is reset once the request was read",
    "hang_headers": "no byte of an answer, for `delay_s` (null: until the client leaves), then served",
    "hang_stream": "after `after_events` events (or half a body) no further byte, for `delay_s`",
    "garbage": "bytes that are not HTTP, then the end",
    "status": "an error body with `status`",
    "error_first": "status 200 and a stream whose first event is an error event with `status`, then [DONE]",
    "close_early": "the connection closes after `after_events` events, or in the middle of a body",
    "multi_token": "`tokens` tokens in one event, after the first",
    "empty": "every second event has no text; it comes with the next one",
    "comments": "a keep-alive comment before the first event and after each",
    "crlf": "lines of a stream end with CRLF",
    "flap": "every second health check fails with 503",
}
"""Faults of single requests, carried out when one arrives."""

HANDOVER_FAULTS: Mapping[str, str] = {
    "lose_handle": "a prefill's answer has no kv_transfer_params; its blocks stay until the lease ends",
    "lease_cut": "the blocks of a prefill are kept for `delay_s` (null: not at all), whatever the heartbeats",
    "transfer_slow": "a decode's read of KV takes `factor` times as long, or `delay_s` longer",
    "transfer_failed": "a decode's read of KV fails when its time is over",
}
"""Faults of KV hand-overs, carried out when one happens, whatever the path of its request."""

KINDS = {**ENGINE_FAULTS, **REQUEST_FAULTS, **HANDOVER_FAULTS}


@dataclass(slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        count: requests (or hand-overs, or batches) it still hits, None for every one until cleared.
        path: prefix of the paths it hits, None for all but the mock's own.
        after_events: events of a stream that pass before it strikes.
        delay_s: how long it lasts; what null means stands beside each kind.
        status: of an error answer.
        factor: of `slow`. tokens: of `multi_token`.
    """

    kind: str
    count: int | None = None
    path: str | None = None
    after_events: int | None = None
    delay_s: float | None = None
    status: int = 500
    factor: float = 10.0
    tokens: int = 4
    hits: int = 0

    @classmethod
    def of(cls, fields: Fields) -> Fault:
        """Read a posted fault.

        Raises:
            Refusal: 400 for an unknown kind or a value out of range.
        """
        kind = str(fields.required("kind"))
        if kind not in KINDS:
            raise bad_request(f"There is no fault `{kind}`. Known: {', '.join(sorted(KINDS))}.", "kind")
        count, after = fields.integer("count"), fields.integer("after_events")
        delay_s, factor = fields.number("delay_s"), fields.number("factor")
        fault = cls(
            kind=kind,
            count=count,
            path=fields.text("path"),
            after_events=after,
            delay_s=delay_s,
            status=fields.integer("status") or 500,
            factor=10.0 if factor is None else factor,
            tokens=fields.integer("tokens") or 4,
        )
        fault._check()
        return fault

    @property
    def of_engine(self) -> bool:
        """Whether it strikes now and the whole engine, not a request when one comes."""
        return self.kind in ENGINE_FAULTS and not (self.kind == "crash" and self.after_events is not None)

    def state(self) -> dict[str, object]:
        """Return the fault as `/mock/state` shows it."""
        return {
            "kind": self.kind,
            "count": self.count,
            "path": self.path,
            "after_events": self.after_events,
            "delay_s": self.delay_s,
            "hits": self.hits,
        }

    def _check(self) -> None:
        for name, low, value in (
            ("count", 1, self.count),
            ("after_events", 0, self.after_events),
            ("delay_s", 0, self.delay_s),
            ("tokens", 1, self.tokens),
        ):
            if value is not None and value < low:
                raise bad_request(f"{name} must be at least {low}, got {value}.", name)
        if not 100 <= self.status <= 599:
            raise bad_request(f"status must be an HTTP status, got {self.status}.", "status")
        if not self.factor > 0:
            raise bad_request(f"factor must be above 0, got {self.factor}.", "factor")


class FaultTable:
    """The request faults that are switched on, in the order they were posted."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def __repr__(self) -> str:
        return f"<FaultTable {[fault.kind for fault in self._faults]}>"

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def state(self) -> list[dict[str, object]]:
        return [fault.state() for fault in self._faults]

    def take(self, path: str) -> tuple[Fault, ...]:
        """Return the faults that hit a request and count it against each; spent ones are dropped."""
        hit = []
        for fault in self._faults:
            if fault.kind in HANDOVER_FAULTS or not path.startswith(fault.path or "/"):
                continue
            if fault.kind == "flap" and path not in {"/health", "/ready", "/health_generate"}:
                continue
            fault.hits += 1
            hit.append(fault)
            if fault.count is not None:
                fault.count -= 1
        self._drop_spent()
        return tuple(hit)

    def strike(self, kind: str) -> Fault | None:
        """Return the fault of this kind that hits a hand-over, and count it; the oldest one that is on."""
        fault = next((fault for fault in self._faults if fault.kind == kind), None)
        if fault is not None:
            fault.hits += 1
            if fault.count is not None:
                fault.count -= 1
            self._drop_spent()
        return fault

    def _drop_spent(self) -> None:
        self._faults = [fault for fault in self._faults if fault.count is None or fault.count > 0]
