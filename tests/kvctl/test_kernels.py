"""The folder for compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvctl import kernels


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def places(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    monkeypatch.setattr(kernels, "_usual_places", lambda: list(folders))


def test_a_writable_place_is_left_to_numba(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    places(monkeypatch, Path("/proc/no"), tmp_path / "cache")
    kernels.ensure_cache()
    assert os.environ["NUMBA_CACHE_DIR"] == ""


def test_a_folder_that_the_user_named_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    places(monkeypatch, Path("/proc/no"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/somewhere")
    kernels.ensure_cache()
    assert os.environ["NUMBA_CACHE_DIR"] == "/somewhere"


def test_without_a_writable_place_a_private_temporary_one_is_taken_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places(monkeypatch, Path("/proc/no"), Path("/proc/neither"))
    kernels.ensure_cache()
    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o077 == 0
    assert str(folder) in capsys.readouterr().err


def test_the_first_usual_place_is_beside_the_kernels() -> None:
    assert (kernels._usual_places()[0].parent / "hashing.py").is_file()
