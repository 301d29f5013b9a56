"""No body makes the router build more than a bounded number of objects, however much a stranger sends.

Judged by the memory that reading takes beyond the body itself, which needs no clock.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import pytest

from router.core.body import Body, parse_body
from router.core.errors import BadRequest
from router.core.json_bounds import MAX_NAMES, MAX_VALUES, too_many_names, too_many_values
from router.core.request import Api

MANY = 600_000
ROOM_BYTES = 24 << 20
"""A hundred times less than the objects would take in the largest body that is accepted."""

OBJECTS = b"[" + b"{}," * MANY + b"{}]"
NAMES = b"{" + b",".join(b'"%d":1' % number for number in range(MANY)) + b"}"


def peak(read: Callable[[], object]) -> int:
    """Bytes that are held at most while it reads."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def read_all(data: bytes, api: Api) -> Body | None:
    """Everything that the router reads of a body."""
    try:
        body = parse_body(data, api)
        body.without_control()
    except BadRequest:
        return None
    assert body.size.prompts >= 1
    assert body.sequences >= body.choices >= 1
    assert isinstance((body.affinity_fields, body.cache_salt, body.lora, body.include_usage), tuple)
    assert body.key is None or body.key.canonical is not None
    return body


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        *(
            (Api.CHAT, b'"%b":%b' % (name.encode(), OBJECTS))
            for name in ("user", "stream", "n", "max_tokens")
        ),
        *((Api.CHAT, b'"%b":%b' % (name.encode(), NAMES)) for name in ("stream_options", "cache_salt")),
        (Api.CHAT, b'"user":%b,"user":"u"' % OBJECTS),
        (Api.CHAT, b'"vllm_xargs":' + NAMES),
        (Api.CHAT, b'"vllm_xargs":{"kv_transfer_params":1,' + NAMES[1:]),
        (Api.CHAT, b'"kv_transfer_params":1,' + NAMES[1:-1]),
        (Api.CHAT, b'"messages":[{"type":"image_url"},' + OBJECTS[1:]),
        (Api.CHAT, b'"messages":[],"tools":' + OBJECTS),
        (Api.RESPONSES, b'"input":"x","conversation":' + NAMES),
        (Api.MESSAGES, b'"messages":[],"system":' + OBJECTS),
        (Api.COMPLETIONS, b'"prompt":["",' + b'"",' * MANY + b'""]'),
        (Api.COMPLETIONS, b'"prompt":["",' + b"1.5," * MANY + b'""]'),
    ],
)
def test_reading_a_body_takes_little_more_memory_than_the_body(api: Api, fields: bytes) -> None:
    data = b'{"model":"m",' + fields + b"}"
    assert peak(lambda: read_all(data, api)) < 3 * len(data) + ROOM_BYTES


def test_a_model_that_is_no_name_is_refused_without_being_built() -> None:
    def read() -> None:
        with pytest.raises(BadRequest, match="must be a string"):
            parse_body(b'{"model":' + OBJECTS + b"}", Api.CHAT)

    assert peak(read) < ROOM_BYTES


def test_of_very_many_prompts_the_number_is_still_known() -> None:
    prompts = ["a, b"] * (MAX_VALUES // 2)
    size = parse_body(json.dumps({"model": "m", "prompt": prompts}).encode(), Api.COMPLETIONS).size
    assert size.prompts == len(prompts)
    assert size.text_bytes >= 4 * len(prompts)


def test_very_many_lists_of_token_ids_are_still_counted_exactly() -> None:
    prompt = [[1, 2], [], [3]] * MAX_VALUES
    size = parse_body(json.dumps({"model": "m", "prompt": prompt}).encode(), Api.COMPLETIONS).size
    assert (size.prompts, size.tokens, size.first_tokens) == (3 * MAX_VALUES, 3 * MAX_VALUES, 2)


def test_an_object_of_too_many_fields_is_refused_when_it_would_be_edited() -> None:
    data = b'{"model":"m","messages":[],"kv_transfer_params":1,' + NAMES[1:]
    with pytest.raises(BadRequest, match="too many fields"):
        parse_body(data, Api.CHAT).without_control()


def test_the_bounds_let_long_texts_pass() -> None:
    text = json.dumps({"text": 'He said: "no". ' * MAX_NAMES}).encode()
    assert not too_many_names(text)
    assert not too_many_values(text)
    assert not too_many_values(b"x" * MAX_VALUES)
    assert too_many_values(b"," * (MAX_VALUES + 1))


def test_a_fault_deep_in_a_large_body_is_refused_without_a_search_for_its_place() -> None:
    pairs = b"\\ud83d\\ude00" * 100_000
    for shift in range(12):  # the search ends in every place of a pair
        start = b'{"model":"m","x":"' + b"x" * shift + pairs
        for data in (start + b'\\ud83d"}', start):
            with pytest.raises(BadRequest, match="too early, or holds half a surrogate pair"):
                parse_body(data, Api.CHAT)


def test_a_number_without_end_is_refused() -> None:
    with pytest.raises(BadRequest, match="`max_tokens` cannot be read"):
        parse_body(b'{"model":"m","max_tokens":' + b"9" * 5_000_000 + b"}", Api.CHAT)
