"""Logs from files, for systems without a cluster. Reads the first and the last bytes of a file, never more.

UTF-8, or UTF-16 with a byte order mark (what a redirection in PowerShell writes). Returns are line ends
where there are no others. A pipe is read once, as a head.
"""

from __future__ import annotations

import codecs
import stat
from pathlib import Path

from checks.model import Reason
from checks.sources.tape import Answer

_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_LOOKED_AT = 4096


class _NoText(Exception):
    """The file holds something else; the message says what."""


def head(path: Path, limit: int) -> Answer:
    """The first `limit` bytes. `at` is the file's time of change. What is no text is an error `parse`."""
    return _read(path, limit, tail=False)


def tail(path: Path, limit: int) -> Answer:
    """The last bytes, from a line's start; empty where the head held it all."""
    return _read(path, limit, tail=True)


def why_no_log(path: Path) -> str:
    """Why the file cannot be read as a log, in one line; '' where it can. Looks at its first bytes; at no pipe's."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return f"{path} is a folder"
        if stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                _encoding(file.read(_LOOKED_AT), path)
    except FileNotFoundError:
        return f"there is no file {path}"
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"
    except _NoText as error:
        return str(error)
    return ""


def _read(path: Path, limit: int, *, tail: bool) -> Answer:
    try:
        status = path.stat()
        if tail and status.st_size <= limit:
            return Answer(200, "", at=status.st_mtime)
        with path.open("rb") as file:
            start = file.read(min(limit, _LOOKED_AT))
            encoding = _encoding(start, path)
            if tail:
                at = max(limit, status.st_size - limit)
                file.seek(at + (at % 2 if encoding != "utf-8" else 0))
                text = file.read(limit).decode(encoding, "replace").partition("\n")[2]
            else:
                text = (start + file.read(limit - len(start))).decode(encoding, "replace")
                if "\n" not in text:
                    text = text.replace("\r", "\n")
    except FileNotFoundError:
        return Answer(0, "", Reason.GONE, f"{path}: no such file")
    except _NoText as error:
        return Answer(0, "", Reason.PARSE, str(error))
    except OSError as error:
        return Answer(0, "", Reason.UNREACHABLE, f"{path}: {error.strerror}")
    return Answer(200, text, at=status.st_mtime)


def _encoding(start: bytes, path: Path) -> str:
    """Raises _NoText."""
    if (packed := next((name for sign, name in _PACKED.items() if start.startswith(sign)), None)) is not None:
        raise _NoText(f"{path} is compressed ({packed}): unpack it first")
    if (wide := _UTF16.get(start[:2])) is not None:
        return wide
    if b"\0" in start:
        raise _NoText(f"{path} is no text: it holds zero bytes")
    return "utf-8"
