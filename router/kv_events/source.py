"""Where a worker's events are published, as an operator writes it or as the engine itself says it.

Separate from the sockets because this is where addresses are believed or not: what an engine says of itself
gives ports and file names, never the host of somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import msgspec

_ANY_HOST = ("*", "0.0.0.0", "::")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class EventSource:
    """Of one worker; for engines with data-parallel ranks, of one rank.

    Attributes:
        endpoint: ZMQ address of the publisher: `tcp://host:port`, `ipc:///path`. With `*` for a host the
            router listens there and the engine connects.
        replay_endpoint: where missed batches can be asked for; None: nowhere.
        topic: only messages whose topic begins with this.
        rank: batches that name another data-parallel rank are dropped; None takes all.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    rank: int | None = None

    @classmethod
    def parse(cls, endpoint: str, replay_endpoint: str | None = None, *, topic: str = "") -> EventSource:
        """Of what an operator wrote. Raises ValueError with the reason."""
        _check(endpoint)
        if replay_endpoint is not None:
            _check(replay_endpoint)
            if _host(replay_endpoint) in _ANY_HOST:
                raise ValueError(f"the engine answers at {replay_endpoint!r}: name its host")
        return cls(endpoint, replay_endpoint, topic)

    @property
    def listens(self) -> bool:
        """Whether the router listens and the engine connects."""
        return _host(self.endpoint) in _ANY_HOST

    def of_rank(self, rank: int) -> EventSource:
        """The same of another data-parallel rank: engines add the rank to their ports."""
        replay = self.replay_endpoint
        return replace(
            self,
            endpoint=_shifted(self.endpoint, rank),
            replay_endpoint=None if replay is None else _shifted(replay, rank),
            rank=rank,
        )


class _Advertised(msgspec.Struct):
    """vLLM's own configuration as it resolved it, which is what it publishes by."""

    endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: str | None = None
    publisher: str | None = None
    enable_kv_cache_events: bool = True
    data_parallel_rank: int | None = None


class _SglangEvents(msgspec.Struct):
    endpoint_port_base: int
    publisher: str | None = None
    topic: str | None = None
    dp_size: int = 1
    replay_endpoint_port_base: int | None = None


class _ServerInfo(msgspec.Struct):
    kv_events: _SglangEvents | None = None


_by_rank = msgspec.json.Decoder(dict[str, _Advertised])
_as_list = msgspec.json.Decoder(list[_Advertised])
_server_info = msgspec.json.Decoder(_ServerInfo)


def vllm_sources(body: bytes, host: str) -> dict[int, EventSource]:
    """What vLLM's `/kv_event_sources` says, by rank; ranks that cannot be reached are left out.

    Args:
        host: of the worker; every address is at that host, whatever the answer says.

    Raises:
        ValueError: it is no such answer.
    """
    try:
        if body.lstrip().startswith(b"["):
            told = {one.data_parallel_rank or 0: one for one in _as_list.decode(body)}
            binds = True
        else:
            told = {int(rank): one for rank, one in _by_rank.decode(body).items()}
            binds = False
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"its list of event sources cannot be read ({error})") from None
    found = {}
    for rank, one in told.items():
        endpoint = one.endpoint and _reachable(one.endpoint, host, binds=binds)
        if endpoint and one.enable_kv_cache_events and one.publisher in (None, "zmq"):
            replay = one.replay_endpoint and _reachable(one.replay_endpoint, host, binds=True)
            found[rank] = EventSource(endpoint, replay or None, one.topic or "", rank)
    return found


def sglang_sources(body: bytes, host: str) -> dict[int, EventSource]:
    """What SGLang's `/server_info` says, by rank; nothing when it does not publish.

    Args:
        host: of the worker.

    Raises:
        ValueError: it is no such answer.
    """
    try:
        told = _server_info.decode(body).kv_events
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"its server info cannot be read ({error})") from None
    if told is None or told.publisher not in (None, "zmq") or not 0 < told.endpoint_port_base < 2**16:
        return {}
    replay = told.replay_endpoint_port_base
    first = EventSource(
        _tcp(host, told.endpoint_port_base),
        None if replay is None or not 0 < replay < 2**16 else _tcp(host, replay),
        told.topic or "",
    )
    return {rank: first.of_rank(rank) for rank in range(min(told.dp_size, _MAX_RANKS))}


_MAX_RANKS = 1_024


def _reachable(endpoint: str, host: str, *, binds: bool) -> str | None:
    """The address at the worker's host; None when the engine connects there and does not listen, or when it
    cannot be reached from here.

    Args:
        binds: it listens even where it names one host.
    """
    try:
        _check(endpoint)
    except ValueError:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme == "ipc":
        return endpoint if host in _LOOPBACK else None
    if not binds and _host(endpoint) not in _ANY_HOST:
        return None
    return _tcp(host, parts.port or 0)


def _check(endpoint: str) -> None:
    """Raises ValueError, with the reason, for what is no address of a publisher."""
    parts = urlsplit(endpoint)
    if parts.scheme == "ipc":
        if not endpoint.removeprefix("ipc://"):
            raise ValueError(f"{endpoint!r} names no file")
        return
    if parts.scheme != "tcp":
        raise ValueError(f"{endpoint!r} must begin with tcp:// or ipc://")
    if not _host(endpoint) or not parts.port or parts.path or parts.query:
        raise ValueError(f"{endpoint!r} must be tcp://host:port")


def _host(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    return (parts.hostname or "") if parts.scheme == "tcp" else ""


def _tcp(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _shifted(endpoint: str, rank: int) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme != "tcp" or parts.port is None:
        return endpoint
    return _tcp(_host(endpoint), parts.port + rank)
