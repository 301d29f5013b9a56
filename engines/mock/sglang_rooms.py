"""KV hand-over as SGLang does it: both engines get one request at once and meet in a bootstrap room.

Separate from vLLM's connectors: the prefill is not run before the decode engine has room for it, and not
answered before the KV has been taken, so nothing is ever kept for nobody. When either side leaves, the other
is told and its request fails. Read in the source of SGLang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from engines.mock.ask import Ask, HandOver
from engines.mock.connector import Mount
from engines.mock.errors import Refusal, bad_request
from engines.mock.exposition import Family, Gauge, Series
from engines.mock.fields import Fields, Json
from engines.mock.peers import Address
from engines.mock.push import PushedKv
from engines.mock.push_decode import Stage as PullStage
from engines.mock.push_line import Line, Manner, Source
from engines.mock.push_prefill import Stage as OfferStage

FAKE_HOST = "2.2.2.2"
"""A prefill host that is none: requests of a warm-up or a health check transfer nothing."""
FIND_TRIES = 15
FIND_PAUSE_S = 1.0
"""A decode engine asks a bootstrap server so often, and pauses so long, before it gives a request up."""
ROOMS = 1 << 63


class RoomsConnector(PushedKv):
    """The connector of one incarnation.

    Args:
        mount: the engine and the way to others.
    """

    def __init__(self, mount: Mount) -> None:
        super().__init__(mount, self._manner)

    def _manner(self, line: Line) -> Manner:
        async def find(source: Source) -> Address:
            return (await line.introduce(source.bootstrap, FIND_TRIES, FIND_PAUSE_S)).address

        wait_s = self._mount.settings.disaggregation_timeout_s
        return Manner(meets=True, prefill_wait_s=wait_s, decode_wait_s=wait_s, find=find, lost=self._lost)

    def _lost(self, job_id: str, reason: str) -> None:
        self._mount.failed(job_id, f"Decode transfer failed for request rank=0 with exception {reason}")

    def read(self, params: Fields) -> HandOver:
        """SGLang knows no `kv_transfer_params`."""
        return HandOver()

    def queued(self, job_id: str, hand_over: HandOver) -> None:
        """A job has come to its room."""
        if isinstance(hand_over.handle, Source):
            self.pulls.queued(job_id, hand_over.handle)
        elif isinstance(hand_over.offer, str):
            self.offers.expect(job_id, hand_over.offer)

    # --- what is told of it ---------------------------------------------------------------------------

    @property
    def queues(self) -> dict[str, int]:
        """Requests by how far they are, as the gauges call them."""
        offers, pulls = self.offers, self.pulls
        return {
            "num_prefill_bootstrap_queue_reqs": offers.count(OfferStage.HELD),
            "num_prefill_inflight_queue_reqs": offers.count(OfferStage.KEPT, OfferStage.SENDING),
            "num_decode_prealloc_queue_reqs": pulls.waiting + pulls.count(PullStage.CALLING),
            "num_decode_transfer_queue_reqs": pulls.count(PullStage.WAITING, PullStage.TRANSFERRING),
        }

    def loads(self, mode: str) -> Json:
        """The `disaggregation` part of `/v1/loads`."""
        speed, latency_ms = self._speed()
        names = {name.removeprefix("num_"): count for name, count in self.queues.items()}
        return {"mode": mode, **names, "kv_transfer_speed_gb_s": speed, "kv_transfer_latency_ms": latency_ms}

    def families(self, labels: Mapping[str, str], created: float) -> Iterator[Family]:
        """Yield the gauges of the queues and of the last transfer."""
        speed = (lambda: self._speed()[0]), (lambda: self._speed()[1])
        reads: list[tuple[str, Callable[[], float]]] = [
            *((name, partial(self._queue, name)) for name in self.queues),
            ("kv_transfer_speed_gb_s", speed[0]),
            ("kv_transfer_latency_ms", speed[1]),
        ]
        for name, read in reads:
            text = name.replace("_", " ").capitalize() + "."
            yield Gauge(f"sglang:{name}", text, [Series(labels, read)])

    def _queue(self, name: str) -> float:
        return self.queues[name]

    @property
    def failures(self) -> dict[str, int]:
        """Requests that failed in their room, and in their transfer."""
        offers, pulls = self.offers, self.pulls
        return {
            "num_bootstrap_failed_reqs": offers.failed_meetings + pulls.failed_meetings,
            "num_transfer_failed_reqs": offers.failed_transfers + pulls.failed_transfers,
        }

    def _speed(self) -> tuple[float, float]:
        """Of the last transfer: 10⁹ bytes per second, and milliseconds."""
        took_s = self.pulls.last_s
        return (self.pulls.last_bytes / took_s / 1e9 if took_s else 0.0), took_s * 1e3


# --- what a request says ----------------------------------------------------------------------------------


def in_room(ask: Ask, fields: Fields, *, prefill: bool, default_port: int) -> Ask:
    """Add to a request where it meets its other half.

    Args:
        default_port: of a bootstrap server, for a request that names none.

    Raises:
        Refusal: 400 without a room, or for rooms that do not fit the request.
    """
    count = len(ask.prompts) * ask.n
    rooms = _rooms(fields, count)
    hosts = _listed(fields, "bootstrap_host", count)
    ports = _listed(fields, "bootstrap_port", count)
    each = [
        _met(room, host, default_port if port is None else port, prefill=prefill)
        for room, host, port in zip(rooms, hosts, ports, strict=True)
    ]
    # The log-probabilities of a prompt are the prefill's; a decode engine never computes a prompt.
    ask = replace(ask, hand_over=HandOver(each=tuple(each)), prompt_logprobs=None)
    if not prefill:
        return ask
    # One token and nothing that could end it earlier: it is thrown away, and what it ends is the decode's.
    free = replace(
        ask.sampling, max_tokens=1, min_tokens=0, ignore_eos=True, stop=(), stop_token_ids=frozenset()
    )
    return replace(ask, sampling=free)


def _met(room: int, host: object, port: object, *, prefill: bool) -> HandOver:
    if host == FAKE_HOST:
        return HandOver()
    if prefill:
        return HandOver(retain=True, meets=True, offer=str(room))
    if not isinstance(host, str) or type(port) is not int:
        raise bad_request("A decode engine needs bootstrap_host and bootstrap_port.", "bootstrap_host")
    return HandOver(handle=Source(str(room), Address(host.strip("[]"), port)))


def _rooms(fields: Fields, count: int) -> Sequence[int]:
    """A room for each answer; a single one is the first of so many."""
    room = fields.raw("bootstrap_room")
    rooms = [room + at for at in range(count)] if type(room) is int else room
    if rooms is None or (isinstance(rooms, list) and None in rooms):
        raise no_room()
    if not isinstance(rooms, list) or not all(type(one) is int and 0 <= one < ROOMS for one in rooms):
        raise fields.wrong("bootstrap_room", "an integer or a list of integers, at least 0 and below 2^63")
    if len(rooms) != count:
        raise _unfit("bootstrap_room", len(rooms), count)
    return rooms


def _listed(fields: Fields, name: str, count: int) -> Sequence[object]:
    value = fields.raw(name)
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise _unfit(name, len(value), count)
    return value


def no_room() -> Refusal:
    """What a disaggregated engine says to a request that is not split."""
    return bad_request(
        "Invalid request: Disaggregated request received without bootstrap room id.", "bootstrap_room"
    )


def _unfit(name: str, have: int, count: int) -> Refusal:
    return bad_request(f"{name} has {have} entries for {count} answers.", name)
