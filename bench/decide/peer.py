"""Dynamo's selector as a child process: started, set up, asked, ended. See `dynamo_child`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from bench.decide.fleet import BLOCK, Cell, held_blocks, prompt_of
from bench.decide.timing import Microseconds

_CHILD = Path(__file__).with_name("dynamo_child.py")


class PeerError(Exception):
    """The other selector could not be started or asked; the message says why."""


class Peer:
    """One fleet of Dynamo's. A context manager: the process ends with it."""

    def __init__(self, python: Path, cell: Cell) -> None:
        try:
            self._process = subprocess.Popen(
                [str(python), str(_CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError as error:
            raise PeerError(f"{python} does not start: {error.strerror}") from error
        self._cell = cell

    def set_up(self) -> None:
        self._ask({"held": held_blocks(self._cell), "tokens": prompt_of(self._cell).tolist(), "block": BLOCK})

    def measure(self, repeat: int, *, cold: bool = False) -> Microseconds:
        """Microseconds of `repeat` selections, float64 (repeat,)."""
        times: Microseconds = np.array(self._ask({"repeat": repeat, "cold": cold})["us"])
        return times

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        told, answers = self._process.stdin, self._process.stdout
        assert told is not None
        assert answers is not None
        try:
            told.write(json.dumps(question) + "\n")
            told.flush()
        except OSError as error:
            raise PeerError("Dynamo's process has ended: is ai-dynamo-runtime installed there?") from error
        line = answers.readline()
        if not line:
            raise PeerError("Dynamo's process has ended: is ai-dynamo-runtime installed there?")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"Dynamo's selector: {answer['error']}")
        return answer

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
