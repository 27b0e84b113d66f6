"""Members without a cluster."""

from __future__ import annotations

from checks.discover.processes import process, told_workers, with_files, workers
from checks.request import LogFile
from checks.snapshot import Role


def test_a_process_is_named_by_host_and_port() -> None:
    found = process(Role.ROUTER, "http://10.0.0.5:8000")
    assert (found.name, found.kind, found.ips) == ("10.0.0.5:8000", "Process", ("10.0.0.5",))


def test_loopback_is_no_address_by_which_workers_are_told_apart() -> None:
    assert process(Role.WORKER, "http://127.0.0.1:8000").ips == ()


def test_a_password_is_no_part_of_the_name() -> None:
    assert process(Role.WORKER, "http://me:pw@h:8000").name == "h:8000"


def test_workers_get_the_routers_ids() -> None:
    told = told_workers(
        {"workers": [{"id": "w1", "url": "http://h:1"}, {"id": "w2", "url": "http://h:2/"}, {"id": ""}, 7]}
    )
    assert [one.name for one in workers(["http://h:2", "http://h:3"], told)] == ["w2", "h:3"]


def test_without_urls_the_routers_workers_are_taken() -> None:
    assert [(one.name, one.url) for one in workers([], [("w1", "http://h:1")])] == [("w1", "http://h:1")]


def test_an_answer_that_lists_nothing() -> None:
    assert told_workers(["x"]) == ()
    assert told_workers({"workers": None}) == ()


FLEET = [
    process(Role.ROUTER, "http://h:80"),
    process(Role.WORKER, "http://h:1", "w1"),
    process(Role.WORKER, "http://h:2"),
]


def paired(*files: str) -> tuple[list[str], dict[str, str]]:
    found = with_files(FLEET, [LogFile.parse(one) for one in files])
    return [one.name for one in found.members], {key: file.path for key, file in found.files.items()}


def test_files_go_to_members_by_name_address_or_number() -> None:
    names, files = paired("router=r.log", "worker:w1=a.log", "worker:1=b.log")
    assert names == ["h:80", "w1", "h:2"]
    assert files == {"h:80": "r.log", "w1": "a.log", "h:2": "b.log"}
    assert paired("worker:h:1=a.log")[1] == {"w1": "a.log"}


def test_a_file_of_nobody_becomes_a_member() -> None:
    names, files = paired("worker:other=a.log", "worker=b.log")
    assert names == ["h:80", "w1", "h:2", "other", "worker"]
    assert files == {"other": "a.log", "worker": "b.log"}


def test_two_files_of_one_name_are_two_members() -> None:
    found = with_files([], [LogFile.parse("worker=a.log"), LogFile.parse("worker=b.log")])
    assert [one.name for one in found.members] == ["worker", "worker-2"]
