"""A schedule read back is the workload that was written; one that was cut, changed or is not one is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.workload import schedule
from bench.workload.arrivals import Arrivals
from bench.workload.catalogue import ENTRIES
from bench.workload.model import Request, Role, Workload, WorkloadError
from bench.workload.source import Wish, make
from bench.workload.tokens import Piece, Vocabulary


def full() -> Workload:
    """Every field of a request set."""
    request = Request(
        "r0", "s", 0, "g", 0, 0.1, 3, (Piece(2**64 - 1, 5), Piece(4, 2, "héllo")), roles=(Role.SYSTEM, Role.USER),
        priority=-2, headers=(("x-a", "b"),), abort_after=2, body=b'{"top_p":0.5}', model="adapter",
    )  # fmt: skip
    later = replace(request, id="r1", turn=1, after="r0", think=0.25, at=0.35)
    return Workload("full", (request, later), 1, Vocabulary(5, 50), {"seed": 1}, ["note"], users=3)


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_a_workload_comes_back_as_it_was_written(tmp_path: Path, name: str) -> None:
    workload = make(Wish(name, slices=2, requests=30))
    path = tmp_path / "s.jsonl"
    schedule.write(workload, path)
    back = make(Wish(file=path, slices=2))
    assert back.requests == workload.requests
    assert (back.sha256, back.actions, back.engine) == (workload.sha256, workload.actions, workload.engine)


def test_every_field_comes_back(tmp_path: Path) -> None:
    schedule.write(full(), tmp_path / "s.jsonl")
    back = schedule.read(tmp_path / "s.jsonl")
    assert back.requests == full().requests
    assert (back.users, back.vocabulary, back.notes, back.facts) == (3, Vocabulary(5, 50), ["note"], {"seed": 1})


def test_the_same_workload_is_written_to_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        schedule.write(make(Wish("zipf", requests=20, seed=5)), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    schedule.write(full(), tmp_path / "s.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["s.jsonl"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"output":3', '"output":4', "the file was changed"),
        ('"at":0.1', '"at":-1.0', ":2: at: out of range"),
        ('"slice":0', '"slice":7', ":2: slice: from 0 to 0"),
        ('"x-a"', '"x-a\\\\r\\\\n"', ":2: headers"),
        ('"requests":2', '"requests":3', "the file was cut"),
        ('"kvctl_schedule":1', '"kvctl_schedule":9', "version 9"),
        ('"vocabulary":[5,50]', '"vocabulary":[50,5]', "vocabulary"),
        ('"turn":0', '"turn":"x"', ":2: "),
        ('"abort_after":2', '"abort_after":0', "at least 1 chunk"),
    ],
)
def test_a_changed_file_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "s.jsonl"
    schedule.write(full(), path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new.replace("\\\\", "\\"), 1))
    with pytest.raises(WorkloadError, match=said):
        schedule.read(path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"cannot write .*absent"):
        schedule.write(full(), tmp_path / "absent" / "s.jsonl")


@pytest.mark.parametrize(
    "wish", [{"requests": 5}, {"rate": 1.0}, {"speedup": 2.0}, {"arrivals": Arrivals.parse("poisson")}, {"whole": True}]
)
def test_a_schedule_is_sent_as_it_was_written(tmp_path: Path, wish: dict[str, object]) -> None:
    schedule.write(full(), tmp_path / "s.jsonl")
    with pytest.raises(WorkloadError, match="cannot change a schedule"):
        make(Wish(file=tmp_path / "s.jsonl", **wish))  # type: ignore[arg-type]


def test_another_number_of_blocks_is_refused(tmp_path: Path) -> None:
    schedule.write(full(), tmp_path / "s.jsonl")
    with pytest.raises(WorkloadError, match="give --blocks 1"):
        make(Wish(file=tmp_path / "s.jsonl", slices=2))
