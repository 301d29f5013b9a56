"""How the router keeps watch over its workers: probes, scrapes, discovery.

Separate from the pools: these periods hold for all workers alike.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from router.settings.section import Seconds, Section, Share


class HealthSettings(Section):
    """Probes, the progress watch, and the way back."""

    interval_s: Seconds = 5.0
    """Between two probes of a worker; skipped when bytes came since."""
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Each interval varies by this share, so that probes of many workers do not meet."""
    timeout_s: Seconds = 5.0
    """A probe is answered within."""
    timeouts_to_eject: Annotated[int, Field(ge=1, le=100)] = 3
    """Timeouts in a row that take a worker out; a refused connection does so at once."""
    failures_to_eject: Annotated[int, Field(ge=1, le=100)] = 3
    """Failed requests in a row that take a worker out; one is enough while it warms up."""
    path: str | None = None
    """Path that probes ask. null: `/health`, or `/ready` where an SGLang worker has it (its `/health`
    generates a token)."""
    warmup_s: Seconds = 45.0
    """A worker that came back takes its whole share after."""
    stall_min_s: Seconds = 10.0
    """A worker with work in flight and no progress for three predicted prefills gets no new request; the wait
    is at least this."""
    stall_max_s: Seconds = 120.0
    """And it is at most this."""
    min_in_rotation: Share = 0.5
    """Share of a pool that stays in rotation even when more of it looks unwell."""

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError("it must begin with /")
        return value

    @field_validator("stall_max_s")
    @classmethod
    def _not_below_min(cls, value: float, info: ValidationInfo) -> float:
        least = info.data.get("stall_min_s", 0.0)
        if value < least:
            raise ValueError(f"it must not be below health.stall_min_s ({least:g})")
        return value


class PollingSettings(Section):
    """Scrapes of the engines' own metrics."""

    interval_s: Annotated[float, Field(ge=0.01, le=3600)] = 1.0
    """Between two scrapes of a worker's `/metrics`."""
    prefill_scrape_s: Annotated[float, Field(ge=0.01, le=3600)] = 0.25
    """The same of a prefill worker while KV waits there for its hand-over: its usage decides whether it gets
    more."""
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Each interval varies by this share."""
    timeout_s: Seconds = 2.0
    """A scrape is answered within."""
    models_interval_s: Seconds = 15.0
    """Between two looks at a worker's `/v1/models` and `/version`."""


class DiscoverySettings(Section):
    """How changes of the fleet are noticed. Workers files are watched, and need no period."""

    dns_interval_s: Seconds = 10.0
    """Between two resolutions of a worker written as `dns+http://name:port`."""
