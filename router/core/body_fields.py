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

_MAX_LOOKED_AT_BYTES = 64 * 1024
_NO_VALUE = ()
_NUMBER_STARTS = frozenset(b"%c" % byte for byte in b"-0123456789")

_Scalar = str | int | float | bool | None
_OptionalScalar = _Scalar | UnsetType
_OptionalRaw = Raw | UnsetType


def _wire_name(name: str) -> str | None:
    return name.replace("_", "-") if name.startswith("x_override_") else None


class Fields(msgspec.Struct, gc=False, rename=_wire_name):
    """The fields that are read. None of them is decoded into more than one small value before it is looked
    at: a stranger decides what stands there, and how often."""

    model: _OptionalScalar = UNSET
    stream: _Scalar = None
    max_tokens: _OptionalScalar = UNSET
    max_completion_tokens: _Scalar = None
    max_output_tokens: _Scalar = None
    min_tokens: _Scalar = None
    ignore_eos: _Scalar = None
    n: _Scalar = None
    best_of: _Scalar = None
    prompt_logprobs: _Scalar = None
    echo: _Scalar = None
    use_beam_search: _Scalar = None
    truncate_prompt_tokens: _Scalar = None
    truncation: _Scalar = None
    priority: _Scalar = None
    user: _Scalar = None
    prompt_cache_key: _Scalar = None
    previous_response_id: _OptionalScalar = UNSET
    stream_options: _OptionalRaw = UNSET
    conversation: _OptionalRaw = UNSET
    cache_salt: _OptionalRaw = UNSET
    extra_key: _OptionalRaw = UNSET
    lora_path: _OptionalRaw = UNSET
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

_ANY = msgspec.json.Decoder()
_FIELDS = msgspec.json.Decoder(Fields)
_SCALARS = frozenset(field.name for field in msgspec.structs.fields(Fields) if field.type != _OptionalRaw)
_RAW_FIELDS = msgspec.json.Decoder(
    msgspec.defstruct(
        "_RawFields",
        [(name, _OptionalRaw, UNSET) for name in Fields.__struct_fields__],
        rename=_wire_name,
        gc=False,
    )
)


def read_fields(data: bytes | Raw) -> Fields:
    """The fields of a body. Raises msgspec.MsgspecError, RecursionError or UnicodeError.

    A field of a type that no scalar has is read in a second pass, as far as it is small.
    """
    try:
        return _FIELDS.decode(data)
    except msgspec.ValidationError:
        raw = _RAW_FIELDS.decode(data)
    fields = Fields()
    for name in Fields.__struct_fields__:
        value = getattr(raw, name)
        if value is not UNSET:
            setattr(fields, name, _scalar(name, value) if name in _SCALARS else value)
    return fields


def _scalar(name: str, raw: Raw) -> Any:
    if len(raw) > _MAX_LOOKED_AT_BYTES:
        if bytes(raw)[:1] in _NUMBER_STARTS:
            raise msgspec.ValidationError(f"a number of {len(raw)} digits - at `$.{name}`")
        return _NO_VALUE
    try:
        return _ANY.decode(raw)
    except msgspec.ValidationError as error:  # a number that no double holds
        raise msgspec.ValidationError(f"{error} - at `$.{name}`") from None


def look(raw: Raw | UnsetType) -> Any:
    """The value of a field that should be small. UNSET when it is absent; an empty tuple, which is of no type
    that any field has, when it is not small or not valid in itself."""
    if not isinstance(raw, Raw):
        return raw
    if len(raw) > _MAX_LOOKED_AT_BYTES:
        return _NO_VALUE
    try:
        return _ANY.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return _NO_VALUE


KEY_FIELDS = (
    "prompt", "messages", "input", "instructions", "system", "tools", "documents", "chat_template",
    "chat_template_kwargs", "reasoning_effort", "reasoning", "thinking", "add_generation_prompt",
    "continue_final_message", "add_special_tokens", "previous_response_id", "conversation",
)  # fmt: skip
key_values = attrgetter(*KEY_FIELDS)
measured_values = attrgetter("messages", "input", "system", "instructions", "tools", "documents", "query")
"""What the length of a prompt is measured by, where there is no `prompt`."""


def lax_true(value: object) -> bool:
    """A lax boolean as pydantic reads it, so that router and engine agree on what streams."""
    if value is True or value is False or value is None:
        return value is True
    if isinstance(value, str):
        return value.lower() in _TRUE_WORDS
    return isinstance(value, int | float) and value == 1


MAX_COUNT = 1 << 40
"""A larger count is taken for this one: no engine reaches it, and sums of such counts are doubles still."""


def lax_count(value: object) -> int | None:
    """A positive whole number, given as an integer or as a float without fraction, MAX_COUNT at most; None
    for all else."""
    if type(value) is int:
        return min(value, MAX_COUNT) if value > 0 else None
    if isinstance(value, float) and value.is_integer() and value > 0:
        return int(min(value, MAX_COUNT))
    return None


def lax_string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def lax_first_string(value: object) -> str:
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, str) else ""
