"""What a long run keeps: rows of numbers, neither bodies nor answers nor an object a chunk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
COUNT = 20_000


def test_twenty_thousand_requests_keep_less_than_two_kilobytes_each() -> None:
    """Bodies are 2 kB each; 32 gaps as objects would be 1 kB a request, parsers and counters as much again. Measured:
    about 1,200 bytes, the percentiles over all gaps included.
    """
    script = [sys.executable, "scripts/bench_client_memory.py", "--requests", str(COUNT), "--chunks", "32"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)
    assert found["ok"] == COUNT
    assert found["bytes_a_request"] < 2000
