"""Certificates for the tests, made when they run, and the two sides' settings with them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

from router.tls import EngineFiles, ServerFiles


@dataclass
class Papers:
    """A CA and what it signed, as files. `other`: a CA that nobody trusts."""

    folder: Path
    authority: trustme.CA
    other: trustme.CA

    @classmethod
    def made(cls, folder: Path) -> Papers:
        papers = cls(folder, trustme.CA(key_type=trustme.KeyType.ECDSA), trustme.CA(key_type=trustme.KeyType.ECDSA))
        papers.authority.cert_pem.write_to_path(papers.ca)
        papers.other.cert_pem.write_to_path(papers.other_ca)
        return papers

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def other_ca(self) -> Path:
        return self.folder / "other-ca.pem"

    def issue(self, name: str, *identities: str, by_other: bool = False) -> tuple[Path, Path]:
        """Certificate and key files of a new leaf, for 127.0.0.1 unless told otherwise."""
        leaf = (self.other if by_other else self.authority).issue_cert(
            *(identities or ("127.0.0.1",)), key_type=trustme.KeyType.ECDSA
        )
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(key)
        return cert, key

    def server(self, name: str = "server", *identities: str, client_ca: Path | None = None) -> ServerFiles:
        return ServerFiles(*self.issue(name, *identities), client_ca)

    def engines(self, **fields: Path | bool) -> EngineFiles:
        return EngineFiles(ca=self.ca, **fields)  # type: ignore[arg-type]

    def client(self, *chain: Path) -> ssl.SSLContext:
        """A client's context that trusts the CA; `chain`: its own certificate and key."""
        context = ssl.create_default_context(cafile=self.ca)
        if chain:
            context.load_cert_chain(*chain)
        return context
