"""Ids of requests: the caller's own where it is fit to be passed on and logged, else one of ours. Pure."""

from __future__ import annotations

import os
import re

HEADERS = (b"x-request-id", b"x-dynamo-request-id")
_FIT = re.compile(r"[!-~]{1,128}")


def fit(text: str) -> bool:
    """1 to 128 visible ASCII characters: what every log and header can carry as it is."""
    return _FIT.fullmatch(text) is not None


def given(headers: list[tuple[bytes, bytes]]) -> str:
    """The id that the caller gave, "" if it gave none that is fit."""
    for wanted in HEADERS:
        for name, value in headers:
            if name == wanted:
                text = value.strip(b" \t").decode("latin-1")
                if fit(text):
                    return text
    return ""


class RequestIds:
    """Makes ids that differ between routers and between their starts."""

    __slots__ = ("_count", "_prefix")

    def __init__(self, prefix: str | None = None) -> None:
        self._prefix = os.urandom(4).hex() if prefix is None else prefix
        self._count = 0

    def new(self) -> str:
        self._count += 1
        return f"r-{self._prefix}{self._count:x}"
