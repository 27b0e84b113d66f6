"""What the user lets the probe do, its limits, and what it has spent of them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from checks.sources.http import base_url

MOST_REQUESTS = 24
MOST_TOKENS = 50_000
"""Prompt tokens of all requests together."""
LEAST_REQUESTS = 6
"""One to learn the size of a token, one cold, two repeats, two of the control arm."""
COMPLETIONS = "/v1/completions"
_PATH = re.compile(r"/[\w./-]{1,200}", re.ASCII)


class ProbeError(ValueError):
    """An option of the probe cannot be used; the message names it and says what would do."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go. `base` is ''where the router that was found takes them."""

    base: str = ""
    path: str = COMPLETIONS

    @property
    def chat(self) -> bool:
        return self.path.endswith("chat/completions")

    @classmethod
    def parse(cls, text: str) -> Self:
        """A path (`/v1/completions`), a base URL, or both (`http://gateway/v1/completions`). Raises ProbeError."""
        if not text:
            return cls()
        if text.startswith("/"):
            if _PATH.fullmatch(text) is None:
                raise ProbeError(f"--probe-endpoint {text!r}: a path is such as {COMPLETIONS}")
            return cls(path=text)
        try:
            if len(text.split()) != 1:
                raise ValueError
            base = base_url(text)
        except ValueError:
            raise ProbeError(
                f"--probe-endpoint {text!r}: give a path such as {COMPLETIONS}, or a URL such as http://HOST:PORT"
            ) from None
        parts = urlsplit(base)
        if not parts.path:
            return cls(base)
        return cls(base.removesuffix(parts.path), cls.parse(parts.path).path)


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """As given on the command line. Raises ProbeError for what cannot work."""

    endpoint: str = ""
    requests: int = MOST_REQUESTS
    tokens: int = MOST_TOKENS
    yes: bool = False
    """Start although requests wait or a KV cache is nearly full; stop if it gets worse."""
    force: bool = False
    """Do not look at the load at all."""
    heartbeat: bool = False
    """Also wait until LMCache's controller would have dropped silent workers, and try again."""
    api_key: str = field(default="", repr=False)
    timeout_s: float = 60.0
    """Of one request."""

    def __post_init__(self) -> None:
        if not LEAST_REQUESTS <= self.requests <= MOST_REQUESTS:
            raise ProbeError(f"--probe-requests {self.requests}: {LEAST_REQUESTS} to {MOST_REQUESTS}")
        Endpoint.parse(self.endpoint)

    @property
    def target(self) -> Endpoint:
        return Endpoint.parse(self.endpoint)


@dataclass(slots=True)
class Budget:
    """Requests and prompt tokens that are left."""

    requests: int
    tokens: int

    def allows(self, requests: int, tokens_each: int) -> bool:
        return requests <= self.requests and requests * tokens_each <= self.tokens

    def spend(self, tokens: int) -> None:
        """One request of so many prompt tokens."""
        self.requests -= 1
        self.tokens -= tokens

    def correct(self, charged: int, actual: int | None) -> None:
        """The engine counted other tokens than were charged for."""
        if actual is not None:
            self.tokens += charged - actual
