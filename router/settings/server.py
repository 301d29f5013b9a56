"""Where the router listens, what it says about itself, and its record of requests.

Separate from limits and deadlines: these knobs change what is visible, never what happens to a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

from pydantic import field_validator

from router.settings.section import FilePath, Port, Section, Share, Words

DEFAULT_PROMETHEUS_PORT: Final = 29000
"""The port that vllm-router and sglang-router use for metrics."""

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class ServerSettings(Section):
    """Listeners, logs and what answers say about routing."""

    host: str = "127.0.0.1"
    """Address of the OpenAI endpoint; `0.0.0.0` or `::` opens it to the network."""
    port: Port = 30000
    """Port of the OpenAI endpoint; 0 takes any free one."""
    admin_host: str = "127.0.0.1"
    """Address of the admin listener (`/workers`, `/debug/state`)."""
    admin_port: Port = 29001
    """Port of the admin listener; 0 turns it off."""
    prometheus_host: str | None = None
    """Address of a listener for metrics alone; metrics are also on the two other listeners."""
    prometheus_port: Port | None = None
    """Port of that listener. Given only one of host and port, the other is 127.0.0.1 or 29000."""
    log_level: LogLevel = "info"
    """Least severe lines that are written."""
    log_format: LogFormat = "text"
    """`json` writes one object a line."""
    expose_routing_headers: bool = False
    """Send `x-pointsman-*` response headers to every client; trusted keys always get them."""
    passthrough_paths: Words = ()
    """More paths of the engines that clients may reach, besides the built-in list; `/v1/custom`."""
    request_id_headers: Words = ("x-request-id",)
    """Request headers that may carry the client's id of a call, the first one present wins."""
    affinity_headers: Words = ("x-session-id", "x-smg-routing-key")
    """Request headers that name a conversation, for the policy session_affinity; the first one present wins,
    and comes before the names that are known without it (`x-claude-code-session-id`, `prompt_cache_key`)."""

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("passthrough_paths")
    @classmethod
    def _absolute(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if not path.startswith("/") or ".." in path or "?" in path:
                raise ValueError(f"{path!r} is no path; it must begin with / and hold neither .. nor ?")
        return value

    @field_validator("request_id_headers", "affinity_headers")
    @classmethod
    def _header_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
                raise ValueError(f"{name!r} is no header name")
        return tuple(name.lower() for name in value)

    @property
    def prometheus(self) -> tuple[str, int] | None:
        """Where the listener for metrics alone is, None when there is none."""
        if self.prometheus_host is None and self.prometheus_port is None:
            return None
        port = DEFAULT_PROMETHEUS_PORT if self.prometheus_port is None else self.prometheus_port
        return self.prometheus_host or "127.0.0.1", port


class UsageSettings(Section):
    """How token counts of streams become known."""

    inject: bool = True
    """Ask engines for `usage` in streams whose client did not, and drop that one event. Without it, output
    tokens of such streams are estimated from the number of events."""


class DecisionLogSettings(Section):
    """The opt-in record of decisions, one JSON object a line: which worker, by which policy, instead of which
    others. `pointsman explain` reads it."""

    path: FilePath | None = None
    """File that lines are appended to; none without it."""
    sample: Share = 0.01
    """Share of the decisions of which all that was compared is kept, so that they can be made again."""

    def problems(self) -> Iterator[str]:
        """What would have no effect."""
        if self.path is None and "sample" in self.model_fields_set:
            yield "decision_log.sample is given, but no decision log; say decision_log.path (--decision-log)"


class RequestLogSettings(Section):
    """The opt-in record of requests, one JSON object a line, without any text of prompts or answers."""

    path: FilePath | None = None
    """File that lines are appended to; none without it."""
    salt_file: FilePath | None = None
    """File with the secret that prompt hashes are salted with; made when missing. null: `<path>.salt`.
    Routers that share one write hashes that can be compared."""

    def problems(self) -> Iterator[str]:
        """What would have no effect."""
        if self.path is None and self.salt_file is not None:
            yield "request_log.salt_file is given, but no request log; say request_log.path (--request-log)"
