"""Makes what follows requests, as the settings ask for it: gate, access log, traces, and the journal they share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from router.callers.entrance import Entrance
from router.callers.gate import Gate
from router.callers.keys import KeysFileError, read_keys_file
from router.journal.access_log import AccessLog, AccessLogSettings
from router.journal.journal import RequestJournal
from router.journal.trace_settings import TraceSettings

if TYPE_CHECKING:
    from router.journal.traces import Traces


class PartError(Exception):
    """One of them cannot be made; the message says what to do."""


class JournalParts:
    """All None where nothing is asked for: then no request has a record.

    Raises:
        PartError: the keys file cannot be taken, the log cannot be opened, or the packages for traces are not there.
    """

    def __init__(
        self,
        keys_file: Path | None,
        access: AccessLogSettings | None,
        traces: TraceSettings | None,
        aliases: Mapping[str, str],
        *,
        tenants: bool,
    ) -> None:
        self.gate: Gate | None = None
        if keys_file is not None:
            try:
                self.gate = Gate(read_keys_file(keys_file), aliases)
            except KeysFileError as error:
                raise PartError(f"--api-keys-file: {error}") from None
        self.keys_file = keys_file
        self.entrance = None if self.gate is None else Entrance(self.gate, tenants=tenants)
        self.traces = None if traces is None else _traces(traces)
        self.access: AccessLog | None = None
        if access is not None:
            try:
                self.access = AccessLog(access)
            except OSError as error:
                raise PartError(f"--access-log: cannot write {access.path}: {error.strerror or error}") from None
        self.journal: RequestJournal | None = None
        if self.gate is not None or self.access is not None or self.traces is not None:
            self.journal = RequestJournal(self.access, self.traces)

    async def follow_keys(self, interval: float) -> None:
        """Takes the keys file anew whenever it changes; for ever."""
        if self.gate is not None and self.keys_file is not None:
            await self.gate.follow(self.keys_file, interval)

    def reopen(self) -> None:
        """The log file was moved away."""
        if self.access is not None:
            self.access.reopen()

    async def close(self) -> None:
        if self.access is not None:
            await self.access.close()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)


def _traces(settings: TraceSettings) -> Traces:
    try:
        from router.journal.traces import Traces, exporting

        return Traces(exporting(settings), settings.ratio)
    except ImportError as error:
        raise PartError(
            f"traces need the OpenTelemetry packages ({error.name or error}): pip install 'kvctl[otel]', or start "
            "without --otel-endpoint"
        ) from None


class AccessLogCollector(Collector):
    """Metrics of the access log, read when scraped."""

    def __init__(self, access: AccessLog) -> None:
        self._access = access

    def collect(self) -> Iterable[Metric]:
        access = self._access
        yield CounterMetricFamily("kvctl_access_log_lines", "Lines of the access log written", access.written)
        yield CounterMetricFamily(
            "kvctl_access_log_dropped", "Lines lost: the disk was too slow or full", access.dropped
        )
