"""Lets callers in by their keys, counts what they use, and reads the keys file again when it changes.

Keys are looked up by their SHA-256 in a dict. That a look-up takes differently long for different hashes tells nothing:
nobody can steer the hash of a guess. The last word has `hmac.compare_digest`. A key that is missing, malformed,
unknown or expired is answered alike, after the same work, and leaves nothing behind. Cost: about 2 us a request.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.callers.keys import Caller, KeysFileError, digest_of, read_keys_file
from router.callers.limits import Account
from router.model import RoutingError

log = logging.getLogger("kvctl.callers")

OPEN_PATHS = frozenset({"/health", "/ready"})
CREDENTIALS = (b"authorization", b"x-api-key")
"""Headers that may carry a caller's key; an engine never sees them where keys are in use."""
_NOBODY = bytes(32)


class Unauthorized(RoutingError):
    status = 401
    code = "invalid_api_key"
    headers = (("www-authenticate", "Bearer"),)

    def __init__(self) -> None:
        super().__init__("a valid API key is needed: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'")


class ModelNotAllowed(RoutingError):
    status = 403
    code = "model_not_allowed"


class Gate:
    """`aliases`: other names of models; a caller that may use the one may use the other. `clock` in seconds, `wall`
    in seconds since the epoch."""

    def __init__(self, callers: list[Caller], aliases: Mapping[str, str] | None = None) -> None:
        self.unauthorized = 0
        self.forbidden = 0
        self.reloads = 0
        self.file_errors = 0
        self._aliases = dict(aliases or {})
        self._by_digest: dict[bytes, Account] = {}
        self._models: dict[str, frozenset[str] | None] = {}
        self.take(callers)

    @property
    def accounts(self) -> Iterable[Account]:
        return self._by_digest.values()

    def take(self, callers: list[Caller]) -> None:
        """These are the callers from now on. One that stays keeps its counts; requests that run go on."""
        before = {account.caller.name: account for account in self._by_digest.values()}
        found: dict[bytes, Account] = {}
        models: dict[str, frozenset[str] | None] = {}
        for caller in callers:
            account = before.get(caller.name) or Account(caller)
            account.caller = caller
            found[caller.digest] = account
            allowed = caller.models
            if allowed is not None:
                allowed |= {self._aliases[name] for name in allowed if name in self._aliases}
                allowed |= {name for name, model in self._aliases.items() if model in allowed}
            models[caller.name] = allowed
        self._by_digest, self._models = found, models

    def account(self, headers: list[tuple[bytes, bytes]]) -> Account:
        """The account of the request's key. Raises Unauthorized."""
        digest = digest_of(_key(headers))
        account = self._by_digest.get(digest)
        known = hmac.compare_digest(digest, _NOBODY if account is None else account.caller.digest)
        expires = None if account is None else account.caller.expires
        if account is None or not known or time.time() >= (expires or float("inf")):
            self.unauthorized += 1
            raise Unauthorized
        return account

    def allowed(self, account: Account) -> frozenset[str] | None:
        """The models that the caller may use, their other names among them; None is all."""
        return self._models.get(account.caller.name, account.caller.models)

    def check_model(self, account: Account, model: str) -> None:
        """Raises ModelNotAllowed. A caller with a list of models has to name one of them."""
        allowed = self.allowed(account)
        if allowed is None or model in allowed:
            return
        self.forbidden += 1
        names = ", ".join(sorted(allowed)[:20]) or "none"
        asked = f"the model '{model[:200]}' is not allowed" if model else "a request has to name a model"
        raise ModelNotAllowed(f"{asked} with this API key; allowed: {names}", param="model")

    # -- the file ----------------------------------------------------------------------------------------------

    async def follow(self, path: Path, interval: float) -> None:
        """Take the file anew whenever it has changed, for ever. A bad one is logged and counted, the old keys stay."""
        stamp = _stamp(path)
        while True:
            await asyncio.sleep(interval)
            now = _stamp(path)
            if now == stamp:
                continue
            stamp = now
            try:
                callers = await asyncio.to_thread(read_keys_file, path)
            except KeysFileError as error:
                self.file_errors += 1
                log.error("%s; the keys stay as they were", error)
                continue
            self.take(callers)
            self.reloads += 1
            log.info("The keys file was read again: %d keys", len(callers))


class CallerCollector(Collector):
    """Metrics of callers, read when scraped; labels are names of the keys file."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def collect(self) -> Iterable[Metric]:
        gate = self._gate
        yield CounterMetricFamily("kvctl_unauthorized", "Requests without a good API key", gate.unauthorized)
        yield CounterMetricFamily("kvctl_model_not_allowed", "Requests for a model not allowed", gate.forbidden)
        yield CounterMetricFamily("kvctl_keys_file_reads", "Times a changed keys file was taken", gate.reloads)
        yield CounterMetricFamily("kvctl_keys_file_errors", "Times it could not be taken", gate.file_errors)
        requests = CounterMetricFamily("kvctl_caller_requests", "Requests let in", labels=["caller"])
        tokens = CounterMetricFamily("kvctl_caller_tokens", "Tokens of prompts and answers", labels=["caller"])
        opened = GaugeMetricFamily("kvctl_caller_open_requests", "Requests being served", labels=["caller"])
        refused = CounterMetricFamily("kvctl_caller_refused", "Requests past a limit", labels=["caller", "limit"])
        for account in gate.accounts:
            name = account.caller.name
            if not account.served and not account.refused:
                continue
            requests.add_metric([name], account.served)
            tokens.add_metric([name], account.charged)
            opened.add_metric([name], account.open)
            for limit, times in account.refused.items():
                refused.add_metric([name, limit], times)
        yield from (requests, tokens, opened, refused)


def _key(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The key that a request brings: `Authorization: Bearer KEY`, else `x-api-key`; b"" where there is neither."""
    other = b""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.strip(b" \t").partition(b" ")
            return key.strip(b" ") if scheme.lower() == b"bearer" else b""
        if name == b"x-api-key" and not other:
            other = value.strip(b" \t")
    return other


def _stamp(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
