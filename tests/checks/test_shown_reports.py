"""Reports that the documents show: each block `$ kvctl validate --replay …` holds what the command really prints.

`KVCTL_WRITE_REPORTS=1` writes the blocks instead.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```\n\$ (kvctl validate --replay [^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = [
    path.relative_to(ROOT)
    for path in (ROOT / "README.md", ROOT / "docs" / "validate.md")
    if BLOCK.search(path.read_text())
]


def printed(command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVCTL_")}
    arguments = [sys.executable, "-m", *shlex.split(command)]
    shown = {"COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment | shown)
    assert not done.stderr, done.stderr
    return done.stdout


def test_there_are_such_reports() -> None:
    assert Path("docs/validate.md") in DOCUMENTS


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_the_reports_of(document: Path) -> None:
    text = (ROOT / document).read_text()
    real = BLOCK.sub(lambda match: f"```\n$ {match[1]}\n{printed(match[1])}```", text)
    if os.environ.get("KVCTL_WRITE_REPORTS") == "1":
        (ROOT / document).write_text(real)
        return
    assert text == real
