"""Fixture: `kvctl validate` run in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvctl.main import app, main


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def kvctl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`kvctl validate ARGUMENTS` in this process; keywords are environment variables."""

    def run(*arguments: str, **environment: str) -> Done:
        with monkeypatch.context() as patch:
            for name in list(os.environ):
                if name.startswith("KVCTL_") or name == "KUBECONFIG":
                    patch.delenv(name)
            for name, value in ({"COLUMNS": "100"} | environment).items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["kvctl", "validate", *arguments])
            patch.setattr(app, "registered_commands", [])
            with pytest.raises(SystemExit) as ended:
                main()
        out, err = capsys.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    return run
