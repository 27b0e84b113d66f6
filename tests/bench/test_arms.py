"""Arms: how they are named, what is refused, and that a child that fails says why and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import arms
from bench.arm_spec import ArmSpelling
from bench.arms import Arm, ArmError, Child, Fleet, names_of, running_arms, started_routers
from bench.client.connection import Target

READY = {"event": "ready", "url": "http://127.0.0.1:7", "admin": "http://127.0.0.1:8", "mode": "kv", "workers": 1}


class Python(Child):
    """A child that runs a line of Python in place of kvctl."""


def child(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> Child:
    real = subprocess.Popen

    def run(command: list[str], **options: object) -> object:
        return real([sys.executable, "-c", code], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(arms.subprocess, "Popen", run)
    return Child("kv", ["serve"], folder / "log")


def test_arms_are_named_by_mode_and_numbered_when_a_mode_repeats() -> None:
    assert names_of(["kv", "random", "kv", "kv"]) == ["kv", "random", "kv#2", "kv#3"]


def test_running_routers_are_named_by_the_user() -> None:
    assert running_arms(["a=http://127.0.0.1:1/", "b=http://h:2/x"]) == [
        Arm("a", "url", "http://127.0.0.1:1"),
        Arm("b", "url", "http://h:2/x"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://127.0.0.1:1", "NAME=http"),
        ("a", "NAME=http"),
        ("a=https://h:1", "not an http:// URL"),
        ("a=h:1", "not an http:// URL"),
    ],
)
def test_a_url_that_is_not_understood_is_refused(text: str, said: str) -> None:
    with pytest.raises(ArmSpelling, match=said):
        running_arms([text])


def test_two_arms_of_one_name_are_refused() -> None:
    with pytest.raises(ArmSpelling, match="two arms are named 'a'"):
        running_arms(["a=http://h:1", "a=http://h:2"])


def test_targets_keep_host_port_and_prefix() -> None:
    assert Target.parse("http://h:81/x/") == Target("h", 81, "/x")
    assert Target.parse("http://h") == Target("h", 80)


def test_the_ready_line_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = child(
        monkeypatch, tmp_path, f"import time; print({json.dumps(json.dumps(READY))}, flush=True); time.sleep(60)"
    )
    assert one.ready() == READY
    assert one.alive
    one.stop()
    assert not one.alive


def test_a_child_that_ends_is_an_error_with_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = child(monkeypatch, tmp_path, "import sys; sys.exit('port 7 is in use')")
    with pytest.raises(ArmError, match="exit code 1; it said: port 7 is in use"):
        one.ready()
    one.stop()


def test_a_child_that_prints_something_else_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = child(monkeypatch, tmp_path, "print('hello', flush=True); import time; time.sleep(60)")
    with pytest.raises(ArmError, match="where its ready line was due"):
        one.ready()
    one.stop()


def test_a_child_that_is_never_ready_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(arms, "READY_PATIENCE", 0.3)
    one = child(monkeypatch, tmp_path, "import time; time.sleep(60)")
    with pytest.raises(ArmError, match=r"not ready after 0.3 s; it said nothing"):
        one.ready()
    one.stop()


def test_a_child_that_ignores_the_request_to_end_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(arms, "STOP_PATIENCE", 0.3)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('{}', flush=True); time.sleep(60)"
    one = child(monkeypatch, tmp_path, code)
    with pytest.raises(ArmError):
        one.ready()
    one.stop()
    assert not one.alive


def test_our_environment_twins_do_not_reach_the_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVCTL_ROUTER_MODE", "random")
    code = (
        "import json, os, time; "
        "print(json.dumps({'event': 'ready', 'env': [n for n in os.environ if n.startswith('KVCTL_')]}), flush=True); "
        "time.sleep(60)"
    )
    one = child(monkeypatch, tmp_path, code)
    assert one.ready()["env"] == []
    one.stop()


def test_when_one_router_fails_the_others_are_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Child] = []

    class Scripted(Child):
        def __init__(self, name: str, arguments: object, log: Path) -> None:
            code = "import time; time.sleep(60)" if name == "kv" else "raise SystemExit('no such mode')"
            real = subprocess.Popen
            monkeypatch.setattr(arms.subprocess, "Popen", lambda command, **o: real([sys.executable, "-c", code], **o))
            super().__init__(name, ["serve"], log)
            monkeypatch.setattr(arms.subprocess, "Popen", real)
            started.append(self)

        def ready(self) -> dict[str, object]:
            return dict(READY) if self.name == "kv" else super().ready()

    monkeypatch.setattr(arms, "Child", Scripted)
    fleet = Fleet("", ["http://127.0.0.1:1,id=w0"])
    with pytest.raises(ArmError, match="router random ended"), started_routers(["kv", "random"], fleet, tmp_path):
        pass
    assert [one.alive for one in started] == [False, False]
    assert (tmp_path / "router-kv.log").exists()
