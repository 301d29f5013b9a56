"""The KV events of one engine process: a publisher for each rank and incarnation, and the sockets below them.

Separate from the process, of which only some publish, and from the sockets, which an in-memory run and an
installation without pyzmq do not have. A new incarnation publishes at the same places, from number 0 on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from engines.mock.fields import Json
from engines.mock.kv_events import Encode, KvPublisher, sglang_events, vllm_events
from engines.mock.kv_events_config import KvEventsConfig
from engines.mock.settings import MockSettings, SettingsError

if TYPE_CHECKING:
    from engines.mock.kv_sockets import KvSockets


class PlaceTaken(OSError):
    """KV events cannot be published where they should be; the sentence names the address."""


class KvBroadcast:
    """What an engine process publishes, rank by rank.

    Attributes:
        publishers: those of the present incarnation, by rank.
    """

    def __init__(self, settings: MockSettings, config: KvEventsConfig) -> None:
        self._settings = settings
        self._config = config
        self._sockets: list[KvSockets] = []
        self.publishers: tuple[KvPublisher, ...] = ()

    def __repr__(self) -> str:
        return f"<KvBroadcast {list(self.publishers)!r}, {len(self._sockets)} sockets>"

    def begin(self) -> tuple[KvPublisher, ...]:
        """Make the publishers of a new incarnation. Sockets that are open stay with the old ones."""
        encode = self._encode()
        self.publishers = tuple(
            KvPublisher(encode, self._config.topic, self._config.buffer_steps, rank)
            for rank in range(self._settings.dp_size)
        )
        return self.publishers

    def open(self) -> None:
        """Publish on sockets from now on.

        Raises:
            PlaceTaken: an address cannot be had; none stays open.
            SettingsError: pyzmq is not installed.
        """
        self.destroy()
        sockets = _sockets_type()
        places = [self._config.shifted(rank) for rank in range(self._settings.dp_size)]
        self._sockets = [sockets(one.endpoint, one.replay_endpoint, one.hwm) for one in places]
        try:
            for one, publisher in zip(self._sockets, self.publishers, strict=True):
                one.open(publisher)
        except OSError as refused:
            self.destroy()
            raise PlaceTaken(refused.errno, refused.strerror) from refused

    def close(self) -> None:
        """The process is down: nobody hears it."""
        for one in self._sockets:
            one.close()

    def reopen(self) -> None:
        """Publish again where it did before, for the present incarnation."""
        for one, publisher in zip(self._sockets, self.publishers, strict=False):
            one.reopen(publisher)

    def destroy(self) -> None:
        """Close for good."""
        for one in self._sockets:
            one.destroy()
        self._sockets = []

    def drop(self, batches: int) -> None:
        """Lose the next batches of every rank on the way; 0 loses no more."""
        for publisher in self.publishers:
            publisher.to_drop = batches

    @property
    def places(self) -> list[KvEventsConfig]:
        """Where each rank publishes; a port of 0 is the one it got, once sockets are open."""
        places = [self._config.shifted(rank) for rank in range(self._settings.dp_size)]
        for rank, one in enumerate(self._sockets):
            places[rank] = replace(places[rank], endpoint=one.endpoint, replay_endpoint=one.replay_endpoint)
        return places

    def state(self) -> Json:
        """What a test may want to see."""
        places = zip(self.places, self.publishers, strict=True)
        return {
            "ranks": [
                {"endpoint": place.endpoint, "batches": publisher.sequence, "to_drop": publisher.to_drop}
                for place, publisher in places
            ]
        }

    def _encode(self) -> Encode:
        if self._settings.dialect == "sglang":
            return sglang_events
        return partial(vllm_events, encoding=self._config.encoding)


def broadcast_of(settings: MockSettings) -> KvBroadcast | None:
    """Return what the settings ask for; None when nothing is published."""
    return None if settings.kv_events is None else KvBroadcast(settings, settings.kv_events)


def _sockets_type() -> type[KvSockets]:
    try:
        from engines.mock.kv_sockets import KvSockets  # noqa: PLC0415 - pyzmq is an optional dependency
    except ModuleNotFoundError as missing:
        if missing.name != "zmq":
            raise
        raise SettingsError(
            "--kv-events-endpoint: KV events need pyzmq, which is not installed: "
            "install pointsman with its extra kv-events."
        ) from None
    return KvSockets
