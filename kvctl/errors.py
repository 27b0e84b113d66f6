"""What a command tells the user when it cannot go on: one line, what to do next, and an exit code."""

from __future__ import annotations

FAILED = 1
USAGE = 2
UNREACHABLE = 3
INCONCLUSIVE = 4


class Problem(Exception):
    """Ends the command with one line on stderr. `code` is one of the exit codes above."""

    def __init__(self, message: str, *, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code
