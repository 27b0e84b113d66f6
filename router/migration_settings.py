"""How often a broken stream may go on at another worker. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """`limit`: how often one stream may go on at another worker; 0: no stream is followed. `buffer_bytes`: what is kept
    of a stream for that."""

    limit: int = 0
    buffer_bytes: int = 1 << 20
