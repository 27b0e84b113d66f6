"""The one way to the outside: every live answer passes the tape, so that a run can be recorded and replayed.

Live: asks. Recording: asks, and keeps what came, redacted. Replaying: answers from a recording; what it does not hold
is `Reason.NO_DATA`. What a caller gets from a recording run is what was kept, so a replay sees exactly the same.
Thread-safe; a fetch runs in the thread of its caller. The layout on disk is in checks/sources/recording.py.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from checks.model import Reason

if TYPE_CHECKING:
    from checks.sources.recording import Recording, Writer

Kind = Literal["kubernetes", "log", "page", "prometheus", "probe"]
"""kubernetes: JSON of an object or a list · log: container text · page: body of an HTTP GET · prometheus: JSON of a
query · probe: JSON of a probe step."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a source said, or why it did not."""

    status: int = 0
    """HTTP status; 0 where none came. 200 for files."""
    text: str = ""
    error: Reason | None = None
    message: str = ""
    """One line for the user where `error` is set."""
    at: float = 0.0
    """Epoch seconds, when it arrived."""

    @property
    def ok(self) -> bool:
        return self.error is None and 200 <= self.status < 300


class Tape:
    """`Tape.live()`, `Tape.record(directory, …)` or `Tape.replay(directory)`.

    A recording appears under its name only when the `with` block ends well; otherwise nothing is left.
    """

    def __init__(self, *, writer: Writer | None = None, recording: Recording | None = None) -> None:
        self._writer = writer
        self._recording = recording
        self._asked: Counter[tuple[str, str]] = Counter()
        self._ended: tuple[float, str] | None = None
        self._lock = threading.Lock()

    @classmethod
    def live(cls) -> Self:
        return cls()

    @classmethod
    def record(cls, directory: Path, *, options: Mapping[str, Any], version: str) -> Self:
        """Keeps every answer under `directory`, which must be absent or empty (else RecordingError).

        `options` (JSON) is the request, needed to replay it; `version` is kvctl's.
        """
        from checks.sources.recording import Writer

        return cls(writer=Writer.open(directory, options=options, version=version))

    @classmethod
    def replay(cls, directory: Path) -> Self:
        """Raises RecordingError, naming file and line, where the recording cannot be read."""
        from checks.sources.recording import Recording

        return cls(recording=Recording.read(directory))

    @property
    def replaying(self) -> bool:
        return self._recording is not None

    @property
    def recording(self) -> bool:
        return self._writer is not None

    @property
    def options(self) -> Mapping[str, Any]:
        """What the recorded run was asked for; empty unless replaying."""
        return {} if self._recording is None else self._recording.options

    def ask(self, kind: Kind, key: str, fetch: Callable[[], Answer]) -> Answer:
        """The answer to one question. `fetch` is not called in a replay; it must not raise for what a source may do.

        Asked again, a live run fetches again; a replay gives the recorded answers in order, then the last one again.
        """
        with self._lock:
            self._asked[kind, key] += 1
            turn = self._asked[kind, key]
        if self._recording is not None:
            return self._recording.answer(kind, key, turn)
        answer = fetch()
        if not answer.at:
            answer = replace(answer, at=time.time())
        return answer if self._writer is None else self._writer.keep(kind, key, turn, answer)

    def ended(self, now: float, cut_short: str) -> tuple[float, str]:
        """The clock at the end of the run and why it ended early; of a replay, what the recording says of its run."""
        if self._recording is not None:
            return self._recording.now, self._recording.cut_short
        self._ended = now, cut_short
        return self._ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None:
            return
        if error is None:
            self._writer.finish(*(self._ended or (time.time(), "")))
        else:
            self._writer.abandon()
