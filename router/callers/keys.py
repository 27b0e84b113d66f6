"""The keys file: who may call, and within which limits.

The file holds hashes, never keys. A key is 32 random bytes (`new_key`), so its plain SHA-256 tells nobody anything: a
slow, salted hash is for secrets that people choose and others can guess, and would cost each request milliseconds.
What could be such a secret is refused: a key in plain text, or the hash of a word.

Pure apart from reading the file. Errors name the file and the entry, never a value: it might be a key.
"""

from __future__ import annotations

import hashlib
import secrets
from codecs import BOM_UTF8
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import msgspec
import yaml

from router.user_file import read_user_file

MAX_FILE = 8 << 20
MAX_KEYS = 20_000
LONGEST_KEY = 512
"""Bytes. What is longer is no key of ours, and not worth the time of a hash."""
_Loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_PLAIN = frozenset({"key", "api-key", "apikey", "token", "secret", "password", "plain"})
_WORDS = ("", "test", "secret", "password", "changeme", "admin", "key", "token", "123456", "sk-1234")
_PREFIX = "kv-"


class KeysFileError(ValueError):
    """A keys file that cannot be taken."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One key. Limits are None where there is none; `models` None is all; `expires` is seconds since the epoch.

    `tenant` stands for the caller in the queue; it is its name where the file names no other.
    """

    name: str
    digest: bytes
    tenant: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    models: frozenset[str] | None = None
    expires: float | None = None


class _Entry(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    name: str
    sha256: str
    tenant: str | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    models: list[str] | None = None
    expires: str | None = None


def new_key() -> str:
    """A key of 256 random bits, to be shown once."""
    return _PREFIX + secrets.token_urlsafe(32)


def digest_of(key: bytes) -> bytes:
    """SHA-256 of a key as a request brings it, 32 bytes; zeros, which no entry may have, for one that is too long."""
    return hashlib.sha256(key).digest() if len(key) <= LONGEST_KEY else bytes(32)


def read_keys_file(path: Path) -> list[Caller]:
    """The callers of a file: YAML or JSON (`.yaml .yml .json`: a list, at the top or under `keys`), else JSON lines.

    Raises:
        KeysFileError: unreadable, not understood, or two entries with one name or one key; nothing is taken from it.
    """
    try:
        raw = read_user_file(path, MAX_FILE).removeprefix(BOM_UTF8)
    except OSError as error:
        raise KeysFileError(f"keys file {path}: {error.strerror or error}") from None
    items = _from_yaml(raw, path) if path.suffix in (".yaml", ".yml", ".json") else _from_lines(raw, path)
    if len(items) > MAX_KEYS:
        raise KeysFileError(f"keys file {path}: {len(items)} entries, {MAX_KEYS} at most")
    callers: list[Caller] = []
    names: set[str] = set()
    digests: dict[bytes, str] = {}
    for where, item in items:
        caller = caller_of(item, f"keys file {path}: {where}")
        if caller.name in names:
            raise KeysFileError(f"keys file {path}: two entries have the name '{caller.name}'")
        if caller.digest in digests:
            raise KeysFileError(f"keys file {path}: '{digests[caller.digest]}' and '{caller.name}' have the same key")
        names.add(caller.name)
        digests[caller.digest] = caller.name
        callers.append(caller)
    return callers


def _from_yaml(raw: bytes, path: Path) -> list[tuple[str, Any]]:
    try:
        data = yaml.load(raw, Loader=_Loader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        where = f" in line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise KeysFileError(f"keys file {path}: it is not valid YAML{where}") from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise KeysFileError(f"keys file {path}: it is not valid YAML") from None
    if isinstance(data, dict):
        if set(data) != {"keys"}:
            raise KeysFileError(f"keys file {path}: expected a list of keys, or 'keys:' with one, and nothing else")
        data = data["keys"]
    if not isinstance(data, list) and data is not None:
        raise KeysFileError(f"keys file {path}: expected a list of keys")
    return [(f"entry {number}", item) for number, item in enumerate(data or [], 1)]


def _from_lines(raw: bytes, path: Path) -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    for number, line in enumerate(raw.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(b"#"):
            continue
        try:
            items.append((f"line {number}", msgspec.json.decode(line)))
        except (msgspec.DecodeError, RecursionError):
            raise KeysFileError(
                f"keys file {path}: line {number} is not a JSON object; call the file .yaml if it is YAML"
            ) from None
    return items


def caller_of(item: Any, shown: str) -> Caller:
    """One entry of a file. `shown`: how errors name it. Raises KeysFileError."""
    if not isinstance(item, dict) or not all(isinstance(key, str) for key in item):
        raise KeysFileError(f"{shown} is not an object with 'name' and 'sha256'")
    fields = {key.replace("_", "-"): _plain_date(value) for key, value in item.items()}
    if isinstance(fields.get("name"), str):
        shown = f"{shown} ('{_visible(fields['name'])}')"
    if _PLAIN & fields.keys():
        raise KeysFileError(
            f"{shown} holds a key in plain text; the file takes only its hash, as 'sha256': make a key with "
            "`kvctl keys new NAME`, which prints both"
        )
    try:
        entry = msgspec.convert(fields, _Entry)
    except msgspec.ValidationError as error:
        raise KeysFileError(f"{shown}: {str(error).replace('`', '')}") from None
    if not _fit(entry.name) or not _fit(entry.tenant or "x"):
        raise KeysFileError(f"{shown}: name and tenant are 1 to 64 visible ASCII characters, no space among them")
    limits = {
        "requests-per-minute": entry.requests_per_minute,
        "tokens-per-minute": entry.tokens_per_minute,
        "concurrent-requests": entry.concurrent_requests,
    }
    for limit, value in limits.items():
        if value is not None and not 1 <= value <= 10**12:
            raise KeysFileError(f"{shown}: {limit} must be a whole number from 1 to {10**12}")
    if entry.models is not None and not all(0 < len(model) <= 256 for model in entry.models):
        raise KeysFileError(f"{shown}: models must be a list of names")
    return Caller(
        name=entry.name,
        digest=_digest(entry, shown),
        tenant=entry.tenant or entry.name,
        requests_per_minute=entry.requests_per_minute,
        tokens_per_minute=entry.tokens_per_minute,
        concurrent_requests=entry.concurrent_requests,
        models=None if entry.models is None else frozenset(entry.models),
        expires=None if entry.expires is None else _expiry(entry.expires, shown),
    )


def _digest(entry: _Entry, shown: str) -> bytes:
    try:
        digest = bytes.fromhex(entry.sha256)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise KeysFileError(
            f"{shown}: 'sha256' is not the 64 hexadecimal digits of a SHA-256; the file never holds a key itself. Make "
            "one with `kvctl keys new NAME`"
        )
    if not any(digest) or any(digest == digest_of(word.encode()) for word in (*_WORDS, entry.name)):
        raise KeysFileError(f"{shown}: that is the hash of a word anybody can guess; make a key with `kvctl keys new`")
    return digest


def _plain_date(value: Any) -> Any:
    """YAML reads dates by itself."""
    return value.isoformat() if isinstance(value, date) else value


def _expiry(text: str, shown: str) -> float:
    """`2027-01-31` (from its beginning, UTC) or an ISO time; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise KeysFileError(f"{shown}: expires must be a date such as 2027-01-31, or 2027-01-31T12:00:00Z") from None
    if len(text) <= 10:
        moment = datetime.combine(moment.date(), time())
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _fit(name: str) -> bool:
    return 0 < len(name) <= 64 and all("!" <= one <= "~" for one in name)


def _visible(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text[:64])
