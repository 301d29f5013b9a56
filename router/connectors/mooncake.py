"""vLLM's MooncakeConnector: the producer pushes the KV to the decode engine that asks for a transfer by name.

The producer's answer carries no handle. Both engines know a transfer by an id that the router gives, and the
decode engine finds the producer through its bootstrap server, which must be asked first for the id of the
engine (one per data-parallel rank). So the legs may run one after the other, or at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec
from msgspec import Raw

from router.connectors.connector import BOOTSTRAP_PORT, Handle, LegBody, Pairing, rejected_decode
from router.connectors.prefill_body import prefill_body
from router.core.answer import read_answer
from router.core.body import edit_body
from router.core.errors import InternalError

BOOTSTRAP_TARGET = b"/query"
"""GET it from the producer's bootstrap server, and again whenever the producer has a new incarnation."""

_KEPT = frozenset({"length", "max_tokens", "max_output_tokens"})
"""Ends of a prefill after which the producer keeps its KV, in the words of each API. After any other a decode
engine would wait for the whole lease."""

_encode = msgspec.json.Encoder().encode


class _Engine(msgspec.Struct, gc=False):
    engine_id: str


_ENGINES = msgspec.json.Decoder(dict[int, _Engine])


def read_bootstrap(answer: bytes) -> dict[int, str]:
    """Engine ids by data-parallel rank, from a bootstrap server's answer to `BOOTSTRAP_TARGET`. Empty while
    no engine has registered.

    Raises:
        ValueError: the answer is not its table of engines.
    """
    try:
        engines = _ENGINES.decode(answer)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ValueError(f"The bootstrap server's answer is not its table of engines: {error}") from None
    return {rank: engine.engine_id for rank, engine in engines.items()}


@dataclass(frozen=True, slots=True)
class MooncakeConnector:
    """Attributes:
    concurrent: send both legs at once, as the engine's own example does; the decode engine then waits for
        the producer, and holds a slot while it does.
    lease_s: `VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT` of the engines. It bounds a decode engine's wait, too.
    """

    concurrent: bool = False
    lease_s: float = 480.0
    name: ClassVar[str] = "mooncake"
    asks_bootstrap: ClassVar[bool] = True
    decode_takes_whole: ClassVar[bool] = True
    sequences_on_handle: ClassVar[bool] = False

    @property
    def needs_handle(self) -> bool:
        return not self.concurrent

    def prefill_leg(self, body: bytes, pairing: Pairing) -> LegBody:
        _fetch_params(pairing)  # a prefill whose KV no decode engine could ask for is not sent
        ask = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": pairing.transfer_id}
        headers = () if pairing.peer is None else pairing.peer.rank_headers
        return LegBody(prefill_body(body, pairing.api, Raw(_encode(ask))), headers)

    def read_prefill(self, answer: bytes, pairing: Pairing) -> Handle | None:
        seen = read_answer(pairing.api, answer)
        reason = seen.finish_reasons.get(0)
        if reason not in _KEPT:
            return None
        usage = seen.usage
        prompt, cached = (None, None) if usage is None else (usage.prompt_tokens, usage.cached_tokens)
        return Handle(_fetch_params(pairing), prompt, cached, reason)

    def decode_leg(self, body: bytes, pairing: Pairing, handle: Handle | None) -> LegBody:
        if handle is None and self.needs_handle:
            raise InternalError(f"A decode leg of {self.name} needs the handle of its prefill leg.")
        params = _fetch_params(pairing) if handle is None else handle.params
        return LegBody(edit_body(body, replace={"kv_transfer_params": Raw(params)}))

    def release_leg(self, pairing: Pairing, handle: Handle) -> LegBody | None:
        return rejected_decode(pairing.model, handle.params)


def _fetch_params(pairing: Pairing) -> bytes:
    """What a decode engine needs to ask for the transfer."""
    peer = pairing.peer
    if peer is None or peer.engine_id is None:
        raise InternalError(
            f"The transfer {pairing.transfer_id} names no engine; its bootstrap server must be asked first."
        )
    port = BOOTSTRAP_PORT if peer.bootstrap_port is None else peer.bootstrap_port
    return _encode(
        {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_bootstrap_addr": f"http://{peer.url_host}:{port}",
            "remote_engine_id": peer.engine_id,
            "transfer_id": pairing.transfer_id,
        }
    )
