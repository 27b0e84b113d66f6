"""Options, environment twins, the configuration file, and how a command ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from kvctl.errors import Problem
from kvctl.options import env, load_config


def kvctl(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvctl", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
    )


def toy() -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)

    @app.command("toy")
    def toy(
        size: Annotated[int, typer.Option("--some-size", envvar=env("some-size"))] = 1,
        name: Annotated[list[str] | None, typer.Option("--name")] = None,
        sim: Annotated[int, typer.Option("--sim")] = 0,
        config: Annotated[Path | None, typer.Option("--config", is_eager=True, callback=load_config)] = None,
    ) -> None:
        typer.echo(f"{size} {','.join(name or [])}" + (f" {sim} engines" if sim else ""))

    return app


def run(*arguments: str, **environment: str) -> str:
    result = CliRunner().invoke(toy(), ["toy", *arguments], env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "kvctl.toml"
    file.write_text("some-size = 2\nname = ['a', 'b']\n")
    assert run() == "1"
    assert run("--config", str(file)) == "2 a,b"
    assert run("--config", str(file), KVCTL_SOME_SIZE="3") == "3 a,b"
    assert run("--config", str(file), "--some-size", "4", KVCTL_SOME_SIZE="3") == "4 a,b"


def test_a_table_of_the_command_and_underscores_are_understood(tmp_path: Path) -> None:
    file = tmp_path / "kvctl.yaml"
    file.write_text("some_size: 2\ntoy:\n  some-size: 5\nserve:\n  port: 1\n")
    assert run("--config", str(file)) == "5"


def test_an_option_that_is_called_like_another_command_is_an_option(tmp_path: Path) -> None:
    file = tmp_path / "kvctl.toml"
    file.write_text("sim = 4\n")
    assert run("--config", str(file)).endswith("4 engines")


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.toml", "colour = 1", "unknown key 'colour'"),
        ("a.toml", "= 1", "a.toml"),
        ("a.yaml", "- 1", "expected a table"),
        ("a.yaml", "a: [", "a.yaml"),
        ("a.toml", "toy = 1", "'toy' must be a table"),
        ("a.yaml", "1: 2", "unknown key '1'"),
        ("a.yaml", "[" * 10_000, "a.yaml"),
        ("a.toml", "some-size = " + "[" * 10_000, "a.toml"),
        ("a.toml", "some-size = [1]", "'some-size' must be one value"),
        ("a.toml", "name = [['a']]", "'name' must be a value or a list of values"),
        ("a.toml", "name = {a = 1}", "'name' must be a value or a list of values"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, name: str, text: str, named: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(Problem, match=named):
        run("--config", str(file))


def test_one_value_is_a_list_of_one_for_an_option_that_may_be_repeated(tmp_path: Path) -> None:
    file = tmp_path / "kvctl.toml"
    file.write_text("name = 'http://h:1'\n")
    assert run("--config", str(file)) == "1 http://h:1"


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "kvctl.toml"
    file.write_bytes(b"\xef\xbb\xbfsome-size = 2\n")
    assert run("--config", str(file)) == "2"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"gone\.toml"):
        run("--config", str(tmp_path / "gone.toml"))


def test_a_problem_is_one_line_on_stderr_and_exit_code_2() -> None:
    result = kvctl("serve", "--router-mode", "fastest")
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert "'fastest'" in result.stderr
    assert "round-robin" in result.stderr


def test_debug_adds_the_traceback() -> None:
    result = kvctl("--debug", "serve", "--router-mode", "fastest")
    assert result.returncode != 0
    assert "Traceback" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("serve", "--worker", "ftp://x"), "only http://"),
        (("serve", "--overlap-score-credit", "-1"), "overlap_score_credit"),
        (("serve", "--workers-file", "nowhere.txt", "--port", "0", "--admin-port", "0"), "nowhere.txt"),
        (("serve", "--tokenizer", "nowhere", "--port", "0", "--admin-port", "0"), "nowhere"),
        (("serve", "--worker", "http://h:1,id=a", "--worker", "http://h:2,id=a"), "two workers have the id 'a'"),
        (("serve", "-o", "xml"), "xml"),
        (("serve", "--active-decode-blocks-threshold", "2"), "decode_blocks"),
        (("explain",), "give one of"),
        (("explain", "x", "--prompt", "y"), "give one of"),
    ],
)
def test_a_wrong_option_is_named_with_exit_code_2(arguments: tuple[str, ...], named: str) -> None:
    result = kvctl(*arguments)
    assert result.returncode == 2, result.stderr
    assert named in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("serve", "--bogus"), "--bogus"),
        (("serve", "--port", "x"), "--port"),
        (("bench", "--requests", "0"), "--requests"),
        (("serve", "--breaker", "maybe"), "'KVCTL_BREAKER'): 'maybe' is not one of 'on', 'off'"),
        (("nothing",), "nothing"),
    ],
)
def test_a_mistake_the_parser_finds_is_one_line_too(arguments: tuple[str, ...], named: str) -> None:
    result = kvctl(*arguments)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert named in result.stderr
    assert "--help`" in result.stderr


def test_explain_without_a_router_says_so_with_exit_code_3() -> None:
    result = kvctl("explain", "d-1", "--admin", "http://127.0.0.1:9")
    assert result.returncode == 3
    assert "kvctl serve" in result.stderr


def test_the_environment_reaches_a_command() -> None:
    result = kvctl("serve", KVCTL_ROUTER_MODE="fastest")
    assert result.returncode == 2
    assert "'fastest'" in result.stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['kvctl', '--help']\n"
        "try:\n    import kvctl.main as m; m.main()\nexcept SystemExit:\n    pass\n"
        "names = {'numpy', 'numba', 'uvloop', 'httptools', 'zmq', 'tokenizers', 'httpx', 'starlette', 'matplotlib'}\n"
        "heavy = names & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "Usage" in result.stdout
    assert "heavy: []" in result.stdout


def test_every_command_has_an_example_in_its_help() -> None:
    for command in ("serve", "bench", "sim", "explain"):
        result = kvctl(command, "--help")
        assert result.returncode == 0
        assert f"kvctl {command}" in result.stdout


def test_colours_only_on_a_terminal() -> None:
    assert "\x1b[" not in kvctl("--help").stdout


def test_a_repeatable_option_is_separated_by_spaces_in_the_environment() -> None:
    gates = "ttft_ms.p50:kv<=0.9*random ttft_ms.p95:kv<=nobody"
    result = kvctl("bench", "--requests", "16", KVCTL_GATE=gates)
    assert result.returncode == 2
    assert "gate 'ttft_ms.p95:kv<=nobody'" in result.stderr
