"""Versions and which go together: spelling, bounds, epochs, router pins, where a version is read."""

from __future__ import annotations

import pytest

from checks.compatibility import Compatibility, Version, may_satisfy, satisfies
from tests.checks.build import log_view, version_text

DATA = Compatibility.load()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("0.4.3", (0, 4, 3, 0, 0)),
        ("v0.3.9post2", (0, 3, 9, 1, 2)),
        ("0.3.9.post2", (0, 3, 9, 1, 2)),
        ("0.3.9-post2", (0, 3, 9, 1, 2)),
        ("0.4.3-1f2e3d4", (0, 4, 3, 0, 0)),
        ("0.4.3-a1b2c3d", (0, 4, 3, 0, 0)),
        ("0.4.3-b12", (0, 4, 3, 0, 0)),
        ("0.11.1rc2.dev3+g1", (0, 11, 1, -1, 2)),
        ("1.2.1-eksbuild.1", (1, 2, 1, 0, 0)),
        ("v3.1", (3, 1, 0, 0, 0)),
    ],
)
def test_versions_are_read_as_images_and_logs_spell_them(text: str, parts: tuple[int, ...]) -> None:
    assert Version.parse(text).parts == parts


@pytest.mark.parametrize("text", ["latest", "nightly", "2025-05-27-v1", ""])
def test_a_text_without_a_version_has_none(text: str) -> None:
    assert Version.find(text) is None


def test_parsing_a_text_without_a_version_names_the_text() -> None:
    with pytest.raises(ValueError, match="'latest' is not a version"):
        Version.parse("latest")


def test_a_post_release_is_newer_and_a_candidate_older_than_the_release() -> None:
    mixed = [Version.parse(text) for text in ("0.3.10", "0.3.9", "0.3.9.post2", "0.3.9rc1")]
    assert [str(version) for version in sorted(mixed)] == ["0.3.9rc1", "0.3.9", "0.3.9.post2", "0.3.10"]


@pytest.mark.parametrize(
    ("version", "bounds", "holds"),
    [
        ("0.4.3", ">=0.4.3", True),
        ("0.4.2", ">=0.4.3", False),
        ("0.3.9post2", "==0.3.9.post2", True),
        ("0.3.9", "==0.3.9.post2", False),
        ("0.4.3", ">=0.4.0,<0.5.0", True),
        ("0.5.0", ">=0.4.0,<0.5.0", False),
    ],
)
def test_bounds_hold_or_not(version: str, bounds: str, holds: bool) -> None:
    assert satisfies(Version.parse(version), bounds) is holds


def test_a_bound_with_another_sign_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'~0\.4' is not a version bound"):
        satisfies(Version.parse("0.4.3"), "~0.4")


@pytest.mark.parametrize(
    ("version", "bounds", "verdict"),
    [
        ("3.1", ">=3.1.3", None),
        ("3.1", "<3.1.3", None),
        ("3.2", ">=3.1.3", True),
        ("3.0", ">=3.1.3", False),
        ("3.0", "<3.1.3", True),
        ("3.2", "<3.1.3", False),
        ("3.1.4", ">=3.1.3", True),
    ],
)
def test_a_tag_of_major_and_minor_is_judged_only_where_every_patch_agrees(
    version: str, bounds: str, verdict: bool | None
) -> None:
    assert may_satisfy(Version.parse(version), bounds) is verdict


@pytest.mark.parametrize(
    ("bounds", "verdict"), [(">=0.4.3", None), (">=0.3.9", True), ("<0.3.9", False), ("==0.3.9.post2", False)]
)
def test_a_lower_bound_is_judged_only_where_everything_above_it_agrees(bounds: str, verdict: bool | None) -> None:
    assert may_satisfy(Version.parse("0.3.12").at_least(), bounds) is verdict


@pytest.mark.parametrize(
    ("version", "epoch"),
    [
        ("0.3.7", "W1"),
        ("0.3.9.post2", "W1"),
        ("0.3.10", "W2"),
        ("0.3.10.post2", "W2"),
        ("0.3.11", "W2"),
        ("0.3.12", "W3"),
        ("0.5.6", "W3"),
    ],
)
def test_wire_epochs(version: str, epoch: str) -> None:
    found = DATA.wire_epoch(Version.parse(version))
    assert found is not None
    assert found.name == epoch


