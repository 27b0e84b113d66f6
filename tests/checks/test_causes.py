from __future__ import annotations

import pytest

from checks.compatibility import Version
from checks.logs.causes import Cause, cause_of, reason_of, summary_of, table

ONE_LINE = "Failed to initialize LMCacheManager components: {}. System will operate in degraded mode (recompute)."
TRACEBACK = """Failed to initialize LMCacheManager components: Traceback (most recent call last):
  File "/opt/lmcache/v1/manager.py", line 94, in __init__
    self._lmcache_engine = factory.get_or_create()
RuntimeError: No supported cpu connector found.
. System will operate in degraded mode (recompute). (manager.py:107:lmcache.v1.manager)"""


def cause(reason: str, version: str | None = None) -> str | None:
    found = cause_of(reason, None if version is None else Version.parse(version))
    return None if found is None else found.id


def test_the_reason_of_one_line_ends_where_the_degraded_mode_is_told() -> None:
    assert reason_of(ONE_LINE.format("boom: a, b")) == "boom: a, b"


def test_an_empty_reason_is_empty() -> None:
    assert reason_of(ONE_LINE.format("")) == ""


def test_the_reason_of_many_lines_is_the_whole_traceback() -> None:
    assert reason_of(TRACEBACK).splitlines()[0] == "Traceback (most recent call last):"
    assert reason_of(TRACEBACK).splitlines()[-1] == "RuntimeError: No supported cpu connector found."


def test_the_source_suffix_is_not_part_of_a_reason() -> None:
    assert reason_of("Failed during post_init: boom (manager.py:189:lmcache.v1.manager)") == "boom"


def test_the_summary_is_the_last_line_without_its_full_stop() -> None:
    assert summary_of(reason_of(TRACEBACK)) == "RuntimeError: No supported cpu connector found"


def test_an_empty_reason_has_an_empty_summary() -> None:
    assert summary_of("") == ""


@pytest.mark.parametrize("row", table(), ids=lambda row: row.id)
def test_each_cause_explains_its_own_sample(row: Cause) -> None:
    version = {"instance-id": "0.3.14", "controller-configuration": "0.5.6"}.get(row.id)
    assert cause(row.row.sample, version) == row.id


@pytest.mark.parametrize("row", table(), ids=lambda row: row.id)
def test_each_hint_says_what_to_do(row: Cause) -> None:
    assert row.row.fix in row.hint
    assert "\n" not in row.hint


@pytest.mark.parametrize(
    ("reason", "version", "expected"),
    [
        ("", "0.3.14", "instance-id"),
        ("", "0.3.12", "instance-id"),
        ("", "0.4.2", "instance-id"),
        ("", "0.4.3", "controller-configuration"),
        ("", "0.3.11", "controller-configuration"),
        ("AssertionError", "0.5.6", "controller-configuration"),
        ("", None, "instance-id"),
        ("ConnectionError: Error 111 connecting to redis:6379. Connection refused.", "0.4.3", "remote-storage"),
        ("AuthenticationError: WRONGPASS invalid username-password pair", "0.4.3", "remote-storage"),
        ("ValueError: lmcache_worker_ports must have at least 2 port(s) (world_size), got 1", "0.5.0", "worker-ports"),
        ("RuntimeError: pin_memory failed", "0.4.3", "memory"),
        ("KeyError: 'something nobody has seen'", "0.4.3", None),
    ],
)
def test_the_likely_cause_of_a_reason(reason: str, version: str | None, expected: str | None) -> None:
    assert cause(reason, version) == expected


def test_a_text_that_fits_is_told_even_outside_of_its_versions() -> None:
    assert (
        cause("AttributeError: 'LMCacheWorker' object has no attribute 'req_socket'", "0.5.6") == "reply-url-unchecked"
    )


def test_a_bound_of_the_version_rules_no_cause_out() -> None:
    bound = Version.parse("0.3.10").at_least()
    found = cause_of("", bound)
    assert found is not None
    assert found.id == "instance-id"


def test_an_assertion_with_a_text_is_not_an_incomplete_configuration() -> None:
    assert cause("AssertionError: chunk size must be positive", "0.4.3") is None


def test_the_last_line_is_asked_before_the_frames() -> None:
    text = "Traceback (most recent call last):\n  buffer.pin_memory()\nTimeoutError: lookup server timed out"
    assert cause(text, "0.4.1") == "start-race"
