"""Does a chat template take a message's content as a string or as a list of parts?

Pure; runs once a template. The rule is vLLM's: a template that iterates over a message's content wants parts. A
message is the variable of a loop over `messages` (or over a variable assigned from it); its content may be named
directly, be called `content`, or be passed to a macro.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from router.tokens.conversation import ContentFormat


class _Unclear(Exception):
    """The template does something with `messages` that the rule does not cover."""


def content_format(template: nodes.Template) -> ContentFormat:
    """The format that `template`, a parsed one, wants. Where the rule does not cover it: a string."""
    try:
        holders = set(_message_variables(template))
    except _Unclear:
        return ContentFormat.STRING
    in_macros = {id(loop) for macro in template.find_all(nodes.Macro) for loop in macro.find_all(nodes.For)}
    for loop in template.find_all(nodes.For):
        if any(_reads(loop.iter, holder, "content") for holder in holders):
            return ContentFormat.OPENAI
        if id(loop) not in in_macros and isinstance(loop.iter, nodes.Name) and loop.iter.name == "content":
            return ContentFormat.OPENAI
    for macro in template.find_all(nodes.Macro):
        names = _parameters_with_content(template, macro, holders)
        if any(isinstance(loop.iter, nodes.Name) and loop.iter.name in names for loop in macro.find_all(nodes.For)):
            return ContentFormat.OPENAI
    return ContentFormat.STRING


def _message_variables(template: nodes.Template) -> Iterator[str]:
    """Names of loop variables that are messages."""
    lists = ["messages"]
    for known in lists:
        for assign in template.find_all(nodes.Assign):
            if _reads(assign.node, known):
                if not isinstance(assign.target, nodes.Name):
                    raise _Unclear
                if assign.target.name not in lists:
                    lists.append(assign.target.name)
    for loop in template.find_all(nodes.For):
        if any(_reads(loop.iter, name) for name in lists):
            if not isinstance(loop.target, nodes.Name):
                raise _Unclear
            yield loop.target.name


def _parameters_with_content(template: nodes.Template, macro: nodes.Macro, holders: set[str]) -> set[str]:
    """Names of the macro's parameters to which some call passes a message's content."""
    names: set[str] = set()
    for call in template.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        pairs = [(parameter.name, value) for parameter, value in zip(macro.args, call.args, strict=False)]
        pairs += [(keyword.key, keyword.value) for keyword in call.kwargs]
        names |= {name for name, value in pairs if any(_reads(value, holder, "content") for holder in holders)}
    return names & {parameter.name for parameter in macro.args}


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether `node` is the variable `name` (or its item `key`), perhaps filtered, tested or sliced."""
    while True:
        if isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        elif key is None:
            return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
        elif isinstance(node, nodes.Getitem):
            return isinstance(node.arg, nodes.Const) and node.arg.value == key and _reads_name(node.node, name)
        elif isinstance(node, nodes.Getattr):
            return node.attr == key and _reads_name(node.node, name)
        else:
            return False


def _reads_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
