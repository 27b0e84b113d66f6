from __future__ import annotations

import os
import time
from pathlib import Path

from router.prefix import blocks, hashing, layout, operations, owners, rows, runs
from router.prefix.warm import warm


def kernels() -> list:
    modules = (hashing, owners, blocks, operations, runs, rows)
    return [value for module in modules for value in vars(module).values() if hasattr(value, "overloads")]


def test_warm_runs_and_leaves_every_kernel_with_exactly_its_declared_signature() -> None:
    warm()
    assert len(kernels()) > 20
    assert all(len(kernel.overloads) == 1 for kernel in kernels())
    assert all(not kernel._can_compile for kernel in kernels())


def test_kernels_older_than_a_file_they_come_from_are_dropped_from_the_cache(tmp_path: Path) -> None:
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    now = time.time()
    for name, age in (("owners.py", 50), ("blocks.py", 100), ("operations.py", 100)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - age, now - age))
    for name, age in (("blocks.attach-1.nbi", 80), ("operations.store-1.nbi", 20), ("other.f-1.nbi", 80)):
        (cache / name).touch()
        os.utime(cache / name, (now - age, now - age))
    assert layout.drop_stale_kernels(tmp_path) == 1
    assert sorted(path.name for path in cache.iterdir()) == ["operations.store-1.nbi", "other.f-1.nbi"]


def test_a_folder_without_a_cache_has_nothing_to_drop(tmp_path: Path) -> None:
    (tmp_path / "owners.py").touch()
    assert layout.drop_stale_kernels(tmp_path) == 0
