"""Every help page as a terminal of 80 columns shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from kvctl import main


@cache
def whole() -> Any:
    """The command with all commands below it."""
    main._register()
    return typer.main.get_command(main.app)


@cache
def page(command: str) -> str:
    whole()
    done = CliRunner().invoke(main.app, [*command.split(), "--help"], prog_name="kvctl", env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    """Every command by its words, as the parser has it."""

    def walk(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        yield words, command
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, f"{words} {name}".strip())

    return dict(walk(whole(), ""))


def test_every_option_and_its_environment_twin_stand_there_whole(commands: dict[str, Any]) -> None:
    missing = {}
    for words, command in commands.items():
        options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
        wanted = {name for param in options for name in (*param.opts, *param.secondary_opts)}
        wanted |= {param.envvar for param in options if param.envvar}
        missing[words] = wanted - set(re.split(r"[\s,;\]]+", page(words)))
    assert len(missing) > 10
    assert {words: names for words, names in missing.items() if names} == {}


def test_only_a_word_that_is_longer_passes_80_columns(commands: dict[str, Any]) -> None:
    lines = [line for words in commands for line in page(words).splitlines()]
    assert [line for line in lines if len(line) > 80 and len(line.split()) > 2] == []


def test_every_page_has_an_example(commands: dict[str, Any]) -> None:
    after = {words: page(words).partition("Example")[2] for words in commands}
    assert [words for words, text in after.items() if f"kvctl {words}" not in text] == []


def test_options_stand_in_their_groups() -> None:
    headings = [line for line in page("serve").splitlines() if re.fullmatch(r"\S.*:", line)]
    assert {"Options:", "Routing:", "Cost of kv mode:", "Failures of engines:"} <= set(headings)


def test_the_list_of_commands_has_the_whole_first_sentence() -> None:
    assert "hottest prefixes, sessions, copies." in " ".join(page("bench workload").split())
