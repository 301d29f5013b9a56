"""Outputs whose text is fixed by the request: tool calls and structured outputs.

Separate because a schema, not the text generator, decides what is said here.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engines.mock.ask import ToolCall
from engines.mock.errors import bad_request
from engines.mock.fields import Fields
from engines.model.text import encode

MAX_DEPTH = 8
"""Nesting beyond which a schema is answered with null: schemas may refer to themselves."""

Schema = Mapping[str, object]


def tool_call(fields: Fields, *, auto_allowed: bool) -> ToolCall | None:
    """Decide whether the answer is a function call: for `tool_choice` required or a named function.

    With `auto` the mock's model never calls: the answer is text.

    Raises:
        Refusal: 400 for a tool that is not there, or `auto` where it is not enabled.
    """
    tools = fields.objects("tools")
    choice = fields.raw("tool_choice")
    if choice is None:
        choice = "auto" if tools else "none"
    if choice == "none":
        return None
    if choice == "auto":
        if tools and not auto_allowed:
            raise bad_request(
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            )
        return None
    if not tools:
        raise bad_request("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if choice == "required":
        return _call(_function(tools[0]), named=False)
    return _call(_named(choice, tools, fields), named=True)


def structured_script(fields: Fields) -> tuple[int, ...] | None:
    """Return the tokens of a structured output, None for free text.

    Reads `response_format` (json_object, json_schema) and `structured_outputs` (choice, json).
    """
    wanted = fields.object("structured_outputs")
    if wanted is not None:
        choices = wanted.texts("choice")
        if choices:
            return tuple(encode(choices[0]))
        schema = wanted.raw("json")
        if isinstance(schema, Mapping):
            return tuple(encode(json_of(schema)))
    response = fields.object("response_format")
    if response is None:
        return None
    kind = response.text("type")
    if kind == "json_object":
        return tuple(encode("{}"))
    described = response.object("json_schema")
    schema = described.raw("schema") if described is not None else None
    return tuple(encode(json_of(schema))) if isinstance(schema, Mapping) else None


def json_of(schema: Schema) -> str:
    """Return JSON text that fits a schema: the same text for the same schema."""
    return msgspec.json.encode(_value(schema, MAX_DEPTH)).decode()


def _value(schema: object, depth: int) -> object:
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    options = schema.get("enum") or schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and options:
        return options[0] if "enum" in schema else _value(options[0], depth - 1)
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind == "object" or "properties" in schema:
        return _object(schema, depth)
    if kind == "array":
        return [_value(schema.get("items"), depth - 1)] if schema.get("minItems") else []
    return _SCALARS.get(kind) if isinstance(kind, str) else None


_SCALARS: Mapping[str, object] = {"string": "text", "integer": 1, "number": 1.5, "boolean": True}


def _object(schema: Schema, depth: int) -> dict[str, object]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    required = schema.get("required")
    names = required if isinstance(required, list) else list(properties)
    return {str(name): _value(properties.get(name), depth - 1) for name in names}


def _function(tool: Mapping[str, object]) -> Schema:
    """The function of a tool, in chat's nested form or the Responses API's flat one."""
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


def _named(choice: object, tools: list[dict[str, object]], fields: Fields) -> Schema:
    if not isinstance(choice, Mapping):
        raise fields.wrong("tool_choice", '"none", "auto", "required" or a named function')
    name = _function(choice).get("name")
    for tool in tools:
        function = _function(tool)
        if function.get("name") == name:
            return function
    raise bad_request(f"The tool specified in `tool_choice` does not match any of the tools: {name}.")


def _call(function: Schema, *, named: bool) -> ToolCall:
    name = function.get("name")
    if not isinstance(name, str):
        raise bad_request("every tool needs a function with a name.", "tools")
    schema = function.get("parameters") or function.get("input_schema")
    arguments = json_of(schema) if isinstance(schema, Mapping) else "{}"
    return ToolCall(name=name, arguments=arguments, named=named)
