"""vLLM's NixlConnector: the decode engine reads the KV from the producer, which names it in its answer.

The prefill leg is answered as a whole (a stream carries no handle, and its KV is lost until the lease ends)
with `kv_transfer_params`, fourteen keys in 0.32 and more in each release. They are the engines' own: the
decode leg carries them byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.connectors.connector import Handle, LegBody, Pairing, rejected_decode
from router.connectors.prefill_body import prefill_body
from router.core.answer import read_answer
from router.core.body import edit_body
from router.core.errors import InternalError

_ASK = Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
"""Asks a producer to keep its KV and to name it."""


class _Prefilled(msgspec.Struct, gc=False):
    kv_transfer_params: Raw | UnsetType = UNSET


class _Counts(msgspec.Struct, gc=False):
    remote_num_tokens: int | None = None
    remote_prefill_cached_tokens: int | None = None


_PREFILLED = msgspec.json.Decoder(_Prefilled)
_COUNTS = msgspec.json.Decoder(_Counts)


@dataclass(frozen=True, slots=True)
class NixlConnector:
    """Attributes:
    lease_s: `kv_lease_duration` of the producers (30 s since vLLM 0.22). A decode engine prolongs it from the
        moment the request stands in its queue; nobody else can.
    """

    lease_s: float = 30.0
    name: ClassVar[str] = "nixl"
    concurrent: ClassVar[bool] = False
    asks_bootstrap: ClassVar[bool] = False
    decode_takes_whole: ClassVar[bool] = True
    sequences_on_handle: ClassVar[bool] = False
    needs_handle: ClassVar[bool] = True

    def prefill_leg(self, body: bytes, pairing: Pairing) -> LegBody:
        headers = () if pairing.peer is None else pairing.peer.rank_headers
        return LegBody(prefill_body(body, pairing.api, _ASK), headers)

    def read_prefill(self, answer: bytes, pairing: Pairing) -> Handle | None:
        params = _read_params(answer)
        if params is None:
            return None
        seen = read_answer(pairing.api, answer)
        counts = _read_counts(params)
        usage = seen.usage
        prompt_tokens = None if usage is None else usage.prompt_tokens
        # Producers report cached tokens in their usage only when told to; the handle has them since 0.31.
        cached_tokens = _count(counts.remote_prefill_cached_tokens)
        return Handle(
            params,
            _count(counts.remote_num_tokens) if prompt_tokens is None else prompt_tokens,
            usage.cached_tokens if cached_tokens is None and usage is not None else cached_tokens,
            seen.finish_reasons.get(0),
        )

    def decode_leg(self, body: bytes, pairing: Pairing, handle: Handle | None) -> LegBody:
        if handle is None:
            raise InternalError(f"A decode leg of {self.name} needs the handle of its prefill leg.")
        return LegBody(edit_body(body, replace={"kv_transfer_params": Raw(handle.params)}))

    def release_leg(self, pairing: Pairing, handle: Handle) -> LegBody | None:
        return rejected_decode(pairing.model, handle.params)


def _read_params(answer: bytes) -> bytes | None:
    """The handle's own bytes; None when it is missing, null, empty or no object."""
    try:
        raw = _PREFILLED.decode(answer).kv_transfer_params
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    params = b"" if raw is UNSET else bytes(raw)
    return params if params.startswith(b"{") and params[1:-1].strip() else None


def _read_counts(params: bytes) -> _Counts:
    """The two counts of a handle; what is of an odd type is left to the engine that must read it."""
    try:
        return _COUNTS.decode(params)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return _Counts()


def _count(value: int | None) -> int | None:
    return value if value is not None and value >= 0 else None
