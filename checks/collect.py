"""Reads a system into a `Snapshot`."""

from __future__ import annotations

from checks.request import CollectRequest, LogFile, LogPart, RequestError, Scrape

__all__ = ["CollectRequest", "LogFile", "LogPart", "RequestError", "Scrape"]
