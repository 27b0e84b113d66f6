"""The command line of `kvctl sim`: what it says about log styles and faults, and what its process writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from bench.sim.fleet import SimFleet
from kvctl.errors import Problem
from kvctl.sim import sim

app = typer.Typer()
app.command("sim")(sim)

STYLES = ("lmcache-0.3.14", "lmcache-0.4.3", "lmcache-0.5.6", "hyperpod")
STYLE = ("--log-style", "lmcache-0.5.6")


def refused(*arguments: str) -> Problem:
    """The problem that the command ends with, without starting anything."""
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, Problem), result.output
    assert result.stdout == ""
    assert result.exception.code == 2
    return result.exception


def test_an_unknown_style_lists_the_styles() -> None:
    problem = str(refused("--log-style", "lmcache-1.0"))
    assert problem.startswith("--log-style: no log style 'lmcache-1.0'")
    assert [style for style in STYLES if style not in problem] == []


def test_an_unknown_fault_lists_the_faults() -> None:
    problem = str(refused(*STYLE, "--fault", "sad"))
    assert problem.startswith("--fault: no fault 'sad'")
    assert "heartbeat-lost" in problem


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fault", "l2-down@2", "--count", "2"), "0 to 1"),
        (("--fault", "init-failure", "--fault", "l2-down"), "cannot meet in engine 0"),
    ],
)
def test_faults_that_cannot_be_are_refused(arguments: tuple[str, ...], words: str) -> None:
    assert words in str(refused(*STYLE, *arguments))


@pytest.mark.parametrize("option", [("--fault", "l2-down"), ("--log-file", "logs"), ("--log-timestamps",)])
def test_an_option_of_the_log_needs_a_style(option: tuple[str, ...]) -> None:
    problem = str(refused(*option))
    assert problem.startswith(f"{option[0]} needs --log-style")
    assert not Path("logs").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    problem = str(refused(*STYLE, "--port", "0", "--log-file", str(tmp_path / "file" / "logs")))
    assert problem.startswith("--log-file: cannot make the folder")


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "controller.log").mkdir()
    problem = str(refused(*STYLE, "--port", "0", "--log-file", str(tmp_path)))
    assert problem.startswith(f"--log-file: cannot write {tmp_path / 'controller.log'}: Is a directory")


def test_the_help_names_every_style_and_fault_with_an_example() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    words = (*STYLES, "init-failure", "l2-down", "none-hash-differs", "no-lmcache-metrics", "--fault l2-down@1")
    assert [word for word in words if word not in text] == []


def test_a_fleet_leaves_a_log_an_engine_and_the_controllers(tmp_path: Path) -> None:
    faults = ["l2-down@1", "no-lmcache-metrics@0"]
    options = {"log_style": "lmcache-0.4.3", "log_file": str(tmp_path / "logs"), "log_timestamps": True}
    with SimFleet(2, speedup=0, fault=faults, **options) as fleet:
        assert [engine.log for engine in fleet.engines] == [str(tmp_path / "logs" / f"sim-{n}.log") for n in (0, 1)]
        assert [engine.instance for engine in fleet.engines] == ["sim-0", "sim-1"]
        for engine in fleet.engines:
            httpx.post(f"{engine.url}/v1/completions", json={"prompt": list(range(300))}, trust_env=False)
        metrics = [httpx.get(f"{engine.url}/metrics", trust_env=False).text for engine in fleet.engines]
    assert ["lmcache:remote_ping_error_code" in text for text in metrics] == [False, True]
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert sorted(logs) == ["controller.log", "sim-0.log", "sim-1.log"]
    assert ["Remote connection failed in contains" in logs[f"sim-{n}.log"] for n in (0, 1)] == [False, True]
    stamp = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z ")
    assert [line for log in logs.values() for line in log.splitlines() if not stamp.match(line)] == []


def ended_log(*arguments: str) -> str:
    """The standard error of a process that was ready and then told to end."""
    command = [sys.executable, "-m", "kvctl", "sim", "--port", "0", "-o", "json", *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert json.loads(child.stdout.readline())["event"] == "ready"
    child.terminate()
    _, error = child.communicate(timeout=20)
    assert child.returncode == 0
    return error


def test_without_a_folder_one_engines_log_is_the_standard_error() -> None:
    lines = ended_log(*STYLE).splitlines()
    assert any("Health monitor initialized and started" in line for line in lines)
    assert not any(line.startswith("[pod/") or "KvawareRouter" in line for line in lines)


def test_without_a_folder_several_logs_are_told_apart() -> None:
    lines = ended_log(*STYLE, "--count", "2").splitlines()
    heads = {line.partition("] ")[0] for line in lines}
    assert heads == {"[pod/sim-0/vllm", "[pod/sim-1/vllm", "[pod/controller/router-container"}


def test_without_a_style_nothing_is_written() -> None:
    assert ended_log() == ""
