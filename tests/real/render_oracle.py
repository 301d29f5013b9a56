"""Makes token ids of chats as vLLM does: `python render_oracle.py DIRECTORY < cases > ids`.

Run by the interpreter of vLLM, for its renderer; no engine is started. Needs nothing of this project. A case
is a template and a body; what vLLM refuses becomes null.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

from transformers import AutoTokenizer  # type: ignore[import-not-found] # only engines have it
from vllm.entrypoints.openai.chat_completion.protocol import (  # type: ignore[import-not-found]
    ChatCompletionRequest,
)
from vllm.renderers import chat_utils, hf  # type: ignore[import-not-found]


class _NoMedia:
    """Stands where images would be kept."""

    model_config = SimpleNamespace(enable_prompt_embeds=False)

    def create_parser(self, **_: object) -> _NoMedia:
        return self

    def mm_placeholder_storage(self) -> dict[str, Any]:
        return {}


def ids(tokenizer: Any, template: str, body: dict[str, Any]) -> list[int] | None:
    """What `render_messages` and the tokenizer do together, None for what is refused."""
    try:
        text, special = _rendered(tokenizer, template, body)
    except Exception:  # noqa: BLE001 - a template may refuse in any way
        return None
    encoded: list[int] = tokenizer.encode(text, add_special_tokens=special)
    return encoded


def _rendered(tokenizer: Any, template: str, body: dict[str, Any]) -> tuple[str, bool]:
    request = ChatCompletionRequest.model_validate({"model": "m", **body})
    params = request.build_chat_params(template, "auto")
    form = hf._detect_content_format(template, default="string")
    messages: list[Any] = []
    for message in request.messages:
        messages += chat_utils._parse_chat_message_content(message, _NoMedia(), form, False)
    chat_utils._postprocess_messages(messages)
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    kwargs = {"tools": tools, **params.chat_template_kwargs}
    kwargs = {k: v for k, v in kwargs.items() if k not in ("chat_template", "return_dict")}
    text = hf.safe_apply_chat_template(
        None, tokenizer, messages, chat_template=template, tokenize=False, **kwargs
    )
    return text, request.add_special_tokens


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    cases = json.load(sys.stdin)
    json.dump([ids(tokenizer, case["template"], case["body"]) for case in cases], sys.stdout)


if __name__ == "__main__":
    main()
