"""report.html: placeholder."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class MissingLibrary(Exception):
    """matplotlib is not installed."""


def html(data: dict[str, Any], requests: Path) -> str:
    raise MissingLibrary("not yet")
