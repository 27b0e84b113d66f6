"""The address of a Redis server, shown without its password, and whether redis-py is there. No I/O.

redis-py is the optional extra `redis`; only what asks for a Redis needs it.
"""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import urlsplit

SCHEMES = ("redis", "rediss")
REDIS_MISSING = "a Redis needs the package redis: pip install 'kvctl[redis]'"


class RedisUrl:
    """`redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, or `rediss://` for TLS. `str` leaves user and password out.

    Raises:
        ValueError: it is no such address; the message says what is wrong and shows no password.
    """

    def __init__(self, text: str) -> None:
        try:
            parts = urlsplit(text.strip())
            host, port = parts.hostname, parts.port or 6379
        except ValueError:
            raise ValueError("not a Redis address: expected redis://HOST:PORT[/DB]") from None
        database = parts.path.strip("/")
        if parts.scheme not in SCHEMES:
            raise ValueError(f"not a Redis address: it must begin with {' or '.join(f'{one}://' for one in SCHEMES)}")
        if not host:
            raise ValueError("a Redis address without a host: expected redis://HOST:PORT[/DB]")
        if database and not database.isdigit():
            raise ValueError(f"the database of a Redis address is a number, as in {parts.scheme}://{host}:{port}/0")
        self._text = text.strip()
        shown = f"[{host}]" if ":" in host else host
        self._shown = f"{parts.scheme}://{shown}:{port}" + (f"/{database}" if database else "")

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"RedisUrl({self._shown!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RedisUrl) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    @property
    def secret(self) -> str:
        """The whole address, for the client only."""
        return self._text


def redis_installed() -> bool:
    return find_spec("redis") is not None
