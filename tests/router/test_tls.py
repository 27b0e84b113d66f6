"""Certificates and keys that cannot be used: one line each, with the option and the file."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from router.tls import EngineFiles, ServerFiles, TlsError, engine_tls, follow, reload_all, router_tls, server_tls
from tests.router.proxy.scripted import until
from tests.router.proxy.tls import Papers


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers.made(tmp_path)


def message(files: ServerFiles | EngineFiles) -> str:
    with pytest.raises(TlsError) as caught:
        server_tls(files) if isinstance(files, ServerFiles) else engine_tls(files)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_missing_certificate_is_named(papers: Papers) -> None:
    absent = papers.folder / "absent.pem"
    assert message(ServerFiles(absent)) == f"--tls-cert {absent}: No such file or directory"


def test_missing_key_is_named(papers: Papers) -> None:
    cert, _ = papers.issue("a")
    assert message(ServerFiles(cert, papers.folder / "no.key")).startswith(
        f"--tls-key {papers.folder / 'no.key'}: No such"
    )


def test_folder_instead_of_a_certificate_is_named(papers: Papers) -> None:
    assert message(ServerFiles(papers.folder)).startswith(f"--tls-cert {papers.folder}: Is a directory")


def test_key_of_another_certificate_is_said_so(papers: Papers) -> None:
    (cert, _), (_, key) = papers.issue("a"), papers.issue("b")
    assert message(ServerFiles(cert, key)).endswith("the key does not belong to the certificate")


def test_certificate_alone_asks_for_the_key(papers: Papers) -> None:
    cert, _ = papers.issue("a")
    assert "give the key with --tls-key" in message(ServerFiles(cert))


def test_certificate_and_key_in_one_file_are_taken(papers: Papers) -> None:
    cert, key = papers.issue("a")
    cert.write_bytes(cert.read_bytes() + key.read_bytes())
    server_tls(ServerFiles(cert))


def test_nonsense_is_no_certificate(papers: Papers) -> None:
    cert, key = papers.issue("a")
    cert.write_bytes(b"\0nonsense")
    assert "not a certificate and its key in PEM form" in message(ServerFiles(cert, key))


def test_encrypted_key_is_refused_without_a_question(papers: Papers) -> None:
    cert, key = papers.issue("a")
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert message(ServerFiles(cert, key)).startswith(f"--tls-key {key}: the key is encrypted")


@pytest.mark.parametrize("text", ["", "nonsense"])
def test_ca_file_without_a_certificate_is_named(papers: Papers, text: str) -> None:
    cert, key = papers.issue("a")
    papers.ca.write_text(text)
    assert message(ServerFiles(cert, key, papers.ca)).startswith(f"--tls-client-ca {papers.ca}: holds no certificate")
    assert message(EngineFiles(ca=papers.ca)).startswith(f"--upstream-tls-ca {papers.ca}: holds no certificate")


def test_upstream_certificate_is_named_by_its_own_option(papers: Papers) -> None:
    absent = papers.folder / "absent.pem"
    assert message(EngineFiles(cert=absent)).startswith(f"--upstream-tls-cert {absent}: No such file")


def test_what_the_system_trusts_is_trusted_without_a_ca() -> None:
    assert engine_tls(EngineFiles()).context.cert_store_stats()["x509_ca"] >= 0
    assert engine_tls(EngineFiles()).context.check_hostname


def test_given_ca_is_the_only_one_trusted(papers: Papers) -> None:
    assert len(engine_tls(EngineFiles(ca=papers.ca)).context.get_ca_certs()) == 1


def test_failed_reload_is_logged_and_the_others_are_still_done(
    papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    both = router_tls(papers.server(), papers.engines())
    (papers.folder / "server.pem").write_text("nonsense")
    papers.ca.write_bytes(papers.ca.read_bytes() + papers.other_ca.read_bytes())
    with caplog.at_level(logging.INFO):
        reload_all(both.files)
    assert "--tls-cert" in caplog.text and "stays in use" in caplog.text
    assert len(both.engines.context.get_ca_certs()) == 2


async def test_changed_file_is_taken_by_itself(papers: Papers) -> None:
    both = router_tls(papers.server(), papers.engines())
    following = asyncio.ensure_future(follow(both.files, 0.01))
    papers.ca.write_bytes(papers.ca.read_bytes() + papers.other_ca.read_bytes())
    async with asyncio.timeout(20):
        await until(lambda: len(both.engines.context.get_ca_certs()) == 2)
    following.cancel()


def test_pipe_is_no_certificate(papers: Papers) -> None:
    pipe = papers.folder / "pipe"
    os.mkfifo(pipe)
    assert message(ServerFiles(pipe)).startswith(f"--tls-cert {pipe}: it is a pipe or a device")


def test_reload_reads_what_the_system_trusts_no_second_time(monkeypatch: pytest.MonkeyPatch, papers: Papers) -> None:
    cert, key = papers.issue("a")
    both = router_tls(None, EngineFiles(cert=cert, key=key))
    again: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda self: again.append(self))
    reload_all(both.files)
    assert not again


def test_reload_of_no_files_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    both = router_tls(None, EngineFiles())
    with caplog.at_level(logging.INFO):
        reload_all(both.files)
    assert not caplog.records
