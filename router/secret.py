"""A secret that no log, page or traceback shows: only who asks for it by name gets it."""

from __future__ import annotations

import hashlib
import hmac


def bearer(key: Secret) -> str:
    """The value of an `Authorization` header."""
    return f"Bearer {key.reveal()}"


class Secret:
    """`reveal` is the only way to its value; printing, formatting and copying into JSON show three stars."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def equals(self, given: bytes) -> bool:
        """In a time that tells nothing of where they differ, nor of its length."""
        mine = hashlib.sha256(self._value.encode()).digest()
        return hmac.compare_digest(mine, hashlib.sha256(given).digest())

    def __repr__(self) -> str:
        return "***"

    def __deepcopy__(self, memo: object) -> Secret:
        return self
