"""Where an engine publishes its KV events, as its flags say it and as it tells routers.

Separate from the sockets because settings are checked, and told, where no socket is open. Names and defaults
of the JSON form are vLLM's `--kv-events-config`, which SGLang shares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import msgspec

Encoding = Literal["maps", "arrays"]
"""Maps since vLLM 0.24, arrays before it."""
ENCODINGS: tuple[str, ...] = get_args(Encoding)

DEFAULT_ENDPOINT = "tcp://*:5557"


class _Json(msgspec.Struct, forbid_unknown_fields=True):
    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    endpoint: str = DEFAULT_ENDPOINT
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventsConfig:
    """Of one rank.

    Attributes:
        endpoint: ZMQ address. One with `*` or `::`, and a file, is bound; the engine connects to any other.
        replay_endpoint: bound; where missed batches can be asked for. None: nowhere.
        topic: of every message.
        encoding: `maps` or `arrays`; SGLang has only maps.
        buffer_steps: batches that can be asked for again.
        hwm: messages that wait for a slow reader.

    Raises:
        ValueError: for an address or a number that cannot be; the sentence says which.
    """

    endpoint: str = DEFAULT_ENDPOINT
    replay_endpoint: str | None = None
    topic: str = ""
    encoding: Encoding = "maps"
    buffer_steps: int = 10_000
    hwm: int = 100_000

    def __post_init__(self) -> None:
        if self.encoding not in ENCODINGS:
            raise ValueError(f"the encoding is {self.encoding!r}: known are {', '.join(ENCODINGS)}")
        for name in ("buffer_steps", "hwm"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        for endpoint in (self.endpoint, self.replay_endpoint):
            if endpoint is not None and port_of(endpoint) is None and not _is_file(endpoint):
                raise ValueError(f"{endpoint!r} is no address: tcp://*:PORT or ipc://PATH is needed")

    @classmethod
    def of_json(cls, text: str, encoding: Encoding = "maps") -> KvEventsConfig | None:
        """Read vLLM's JSON; None when it says that nothing is published.

        Raises:
            ValueError: it is not that JSON.
        """
        try:
            told = msgspec.json.decode(text, type=_Json)
        except msgspec.MsgspecError as error:
            raise ValueError(f"it cannot be read ({error})") from None
        if not told.enable_kv_cache_events or told.publisher == "null":
            return None
        return cls(
            endpoint=told.endpoint,
            replay_endpoint=told.replay_endpoint,
            topic=told.topic,
            encoding=encoding,
            buffer_steps=told.buffer_steps,
            hwm=told.hwm,
        )

    def shifted(self, ports: int) -> KvEventsConfig:
        """The same, so many ports further; a port of 0 takes a free one anyway."""
        replay = self.replay_endpoint
        return replace(
            self,
            endpoint=_shifted(self.endpoint, ports),
            replay_endpoint=None if replay is None else _shifted(replay, ports),
        )

    def serves(self, publishers: int) -> str | None:
        """Why so many publishers cannot share these addresses; None when they can."""
        ports = [port_of(one) for one in (self.endpoint, self.replay_endpoint) if one is not None]
        taken = [port for port in ports if port]
        if publishers > 1 and None in ports:
            return f"a file serves one publisher, and there are {publishers}: use tcp"
        if len(taken) == 2 and abs(taken[0] - taken[1]) < publishers:
            return f"{publishers} publishers have ports one after the other: put the two further apart"
        if any(port + publishers > 1 << 16 for port in taken):
            return f"{publishers} publishers have ports one after the other: they end above 65535"
        return None

    def told(self) -> dict[str, object]:
        """As vLLM tells it at `/kv_event_sources`."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "buffer_steps": self.buffer_steps,
            "hwm": self.hwm,
            "max_queue_size": 100_000,
            "topic": self.topic,
        }

    def described(self, block_size: int, ranks: int) -> dict[str, object] | None:
        """As SGLang tells it of its first rank, in `/server_info`; None for what is no port."""
        port = port_of(self.endpoint)
        if not port:
            return None
        told: dict[str, object] = {
            "publisher": "zmq",
            "endpoint_host": self.endpoint.removeprefix("tcp://").rpartition(":")[0],
            "endpoint_port_base": port,
            "topic": self.topic,
            "block_size": block_size,
            "dp_size": ranks,
        }
        replay = None if self.replay_endpoint is None else port_of(self.replay_endpoint)
        return told | {"replay_endpoint_port_base": replay} if replay else told


def port_of(endpoint: str) -> int | None:
    """The port of a tcp address, 0 for any; None when it has none."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not endpoint.startswith("tcp://") or not host or not port.isdecimal() or int(port) >= 1 << 16:
        return None
    return int(port)


def _is_file(endpoint: str) -> bool:
    return endpoint.startswith("ipc://") and len(endpoint) > len("ipc://")


def _shifted(endpoint: str, ports: int) -> str:
    port = port_of(endpoint)
    if not port:
        return endpoint
    return f"{endpoint.rpartition(':')[0]}:{port + ports}"
