"""What two engines say to each other about KV, and what a request says of it: vLLM's NIXL pull connector.

Separate from what is done with it. The keys of `kv_transfer_params` and their order are vLLM 0.32's, as
recorded. The messages are the mock's own: they stand for a handshake, notifications and remote reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from engines.mock.ask import HandOver
from engines.mock.errors import Refusal, bad_request
from engines.mock.fields import Fields, Json
from engines.mock.peers import Address
from engines.model.engine import Kept, Timing
from engines.model.text import VOCABULARY_SIZE

NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
"""Beside the blocks, what a decode engine must know to read them."""

# --- messages between engines -----------------------------------------------------------------------------


class Handshake(msgspec.Struct, tag="handshake"):
    """Asks a peer who it is."""

    engine_id: str


class Heartbeat(msgspec.Struct, tag="heartbeat"):
    """Prolongs the leases of prefills that wait in the sender's queue."""

    engine_id: str
    request_ids: list[str]


class Read(msgspec.Struct, tag="read"):
    """Begins a read of blocks."""

    engine_id: str
    block_ids: list[int]


class Release(msgspec.Struct, tag="release"):
    """The blocks of a prefill were read, or nobody will read them."""

    engine_id: str
    request_id: str


Message = Handshake | Heartbeat | Read | Release


class Reply(msgspec.Struct):
    """What a peer answers.

    Attributes:
        engine_id: of the engine that answers now; another one may have answered here before.
        compatibility: engines pair only when theirs are equal.
        error: why it could not be done.
        content: what released blocks held, as hex; None when they were not kept any more.
    """

    engine_id: str
    compatibility: str
    error: str | None = None
    content: str | None = None


_MESSAGES = msgspec.json.Decoder(Message)


def decode_message(data: bytes) -> Message:
    """Parse a message.

    Raises:
        Refusal: 400 for what is none.
    """
    try:
        return _MESSAGES.decode(data)
    except msgspec.DecodeError as error:
        raise bad_request(f"This is no message of an engine: {error}.") from None


def addressee(data: bytes) -> str:
    """The id of the engine that a message is for.

    Raises:
        Refusal: 400 for what is no message.
    """
    return decode_message(data).engine_id


# --- what a request carries -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Handle:
    """Where a prompt's KV is: complete `kv_transfer_params` of a decode request.

    Attributes:
        beats: whether leases can be prolonged (vLLM wants `tp_size` for that).
    """

    engine_id: str
    request_id: str
    address: Address
    block_ids: tuple[int, ...]
    beats: bool

    @classmethod
    def of(cls, params: Mapping[str, object]) -> Handle | None:
        """The handle in a request's params; None when they ask for no fetch or are not complete."""
        if not params.get("do_remote_prefill") or any(params.get(name) is None for name in NEEDED):
            return None
        port, blocks = _number(params["remote_port"]), _blocks(params.get("remote_block_ids"))
        if port is None or not blocks:
            return None
        return cls(
            engine_id=str(params["remote_engine_id"]),
            request_id=str(params["remote_request_id"]),
            address=Address(str(params["remote_host"]), port),
            block_ids=blocks,
            beats=params.get("tp_size") is not None,
        )


def read_params(params: Fields) -> HandOver:
    """Read a request's `kv_transfer_params`. What is not complete is ignored: the prompt is computed here.

    Raises:
        Refusal: 400 for prompt token ids that are none.
    """
    raw = params.values
    cached = raw.get("remote_prefill_cached_tokens")
    fetches = bool(raw.get("do_remote_prefill"))
    return HandOver(
        retain=bool(raw.get("do_remote_decode")),
        handle=Handle.of(raw),
        remote_cached_tokens=cached if fetches and type(cached) is int and cached >= 0 else None,
        prompt_token_ids=_prompt(raw.get("prompt_token_ids")),
    )


def params_of(job_id: str, kept: Kept, timing: Timing, engine: tuple[str, Address, int]) -> Json:
    """The `kv_transfer_params` of a prefill's answer.

    Args:
        engine: its id, its address and its tensor parallel size.
    """
    engine_id, address, tensor_parallel = engine
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(kept.blocks)],
        "remote_engine_id": engine_id,
        "remote_request_id": job_id,
        "remote_host": address.host,
        "remote_port": address.port,
        "tp_size": tensor_parallel,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": kept.tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": timing.cached_tokens + timing.external_tokens,
    }


def runs_of(block_ids: tuple[int, ...]) -> int:
    """Runs of neighbouring blocks: each is one descriptor per layer."""
    return sum(1 for before, block in zip((None, *block_ids), block_ids, strict=False) if before != block - 1)


def _number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    text = str(value)
    return int(text) if text.isdecimal() and int(text) < 1 << 16 else None


def _blocks(value: object) -> tuple[int, ...]:
    """Block ids of the one KV cache group; nested since vLLM 0.18, flat before."""
    group = value[0] if isinstance(value, list) and value and isinstance(value[0], list) else value
    if not isinstance(group, list) or not all(type(block) is int for block in group):
        return ()
    return tuple(group)


def _prompt(ids: object) -> tuple[int, ...] | None:
    if ids is None:
        return None
    name = "kv_transfer_params.prompt_token_ids"
    if not isinstance(ids, list) or not ids or not all(type(one) is int and one >= 0 for one in ids):
        raise _refusal("must be a list of token ids, at least one and none below 0", name)
    if max(ids) >= VOCABULARY_SIZE:
        raise _refusal(f"holds the token id {max(ids)}, which is out of vocabulary", name)
    return tuple(ids)


def _refusal(what: str, name: str) -> Refusal:
    return bad_request(f"`{name}` {what}.", name)
