"""TLS on both sides: what clients see of the router, and how it meets engines whose URL is https.

Makes `ssl` contexts from files, and takes the files again when they change, without a restart. TLS 1.2 is the least
that is spoken; the rest is OpenSSL's choice. Reads files at start and on change; costs a request nothing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from router.user_file import read_user_file

log = logging.getLogger("kvctl.tls")

_LOOK_EVERY = 5.0
_MAX_FILE = 16 << 20


class TlsError(ValueError):
    """Certificates or keys that cannot be used; the message names the option and the file."""


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """`key`: None where it is in the file of `cert`. `client_ca`: who signs clients; without it none is asked."""

    cert: Path
    key: Path | None = None
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class EngineFiles:
    """`ca`: who signs engines, instead of those the system trusts. `cert`, `key`: how the router shows itself."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False


class Tls:
    """A context, and the files it was made from."""

    def __init__(
        self, make: Callable[[], ssl.SSLContext], fill: Callable[[ssl.SSLContext], None], files: Iterable[Path | None]
    ) -> None:
        """`fill` loads the files into a context; it is tried on a fresh one before it touches one in use.

        Raises:
            TlsError
        """
        self._make = make
        self._fill = fill
        self._files = [path for path in files if path is not None]
        self._stamps = self._look()
        self.context = make()
        fill(self.context)

    @property
    def watched(self) -> bool:
        """Whether there are files at all."""
        return bool(self._files)

    @property
    def changed(self) -> bool:
        """Whether a file is not the one that was loaded last."""
        return self._look() != self._stamps

    def reload(self) -> None:
        """Take the files again, for connections made from now on. A CA that is no longer in its file stays trusted.

        Raises:
            TlsError: they cannot be used, and what was loaded before stays in use.
        """
        stamps = self._look()
        try:
            self._fill(self._make())
        except TlsError:
            self._stamps = stamps  # not tried again until they change
            raise
        self._fill(self.context)
        self._stamps = stamps

    def _look(self) -> list[object]:
        return [_stamp(path) for path in self._files]


def server_tls(files: ServerFiles) -> Tls:
    """What the data port speaks.

    Raises:
        TlsError
    """

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if files.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def fill(context: ssl.SSLContext) -> None:
        _load_chain(context, files.cert, files.key, "--tls-cert", "--tls-key")
        if files.client_ca is not None:
            _load_ca(context, files.client_ca, "--tls-client-ca")

    return Tls(make, fill, (files.cert, files.key, files.client_ca))


def engine_tls(files: EngineFiles) -> Tls:
    """What is spoken to engines with an https URL.

    Raises:
        TlsError
    """

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if files.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def fill(context: ssl.SSLContext) -> None:
        if files.ca is not None:
            _load_ca(context, files.ca, "--upstream-tls-ca")
        if files.cert is not None:
            _load_chain(context, files.cert, files.key, "--upstream-tls-cert", "--upstream-tls-key")

    if files.insecure:
        log.warning(
            "--upstream-tls-insecure: the certificates of engines are not checked; whoever is on the way to them can "
            "read and change every prompt and answer"
        )
    tls = Tls(make, fill, (files.ca, files.cert, files.key))
    if files.ca is None and not files.insecure:
        tls.context.load_default_certs()  # once: it takes a tenth of a second or more, too long for a reload
    return tls


@dataclass(frozen=True, slots=True)
class RouterTls:
    """Both sides of a router. `clients`: None for plain HTTP; `engines`: for those whose URL is https."""

    clients: Tls | None
    engines: Tls

    @property
    def files(self) -> list[Tls]:
        return [self.engines] if self.clients is None else [self.clients, self.engines]


def router_tls(clients: ServerFiles | None, engines: EngineFiles) -> RouterTls:
    """Raises:
    TlsError
    """
    return RouterTls(None if clients is None else server_tls(clients), engine_tls(engines))


def reload_all(several: Iterable[Tls], *, only_changed: bool = False) -> None:
    """Take files again. Those that cannot be used are named in the log, and the old ones stay."""
    for tls in several:
        if not tls.watched or (only_changed and not tls.changed):
            continue
        try:
            tls.reload()
        except TlsError as error:
            log.error("%s; what was loaded before stays in use", error)
        else:
            log.info("Certificates and keys were taken again")


async def follow(several: Iterable[Tls], interval: float = _LOOK_EVERY) -> None:
    """Look at the files every `interval` seconds, for ever."""
    several = tuple(several)
    while True:
        await asyncio.sleep(interval)
        reload_all(several, only_changed=True)


def _load_chain(context: ssl.SSLContext, cert: Path, key: Path | None, cert_option: str, key_option: str) -> None:
    _check_readable(cert, cert_option)
    if key is not None:
        _check_readable(key, key_option)
    shown = f"{cert_option} {cert}" + (f", {key_option} {key}" if key is not None else "")
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except _EncryptedKey:
        raise TlsError(f"{key_option} {key or cert}: the key is encrypted; give one without a passphrase") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{shown}: the key does not belong to the certificate") from None
        hint = "" if key is not None else f"; give the key with {key_option} unless it is in the same file"
        raise TlsError(f"{shown}: not a certificate and its key in PEM form{hint}") from None
    except OSError as error:
        raise TlsError(f"{shown}: {error.strerror or error}") from None


def _load_ca(context: ssl.SSLContext, path: Path, option: str) -> None:
    _check_readable(path, option)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise TlsError(f"{option} {path}: holds no certificate in PEM form") from None
    except OSError as error:
        raise TlsError(f"{option} {path}: {error.strerror or error}") from None


def _check_readable(path: Path, option: str) -> None:
    try:
        read_user_file(path, _MAX_FILE)
    except OSError as error:
        raise TlsError(f"{option} {path}: {error.strerror or error}") from None


class _EncryptedKey(Exception):
    pass


def _no_password() -> str:
    """Without it OpenSSL would ask on the terminal, and wait."""
    raise _EncryptedKey


def _stamp(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
