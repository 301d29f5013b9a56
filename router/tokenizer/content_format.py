"""Whether a chat template wants the content of a message as one text or as a list of parts.

Separate from rendering because it is judged once, from the template's syntax tree, as vLLM judges it: a
template that loops over the content of messages gets parts, any other one text.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

_CONTENT = "content"


def wants_parts(template: nodes.Template) -> bool:
    """Whether it loops over the content of a message."""
    messages = _message_names(template)
    in_macros: set[int] = set()
    for macro in template.find_all(nodes.Macro):
        given = _content_arguments(template, macro, messages)
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            if isinstance(loop.iter, nodes.Name) and loop.iter.name in given:
                return True
    for loop in template.find_all(nodes.For):
        if _is_content(loop.iter, messages):
            return True
        plain = isinstance(loop.iter, nodes.Name) and loop.iter.name == _CONTENT
        if plain and id(loop) not in in_macros:
            return True
    return False


def _message_names(template: nodes.Template) -> set[str]:
    """Variables that stand for one message: targets of loops over the messages, under any name."""
    lists = {"messages"}
    while True:
        more = {name for name, node in _assignments(template) if _names(node, lists)} - lists
        if not more:
            break
        lists |= more
    return {
        loop.target.name
        for loop in template.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and _names(loop.iter, lists)
    }


def _assignments(template: nodes.Template) -> Iterator[tuple[str, nodes.Node]]:
    for assign in template.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name):
            yield assign.target.name, assign.node


def _content_arguments(template: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    """Parameters of a macro that are given the content of a message somewhere."""
    names = [argument.name for argument in macro.args]
    given: set[str] = set()
    for call in template.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        given.update(
            name for name, value in zip(names, call.args, strict=False) if _is_content(value, messages)
        )
        given.update(pair.key for pair in call.kwargs if _is_content(pair.value, messages))
    return given


def _bare(node: nodes.Node | None) -> nodes.Node | None:
    """Without the filters, tests and slices around it."""
    while True:
        sliced = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        if not (isinstance(node, nodes.Filter | nodes.Test) or sliced):
            return node
        node = node.node  # type: ignore[union-attr]  # all three have one


def _names(node: nodes.Node | None, names: set[str]) -> bool:
    bare = _bare(node)
    return isinstance(bare, nodes.Name) and bare.ctx == "load" and bare.name in names


def _is_content(node: nodes.Node | None, messages: set[str]) -> bool:
    bare = _bare(node)
    if isinstance(bare, nodes.Getattr):
        return bare.attr == _CONTENT and _names(bare.node, messages)
    if isinstance(bare, nodes.Getitem):
        constant = isinstance(bare.arg, nodes.Const) and bare.arg.value == _CONTENT
        return constant and _names(bare.node, messages)
    return False
