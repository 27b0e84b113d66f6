"""`kvctl keys new`: a key shown once, and an entry that `serve` takes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from router.callers.keys import read_keys_file


def kvctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvctl", "keys", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_printed_lines_are_taken_by_both_kinds_of_file(tmp_path: Path) -> None:
    lines = kvctl("new", "team-a", "--tokens-per-minute", "1000", "--allow-model", "m").stdout.splitlines()
    key, jsonl, yaml = lines[1].strip(), lines[4].strip(), lines[6]
    (tmp_path / "keys.jsonl").write_text(jsonl + "\n")
    (tmp_path / "keys.yaml").write_text(f"keys:\n{yaml}\n")
    for name in ("keys.jsonl", "keys.yaml"):
        (caller,) = read_keys_file(tmp_path / name)
        assert caller.digest == hashlib.sha256(key.encode()).digest()
        assert (caller.name, caller.tokens_per_minute, caller.models) == ("team-a", 1000, {"m"})


def test_json_holds_key_and_entry_and_nothing_else() -> None:
    done = json.loads(kvctl("new", "a", "-o", "json").stdout)
    assert set(done) == {"key", "entry"}
    assert done["key"] not in json.dumps(done["entry"])


def test_name_that_a_file_would_not_take_is_refused_in_one_line() -> None:
    done = kvctl("new", "a b")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "visible ASCII" in done.stderr
    assert done.stdout == ""


def test_date_that_is_none_is_refused() -> None:
    assert "expires must be a date" in kvctl("new", "a", "--expires", "soon").stderr