@pytest.mark.parametrize(
    ("version", "algorithm", "epoch"),
    [
        ("0.3.7", "builtin", "H1"),
        ("0.3.9", "builtin", "H2"),
        ("0.3.15", "builtin", "H2"),
        ("0.4.1", "builtin", "H3"),
        ("0.4.6", "builtin", "H3"),
        ("0.4.5", "sha256_cbor", "H3"),
        ("0.4.6", "sha256_cbor", "H3b"),
    ],
)
def test_hash_epochs(version: str, algorithm: str, epoch: str) -> None:
    found = DATA.hash_epoch(Version.parse(version), algorithm)
    assert found is not None
    assert found.name == epoch


def test_a_lower_bound_may_belong_to_every_later_epoch() -> None:
    assert DATA.wire_epochs(Version.parse("0.3.10").at_least()) == {"W2", "W3"}
    assert DATA.hash_epochs(Version.parse("0.3.12").at_least()) == {"H2", "H3"}


def test_a_version_that_was_never_released_belongs_to_no_epoch() -> None:
    assert DATA.hash_epochs(Version.parse("0.4.0")) == frozenset()


@pytest.mark.parametrize(
    ("version", "default"),
    [("0.3.7", "constant"), ("0.3.9", "process"), ("0.3.12", "none"), ("0.4.2", "none"), ("0.4.3", "process")],
)
def test_default_instance_ids(version: str, default: str) -> None:
    assert DATA.default_instance_id(Version.parse(version)) == default


@pytest.mark.parametrize(
    ("image", "lmcache"),
    [
        ("lmcache/lmstack-router:v0.1.11", "0.3.11"),
        ("docker.io/lmcache/lmstack-router:0.1.8", "0.3.9.post2"),
        ("ghcr.io/vllm-project/production-stack/router:v0.1.9", "0.3.11"),
        ("lmcache/vllm-openai:v0.4.7", "0.4.7"),
        ("lmcache/vllm-openai:v0.4.7@sha256:00", "0.4.7"),
    ],
)
def test_lmcache_is_known_by_image(image: str, lmcache: str) -> None:
    found = DATA.lmcache_of(None, image)
    assert found is not None
    assert found == Version.parse(lmcache)
    assert found.exact


@pytest.mark.parametrize(
    "image",
    [
        "lmcache/lmstack-router:latest",
        "lmcache/lmstack-router:0.1.9.dev9-g37bafbcf5",
        "lmcache/vllm-openai:2025-05-27-v1",
        "registry.example:5000/mine",
        "mine/vllm:0.19.1",
        "",
    ],
)
def test_lmcache_is_not_guessed_from_other_images(image: str) -> None:
    assert DATA.lmcache_of(None, image) is None


def test_the_line_of_a_worker_beats_its_image() -> None:
    log = log_view(version_text("0.4.3-1f2e3d4"))
    assert DATA.lmcache_of(log, "lmcache/vllm-openai:v0.3.7") == Version.parse("0.4.3")


def test_a_line_that_only_newer_versions_print_gives_a_lower_bound() -> None:
    log = log_view("[2026-08-01 10:00:01,400] LMCache INFO: Start health check thread, interval: 5 (a.py:1:lmcache.v1)")
    found = DATA.lmcache_of(log, "")
    assert found is not None
    assert (found.text, found.exact) == (">=0.3.10", False)


def test_vllm_is_what_it_answers_before_what_is_printed_and_tagged() -> None:
    log = log_view(version_text("0.4.3", "0.19.1"))
    assert DATA.vllm_of(log, "vllm/vllm-openai:v0.11.1", "0.33.0") == Version.parse("0.33.0")
    assert DATA.vllm_of(log, "vllm/vllm-openai:v0.11.1", None) == Version.parse("0.19.1")
    assert DATA.vllm_of(None, "vllm/vllm-openai:v0.11.1", None) == Version.parse("0.11.1")


def test_every_fingerprint_is_a_pattern_that_exists() -> None:
    from checks.logs.patterns import Patterns

    known = {pattern.id for pattern in Patterns.load()}
    assert {name for name, _ in DATA.fingerprints} <= known


def test_fingerprints_stand_newest_first() -> None:
    versions = [version for _, version in DATA.fingerprints]
    assert versions == sorted(versions, reverse=True)


def test_the_newest_row_of_the_matrix_stands_first() -> None:
    assert DATA.matrix[0].operator == ">=3.1.3"
    assert DATA.matrix[1].lmcache == "==0.3.9.post2"
