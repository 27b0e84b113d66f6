"""Options of HTTP and TLS that do not go together, or are out of bounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvctl.errors import Problem
from kvctl.serve_options.wire_options import engine_files, max_body, max_head, server_files
from router.tls import EngineFiles, ServerFiles

ONE = Path("one.pem")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: server_files(None, ONE, None), "--tls-key .* give the certificate too, with --tls-cert"),
        (lambda: server_files(None, None, ONE), "--tls-client-ca .* give the certificate too, with --tls-cert"),
        (lambda: engine_files(None, None, ONE, False), "give it too, with --upstream-tls-cert"),
        (lambda: engine_files(ONE, None, None, True), "--upstream-tls-insecure checks nothing"),
        (lambda: max_body("many"), "--max-body"),
        (lambda: max_body("0"), "--max-body 0"),
        (lambda: max_head("1GiB"), "--max-head must be from 256 bytes to 16MiB"),
        (lambda: max_head("255"), "--max-head must be from 256 bytes"),
    ],
)
def test_what_cannot_be_is_named(made: Callable[[], object], said: str) -> None:
    with pytest.raises(Problem, match=said):
        made()


def test_what_is_given_is_taken() -> None:
    assert server_files(None, None, None) is None
    assert server_files(ONE, None, None) == ServerFiles(ONE)
    assert engine_files(None, ONE, ONE, True) == EngineFiles(None, ONE, ONE, True)
    assert (max_body("64MiB"), max_head("64KiB")) == (64 << 20, 64 << 10)
