"""Laws of local tokenizers: token ids as vLLM makes them, or none at all."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment

from router.core.request import Api
from router.tokenizer.content_format import wants_parts
from router.tokenizer.conversation import NotRendered
from router.tokenizer.tokenizer import Tokenizer, why_not
from tests.tokenizer.byte_tokenizer import BEGIN
from tests.tokenizer.prompts import CALL, CHATML, CHATS, SYSTEM, TAKES_PARTS, TEMPLATES, TOOL, USER, directory

DATE = datetime(2026, 11, 30, tzinfo=UTC)


def made(path: Path, template: str | None = CHATML, **config: Any) -> Tokenizer:
    return Tokenizer(directory(path, template, **config), lambda: DATE)


def raw(body: dict[str, Any]) -> dict[str, bytes]:
    return {name: json.dumps(value).encode() for name, value in body.items()}


def text(tokenizer: Tokenizer, body: dict[str, Any], api: Api = Api.CHAT) -> str:
    """What the ids stand for."""
    ids = tokenizer.ids(api, raw(body))
    return tokenizer._fast.decode(list(ids), skip_special_tokens=False)


# --- chats ------------------------------------------------------------------------------------------------


def test_a_chat_is_rendered_and_encoded_without_special_tokens_of_its_own(tmp_path: Path) -> None:
    tokenizer = made(tmp_path)
    assert text(tokenizer, {"messages": [SYSTEM, USER]}) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHéllo ✓ <b>&amp;</b>\n<|im_end|>\n<|im_start|>assistant\n"
    )
    begin = tokenizer.ids(Api.CHAT, raw({"messages": [USER], "add_special_tokens": True}))[0]
    assert begin == BEGIN


def test_a_longer_prompt_is_not_cut_at_the_length_in_the_file(tmp_path: Path) -> None:
    assert len(made(tmp_path).ids(Api.COMPLETIONS, raw({"prompt": "xyz" * 100}))) == 301


def test_tools_stand_in_the_order_of_vllm_and_arguments_are_objects(tmp_path: Path) -> None:
    body = {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}], "tools": [TOOL]}
    shown = text(made(tmp_path), body)
    assert (
        '{"type": "function", "function": {"name": "weather", "description": "Says the weather – ev' in shown
    )
    assert '[weather {"city": "Łódź", "n": 2}]' in shown


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, "assistant\n()\n"),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, "assistant\n"),
        ({"reasoning_effort": "none"}, "assistant\n()\n"),
        ({"reasoning_effort": "high"}, "assistant\n"),
        ({"add_generation_prompt": False}, "<|im_end|>\n"),
        ({"chat_template_kwargs": {"messages": [], "chat_template": "x", "tools": 1}}, "assistant\n"),
    ],
)
def test_the_clients_options_reach_the_template(tmp_path: Path, body: dict[str, Any], end: str) -> None:
    assert text(made(tmp_path), {"messages": [USER], **body}).endswith(end)


def test_a_template_may_ask_for_the_date(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, "{{ strftime_now('%d %b %Y') }}")
    assert text(tokenizer, {"messages": [USER]}) == "30 Nov 2026"


def test_special_tokens_are_known_by_their_names(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}", eos_token={"content": "é"})
    assert text(tokenizer, {"messages": [USER]}) == "<|endoftext|>|é|"


def test_a_template_in_a_file_of_its_own_comes_first(tmp_path: Path) -> None:
    path = directory(tmp_path)
    (path / "chat_template.jinja").write_text("file")
    assert text(Tokenizer(path, lambda: DATE), {"messages": [USER]}) == "file"


def test_a_model_may_have_another_template_for_tools(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    tokenizer = made(tmp_path, None, chat_template=templates)
    assert text(tokenizer, {"messages": [USER]}) == "plain"
    assert text(tokenizer, {"messages": [USER], "tools": [TOOL]}) == "tools"


@pytest.mark.parametrize("name", TEMPLATES)
def test_how_a_template_wants_content_is_read_from_its_loops(name: str) -> None:
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    source = TEMPLATES[name].replace("{% generation %}", "").replace("{% endgeneration %}", "")
    assert wants_parts(environment.parse(source)) is TAKES_PARTS[name]


@pytest.mark.parametrize(
    ("loop", "parts"),
    [
        ("{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for c in m['content'][1:] | list %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}",
         True),
        ("{% set a = messages %}{% set b = a %}"
         "{% for m in b %}{% for c in m.content %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}", False),
        ("{% for m in messages %}{% for c in m.get('content') %}{% endfor %}{% endfor %}", False),
        ("{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}"
         "{% for m in messages %}{{ f(x=m.content) }}{% endfor %}", True),
        ("{% macro f(content) %}{% for c in content %}{% endfor %}{% endmacro %}{{ f(tools) }}", False),
        ("{% set messages = messages %}{{ messages[0].content }}", False),
    ],
)  # fmt: skip
def test_only_loops_over_the_content_of_messages_count(loop: str, parts: bool) -> None:
    assert wants_parts(Environment().parse(loop)) is parts


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_chat_of_the_table_is_rendered_by_every_template(tmp_path: Path, name: str) -> None:
    tokenizer = made(tmp_path, TEMPLATES[name])
    assert all(tokenizer.ids(Api.CHAT, raw(body)) is not None for body in CHATS.values())


# --- completions ------------------------------------------------------------------------------------------


def test_a_completion_begins_as_the_tokenizer_says(tmp_path: Path) -> None:
    tokenizer = made(tmp_path)
    assert text(tokenizer, {"prompt": "the end"}, Api.COMPLETIONS) == "<|endoftext|>the end"
    assert text(tokenizer, {"prompt": ["one", "two"]}, Api.COMPLETIONS) == "<|endoftext|>one"
    plain = {"prompt": "the end", "add_special_tokens": False}
    assert text(tokenizer, plain, Api.COMPLETIONS) == "the end"


# --- what only an engine can tell -------------------------------------------------------------------------


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.CHAT, {"messages": [IMAGE]}),
        (Api.CHAT, {"messages": [USER], "chat_template": "x"}),
        (Api.CHAT, {"messages": [USER], "continue_final_message": True}),
        (Api.CHAT, {"messages": "hello"}),
        (Api.CHAT, {"messages": [{"content": "who?"}]}),
        (Api.CHAT, {"messages": [{"role": "user", "content": 5}]}),
        (Api.CHAT, {"messages": ["hello"]}),
        (Api.CHAT, {"messages": [USER], "tools": {}}),
        (Api.CHAT, {"messages": [USER], "tools": [{"type": "web_search"}]}),
        (Api.CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]}),
        (Api.CHAT, {"messages": [{"role": "assistant", "tool_calls": "all"}]}),
        (Api.CHAT, {}),
        (Api.COMPLETIONS, {"prompt": [[1, 2]]}),
        (Api.COMPLETIONS, {"prompt": None}),
        (Api.COMPLETIONS, {"prompt": []}),
        (Api.MESSAGES, {"messages": [USER]}),
        (Api.RESPONSES, {"input": "x"}),
    ],
)  # fmt: skip
def test_what_an_engine_renders_otherwise_has_no_tokens(
    tmp_path: Path, api: Api, body: dict[str, Any]
) -> None:
    with pytest.raises(NotRendered):
        made(tmp_path).ids(api, raw(body))


def test_a_template_that_quotes_the_prompt_when_it_refuses_is_not_quoted(tmp_path: Path) -> None:
    """What is said of a refusal is logged."""
    tokenizer = made(tmp_path, "{{ raise_exception('cannot take ' + messages[0].content) }}")
    with pytest.raises(NotRendered) as refused:
        tokenizer.ids(Api.CHAT, raw({"messages": [{"role": "user", "content": "a secret"}]}))
    assert str(refused.value) == "the template refuses it (TemplateError)"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[9].content }}",
        "{{ ''.__class__.__mro__ }}{{ 1 / 0 }}",
        None,
    ],
)
def test_a_template_that_refuses_costs_nothing_but_the_tokens(tmp_path: Path, template: str | None) -> None:
    with pytest.raises(NotRendered):
        made(tmp_path, template).ids(Api.CHAT, raw({"messages": [USER]}))


def test_json_that_cannot_be_read_or_is_too_much_is_left_to_the_engine(tmp_path: Path) -> None:
    tokenizer = made(tmp_path)
    for broken in (b"[", b"[" + b"0," * 250_000 + b"0]", b"[" * 10_000):
        with pytest.raises(NotRendered):
            tokenizer.ids(Api.CHAT, {"messages": broken})


# --- files ------------------------------------------------------------------------------------------------


def test_what_is_missing_is_said_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not(tmp_path / "none") == "it must be a directory with the files of a model's tokenizer"
    assert why_not(tmp_path) == "it holds no tokenizer.json"
    assert why_not(directory(tmp_path)) is None
    monkeypatch.setattr("router.tokenizer.tokenizer.find_spec", lambda name: None)
    assert why_not(tmp_path) == "it needs tokenizers and jinja2 (the extra tokenizer)"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", "{", "tokenizer.json cannot be read"),
        ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read"),
        ("tokenizer_config.json", "[]", "is no object"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "cannot be compiled"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, file: str, content: str, words: str) -> None:
    (directory(tmp_path) / file).write_text(content)
    with pytest.raises(ValueError, match=words):
        Tokenizer(tmp_path, lambda: DATE)


def test_without_a_configuration_there_are_completions(tmp_path: Path) -> None:
    (directory(tmp_path) / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer(tmp_path, lambda: DATE)
    assert tokenizer.ids(Api.COMPLETIONS, raw({"prompt": "x"})) == (BEGIN, ord("x"))
    assert "no template" in repr(tokenizer)
