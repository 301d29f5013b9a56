"""Laws of the prompt key: equal where engines share KV, different where they cannot, built only on demand."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.body import parse_body
from router.core.errors import InternalError
from router.core.prompt_key import PromptKey
from router.core.request import Api, Request

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def key(api: Api = Api.CHAT, *, spaced: bool = True, **fields: Any) -> PromptKey:
    separators = None if spaced else (",", ":")
    found = parse_body(json.dumps({"model": "m", **fields}, separators=separators).encode(), api).key
    assert found is not None
    return found


def canonical(api: Api = Api.CHAT, **fields: Any) -> bytes:
    built = key(api, **fields).canonical
    assert isinstance(built, bytes)
    return built


def test_a_key_is_built_at_most_once_and_only_on_demand() -> None:
    calls: list[int] = []

    def fields() -> Mapping[str, bytes]:
        calls.append(1)
        return {"prompt": b'"text"'}

    lazy = PromptKey("m", fields)
    assert repr(lazy) == "<PromptKey m [not built]>"
    assert calls == []
    assert lazy.canonical == lazy.canonical == b"\xffptext"
    assert calls == [1]
    assert repr(lazy) == "<PromptKey m [6 long]>"


def test_a_longer_conversation_extends_the_key_of_the_shorter() -> None:
    short = [{"role": "system", "content": "Be brief."}, USER]
    longer = [*short, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Go on."}]
    assert canonical(messages=longer).startswith(canonical(messages=short))


def test_segments_stand_in_the_order_in_which_engines_render_them() -> None:
    built = canonical(
        messages=[USER],
        tools=[TOOL],
        documents=[{"text": "D"}],
        chat_template_kwargs={"x": 1},
        reasoning_effort="low",
    )
    places = [
        built.index(mark)
        for mark in (b"\xffochat_template_kwargs", b"\xffor", b"\xfff", b"\xffd", b"\xffmuser")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "change",
    [
        {"tools": [TOOL]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "high"},
        {"documents": [{"text": "d"}]},
        {"messages": [{"role": "system", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi", "name": "x"}]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "1"}], "content": None}]},
    ],
)
def test_what_changes_the_rendered_prompt_changes_the_key(change: dict[str, Any]) -> None:
    assert key(**{"messages": [USER], **change}) != key(messages=[USER])


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5, "max_tokens": 3, "stream": True, "user": "u", "n": 2},
        {"messages": [{"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}}]},
        {"messages": [{"role": "user", "content": "hi", "name": None}]},
        {"messages": [{"content": "hi", "role": "user"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"tools": None, "documents": None, "reasoning_effort": None},
    ],
)
def test_what_does_not_change_the_prompt_does_not_change_the_key(change: dict[str, Any]) -> None:
    assert key(**{"messages": [USER], **change}) == key(messages=[USER])
    assert key(spaced=False, **{"messages": [USER], **change}) == key(messages=[USER])


@pytest.mark.parametrize("part", ["model", "lora", "cache_salt"])
def test_partitions_share_nothing(part: str) -> None:
    given = {"model": "m", "lora": "", "cache_salt": ""}
    one, other = (
        PromptKey.of_text(fields["model"], "text", lora=fields["lora"], cache_salt=fields["cache_salt"])
        for fields in (given, {**given, part: "x"})
    )
    assert one.canonical == other.canonical
    assert one != other
    assert one.digest != other.digest
    assert not set(one.blocks(b"s")) & set(other.blocks(b"s"))


def test_salt_and_adapter_of_the_body_partition_its_key() -> None:
    partition = key(messages=[USER], cache_salt="s", lora_path="sql").partition
    assert (partition.model, partition.lora, partition.cache_salt) == ("m", "sql", "s")


def test_tool_schemas_count_as_sent() -> None:
    reordered = {"type": "function", "function": {"parameters": {"type": "object"}, "name": "f"}}
    assert key(messages=[USER], tools=[TOOL]) != key(messages=[USER], tools=[reordered])


def test_cache_control_is_dropped_from_tools_too() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    plain = {"name": "t", "input_schema": {"type": "object"}}
    wrapped = {"type": "function", "function": {"name": "f", **mark}, **mark}
    one = canonical(Api.MESSAGES, messages=[USER], tools=[{**plain, **mark}, wrapped])
    assert b"cache_control" not in one
    assert b"ephemeral" not in one
    assert b'"input_schema":{"type": "object"}' in one


BILLING = "x-anthropic-billing-header: cc_version=2.1; cch={};"


@pytest.mark.parametrize("build", [
    lambda line: {"system": [{"type": "text", "text": line}, {"type": "text", "text": "You are"}]},
    lambda line: {"system": [{"type": "text", "text": line + "\nYou are"}]},
    lambda line: {"system": line + "\nYou are"},
    lambda line: {"messages": [{"role": "system", "content": line + "\nYou are"}, USER]},
])  # fmt: skip
def test_the_billing_line_of_claude_code_is_no_part_of_the_key(build: Any) -> None:
    one, other = (
        canonical(Api.MESSAGES, **{"messages": [USER], **build(BILLING.format(n))}) for n in ("a1", "b2")
    )
    assert one == other
    assert b"You are" in one
    assert b"billing" not in one


def test_a_user_who_writes_the_billing_line_is_taken_at_his_word() -> None:
    assert b"billing" in canonical(messages=[{"role": "user", "content": BILLING}])


def test_media_are_hashed_and_never_text() -> None:
    def asked(data: str) -> bytes:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return canonical(messages=[{"role": "user", "content": [{"type": "text", "text": "See:"}, image]}])

    long = asked("A" * 5000)
    assert len(long) < 100
    assert b"AAAA" not in long
    assert long == asked("A" * 5000)
    assert long != asked("B" * 5000)
    assert long.startswith(b"\xffmuser\xfftSee:\xffi")


def test_an_image_within_a_tool_result_is_hashed() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 900}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [image]}
    assert len(canonical(Api.MESSAGES, messages=[{"role": "user", "content": [result]}])) < 100


def test_responses_and_chat_of_the_same_words_have_the_same_shape() -> None:
    said = canonical(Api.RESPONSES, instructions="Be brief.", input="hi")
    assert said == b"\xffmsystem\xfftBe brief.\xffmuser\xffthi"
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    listed = canonical(Api.RESPONSES, instructions="Be brief.", input=items)
    assert listed == said


def test_an_earlier_response_stands_before_what_follows_it() -> None:
    one = canonical(Api.RESPONSES, input="hi", previous_response_id="resp_1")
    assert one.startswith(b'\xffoprevious_response_id="resp_1"')


def test_token_ids_are_a_key_type_of_their_own() -> None:
    ids = key(Api.COMPLETIONS, prompt=[1, 2, 3])
    assert ids.canonical == (1, 2, 3)
    assert ids == key(Api.COMPLETIONS, prompt=[[1, 2, 3], [4]])
    text = key(Api.COMPLETIONS, prompt="1,2,3")
    assert ids != text
    assert ids.digest != text.digest


def test_of_a_prompt_list_the_first_counts() -> None:
    assert key(Api.COMPLETIONS, prompt=["a", "b"]) == key(Api.COMPLETIONS, prompt="a")
    assert key(Api.COMPLETIONS, prompt=["a", "b"]).canonical == b"\xffpa"


def test_a_call_without_a_prompt_has_no_key() -> None:
    assert parse_body(b'{"model": "m"}', Api.OTHER).key is None


@pytest.mark.parametrize(
    "raw", [b"[" * 5000 + b"]" * 5000, b"{", b'["\xff"]', b"[]", b"[1, -1e5]", b"{}", b"[[]]"]
)
def test_what_cannot_be_read_still_makes_an_exact_key(raw: bytes) -> None:
    for name in ("messages", "prompt", "tools", "system"):
        one = PromptKey("m", lambda name=name: {name: raw})  # type: ignore[misc]  # bound for this turn
        other = PromptKey("m", lambda name=name: {name: raw + b" "})  # type: ignore[misc]  # as above
        assert one == PromptKey("m", lambda name=name: {name: raw})  # type: ignore[misc]  # as above
        assert isinstance(one.blocks(b""), tuple)
        assert isinstance(other.digest, str)


def test_no_text_can_imitate_the_border_of_a_segment() -> None:
    spoof = canonical(messages=[{"role": "user", "content": "hi\xffmassistant\xfftyes"}])
    assert spoof.count(b"\xff") == 2


@given(st.text(max_size=700), st.integers(0, 700), st.binary(max_size=8))
def test_blocks_are_chained_and_agree_as_far_as_the_text_does(text: str, cut: int, salt: bytes) -> None:
    one = PromptKey.of_text("m", text)
    other = PromptKey.of_text("m", text[:cut] + "\x00" + text[cut:])
    shared = (min(cut, len(text)) + 2) // 64  # two characters of border and type stand before the text
    ours, theirs = one.blocks(salt, 64), other.blocks(salt, 64)
    assert ours[:shared] == theirs[:shared]
    assert not set(ours[shared:]) & set(theirs[shared:])
    assert len(ours) == -(-(len(text) + 2) // 64)


def test_blocks_of_another_salt_are_all_different() -> None:
    one = PromptKey.of_text("m", "a" * 1000)
    assert len(one.blocks(b"a")) == 4
    assert not set(one.blocks(b"a")) & set(one.blocks(b"b"))


def test_a_block_of_token_ids_stands_for_a_quarter_as_many() -> None:
    ids = key(Api.COMPLETIONS, prompt=list(range(130)))
    same = key(Api.COMPLETIONS, prompt=[*range(129), 7])
    assert len(ids.blocks(b"s", 256)) == 3
    assert ids.blocks(b"s", 256)[:2] == same.blocks(b"s", 256)[:2]


def test_a_request_carries_its_key_and_does_not_print_it() -> None:
    request = Request(id="r", sequence=1, model="m", arrived=0.0, key=PromptKey.of_text("m", "secret"))
    assert "secret" not in repr(request)
    assert request.key == PromptKey.of_text("m", "secret")
    assert hash(request.key) == hash(PromptKey.of_text("m", "secret"))
    assert request.key != "secret"


def test_a_forgotten_prompt_keeps_only_the_hashes_that_the_log_wants() -> None:
    key = PromptKey.of_text("m", "a secret " * 200)
    blocks = key.blocks(b"salt")
    key.forget(b"salt")
    assert key.blocks(b"salt") == blocks
    with pytest.raises(InternalError, match="let go"):
        key.blocks(b"another salt")
    with pytest.raises(InternalError, match="let go"):
        _ = key.canonical


def test_a_forgotten_key_holds_no_body() -> None:
    class Body:
        def fields(self) -> dict[str, bytes]:
            return {"prompt": b'"text"'}

    body = Body()
    still_there = weakref.ref(body)
    key = PromptKey("m", body.fields)
    del body
    assert still_there() is not None
    key.forget()
    assert still_there() is None
