"""The fields of a request body that are read, and how a value of an odd type is taken.

Separate because it is a table: which names count, which steer an engine, which shape the prompt. `Body` gives
them their meaning.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

CONTROL_FIELDS = (
    "kv_transfer_params",
    "ec_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "data_parallel_rank",
    "data_parallel_rank_decode",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "x-override-rid",
    "x-override-bootstrap-host",
    "x-override-bootstrap-port",
    "x-override-bootstrap-room",
    "x-override-conversation-id",
    "x-override-routed-dp-rank",
    "x-override-disagg-prefill-dp-rank",
    "x-override-priority",
)
"""Fields that steer an engine's KV transfer or rank: for trusted keys only. The `x-override-`
names are headers of SGLang; they are stripped from bodies too, since gateways copy one into the other."""

_TRUE_WORDS = frozenset({"1", "true", "t", "yes", "y", "on"})

_OptionalRaw = Raw | UnsetType


def _wire_name(name: str) -> str | None:
    return name.replace("_", "-") if name.startswith("x_override_") else None


class Fields(msgspec.Struct, gc=False, rename=_wire_name):
    """The fields that are read: `Any` where the value is looked at, `Raw` where bytes or presence count."""

    model: Any = UNSET
    stream: Any = None
    stream_options: Any = UNSET
    max_tokens: Any = UNSET
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    min_tokens: Any = None
    ignore_eos: Any = None
    n: Any = None
    best_of: Any = None
    priority: Any = None
    user: Any = None
    prompt_cache_key: Any = None
    conversation: Any = UNSET
    previous_response_id: Any = UNSET
    cache_salt: Any = None
    extra_key: Any = None
    lora_path: Any = None
    prompt: _OptionalRaw = UNSET
    messages: _OptionalRaw = UNSET
    input: _OptionalRaw = UNSET
    instructions: _OptionalRaw = UNSET
    system: _OptionalRaw = UNSET
    tools: _OptionalRaw = UNSET
    documents: _OptionalRaw = UNSET
    query: _OptionalRaw = UNSET
    chat_template: _OptionalRaw = UNSET
    chat_template_kwargs: _OptionalRaw = UNSET
    reasoning_effort: _OptionalRaw = UNSET
    reasoning: _OptionalRaw = UNSET
    thinking: _OptionalRaw = UNSET
    add_generation_prompt: _OptionalRaw = UNSET
    continue_final_message: _OptionalRaw = UNSET
    add_special_tokens: _OptionalRaw = UNSET
    vllm_xargs: _OptionalRaw = UNSET
    kv_transfer_params: _OptionalRaw = UNSET
    ec_transfer_params: _OptionalRaw = UNSET
    bootstrap_host: _OptionalRaw = UNSET
    bootstrap_port: _OptionalRaw = UNSET
    bootstrap_room: _OptionalRaw = UNSET
    bootstrap_pair_key: _OptionalRaw = UNSET
    data_parallel_rank: _OptionalRaw = UNSET
    data_parallel_rank_decode: _OptionalRaw = UNSET
    routed_dp_rank: _OptionalRaw = UNSET
    disagg_prefill_dp_rank: _OptionalRaw = UNSET
    x_override_rid: _OptionalRaw = UNSET
    x_override_bootstrap_host: _OptionalRaw = UNSET
    x_override_bootstrap_port: _OptionalRaw = UNSET
    x_override_bootstrap_room: _OptionalRaw = UNSET
    x_override_conversation_id: _OptionalRaw = UNSET
    x_override_routed_dp_rank: _OptionalRaw = UNSET
    x_override_disagg_prefill_dp_rank: _OptionalRaw = UNSET
    x_override_priority: _OptionalRaw = UNSET


control_values = attrgetter(*(name.replace("-", "_") for name in CONTROL_FIELDS))
NO_CONTROL = (UNSET,) * len(CONTROL_FIELDS)
FIELDS = msgspec.json.Decoder(Fields)

KEY_FIELDS = (
    "prompt", "messages", "input", "instructions", "system", "tools", "documents", "chat_template",
    "chat_template_kwargs", "reasoning_effort", "reasoning", "thinking", "add_generation_prompt",
    "continue_final_message", "add_special_tokens", "previous_response_id", "conversation",
)  # fmt: skip
key_values = attrgetter(*KEY_FIELDS)


def lax_true(value: object) -> bool:
    """A lax boolean as pydantic reads it, so that router and engine agree on what streams."""
    if value is True or value is False or value is None:
        return value is True
    if isinstance(value, str):
        return value.lower() in _TRUE_WORDS
    return isinstance(value, int | float) and value == 1


def lax_count(value: object) -> int | None:
    """A positive whole number, given as an integer or as a float without fraction; None for all else."""
    if type(value) is int:
        return value if value > 0 else None
    if isinstance(value, float) and value.is_integer() and value > 0:
        return int(value)
    return None


def lax_string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def lax_first_string(value: object) -> str:
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, str) else ""
