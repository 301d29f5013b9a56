"""A model's chat template, and the environment that such templates are written for.

Separate because the environment is a convention of its own (that of the `transformers` library): trimmed
blocks, loop controls, JSON without escaped HTML, exceptions raised by the template, and a tag that marks what
an assistant wrote. Templates are sandboxed: they come from whoever made the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.tokenizer.content_format import wants_parts


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what an assistant wrote, and renders what is inside."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it as such

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> str:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment(today: Callable[[], datetime]) -> Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: today().strftime(form)
    return environment


class ChatTemplate:
    """One compiled template.

    Args:
        today: the engine's date, which some templates write into the system message.

    Attributes:
        parts: it wants content as a list of parts.
        knows_developer: it has a word for the role `developer`.

    Raises:
        TemplateError: it cannot be compiled.
    """

    def __init__(self, text: str, special: Mapping[str, str], today: Callable[[], datetime]) -> None:
        environment = _environment(today)
        self._template = environment.from_string(text)
        self._special = dict(special)
        self.parts = wants_parts(environment.parse(text))
        self.knows_developer = '"developer"' in text or "'developer'" in text

    def render(self, values: Mapping[str, Any]) -> str:
        """The prompt. Raises whatever the template makes of values that do not suit it."""
        return self._template.render(**{**self._special, **values})

    def __repr__(self) -> str:
        return f"<ChatTemplate [{'parts' if self.parts else 'texts'}]>"
