"""SGLang's disaggregation: both engines get one body at once and meet in a bootstrap room.

A prefill does not run before its decode has come to the room, so the pair is chosen up front, and neither
engine serves a request without one. The client's bounds stay in the body: a prefill engine stops after one
token by itself. Both legs stream when the client's request does; the client gets the decode leg, the prefill
leg is read to its end for its status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.connectors.connector import Handle, LegBody, Pairing, Peer
from router.core.answer import read_answer
from router.core.body import Body, edit_body
from router.core.body_fields import read_fields
from router.core.errors import InternalError
from router.core.request import Api

_ROOMS = 2**62
"""Half of what the engines' signed 64 bits hold, which leaves room for the rooms of a batch."""

_RANKS_OF_THE_CLIENT = ("routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank")
"""One body steers both engines, so a client's rank would contradict the pair that was chosen."""


class _Batch(msgspec.Struct, gc=False):
    n: Raw | UnsetType = UNSET
    prompt: Raw | UnsetType = UNSET


_BATCH = msgspec.json.Decoder(_Batch)


def room_for(random_bits: int, dp_rank: int | None = None, dp_size: int = 1) -> int:
    """A room from at least 62 random bits, such that a prefill engine gives it to `dp_rank`.

    A prefill engine with several data-parallel ranks takes the rank `room % dp_size` (its default, "follow
    bootstrap room"), and a decode engine looks for the KV there. Never 0, and below 2^62 + dp_size.
    """
    room = random_bits % _ROOMS
    if dp_rank is not None:
        room += dp_rank - room % dp_size
    return room or dp_size


@dataclass(frozen=True, slots=True)
class SglangConnector:
    """Has nothing to set."""

    name: ClassVar[str] = "sglang"
    concurrent: ClassVar[bool] = True
    lease_s: ClassVar[float | None] = None
    asks_bootstrap: ClassVar[bool] = False
    decode_takes_whole: ClassVar[bool] = False
    sequences_on_handle: ClassVar[bool] = True
    needs_handle: ClassVar[bool] = False

    def prefill_leg(self, body: bytes, pairing: Pairing) -> LegBody:
        peer = _peer(pairing)
        # The header, since a rank in the body would steer the decode engine as well. Where the producer
        # follows the room it says the same as the room.
        return LegBody(_paired(body, pairing, peer), peer.rank_headers)

    def read_prefill(self, answer: bytes, pairing: Pairing) -> Handle | None:
        if _failed(answer, pairing.api):
            return None
        seen = read_answer(pairing.api, answer)
        usage = seen.usage
        prompt, cached = (None, None) if usage is None else (usage.prompt_tokens, usage.cached_tokens)
        return Handle(b"", prompt, cached, seen.finish_reasons.get(0))

    def decode_leg(self, body: bytes, pairing: Pairing, handle: Handle | None) -> LegBody:
        return LegBody(_paired(body, pairing, _peer(pairing)))

    def release_leg(self, pairing: Pairing, handle: Handle) -> LegBody | None:
        return None


def _peer(pairing: Pairing) -> Peer:
    if pairing.peer is None:
        raise InternalError(f"The room {pairing.room} has no prefill worker; the pair is chosen up front.")
    return pairing.peer


def _paired(body: bytes, pairing: Pairing, peer: Peer) -> bytes:
    """The body of both legs. A batch (several prompts, or n > 1) has a room for each of its sequences."""
    sequences = _sequences(body, pairing)
    host, port, room = peer.url_host, peer.bootstrap_port, pairing.room
    fields: dict[str, Any] = {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room}
    if sequences > 1:
        fields = {
            "bootstrap_host": [host] * sequences,
            "bootstrap_port": [port] * sequences,
            # Steps of dp_size keep all of them on the rank of the first.
            "bootstrap_room": [room + i * peer.dp_size for i in range(sequences)],
        }
    if peer.dp_rank is not None:
        fields["disagg_prefill_dp_rank"] = peer.dp_rank
    return edit_body(body, remove=_RANKS_OF_THE_CLIENT, replace=fields)


def _sequences(body: bytes, pairing: Pairing) -> int:
    """Sequences that the engines will make of this call. Nearly always one, which two fields tell."""
    try:
        seen = _BATCH.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return 1  # no JSON object: the edit says what is wrong
    single = seen.prompt is UNSET or bytes(seen.prompt).startswith(b'"')
    if single and (seen.n is UNSET or bytes(seen.n) == b"1"):
        return 1
    return Body(body, pairing.api, pairing.model, read_fields(body)).choices


def _failed(answer: bytes, api: Api) -> bool:
    """Whether an answer, whole or a stream, is or holds an error."""
    if answer.lstrip().startswith(b"{"):
        return read_answer(api, answer).error is not None
    events = (line[5:] for line in answer.splitlines() if line.startswith(b"data:") and b'"error"' in line)
    return any(read_answer(api, event).error is not None for event in events)
