"""Laws of request bodies: read once, refused only where they cannot be routed, edited without a trace."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.body import MAX_SEQUENCES, Body, edit_body, parse_body
from router.core.body_fields import CONTROL_FIELDS, MAX_COUNT, Fields
from router.core.errors import BadRequest
from router.core.request import Api

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
)
FIELD_NAMES = st.sampled_from(sorted({*Fields.__struct_encode_fields__, "temperature"} - {"model"}))


def body(value: object = None, api: Api = Api.CHAT, **fields: object) -> Body:
    return parse_body(json.dumps({**CHAT, **fields} if value is None else value).encode(), api)


def completion(prompt: object) -> Body:
    return body({"model": "m", "prompt": prompt}, Api.COMPLETIONS)


def refusal(data: bytes, api: Api = Api.CHAT) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse_body(data, api)
    return caught.value


# --- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message", "param"),
    [
        (b"", "empty", None),
        (b" \r\n\t", "empty", None),
        (b'{"model": "m",}', "error at byte 14", None),
        (b'{"model": m}', "error at byte 10", None),
        (b'{"model": "m"', "ends too early, at byte 13", None),
        (b'{"model": "m"} x', "error at byte 16", None),
        (b'{"model": "m", "temperature": NaN}', "error at byte 30", None),
        (b'{"model": "m", "x": "\\ud83d"}', "half of a surrogate pair at byte 21", None),
        (b'{"model": "\xff"}', "not valid UTF-8", None),
        (b"[]", "must be a JSON object", None),
        (b"null", "must be a JSON object", None),
        (b'"text"', "must be a JSON object", None),
        (b"{}", "`model` is missing", "model"),
        (b'{"model": null}', "`model` is missing", "model"),
        (b'{"model": ""}', "`model` is empty", "model"),
        (b'{"model": 5}', "`model` must be a string", "model"),
        (b'{"model": ["m"]}', "`model` must be a string", "model"),
        (b'{"model": "m", "n": 1e999}', "`n` cannot be read", "n"),
        (b'{"model": "m", "n": ' + b"9" * 5000 + b"}", "`n` cannot be read", "n"),
    ],
)
def test_a_refusal_names_the_fault_and_the_place(data: bytes, message: str, param: str | None) -> None:
    error = refusal(data)
    assert message in error.message
    assert error.param == param
    assert error.status == 400


@pytest.mark.parametrize("field", ["messages", "model", "unknown", "n"])
def test_deep_nesting_is_refused_and_crashes_nothing(field: str) -> None:
    data = b'{"%s": %s1%s, "model": "m"}' % (field.encode(), b"[" * 200_000, b"]" * 200_000)
    assert "nested too deeply" in refusal(data).message


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for text in (data, b'{"model": "m", "messages": ' + data + b"}"):
        try:
            assert parse_body(text, Api.CHAT).model
        except BadRequest as error:
            assert error.message.endswith(".")  # noqa: PT017  # both ends are lawful, neither is expected


@given(st.dictionaries(FIELD_NAMES, JSON, max_size=6), st.sampled_from(Api))
def test_odd_types_are_left_to_the_engine(fields: dict[str, Any], api: Api) -> None:
    data = json.dumps({"model": "m", **fields}).encode()
    read = parse_body(data, api)
    assert read.sequences >= read.choices >= 1
    assert read.size.text_bytes >= 0
    assert read.max_tokens is None or read.max_tokens > 0
    assert isinstance(read.affinity_fields, tuple)
    assert read.usage_options is None or read.usage_options["include_usage"] is True
    left = json.loads(read.without_control())
    assert not set(left) & set(CONTROL_FIELDS)
    assert {name: left[name] for name in fields if name in left and name != "vllm_xargs"} == {
        name: value for name, value in fields.items() if name not in (*CONTROL_FIELDS, "vllm_xargs")
    }
    key = read.key
    assert key is None or key.canonical is not None


# --- what is read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "streams"),
    [
        (True, True), (False, False), (None, False), (1, True), (0, False), (1.0, True), ("true", True),
        ("on", True), ("False", False), ("maybe", False), ([], False), ({"a": 1}, False), (2, False),
    ],
)  # fmt: skip
def test_stream_is_read_as_a_lax_boolean(value: object, streams: bool) -> None:
    assert body(stream=value).stream is streams


def test_of_a_field_that_comes_twice_the_last_counts() -> None:
    assert parse_body(b'{"model": "a", "model": "b"}', Api.CHAT).model == "b"


def test_a_name_with_escapes_is_the_same_name() -> None:
    read = parse_body(b'{"mod\\u0065l": "m", "kv_transfer_p\\u0061rams": {}}', Api.CHAT)
    assert read.control_fields == ("kv_transfer_params",)


@pytest.mark.parametrize(
    ("api", "fields", "expected"),
    [
        (Api.CHAT, {"max_tokens": 5}, 5),
        (Api.CHAT, {"max_tokens": 5, "max_completion_tokens": 7}, 7),
        (Api.CHAT, {"max_tokens": 5, "max_completion_tokens": None}, 5),
        (Api.CHAT, {}, None),
        (Api.CHAT, {"max_tokens": 5.0}, 5),
        (Api.CHAT, {"max_tokens": True}, None),
        (Api.CHAT, {"max_tokens": -1}, None),
        (Api.CHAT, {"max_tokens": "9"}, None),
        (Api.CHAT, {"max_tokens": 10**400}, MAX_COUNT),
        (Api.CHAT, {"max_tokens": 1e300}, MAX_COUNT),
        (Api.COMPLETIONS, {}, 16),
        (Api.COMPLETIONS, {"max_tokens": None}, None),
        (Api.COMPLETIONS, {"max_tokens": 3}, 3),
        (Api.MESSAGES, {"max_tokens": 8}, 8),
        (Api.RESPONSES, {"max_output_tokens": 6, "max_tokens": 5}, 6),
        (Api.RESPONSES, {"max_tokens": 5}, None),
    ],
)
def test_the_bound_on_output_is_that_of_the_api(
    api: Api, fields: dict[str, object], expected: int | None
) -> None:
    assert body({"model": "m", **fields}, api).max_tokens == expected


@pytest.mark.parametrize(
    ("fields", "choices", "sequences"),
    [
        ({}, 1, 1),
        ({"n": 3}, 3, 3),
        ({"n": 2, "best_of": 5}, 2, 5),
        ({"n": 0}, 1, 1),
        ({"n": "2"}, 1, 1),
        ({"n": 10**12}, MAX_SEQUENCES, MAX_SEQUENCES),
        ({"prompt": ["a", "b"], "n": 2}, 4, 4),
        ({"prompt": [[1], [2], [3]], "best_of": 2}, 3, 6),
    ],
)
def test_sequences_are_n_times_prompts(fields: dict[str, object], choices: int, sequences: int) -> None:
    read = body({"model": "m", "prompt": "a", **fields}, Api.COMPLETIONS)
    assert (read.choices, read.sequences) == (choices, sequences)


def test_what_generates_nothing_is_one_sequence() -> None:
    assert body({"model": "m", "input": ["a", "b"], "n": 4}, Api.OTHER).sequences == 1


@pytest.mark.parametrize(
    ("prompt", "tokens", "first", "prompts"),
    [
        ([1, 2, 3], 3, 3, 1),
        ([[1, 2], [3, 4, 5]], 5, 2, 2),
        ([[7]], 1, 1, 1),
        ([], 0, 0, 1),
        ("123", None, None, 1),
        (["1", "2"], None, None, 2),
        ([1, "a"], None, None, 2),
    ],
)
def test_token_ids_are_counted_exactly(
    prompt: object, tokens: int | None, first: int | None, prompts: int
) -> None:
    for separators in (None, (",", ":"), (" , ", ": ")):
        data = json.dumps({"model": "m", "prompt": prompt}, separators=separators).encode()
        size = parse_body(data, Api.COMPLETIONS).size
        assert (size.tokens, size.first_tokens, size.prompts) == (tokens, first, prompts)


@given(st.text('abž漢🚂 \n"\t', min_size=1, max_size=300), st.booleans())
def test_text_is_measured_in_utf8_however_json_spells_it(text: str, ascii_only: bool) -> None:
    data = json.dumps({"model": "m", "prompt": text}, ensure_ascii=ascii_only).encode()
    measured = parse_body(data, Api.COMPLETIONS).size.text_bytes
    truth = len(text.encode())
    # a surrogate pair is counted as two times three bytes for four
    assert truth <= measured <= truth * 1.5 + 2


MEDIA = base64.b64encode(bytes(30_000)).decode()


@pytest.mark.parametrize(
    ("api", "part"),
    [
        (Api.CHAT, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{MEDIA}"}}),
        (Api.CHAT, {"image_url": {"url": f"data:image/png;base64,{MEDIA}"}}),
        (Api.CHAT, {"type": "input_audio", "input_audio": {"data": MEDIA, "format": "wav"}}),
        (Api.MESSAGES, {"type": "image", "source": {"type": "base64", "data": MEDIA}}),
        (
            Api.MESSAGES,
            {
                "type": "tool_result",
                "content": [{"type": "image", "source": {"type": "base64", "data": MEDIA}}],
            },
        ),
    ],
)  # fmt: skip
def test_media_are_parts_and_never_text(api: Api, part: dict[str, object]) -> None:
    text = {"type": "text", "text": "What is in this picture?"}
    read = body({"model": "m", "messages": [{"role": "user", "content": [text, part]}]}, api)
    assert read.size.media_parts == 1
    assert 20 < read.size.text_bytes < 250


def test_a_text_that_speaks_of_images_stays_text() -> None:
    said = 'Use {"type": "image_url"} here. ' * 10
    read = body(messages=[{"role": "user", "content": [{"type": "text", "text": said}]}])
    assert read.size.media_parts == 0
    assert read.size.text_bytes > len(said)


def test_the_long_prompt_is_measured_by_its_ends() -> None:
    text = "word\n" * 10_000
    measured = completion(text).size.text_bytes
    assert measured == pytest.approx(len(text), rel=0.01)


def test_affinity_comes_from_the_conversation_and_never_from_the_user() -> None:
    assert body(prompt_cache_key="k", conversation={"id": "c"}, user="u").affinity_fields == ("k", "c")
    assert body(user="u").affinity_fields == ()
    assert body(conversation="c2").conversation == "c2"
    assert body(user="u").user == "u"
    assert (
        body({"model": "m", "previous_response_id": "resp_1"}, Api.RESPONSES).previous_response_id == "resp_1"
    )


def test_salt_and_adapter_are_read_in_both_dialects() -> None:
    assert body(cache_salt="s").cache_salt == "s"
    assert body(extra_key=["e", "f"]).cache_salt == "\0e"
    assert body(lora_path=["sql", "x"]).lora == "sql"
    assert (body().cache_salt, body().lora) == ("", "")


def test_engine_priority_is_a_whole_number_or_absent() -> None:
    assert [body(priority=value).priority for value in (3, -1, 0, None, True, "1", 1.5)] == [
        3, -1, 0, None, None, None, None,
    ]  # fmt: skip


def test_length_hints_are_read() -> None:
    read = body(min_tokens=4, ignore_eos=True)
    assert (read.min_tokens, read.ignore_eos) == (4, True)


# --- usage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "fields", "options"),
    [
        (Api.CHAT, {"stream": True}, {"include_usage": True}),
        (Api.CHAT, {"stream": True, "stream_options": None}, {"include_usage": True}),
        (Api.COMPLETIONS, {"stream": True, "stream_options": {"x": 1}}, {"x": 1, "include_usage": True}),
        (Api.CHAT, {"stream": True, "stream_options": {"include_usage": False}}, {"include_usage": True}),
        (Api.CHAT, {"stream": True, "stream_options": {"include_usage": True}}, None),
        (Api.CHAT, {"stream": True, "stream_options": "odd"}, None),
        (Api.CHAT, {"stream": False}, None),
        (Api.MESSAGES, {"stream": True}, None),
        (Api.RESPONSES, {"stream": True}, None),
    ],
)
def test_usage_is_asked_for_where_it_is_wanted_and_lawful(
    api: Api, fields: dict[str, object], options: dict[str, object] | None
) -> None:
    assert body({"model": "m", **fields}, api).usage_options == options


def test_what_the_client_asked_of_usage_is_known() -> None:
    read = body(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert (read.include_usage, read.continuous_usage) == (True, True)
    assert (body().include_usage, body().continuous_usage) == (False, False)


# --- edits -----------------------------------------------------------------------------------------------


def test_an_edit_keeps_order_and_every_other_byte() -> None:
    data = b'{ "model" : "m", "kv_transfer_params": {"a": 1}, "t": 1.50, "s": "\\u00e9", "n":null }'
    edited = edit_body(
        data, remove=["kv_transfer_params", "absent"], replace={"n": 2, "new": msgspec.Raw(b"[1, 2]")}
    )
    assert edited == b'{"model":"m","t":1.50,"s":"\\u00e9","n":2,"new":[1, 2]}'


@given(
    st.dictionaries(st.text("abcd", min_size=1, max_size=2), JSON, max_size=6),
    st.sets(st.sampled_from("abcd")),
)
def test_an_edit_removes_what_it_is_told_and_nothing_else(fields: dict[str, Any], names: set[str]) -> None:
    edited = json.loads(edit_body(json.dumps(fields).encode(), remove=names))
    assert list(edited.items()) == [(name, value) for name, value in fields.items() if name not in names]


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 200_000])
def test_what_is_no_object_cannot_be_edited(data: bytes) -> None:
    with pytest.raises(BadRequest):
        edit_body(data, remove=["a"])


@pytest.mark.parametrize("name", CONTROL_FIELDS)
@pytest.mark.parametrize("value", [None, {}, {"do_remote_prefill": True}, 7, "x", [1, 2]])
def test_every_control_field_is_stripped_whatever_its_value(name: str, value: object) -> None:
    read = body({**CHAT, name: value, "temperature": 0.5})
    assert read.control_fields == (name,)
    assert json.loads(read.without_control()) == {**CHAT, "temperature": 0.5}


def test_a_control_field_that_comes_twice_is_stripped_twice() -> None:
    read = parse_body(b'{"bootstrap_room": 1, "model": "m", "bootstrap_room": 2}', Api.CHAT)
    assert read.without_control() == b'{"model":"m"}'


def test_a_control_field_hidden_in_vllm_xargs_is_stripped() -> None:
    read = body(vllm_xargs={"kv_transfer_params": "x", "mode": "full"}, bootstrap_port=1)
    assert read.control_fields == ("bootstrap_port", "vllm_xargs")
    assert json.loads(read.without_control()) == {**CHAT, "vllm_xargs": {"mode": "full"}}


def test_a_body_without_control_fields_is_the_same_object() -> None:
    read = body(vllm_xargs={"mode": "full"})
    assert read.control_fields == ()
    assert read.without_control() is read.data


def test_the_state_of_a_body_is_visible_without_its_text() -> None:
    data = b'{"model": "m", "stream": true, "prompt": "secret"}'
    assert repr(parse_body(data, Api.COMPLETIONS)) == f"<Body completions m [{len(data)} bytes | stream]>"
