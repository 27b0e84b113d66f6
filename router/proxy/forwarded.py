"""What an engine is told of the client behind the router: `x-forwarded-for`, `-proto`, `-host` and `forwarded`.

Pure. Off by default: an engine that believes these headers believes whoever can set them, so it is for the operator to
say whether the router is behind a proxy that sets them (append) or the first that clients meet (replace).
"""

from __future__ import annotations

import re
from enum import StrEnum

from router.proxy.interface import Inbound

_HOST = re.compile(r"[A-Za-z0-9._~%-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?")
_NAMES = (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded")


class ForwardedMode(StrEnum):
    """OFF: what a client sent of them is passed on as any header. APPEND: the client's address is added to the lists,
    what is said of protocol and host stays. REPLACE: only what the router saw itself."""

    OFF = "off"
    APPEND = "append"
    REPLACE = "replace"


class Forwarding:
    """Writes these headers. `tls`: clients speak TLS with the router."""

    def __init__(self, *, replace: bool, tls: bool) -> None:
        self._replace = replace
        self._proto = "https" if tls else "http"

    def rewrite(self, inbound: Inbound, lines: bytes) -> bytes:
        """`lines`: those meant for the engine, names in lower case. Returns them with these headers rewritten."""
        kept: list[bytes] = []
        came: dict[bytes, list[bytes]] = {}
        for line in lines.splitlines(keepends=True):
            name, _, value = line.partition(b":")
            if name in _NAMES:
                came.setdefault(name, []).append(value.strip(b" \t\r\n"))
            elif not (self._replace and (name.startswith(b"x-forwarded-") or name == b"x-real-ip")):
                kept.append(line)
        if self._replace:
            came.clear()
        address, host = inbound.client.partition("%")[0] or "unknown", self._host(inbound)
        node = f'"[{address}]"' if ":" in address else address
        element = f"for={node};proto={self._proto}" + (f';host="{host}"' if host else "")
        own = {b"x-forwarded-for": address, b"x-forwarded-proto": self._proto, b"x-forwarded-host": host}
        for name in (b"x-forwarded-proto", b"x-forwarded-host"):
            if name in came:
                kept.append(b"%b: %b\r\n" % (name, came[name][0]))
            elif own[name]:
                kept.append(b"%b: %b\r\n" % (name, own[name].encode("latin-1")))
        for name, mine in ((b"x-forwarded-for", address), (b"forwarded", element)):
            kept.append(b"%b: %b\r\n" % (name, b", ".join([*filter(None, came.get(name, ())), mine.encode("latin-1")])))
        return b"".join(kept)

    @staticmethod
    def _host(inbound: Inbound) -> str:
        """The host that the client named, "" if it is none that may stand in a header."""
        host = inbound.header(b"host") or ""
        return host if _HOST.fullmatch(host) and len(host) <= 255 else ""


def forwarding(mode: ForwardedMode, *, tls: bool) -> Forwarding | None:
    return None if mode is ForwardedMode.OFF else Forwarding(replace=mode is ForwardedMode.REPLACE, tls=tls)
