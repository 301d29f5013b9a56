"""The body of a prefill leg: the client's request, cut down to its prompt and one token.

Separate because three connectors send the same one, and because every field here has a reason that was paid
for: an engine refuses the leg, keeps KV that nobody will fetch, or computes what nobody will read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from router.core.body import edit_body
from router.core.errors import InternalError
from router.core.request import Api

_REMOVED = (
    "stream_options",  # vLLM refuses them without a stream
    "min_tokens",  # vLLM refuses more than max_tokens
    "best_of",  # several sequences: the answer names the KV of one, the others' stays until the lease ends
    # What follows only makes the answer larger or the prefill slower, and the answer is thrown away:
    "echo",  # the prompt, and with `logprobs` those of the prompt, for which the whole prompt is recomputed
    "prompt_logprobs",  # the same
    "return_token_ids",  # the ids of the prompt
)
"""Everything that shapes the prompt stays, also what the engine alone understands: tools and tool_choice,
thinking, templates, truncation, documents, adapters, salts. So does `use_beam_search`: vLLM runs it without
the connector and gives no handle, which sends the request to one engine, where it belongs."""

_STOPS = ("stop", "stop_token_ids", "stop_sequences")

_ONE_TOKEN: Mapping[Api, Mapping[str, Any]] = {
    # Engines let max_completion_tokens win where both are there. n > 1 leaves KV behind like best_of.
    Api.CHAT: {"max_tokens": 1, "max_completion_tokens": 1, "n": 1},
    Api.COMPLETIONS: {"max_tokens": 1, "n": 1},
    # The answer of a prefill is nobody's to retrieve; the decode engine stores its own.
    Api.RESPONSES: {"max_output_tokens": 1, "store": False},
    Api.MESSAGES: {"max_tokens": 1},
}
_REMOVED_BY_API: Mapping[Api, tuple[str, ...]] = {
    # A background call is answered before its prompt is computed, and must be stored.
    Api.RESPONSES: (*_REMOVED, "background"),
}


class _Cut(NamedTuple):
    """What goes out of a body, and what comes in."""

    removed: tuple[str, ...]
    added: Mapping[str, Any]


def _cut(api: Api, removed: tuple[str, ...], added: Mapping[str, Any]) -> _Cut:
    gone = (*_REMOVED_BY_API.get(api, _REMOVED), *removed)
    return _Cut(gone, {"stream": False, **_ONE_TOKEN[api], **added})


_KEPT = {api: _cut(api, _STOPS, {} if api is Api.MESSAGES else {"ignore_eos": True}) for api in _ONE_TOKEN}
_WARM = {api: _cut(api, ("thinking",) if api is Api.MESSAGES else (), {}) for api in _ONE_TOKEN}


def prefill_body(body: bytes, api: Api, params: msgspec.Raw) -> bytes:
    """The body of a leg whose engine keeps its KV for another.

    Its one token is thrown away, so nothing but the bound on tokens may end it: engines keep KV for sure only
    when a prefill ends in `length` (vLLM's Mooncake connector, and NIXL up to 0.20).

    Args:
        params: raw JSON, replaces the client's own `kv_transfer_params`.

    Raises:
        BadRequest: `body` is not a JSON object.
        InternalError: the API generates nothing.
    """
    cut = _of(_KEPT, api)
    return edit_body(body, remove=cut.removed, replace={**cut.added, "kv_transfer_params": params})


def warm_up_body(body: bytes, api: Api) -> bytes:
    """The body of a leg that fills a store which both engines read. Raises as `prefill_body` does.

    Of Messages `thinking` goes: its budget must be below max_tokens, and only a request that announces a
    hand-over is excused. Should the template look at it, the ends of the prompts differ and a block less is
    found in the store.
    """
    cut = _of(_WARM, api)
    return edit_body(body, remove=cut.removed, replace=cut.added)


def _of(cuts: Mapping[Api, _Cut], api: Api) -> _Cut:
    cut = cuts.get(api)
    if cut is None:
        raise InternalError(f"A call of the API {api.value!r} generates nothing, so it has no prefill leg.")
    return cut
