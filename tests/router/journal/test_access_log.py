"""The access log's file: written in batches, opened anew when moved, bounded when it cannot be written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.journal import access_log
from router.journal.access_log import AccessLog, AccessLogSettings, LogFormat
from tests.router.journal.test_line import line

FULL = Path("/dev/full")


async def until(true: object) -> None:
    async with asyncio.timeout(20):
        while not true():  # type: ignore[operator] # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_lines_are_appended_to_the_file_in_order(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text("before\n")
    log = AccessLog(AccessLogSettings(path))
    for number in range(5):
        log.add(line(request_id=f"r-{number}"))
    await until(lambda: log.written == 5)
    log.add(line(request_id="r-last"))
    await log.close()
    ids = [text.split()[1] for text in path.read_text().splitlines()[1:]]
    assert ids == [f"request_id=r-{number}" for number in (0, 1, 2, 3, 4, "last")]
    assert log.dropped == 0


async def test_reopen_leaves_the_moved_file_and_begins_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(AccessLogSettings(path, LogFormat.JSON))
    log.add(line(request_id="r-1"))
    await until(lambda: log.written == 1)
    path.rename(tmp_path / "access.log.1")
    log.reopen()
    log.add(line(request_id="r-2"))
    await log.close()
    assert "r-1" in (tmp_path / "access.log.1").read_text()
    assert "r-2" in path.read_text()
    assert "r-1" not in path.read_text()


async def test_lines_past_the_bound_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "_MOST", 3)
    log = AccessLog(AccessLogSettings(tmp_path / "access.log"))
    for _ in range(5):
        log.add(line())
    await log.close()
    assert (log.written, log.dropped) == (3, 2)
    assert len((tmp_path / "access.log").read_text().splitlines()) == 3


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
async def test_full_disk_loses_lines_and_counts_them() -> None:
    log = AccessLog(AccessLogSettings(FULL))
    log.add(line())
    await until(lambda: log.dropped == 1)
    assert log.failures == 1
    await log.close()


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
async def test_lines_lost_to_a_full_disk_do_not_stop_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.symlink_to(FULL)
    log = AccessLog(AccessLogSettings(path))
    log.add(line(request_id="r-lost"))
    await until(lambda: log.dropped == 1)
    path.unlink()
    log.reopen()
    log.add(line(request_id="r-kept"))
    await log.close()
    assert [text.split()[1] for text in path.read_text().splitlines()] == ["request_id=r-kept"]
    assert (log.written, log.dropped) == (1, 1)


async def test_file_that_cannot_be_opened_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        AccessLog(AccessLogSettings(tmp_path / "none" / "access.log"))


async def test_file_that_cannot_be_opened_anew_keeps_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = AccessLog(AccessLogSettings(folder / "access.log"))
    folder.rename(tmp_path / "moved")
    log.reopen()
    log.add(line(request_id="r-1"))
    await until(lambda: log.dropped == 1)
    log.add(line(request_id="r-2"))
    await log.close()
    assert "r-2" in (tmp_path / "moved" / "access.log").read_text()
