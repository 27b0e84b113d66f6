"""Secrets of the environment and of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvctl.errors import Problem
from kvctl.secret_options import admin_headers, admin_token, secret_of
from router.secret import Secret


def test_secret_of_a_file_has_no_white_space_around_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("  abc\n")
    found = secret_of(None, tmp_path / "key", "--upstream-key")
    assert found is not None
    assert found.reveal() == "abc"


@pytest.mark.parametrize("value", ["", " ", "a b", "a\r\nx-injected: 1", "\x00", "é", "x" * 5000])
def test_what_no_header_can_carry_is_refused_without_being_quoted(value: str) -> None:
    with pytest.raises(Problem) as caught:
        secret_of(value, None, "--upstream-key")
    assert "injected" not in str(caught.value)


def test_both_a_value_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="KVCTL_UPSTREAM_KEY counts"):
        secret_of("abc", tmp_path / "key", "--upstream-key")


def test_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="No such file"):
        secret_of(None, tmp_path / "key", "--upstream-key")


def test_short_admin_token_is_refused() -> None:
    with pytest.raises(Problem, match="fewer than 16"):
        admin_token("short", None)


def test_control_calls_bring_the_token_of_the_environment() -> None:
    assert admin_headers(None, {"KVCTL_ADMIN_TOKEN": "abc"}) == {"authorization": "Bearer abc"}
    assert admin_headers(None, {}) == {}


def test_secret_shows_itself_in_no_spelling() -> None:
    secret = Secret("abc")
    assert "abc" not in f"{secret} {secret!r} {[secret]} {secret!s}"


def test_secret_equals_only_itself() -> None:
    assert Secret("abc").equals(b"abc")
    assert not Secret("abc").equals(b"abcd")
    assert not Secret("abc").equals(b"")
