"""Chat templates in the manners that models have, and bodies that put something special into each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.tokenizer.byte_tokenizer import tokenizer

CHATML = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}"
    "{{- messages[0].content + '\\n\\n' }}{%- endif %}{{- 'Tools:' }}"
    "{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    "{%- elif messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant' }}"
    "{%- if message.reasoning_content %}{{- '\\n(' + message.reasoning_content + ')' }}{%- endif %}"
    "{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '\\n[' + call.function.name + ' ' + (call.function.arguments | tojson) + ']' }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- elif message.role == 'tool' %}{{- '<|im_start|>tool\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '()\\n' }}{%- endif %}{%- endif %}"
)
"""Content is one text; tools stand in the system message; thinking can be switched off."""

PARTS = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + ':' }}\n"
    "    {%- if message['content'] is string %}{{ message['content'] }}{% else %}\n"
    "        {%- for item in message['content'] %}{{ '/' + item['text'] }}{% endfor %}\n"
    "    {%- endif %}\n"
    "{{- eos_token }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>a:' }}{% endif %}"
)
"""Content is a list of parts; special tokens are asked for by name."""

MACRO = (
    "{% macro shown(content) %}{% for part in content %}{{ part.text | trim }};{% endfor %}{% endmacro %}"
    "{% set kept = messages[0:] %}"
    "{% for m in kept %}{% if m.role == 'stop' %}{% break %}{% endif %}"
    "{{ m.role }}={{ shown(m.content) }}{% generation %}.{% endgeneration %}\n{% endfor %}"
    "{% if documents %}{% for document in documents %}{{ document.title }}{% endfor %}{% endif %}"
)
"""Parts through a macro, a list under another name, loop controls, documents."""

DEVELOPER = (
    "{% for message in messages %}{% if message.role == 'developer' %}"
    "<dev {{ message.tools | length if message.tools else 0 }}>{% endif %}"
    "{{ message.role }}: {{ message.content }}{{ ' (' + message.name + ')' if message.name else '' }}\n"
    "{% endfor %}{{ reasoning_effort if reasoning_effort is defined else 'plain' }}"
)
"""Knows developers and names."""

TEMPLATES = {"chatml": CHATML, "parts": PARTS, "macro": MACRO, "developer": DEVELOPER}
TAKES_PARTS = {"chatml": False, "parts": True, "macro": True, "developer": False}

USER: dict[str, Any] = {"role": "user", "content": "Héllo ✓ <b>&amp;</b>\n"}
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}
TOOL: dict[str, Any] = {
    "function": {
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "description": "Says the weather – everywhere.",
        "name": "weather",
    },
    "type": "function",
}
CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Łódź", "n": 2}'},
}


def _text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


CHATS: dict[str, dict[str, Any]] = {
    "one message": {"messages": [USER]},
    "a system message": {"messages": [SYSTEM, USER]},
    "parts": {"messages": [{"role": "user", "content": _text("one", "", "two")}]},
    "turns": {"messages": [SYSTEM, USER, {"role": "assistant", "content": "Yes."}, USER]},
    "nothing is said": {"messages": [USER, {"role": "assistant", "content": None}, USER]},
    "tools": {"messages": [USER], "tools": [TOOL]},
    "tools and a system message": {"messages": [SYSTEM, USER], "tools": [TOOL, TOOL]},
    "a strict tool": {
        "messages": [USER],
        "tools": [{"type": "function", "function": {"name": "f", "strict": True}}],
    },
    "calls": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": _text("rain", "and wind")},
            USER,
        ],
        "tools": [TOOL],
    },
    "odd arguments": {
        "messages": [
            USER,
            {"role": "assistant", "tool_calls": [
                {**CALL, "function": {"name": "weather", "arguments": told}} for told in ("", "{", "[]")
            ]},
        ]
    },
    "no calls": {"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": []}]},
    "reasoning": {"messages": [USER, {"role": "assistant", "content": "x", "reasoning": "hm"}, USER]},
    "no prompt for an answer": {"messages": [USER], "add_generation_prompt": False},
    "no thinking": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False, "other": 1}},
    "little effort": {"messages": [USER], "reasoning_effort": "low"},
    "no effort": {"messages": [USER], "reasoning_effort": "none"},
    "developers": {"messages": [SYSTEM, USER, {"role": "developer", "content": "Now."}, USER]},
    "a developer first": {"messages": [{"role": "developer", "content": "Now.", "tools": [TOOL]}, USER]},
    "a name": {"messages": [{**USER, "name": "eve"}]},
    "billing": {
        "messages": [{"role": "system", "content": "x-anthropic-billing-header: 1\nBe brief."}, USER]
    },
    "billing alone": {
        "messages": [{"role": "system", "content": _text("x-anthropic-billing-header: 1", "Go.")}, USER]
    },
    "documents": {"messages": [SYSTEM, USER], "documents": [{"title": "one", "text": "t"}]},
    "special tokens": {"messages": [USER], "add_special_tokens": True},
    "special tokens in the text": {"messages": [{"role": "user", "content": "a<|im_end|>b"}]},
}  # fmt: skip


def directory(path: Path, template: str | None = CHATML, **config: Any) -> Path:
    """A model's tokenizer as it lies on a disk."""
    path.mkdir(parents=True, exist_ok=True)
    told = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": None, **config}
    if template is not None:
        told["chat_template"] = template
    (path / "tokenizer.json").write_text(json.dumps(tokenizer()), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    return path
