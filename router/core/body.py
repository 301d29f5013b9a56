"""What routing needs of a request body, read once; and edits that leave every other byte as it came.

Separate because this is the one place that decides what the router reads of a body, what it checks and what
it leaves to the engine: it refuses only what cannot be routed, and takes odd types for absent where an engine
would judge them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.core.body_fields import (
    CONTROL_FIELDS,
    KEY_FIELDS,
    NO_CONTROL,
    Fields,
    control_values,
    key_values,
    lax_count,
    lax_first_string,
    lax_string,
    lax_true,
    look,
    measured_values,
    read_fields,
)
from router.core.body_text import PromptSize, measure
from router.core.errors import BadRequest
from router.core.json_bounds import too_many_names
from router.core.prompt_key import PromptKey
from router.core.request import Api
from router.core.split_rule import Unsplit

MAX_SEQUENCES = 16_384
"""Bound on the sequences of one call in our accounts. Engines refuse more; no ledger may overflow before they
do."""

_COMPLETIONS_MAX_TOKENS = 16
"""Default of the completions API itself, in vLLM and SGLang alike."""

_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_SEARCHED_BYTES = 1 << 20
"""Of a body that is refused, for the place of the fault: looking through all of a large one takes seconds."""
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_AT_FIELD = re.compile(r"`\$\.([A-Za-z0-9_]+)")
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_encode = msgspec.json.Encoder().encode
_NO_TRAITS: frozenset[Unsplit] = frozenset()
_NOTHING_ODD = (None,) * 5


class Body:
    """One parsed request body. Everything beyond the hot fields is read on demand.

    Attributes:
        data: the bytes as the client sent them.
        model: never empty.
        stream: whether the engine will stream, judged as pydantic judges a lax boolean.
    """

    __slots__ = ("_fields", "_size", "api", "data", "model", "stream")

    def __init__(self, data: bytes, api: Api, model: str, fields: Fields) -> None:
        self.data = data
        self.api = api
        self.model = model
        self.stream = lax_true(fields.stream)
        self._fields = fields
        self._size: PromptSize | None = None

    @property
    def include_usage(self) -> bool:
        """Whether the client asked for the usage event of a stream."""
        options = look(self._fields.stream_options)
        return isinstance(options, dict) and lax_true(options.get("include_usage"))

    @property
    def continuous_usage(self) -> bool:
        options = look(self._fields.stream_options)
        return isinstance(options, dict) and lax_true(options.get("continuous_usage_stats"))

    @property
    def usage_options(self) -> dict[str, Any] | None:
        """`stream_options` with `include_usage` added; None where nothing is to be added.

        None means: not a stream, an API that always reports usage, a client that asked itself, or a value of
        a type that the engine will refuse, which must reach it unchanged.
        """
        if not self.stream or self.api not in (Api.CHAT, Api.COMPLETIONS):
            return None
        options = look(self._fields.stream_options)
        if options is UNSET or options is None:
            return {"include_usage": True}
        if not isinstance(options, dict) or lax_true(options.get("include_usage")):
            return None
        return {**options, "include_usage": True}

    @property
    def max_tokens(self) -> int | None:
        """The client's bound on output tokens of one sequence; None where it gave none that is a bound."""
        fields = self._fields
        if self.api is Api.RESPONSES:
            return lax_count(fields.max_output_tokens)
        if self.api is Api.CHAT:
            newer = lax_count(fields.max_completion_tokens)
            return lax_count(fields.max_tokens) if newer is None else newer
        if self.api is Api.COMPLETIONS and fields.max_tokens is UNSET:
            return _COMPLETIONS_MAX_TOKENS
        return lax_count(fields.max_tokens)

    @property
    def min_tokens(self) -> int | None:
        return lax_count(self._fields.min_tokens)

    @property
    def split_traits(self) -> frozenset[Unsplit]:
        """Why this body, whatever the fleet, is not for two engines; nearly always nothing."""
        fields = self._fields
        wanted = (
            fields.prompt_logprobs,
            fields.echo,
            fields.use_beam_search,
            fields.truncate_prompt_tokens,
            fields.truncation,
        )
        return _NO_TRAITS if wanted == _NOTHING_ODD else frozenset(_traits(fields))

    @property
    def ignore_eos(self) -> bool:
        return lax_true(self._fields.ignore_eos)

    @property
    def prompts(self) -> int:
        """Prompts in this call: the length of a completions prompt list, otherwise 1."""
        return self.size.prompts

    @property
    def choices(self) -> int:
        """Choices that the client will see: n for each prompt, at most MAX_SEQUENCES."""
        fields = self._fields
        if not self.api.generates or (fields.n is None and fields.prompt is UNSET):
            return 1
        return min((lax_count(fields.n) or 1) * self.prompts, MAX_SEQUENCES)

    @property
    def sequences(self) -> int:
        """Sequences that the engine will decode: max(n, best_of) for each prompt, at most MAX_SEQUENCES."""
        choices = self.choices
        if self._fields.best_of is None or not self.api.generates:
            return choices
        best_of = lax_count(self._fields.best_of)
        return choices if best_of is None else max(choices, min(best_of * self.prompts, MAX_SEQUENCES))

    @property
    def size(self) -> PromptSize:
        """Length of the prompt in bytes of text, exact tokens and media parts."""
        if self._size is None:
            self._size = measure(self.data, self._fields.prompt, measured_values(self._fields))
        return self._size

    @property
    def priority(self) -> int | None:
        value = self._fields.priority
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def user(self) -> str | None:
        return lax_string(self._fields.user)

    @property
    def prompt_cache_key(self) -> str | None:
        return lax_string(self._fields.prompt_cache_key)

    @property
    def conversation(self) -> str | None:
        """Id of the conversation of the Responses API, given as a string or as an object with an `id`."""
        value = look(self._fields.conversation)
        return lax_string(value.get("id") if isinstance(value, dict) else value)

    @property
    def previous_response_id(self) -> str | None:
        return lax_string(self._fields.previous_response_id)

    @property
    def affinity_fields(self) -> tuple[str, ...]:
        """What keeps this conversation together, the strongest first. Never `user`: it names far too much."""
        if self._fields.prompt_cache_key is None and self._fields.conversation is UNSET:
            return ()
        return tuple(name for name in (self.prompt_cache_key, self.conversation) if name is not None)

    @property
    def lora(self) -> str:
        """Adapter named beside the model (SGLang's `lora_path`); "" for none. vLLM names it as the model."""
        named = self._fields.lora_path
        return "" if named is UNSET else lax_first_string(look(named))

    @property
    def cache_salt(self) -> str:
        """What separates this prompt's KV from equal prompts: `cache_salt` and SGLang's `extra_key`."""
        if self._fields.cache_salt is UNSET and self._fields.extra_key is UNSET:
            return ""
        salt = lax_first_string(look(self._fields.cache_salt))
        extra = lax_first_string(look(self._fields.extra_key))
        return f"{salt}\0{extra}" if extra else salt

    @property
    def control_fields(self) -> tuple[str, ...]:
        """Names of the control fields present, null or not, in a fixed order."""
        values = control_values(self._fields)
        nested = _nested_control(self._fields.vllm_xargs)
        if values == NO_CONTROL and not nested:
            return ()
        found = [name for name, value in zip(CONTROL_FIELDS, values, strict=True) if value is not UNSET]
        return (*found, "vllm_xargs") if nested else tuple(found)

    @property
    def keeps_kv(self) -> bool:
        """Whether it asks an engine to keep its KV for another one: the first leg of a client that hands KV
        over by itself."""
        value = look(self._fields.kv_transfer_params)
        return isinstance(value, dict) and value.get("do_remote_decode") is True

    @property
    def key(self) -> PromptKey | None:
        """The canonical prompt key, not yet built; None for a call without a prompt."""
        fields = self._fields
        if fields.messages is UNSET and fields.prompt is UNSET and fields.input is UNSET:
            return None
        return PromptKey(self.model, self._prompt_fields, lora=self.lora, cache_salt=self.cache_salt)

    def _prompt_fields(self) -> dict[str, Raw | bytes]:
        values = zip(KEY_FIELDS, key_values(self._fields), strict=True)
        return {
            name: value if isinstance(value, Raw) else _encode(value)
            for name, value in values
            if value is not UNSET
        }

    def without_control(self) -> bytes:
        """The body without its control fields, those inside `vllm_xargs` included.

        vLLM copies `vllm_xargs` into the same place as `kv_transfer_params`, so a nested one reaches the
        connector just as well. The same object as `data` when there is nothing to strip.
        """
        found = self.control_fields
        if "vllm_xargs" not in found:
            return edit_body(self.data, remove=found) if found else self.data
        nested = self._fields.vllm_xargs
        cleaned = edit_body(bytes(nested) if isinstance(nested, Raw) else b"{}", remove=CONTROL_FIELDS)
        names = [name for name in found if name != "vllm_xargs"]
        return edit_body(self.data, remove=names, replace={"vllm_xargs": Raw(cleaned)})

    def __repr__(self) -> str:
        mode = "stream" if self.stream else "whole"
        return f"<Body {self.api.value} {self.model} [{len(self.data)} bytes | {mode}]>"


