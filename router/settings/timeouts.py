"""Every deadline on the path of a request, and when a failed try is repeated elsewhere.

Separate from limits: each deadline here has its own name in errors and metrics.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from router.settings.section import Seconds, Section, Share


class TimeoutSettings(Section):
    """Deadlines. No total cuts a stream that makes progress."""

    connect_s: Seconds = 1.0
    """TCP connection to a worker; the next worker is tried at once."""
    tls_s: Seconds = 5.0
    """TLS handshake with a worker."""
    write_stall_s: Seconds = 30.0
    """A worker takes no byte of the request for so long."""
    first_event_s: Seconds = 600.0
    """First data event of a stream; a client that says it waits less (`x-stainless-read-timeout`) is
    believed."""
    total_s: Seconds = 3600.0
    """Whole answer that is not streamed."""
    idle_s: Seconds = 600.0
    """Between two events of a stream. Comments are no events."""
    idle_lost_worker_s: Seconds = 10.0
    """Between two events, once the worker refuses connections or was restarted."""
    comment_commit_s: Seconds = 15.0
    """Engine comments are held back so long, with the status line; later ones commit the answer."""
    keep_alive_s: Seconds | None = 15.0
    """Silence inside a stream after which the router sends a comment of its own; null: never."""
    early_keep_alive_s: Seconds | None = None
    """The same before the first event; it commits status 200, so a failure can then only be told by an error
    event. null: never."""
    prefill_s: Seconds = 300.0
    """Prefill leg of a split request, from when it is sent to its whole answer."""
    decode_first_event_s: Seconds = 60.0
    """First data event of the decode leg, the hand-over of the KV included."""
    lease_margin_s: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """A decode leg is sent no later than so long before the prefill worker lets go of the KV: what is fetched
    after that may be another prompt's."""
    slow_client_s: Seconds = 60.0
    """A client that takes no byte of a full buffer for so long is cut."""
    client_keep_alive_s: Seconds = 620.0
    """Idle client connections stay open so long: longer than the 600 s of cloud load balancers."""
    client_head_s: Seconds = 30.0
    """A client sends its request head within."""
    upstream_idle_s: Annotated[float, Field(gt=0, le=60)] = 3.0
    """Idle worker connections are reused within; engines close theirs after 5 s."""
    shutdown_accept_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """After SIGTERM, not ready but still accepting, while load balancers take notice."""
    shutdown_drain_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    """Then running requests may finish within, before they are ended with an error."""


class RetrySettings(Section):
    """Tries elsewhere, before the client's status line was sent. Never after a timeout, never with a wait."""

    enabled: bool = True
    """Off: every failure goes to the client."""
    max_retries: Annotated[int, Field(ge=0, le=10)] | None = None
    """Tries elsewhere for one request in all; null: what the failures allow, which is 2 when nothing was
    sent, 1 after a worker had the request and answered nothing, 5xx or 429, and 0 after a timeout. A number
    can only lower this."""
    budget_share: Share = 0.2
    """Retries under way, as a share of the requests in flight: more would feed an outage."""
    budget_min: Annotated[int, Field(ge=0, le=10_000)] = 10
    """Retries under way that are always allowed."""
    poison_guard: bool = False
    """Refuse for `poison_guard_s` a body during which two workers restarted."""
    poison_guard_s: Seconds = 60.0
    """How long such a body is refused."""

    @property
    def allowed(self) -> int | None:
        """Bound on the tries of one request over all kinds of failure; None leaves it to the kinds."""
        return self.max_retries if self.enabled else 0
