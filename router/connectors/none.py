"""No hand-over: both engines read and write one store of KV (LMCache, Mooncake Store, HiCache …).

The prefill leg fills the store, the decode leg is the client's own request and finds its prompt there. What
is not found is computed again, so no answer can be wrong, and no KV is held for anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from router.connectors.connector import Handle, LegBody, Pairing
from router.connectors.prefill_body import warm_up_body
from router.core.answer import read_answer


@dataclass(frozen=True, slots=True)
class NoConnector:
    """Has nothing to set."""

    name: ClassVar[str] = "none"
    concurrent: ClassVar[bool] = False
    lease_s: ClassVar[float | None] = None
    asks_bootstrap: ClassVar[bool] = False
    decode_takes_whole: ClassVar[bool] = True
    sequences_on_handle: ClassVar[bool] = True
    needs_handle: ClassVar[bool] = False

    def prefill_leg(self, body: bytes, pairing: Pairing) -> LegBody:
        headers = () if pairing.peer is None else pairing.peer.rank_headers
        return LegBody(warm_up_body(body, pairing.api), headers)

    def read_prefill(self, answer: bytes, pairing: Pairing) -> Handle | None:
        seen = read_answer(pairing.api, answer)
        if seen.error is not None:
            return None
        usage = seen.usage
        prompt, cached = (None, None) if usage is None else (usage.prompt_tokens, usage.cached_tokens)
        return Handle(b"", prompt, cached, seen.finish_reasons.get(0))

    def decode_leg(self, body: bytes, pairing: Pairing, handle: Handle | None) -> LegBody:
        return LegBody(body)

    def release_leg(self, pairing: Pairing, handle: Handle) -> LegBody | None:
        return None
