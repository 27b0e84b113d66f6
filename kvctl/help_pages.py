"""Help pages: options in groups, and no name of an option ever cut or broken, however narrow the terminal.

The usage line and the epilog are the option parser's; this lays out the text, the groups (`rich_help_panel` of an
option) and the list of commands. Costs nothing but at --help.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any

import typer.core

_NAMES = 28
"""Columns of the names at most; a longer one has a line of its own."""
_INDENT = 2

_TYPE = re.compile(r"<(?:list\[)?(\w+)(?:\]| range)>")
"""`<float range>` and `<list[str]>`: the range and that it may be repeated are in the text."""


def _wrapped(text: str, width: int, first: int, rest: int) -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=" " * first,
        subsequent_indent=" " * rest,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _write_text(text: str, formatter: Any) -> None:
    """Paragraphs; indented ones are examples, which stand together with their continuation indented further."""
    before = ""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        example = paragraph.startswith(" ")
        if not (example and before.startswith(" ")):
            formatter.write("\n")
        indent = 2 * _INDENT if example else _INDENT
        rest = indent + 2 * _INDENT if example else indent
        formatter.write(_wrapped(" ".join(paragraph.split()), formatter.width, indent, rest) + "\n")
        before = paragraph


def _write_group(title: str, rows: list[tuple[str, str]], formatter: Any) -> None:
    column = _INDENT + min(max(len(name) for name, _ in rows), _NAMES) + 2
    formatter.write(f"\n{title}:\n")
    for name, text in rows:
        lines = _wrapped(text, formatter.width, column, column)
        if len(name) <= column - _INDENT - 2:
            lines = f"{'':{_INDENT}}{name}".ljust(column) + lines[column:]
        else:
            lines = f"{'':{_INDENT}}{name}\n{lines}"
        formatter.write(lines.rstrip() + "\n")


def _write_options(parameters: Iterable[Any], ctx: Any, formatter: Any) -> None:
    groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for param in parameters:
        record = param.get_help_record(ctx)
        if record is not None:
            usual = "Arguments" if param.param_type_name == "argument" else "Options"
            group = getattr(param, "rich_help_panel", None) or usual
            groups.setdefault(group, []).append((_TYPE.sub(r"<\1>", record[0]), record[1]))
    for title, rows in groups.items():
        if rows:
            _write_group(title, rows, formatter)


class HelpCommand(typer.core.TyperCommand):
    """A command whose help shows its options in groups."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        _write_text(self.help or "", formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self.get_params(ctx), ctx, formatter)


class HelpGroup(typer.core.TyperGroup):
    """The same for a command that has subcommands, which come first."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        _write_text(self.help or "", formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        texts = {name: inspect.cleandoc(command.help or "") for name, command in self.commands.items()}
        rows = [(name, " ".join(text.split("\n\n")[0].split())) for name, text in texts.items()]
        _write_group("Commands", rows, formatter)
        _write_options(self.get_params(ctx), ctx, formatter)