def _traits(fields: Fields) -> Iterator[Unsplit]:
    if lax_true(fields.echo) or fields.prompt_logprobs not in (None, False):
        yield Unsplit.PROMPT_LOGPROBS
    if lax_true(fields.use_beam_search):
        yield Unsplit.BEAM_SEARCH
    # A positive number cuts the prompt alike on both sides.
    cut = fields.truncate_prompt_tokens
    if (cut is not None and lax_count(cut) is None) or fields.truncation == "auto":
        yield Unsplit.TRUNCATED


def parse_body(data: bytes, api: Api) -> Body:
    """Reads a JSON body once.

    Raises:
        BadRequest: empty, not JSON, not an object, nested too deeply, or without a usable model.
    """
    try:
        fields = read_fields(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _refusal(data, error) from None
    model = fields.model
    if type(model) is not str or not model:
        raise _bad_model(model)
    return Body(data, api, model, fields)


def edit_body(data: bytes, *, remove: Iterable[str] = (), replace: Mapping[str, Any] | None = None) -> bytes:
    """A JSON object with top-level fields removed, replaced in place or added at the end.

    Every other value keeps its bytes and its place. Of a field that occurs twice the last value stays, which
    is the one that engines read.

    Args:
        replace: new values by name; a `msgspec.Raw` is written as it is.

    Raises:
        BadRequest: `data` is not a JSON object, or one of more fields than are worth taking apart.
    """
    if too_many_names(data):
        raise BadRequest("The request body has too many fields.")
    try:
        fields: dict[str, Any] = dict(_OBJECT.decode(data))
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _refusal(data, error) from None
    for name in remove:
        fields.pop(name, None)
    if replace:
        fields.update(replace)
    return _encode(fields)


def _refusal(data: bytes, error: Exception) -> BadRequest:
    detail = str(error)
    if not data.strip():
        return BadRequest("The request body is empty; a JSON object is expected.")
    if isinstance(error, RecursionError):
        return BadRequest("The request body is nested too deeply to be read.")
    if isinstance(error, msgspec.ValidationError):
        field = _AT_FIELD.search(detail)
        if field is None:
            return BadRequest("The request body must be a JSON object.")
        return BadRequest(f"The value of `{field[1]}` cannot be read.", param=field[1])
    return _not_json(data, error)


def _not_json(data: bytes, error: Exception) -> BadRequest:
    """Says where the text stops being JSON, as far as the decoder, or a look at its beginning, tells."""
    detail = str(error)
    position = _AT_BYTE.search(detail)
    if position is not None:
        return BadRequest(f"The request body is not valid JSON: error at byte {position[1]}.")
    large = len(data) > _SEARCHED_BYTES
    lone = _LONE_SURROGATE.search(data, 0, _SEARCHED_BYTES)
    # At the end of what is searched, half a pair may be a whole one that was cut.
    if lone is not None and (not large or lone.end() + 6 <= _SEARCHED_BYTES):
        at = lone.start()
        return BadRequest(f"The request body is not valid JSON: half of a surrogate pair at byte {at}.")
    if "UTF-8" in detail or isinstance(error, UnicodeError):
        return BadRequest("The request body is not valid UTF-8.")
    if large:
        return BadRequest(
            "The request body is not valid JSON: it ends too early, or holds half a surrogate pair."
        )
    return BadRequest(f"The request body is not valid JSON: it ends too early, at byte {len(data)}.")


def _bad_model(model: object) -> BadRequest:
    if model is UNSET or model is None:
        return BadRequest("The field `model` is missing.", param="model")
    if model == "":
        return BadRequest("The field `model` is empty.", param="model")
    return BadRequest("The field `model` must be a string.", param="model")


def _nested_control(raw: Raw | UnsetType) -> bool:
    if not isinstance(raw, Raw):
        return False
    try:
        nested = read_fields(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False  # not an object: the engine refuses it
    return control_values(nested) != NO_CONTROL
