"""A model's tokenizer and chat template: from the prompt of a body to the token ids of its engine.

Separate from when and where this happens. Everything here may take milliseconds, and is called in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from router.core.json_bounds import too_many_values
from router.core.request import Api
from router.tokenizer.conversation import NotRendered, conversation, tool_schemas

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

    from router.tokenizer.template import ChatTemplate

log = logging.getLogger("pointsman.tokenizer")

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
_LIBRARIES = ("tokenizers", "jinja2")
_SPECIAL = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
_ANSWERED_ELSEWHERE = frozenset({"chat_template", "tokenize", "messages", "tools"})
_decode = msgspec.json.Decoder().decode


def why_not(directory: Path) -> str | None:
    """Why no tokenizer can be had of a directory, as a clause about "it"; None when nothing seems to stand in
    the way."""
    missing = [library for library in _LIBRARIES if find_spec(library) is None]
    if missing:
        return f"it needs {' and '.join(missing)} (the extra tokenizer)"
    if not directory.is_dir():
        return "it must be a directory with the files of a model's tokenizer"
    if not (directory / TOKENIZER_FILE).is_file():
        return f"it holds no {TOKENIZER_FILE}"
    return None


class Tokenizer:
    """Of one model.

    Raises:
        ValueError: its files cannot be read; the sentence says which.
    """

    def __init__(self, directory: Path, today: Callable[[], datetime]) -> None:
        from tokenizers import Tokenizer as FastTokenizer  # noqa: PLC0415 - optional

        self._directory = directory
        self._today = today
        path = directory / TOKENIZER_FILE
        try:
            self._fast: FastTokenizer = FastTokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
            raise ValueError(f"{path} cannot be read: {error}") from None
        self._fast.no_truncation()
        self._fast.no_padding()
        config = _config(directory)
        self._special = _special_tokens(config)
        self._templates = {name: self._compiled(text) for name, text in _templates(directory, config).items()}

    def ids(self, api: Api, fields: Mapping[str, msgspec.Raw | bytes]) -> tuple[int, ...]:
        """Token ids of the first prompt in the raw fields of a body.

        Raises:
            NotRendered: only the engine can tell.
        """
        values = {name: _value(raw) for name, raw in fields.items()}
        if api is Api.COMPLETIONS:
            return self._completion(values)
        if api is Api.CHAT:
            return self._chat(values)
        raise NotRendered(f"prompts of {api.value} are not rendered here")

    def _completion(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        prompt = values.get("prompt")
        first = prompt[0] if isinstance(prompt, list) and prompt else prompt
        if not isinstance(first, str):
            raise NotRendered("the prompt is no text")
        return self._encoded(first, special=values.get("add_special_tokens") is not False)

    def _chat(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        if values.get("chat_template") is not None or values.get("continue_final_message"):
            raise NotRendered("it is rendered in a way of its own")
        tools = tool_schemas(values.get("tools"))
        template = self._templates.get("tool_use" if tools else "default", self._templates.get("default"))
        if template is None:
            raise NotRendered("the model has no chat template")
        messages = conversation(
            values.get("messages"), parts=template.parts, knows_developer=template.knows_developer
        )
        given = {"messages": messages, "tools": tools, **_options(values)}
        try:
            text = template.render(given)
        except Exception as error:  # noqa: BLE001 - a template may raise anything, and refuses on purpose
            # What a template says may quote the prompt, and this sentence is logged.
            raise NotRendered(f"the template refuses it ({type(error).__name__})") from None
        return self._encoded(text, special=values.get("add_special_tokens") is True)

    def _encoded(self, text: str, *, special: bool) -> tuple[int, ...]:
        # Twice as fast as `encode`, which also says where in the text each token stands.
        [encoded] = self._fast.encode_batch_fast([text], add_special_tokens=special)
        return tuple(encoded.ids)

    def _compiled(self, text: str) -> ChatTemplate:
        from jinja2 import TemplateError  # noqa: PLC0415 - optional

        from router.tokenizer.template import ChatTemplate  # noqa: PLC0415

        try:
            return ChatTemplate(text, self._special, self._today)
        except TemplateError as error:
            raise ValueError(f"the chat template in {self._directory} cannot be compiled: {error}") from None

    def __repr__(self) -> str:
        return f"<Tokenizer {self._directory.name} [{', '.join(self._templates) or 'no template'}]>"


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the template is given beside messages and tools, as vLLM merges it."""
    kwargs = values.get("chat_template_kwargs")
    options = dict(kwargs) if isinstance(kwargs, dict) else {}
    effort = values.get("reasoning_effort")
    if effort is not None and "enable_thinking" not in options:
        options["enable_thinking"] = effort != "none"
    prompted = values.get("add_generation_prompt")
    options["add_generation_prompt"] = True if prompted is None else bool(prompted)
    documents = values.get("documents")
    options["documents"] = documents if documents is not None else options.get("documents")
    if effort is not None:
        options["reasoning_effort"] = effort
    return {name: value for name, value in options.items() if name not in _ANSWERED_ELSEWHERE}


def _value(raw: msgspec.Raw | bytes) -> Any:
    if too_many_values(raw):
        raise NotRendered("it is taken apart by the engine alone")
    try:
        return _decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise NotRendered("it cannot be read") from None


def _config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG_FILE
    if not path.is_file():
        return {}
    try:
        config = _decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if isinstance(config, dict):
        return config
    raise ValueError(f"{path} is no object")


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """By the names under which templates ask for them."""
    found: dict[str, str] = {}
    for name in _SPECIAL:
        told = config.get(name)
        text = told.get("content") if isinstance(told, dict) else told
        if isinstance(text, str):
            found[name] = text
    return found


def _templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name; a file of its own comes before what stands in the configuration."""
    path = directory / TEMPLATE_FILE
    if path.is_file():
        try:
            return {"default": path.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
    told = config.get("chat_template")
    if isinstance(told, str):
        return {"default": told}
    if isinstance(told, list):
        return {one["name"]: one["template"] for one in told if isinstance(one, dict) and len(one) >= 2}
    log.warning("there is no chat template in %s; chats are keyed as text", directory)
    return {}
