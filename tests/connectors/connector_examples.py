"""Bodies, pairings and answers that the laws of the connectors are tried on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from router.connectors import Connector, Pairing, Peer, build_connector
from router.core.request import Api

WIRE = Path(__file__).parent.parent / "wire"
GENERATING = tuple(api for api in Api if api.generates)
NAMES = ("nixl", "mooncake", "sglang", "none")

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5, "seed": 7}

_NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
)
FIELDS_OF_INTEREST = (
    "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n",
    "best_of", "echo", "logprobs", "prompt_logprobs", "return_token_ids", "stop", "stop_token_ids", "tools",
    "ignore_eos", "thinking", "store", "background", "kv_transfer_params", "bootstrap_room", "prompt",
    "messages", "temperature", "use_beam_search", "truncation",
)  # fmt: skip
OBJECTS = st.dictionaries(st.sampled_from(FIELDS_OF_INTEREST) | _TEXT, JSON, max_size=8)


def pairing(api: Api = Api.CHAT, peer: Peer | None = None, room: int = 12_345) -> Pairing:
    reached = Peer("10.0.0.1", engine_id="engine-0") if peer is None else peer
    return Pairing(api, "m", "xfer-1", room, reached)


def prefill(connector: str | Connector, api: Api = Api.CHAT, **fields: Any) -> dict[str, Any]:
    """The body of the prefill leg of CHAT with `fields`."""
    made = build_connector(connector) if isinstance(connector, str) else connector
    body = json.dumps({**CHAT, **fields}).encode()
    sent: dict[str, Any] = json.loads(made.prefill_leg(body, pairing(api)).body)
    return sent
