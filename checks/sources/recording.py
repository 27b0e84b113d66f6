"""A recording on disk: written by a run with `--record DIR`, or by hand.

    DIR/manifest.json   {"schema_version": 1, "kvctl": "0.1.0", "now": 1785578700.0, "redaction": "…", "options": {…}}
    DIR/index.jsonl     {"kind": "kubernetes", "key": "prod/pods", "status": 200, "file": "kubernetes/prod.pods.json"}
                        {"kind": "page", "key": "prod/w-0:8000/metrics", "error": "timeout", "message": "…"}
    DIR/kubernetes/prod.pods.json, DIR/logs/prod.w-0.vllm.head.log, DIR/pages/…, DIR/prometheus/…, DIR/probe/…

One line of the index is one answer. `status` is 200 unless said, `at` (epoch seconds) is `now`.
The same kind and key may stand several times: answers in order. Text is cleaned and redacted before it is written.
Writes only inside DIR, by way of a temporary neighbour that is renamed at the end; one answer is in memory at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec

from checks.model import Reason
from checks.sources.keep import kept, without_secrets
from checks.sources.tape import Answer, Kind

SCHEMA_VERSION = 1
REDACTION = "passwords and signatures in URLs, bearer tokens, API keys, prompts, values of names that tell a secret"
ANSWER_BYTES = 64 << 20
"""Of one stored answer; a larger one is refused in a replay."""
INDEX_LINES = 200_000
LINE_CHARACTERS = 1 << 20
MANIFEST_BYTES = 4 << 20

_FOLDERS: dict[str, tuple[str, str]] = {
    "kubernetes": ("kubernetes", ".json"),
    "log": ("logs", ".log"),
    "page": ("pages", ".txt"),
    "prometheus": ("prometheus", ".json"),
    "probe": ("probe", ".json"),
}


class RecordingError(ValueError):
    """A recording cannot be written or read; the message names the file and says what to do."""


def must_be_unused(directory: Path) -> None:
    """Raises RecordingError where DIR is a file or holds something: nothing is written over."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise RecordingError(f"{directory} is not an empty folder; name a new one for the recording")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json. Unknown keys are left alone."""

    schema_version: int
    now: Annotated[float, msgspec.Meta(ge=0, le=253_370_764_800)]
    """Epoch seconds, up to the year 9999."""
    options: dict[str, Any] = {}
    cut_short: str = ""
    """Why the run ended early."""
    kvctl: str = ""
    redaction: str = ""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of index.jsonl."""

    kind: Kind
    key: str
    status: int = 200
    file: str = ""
    error: Reason | None = None
    message: str = ""
    at: Annotated[float, msgspec.Meta(ge=0, le=253_370_764_800)] | None = None


@dataclass(slots=True)
class Writer:
    """Keeps answers in a temporary folder beside DIR. Thread-safe."""

    directory: Path
    options: Mapping[str, Any]
    version: str
    _folder: Path
    _index: Any
    _names: set[str]
    _lock: threading.Lock

    @classmethod
    def open(cls, directory: Path, *, options: Mapping[str, Any], version: str) -> Self:
        """Raises RecordingError where DIR is not empty or cannot be made."""
        directory = Path(os.path.abspath(directory))  # noqa: PTH100
        must_be_unused(directory)
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
            index = (folder / "index.jsonl").open("w", encoding="utf-8")
        except OSError as error:
            raise RecordingError(f"cannot write a recording to {directory}: {error.strerror}") from None
        return cls(directory, options, version, folder, index, set(), threading.Lock())

    def keep(self, kind: Kind, key: str, turn: int, answer: Answer) -> Answer:
        """Stores the answer and returns it as a replay will give it."""
        text, message = kept(kind, answer.text), kept("log", answer.message)
        name = ""
        if text:
            with self._lock:
                name = self._name(kind, key, turn)
            path = self._folder / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="")
            except OSError as error:
                raise self._unwritten(error) from None
        at = round(answer.at, 3)
        entry = Entry(kind=kind, key=key, status=answer.status, file=name, error=answer.error, message=message, at=at)
        try:
            with self._lock:
                self._index.write(msgspec.json.encode(entry).decode() + "\n")
        except OSError as error:
            raise self._unwritten(error) from None
        return replace(answer, text=text, message=message, at=at)

    def finish(self, now: float, cut_short: str) -> None:
        """Puts the recording under its name. Raises RecordingError, leaving nothing behind."""
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            now=now,
            options=without_secrets(self.options),
            cut_short=cut_short,
            kvctl=self.version,
            redaction=REDACTION,
        )
        text = json.dumps(msgspec.to_builtins(manifest), indent=1, sort_keys=True)
        try:
            self._index.close()
            (self._folder / "manifest.json").write_text(text + "\n", encoding="utf-8")
            self._folder.chmod(0o755)
            if self.directory.exists():
                self.directory.rmdir()
            self._folder.rename(self.directory)
        except OSError as error:
            self.abandon()
            raise self._unwritten(error) from None

    def abandon(self) -> None:
        """Leaves nothing behind."""
        with contextlib.suppress(OSError):  # what is still to be written finds no room
            self._index.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _unwritten(self, error: OSError) -> RecordingError:
        return RecordingError(f"cannot write a recording to {self.directory}: {error.strerror}")

    def _name(self, kind: str, key: str, turn: int) -> str:
        folder, suffix = _FOLDERS[kind]
        stem = re.sub(r"[^A-Za-z0-9_.-]+", ".", key).strip(".")[:120] or "answer"
        if turn > 1:
            stem = f"{stem}.{turn}"
        name, number = f"{folder}/{stem}{suffix}", 1
        while name.lower() in self._names:
            number += 1
            name = f"{folder}/{stem}~{number}{suffix}"
        self._names.add(name.lower())
        return name


@dataclass(frozen=True, slots=True)
class Recording:
    """The index in memory; texts are read when they are asked for."""

    directory: Path
    now: float
    options: Mapping[str, Any]
    cut_short: str
    _entries: Mapping[tuple[str, str], tuple[Entry, ...]]

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Raises RecordingError."""
        manifest = cls._manifest(directory / "manifest.json")
        entries: dict[tuple[str, str], tuple[Entry, ...]] = {}
        path = directory / "index.jsonl"
        try:
            _regular(path)
            with path.open(encoding="utf-8") as file:
                for number, line in enumerate(iter(partial(file.readline, LINE_CHARACTERS + 1), ""), 1):
                    if number > INDEX_LINES:
                        raise RecordingError(f"{path} has more than {INDEX_LINES} lines")
                    if len(line) > LINE_CHARACTERS:
                        raise RecordingError(f"{path} line {number} is longer than {LINE_CHARACTERS} characters")
                    if not line.strip():
                        continue
                    try:
                        entry = msgspec.json.decode(line, type=Entry)
                    except msgspec.DecodeError as error:
                        raise RecordingError(f"{path} line {number}: {error}") from None
                    entries[entry.kind, entry.key] = (*entries.get((entry.kind, entry.key), ()), entry)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise RecordingError(f"cannot read {path}: {reason}") from None
        return cls(directory, manifest.now, manifest.options, manifest.cut_short, entries)

    @staticmethod
    def _manifest(path: Path) -> Manifest:
        try:
            _regular(path)
            with path.open("rb") as file:
                text = file.read(MANIFEST_BYTES + 1)
            if len(text) > MANIFEST_BYTES:
                raise RecordingError(f"{path} is larger than {MANIFEST_BYTES >> 20} MiB")
            manifest = msgspec.json.decode(text, type=Manifest)
        except OSError as error:
            raise RecordingError(
                f"{path.parent} is not a recording: cannot read {path.name}: {error.strerror}"
            ) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise RecordingError(f"{path}: {error}") from None
        if manifest.schema_version != SCHEMA_VERSION:
            found = manifest.schema_version
            raise RecordingError(f"{path}: schema_version {found}; this kvctl reads {SCHEMA_VERSION}, record it again")
        return manifest

    def answer(self, kind: str, key: str, turn: int) -> Answer:
        entries = self._entries.get((kind, key))
        if entries is None:
            return Answer(error=Reason.NO_DATA, message=f"not in the recording: {kind} {key}", at=self.now)
        entry = entries[min(turn, len(entries)) - 1]
        text = self._text(entry.file) if entry.file else ""
        at = self.now if entry.at is None else entry.at
        return Answer(0 if entry.error and entry.status == 200 else entry.status, text, entry.error, entry.message, at)

    def _text(self, name: str) -> str:
        try:
            path = (self.directory / name).resolve()
        except (OSError, ValueError, RuntimeError):  # too long, a zero byte, a circle of links
            raise RecordingError(f"index.jsonl names {name[:200]!r}, which is no file") from None
        if not path.is_relative_to(self.directory.resolve()):
            raise RecordingError(f"index.jsonl names {name!r}, which is outside the recording")
        try:
            _regular(path)
            if path.stat().st_size > ANSWER_BYTES:
                raise RecordingError(f"{path} is larger than {ANSWER_BYTES >> 20} MiB")
            return path.read_bytes().decode("utf-8", "replace")
        except OSError as error:
            raise RecordingError(f"cannot read {path}: {error.strerror}") from None


def _regular(path: Path) -> None:
    """A pipe or a device would be waited for, or never end. Raises RecordingError; OSError where nothing is there."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise RecordingError(f"{path} is no file")
