"""Four bytes are a token, whatever the text; a chat costs what it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.model.generation import Answer, prompt_key
from engines.model.text import (
    AUDIO_TOKENS,
    BYTES_PER_TOKEN,
    EOS_TOKEN,
    GENERATION_PROMPT_TOKENS,
    IMAGE_TOKENS,
    MESSAGE_OVERHEAD_TOKENS,
    VOCABULARY_SIZE,
    decode,
    encode,
    media_tokens,
    render_chat,
    text_bytes,
)

any_text = st.text(alphabet=st.characters(exclude_categories=()))
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


@given(any_text)
def test_decoding_gives_back_every_text(text: str) -> None:
    assert decode(encode(text)) == text


@given(any_text)
def test_four_utf8_bytes_are_one_token(text: str) -> None:
    ids = encode(text)
    assert len(ids) == -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)
    assert all(0 <= token < VOCABULARY_SIZE for token in ids)


@given(st.text(), st.integers(0, 20))
def test_any_cut_of_the_tokens_is_a_cut_of_the_bytes(text: str, cut: int) -> None:
    ids = encode(text)
    assert text_bytes(ids[:cut]) + text_bytes(ids[cut:]) == text.encode()


def test_a_cut_inside_a_character_shows_as_a_replacement() -> None:
    assert decode(encode("abc€")[:1]) == "abc\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("token", [-1, VOCABULARY_SIZE])
def test_an_id_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        decode([token])


@given(st.lists(st.integers(0, VOCABULARY_SIZE - 1)))
def test_any_ids_of_the_vocabulary_decode_to_some_text(ids: list[int]) -> None:
    decode(ids).encode("utf-8", "surrogatepass")


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_a_chat_costs_its_contents_and_a_fixed_overhead(contents: list[str]) -> None:
    ids = render_chat([user(content) for content in contents])
    expected = sum(len(encode(content)) + MESSAGE_OVERHEAD_TOKENS for content in contents)
    assert len(ids) == expected + GENERATION_PROMPT_TOKENS


@given(st.text(max_size=30), st.integers(0, 80), st.booleans())
def test_the_next_turn_continues_the_tokens_of_this_one(prompt: str, length: int, strip: bool) -> None:
    turn = render_chat([user(prompt)])
    answer = Answer(prompt_key(turn, 0, 0))
    output = [answer.token(index) for index in range(length)]
    text = decode([*output, EOS_TOKEN])
    reply = {"role": "assistant", "content": text.strip() if strip else text}
    following = render_chat([user(prompt), reply, user("and then?")])
    held = [*turn, *output, EOS_TOKEN]
    assert following[: len(held)] == held


@pytest.mark.parametrize(
    "messages",
    [
        [user("hi")],
        [{"role": "system", "content": "hi"}],
        [user("h"), user("i")],
        [user([{"type": "text", "text": "hi"}, IMAGE])],
        [user(None)],
    ],
)
def test_different_chats_have_different_tokens(messages: list[dict[str, object]]) -> None:
    others: list[list[dict[str, object]]] = [[user("ho")], [{"role": "developer", "content": "hi"}], []]
    assert all(render_chat(messages) != render_chat(other) for other in others)


def test_parts_of_text_read_like_one_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}]
    assert render_chat([user(parts)]) == render_chat([user("one\ntwo")])


def test_tools_and_documents_come_first_and_in_their_order() -> None:
    tools = [{"type": "function", "function": {"name": "a"}}, {"type": "function", "function": {"name": "b"}}]
    plain, with_tools = render_chat([user("x")]), render_chat([user("x")], tools=tools)
    assert with_tools[-len(plain) :] == plain
    assert with_tools != render_chat([user("x")], tools=tools[::-1])
    assert with_tools != render_chat([user("x")], documents=tools)


def test_tool_calls_of_an_assistant_are_part_of_the_prompt() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    silent: dict[str, object] = {"role": "assistant", "content": None}
    calling: dict[str, object] = {**silent, "tool_calls": [call]}
    assert len(render_chat([calling])) > len(render_chat([silent]))


def test_earlier_thoughts_are_dropped() -> None:
    said: dict[str, object] = {"role": "assistant", "content": "yes"}
    thought: dict[str, object] = {**said, "reasoning_content": "hm"}
    assert render_chat([thought]) == render_chat([said])


def test_an_open_last_message_ends_with_its_content() -> None:
    messages: list[dict[str, object]] = [user("count"), {"role": "assistant", "content": "one, "}]
    ids = render_chat(messages, continue_final_message=True)
    assert decode(ids[-2:]) == "one, ".ljust(8)
    assert ids == render_chat(messages, add_generation_prompt=False)[:-2]


def test_media_count_a_fixed_number_of_tokens_whatever_their_bytes() -> None:
    large = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    assert len(media_tokens(IMAGE)) == len(media_tokens(large)) == IMAGE_TOKENS
    assert media_tokens(IMAGE) != media_tokens(large)
    assert media_tokens(IMAGE) == media_tokens(dict(IMAGE))
    clip = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    assert len(media_tokens(clip)) == AUDIO_TOKENS
    with_text = render_chat([user([{"type": "text", "text": "what is this?"}, IMAGE])])
    assert len(with_text) == IMAGE_TOKENS + len(render_chat([user("what is this?")]))


def test_special_and_media_tokens_have_no_text() -> None:
    assert decode(render_chat([user([IMAGE, {"type": "text", "text": "four"}])])) == "four"


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"content": "x"}, "role"),
        ({"role": 3, "content": "x"}, "role"),
        (user(3), "content"),
        (user({"type": "text"}), "content"),
        (user([3]), "content part"),
        (user([{"type": "hologram"}]), "hologram"),
        (user([{"type": "text", "text": 3}]), "text"),
        (user([{"type": ["image_url"]}]), "not understood"),
    ],
)
def test_messages_that_make_no_sense_are_refused(message: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        render_chat([message])
