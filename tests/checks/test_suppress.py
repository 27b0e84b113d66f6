"""Which findings a rule, a file or an annotation covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.model import Group, Status, Target
from checks.snapshot import Resources
from checks.suppress import NONE, SuppressionError, parse, read
from tests.checks.build import router, snapshot, worker
from tests.checks.diagnoses import pod, result

KNOWN = frozenset({"KV302", "KV312", "KV313", "KV507"})


def covered(rule: str, id: str = "KV312", status: Status = Status.FAIL, target: Target | None = None) -> bool:
    return parse([rule], KNOWN).covers(result(id, status, Group.LMCACHE, target or pod("engine-0")))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("KV312", True),
        ("KV3*", True),
        ("KV313", False),
        ("KV312=Pod engine-*.prod", True),
        ("KV312=Pod engine-*.prod/vllm", True),
        ("KV312 = Pod engine-0.prod", True),
        ("KV312=*engine*", True),
        ("KV312=Pod engine-1.prod", False),
        ("KV312=Pod engine-*.stage", False),
        ("KV312=engine-0", False),
    ],
)
def test_a_rule_names_check_and_target_by_glob(rule: str, expected: bool) -> None:
    assert covered(rule) is expected


@pytest.mark.parametrize(
    ("status", "expected"), [(Status.WARN, True), (Status.ERROR, True), (Status.PASS, False), (Status.SKIP, False)]
)
def test_only_what_is_wrong_is_suppressed(status: Status, expected: bool) -> None:
    assert covered("KV312", status=status) is expected


def test_the_fleet_is_a_target() -> None:
    assert covered("KV312=fleet", target=Target())


@pytest.mark.parametrize("rule", ["KV999", "KV9*=Pod x", "=Pod x", "KV312=", ""])
def test_a_rule_that_can_mean_nothing_is_refused_by_name(rule: str) -> None:
    with pytest.raises(SuppressionError, match=r"wanted|no check is called"):
        parse([rule], KNOWN)


def test_there_is_a_limit_to_rules() -> None:
    with pytest.raises(SuppressionError, match="more than 1000 rules"):
        parse(["KV312"] * 1001, KNOWN)


def test_a_file_has_a_rule_a_line_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "ignore"
    file.write_text("# known\nKV312=Pod engine-*.prod  # until the daemon is there\n\nKV507\n")
    assert read(file) == ["KV312=Pod engine-*.prod", "KV507"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuppressionError, match="nowhere"):
        read(tmp_path / "nowhere")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SuppressionError, match="binary"):
        read(tmp_path / "binary")
    (tmp_path / "huge").write_text("#" * ((1 << 20) + 1))
    with pytest.raises(SuppressionError, match="1 MiB"):
        read(tmp_path / "huge")


def test_a_pods_annotation_covers_that_pod_only() -> None:
    read_of = snapshot(worker("w-0", annotations={"kvctl.io/ignore": "KV313, KV507"}), worker("w-1"))
    rules = NONE.annotated(read_of, KNOWN)
    assert rules.covers(result("KV313", Status.WARN, target=pod("w-0")))
    assert not rules.covers(result("KV312", Status.WARN, target=pod("w-0")))
    assert not rules.covers(result("KV313", Status.WARN, target=pod("w-1")))
    assert not rules.covers(result("KV313", Status.WARN))


def test_a_custom_resources_annotation_covers_it_its_pods_and_the_fleet() -> None:
    endpoint = {
        "kind": "InferenceEndpointConfig",
        "metadata": {"name": "llama", "namespace": "prod", "annotations": {"kvctl.io/ignore": "KV313"}},
        "status": {"deploymentStatus": {"name": "llama-deploy"}},
    }
    read_of = snapshot(
        worker("w-0", owner="Deployment/llama-deploy"),
        worker("w-1", owner="Deployment/other"),
        worker("w-2", labels={"app": "llama"}),
        router("router-0"),
        resources=Resources({"inferenceendpointconfigs": (endpoint,)}),
    )
    rules = NONE.annotated(read_of, KNOWN)

    def covers(target: Target) -> bool:
        return rules.covers(result("KV313", Status.FAIL, target=target))

    assert covers(Target("InferenceEndpointConfig", "prod", "llama"))
    assert covers(pod("w-0"))
    assert covers(pod("w-2"))
    assert covers(Target())
    assert not covers(pod("w-1"))
    assert not covers(pod("router-0", container="router-container"))


def test_an_annotation_that_names_no_check_is_told() -> None:
    rules = NONE.annotated(snapshot(worker("w-0", annotations={"kvctl.io/ignore": "KV999,KV313"})), KNOWN)
    assert rules.unknown == ("KV999 (Pod w-0.prod)",)
