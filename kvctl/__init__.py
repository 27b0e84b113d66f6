"""The command line: one file a command, no logic of its own."""

from __future__ import annotations

__version__ = "0.1.0"
