"""Which labels tell members apart, and whose a series is."""

from __future__ import annotations

import pytest

from checks.metrics.scope import NAMESPACE_LABELS, POD_LABELS, Scope, find_scope, matcher
from checks.snapshot import Member
from tests.checks.build import router, worker


def pods(*names: str, namespace: str = "prod") -> list[Member]:
    return [worker(name, namespace=namespace, ip="") for name in names]


@pytest.mark.parametrize("namespace_label", NAMESPACE_LABELS)
@pytest.mark.parametrize("pod_label", POD_LABELS)
def test_every_known_pair_of_labels_is_found(namespace_label: str, pod_label: str) -> None:
    row = {namespace_label: "prod", pod_label: "w-0"}
    scope = find_scope([row], pods("w-0"))
    assert scope.place == (namespace_label, pod_label)
    assert scope.matchers == f'{namespace_label}="prod"'
    assert scope.member_of(row) == "prod/w-0"


def test_the_exported_namespace_wins_where_namespace_is_prometheus_own() -> None:
    row = {"namespace": "monitoring", "pod": "collector", "exported_namespace": "prod", "exported_pod": "w-0"}
    assert find_scope([row], pods("w-0")).place == ("exported_namespace", "exported_pod")


def test_among_pairs_that_fit_equally_the_plainest_wins() -> None:
    row = {"namespace": "prod", "pod": "w-0", "exported_namespace": "prod", "exported_pod": "w-0"}
    assert find_scope([row], pods("w-0")).place == ("namespace", "pod")


def test_the_pair_that_puts_most_members_wins() -> None:
    rows = [
        {"namespace": "prod", "pod": "r-0"},
        {"exported_namespace": "prod", "exported_pod": "w-0", "namespace": "otel"},
        {"exported_namespace": "prod", "exported_pod": "w-1", "namespace": "otel"},
    ]
    scope = find_scope(rows, [router("r-0"), *pods("w-0", "w-1")])
    assert scope.place == ("exported_namespace", "exported_pod")


def test_a_pod_of_the_same_name_in_another_namespace_is_a_stranger() -> None:
    rows = [{"namespace": "prod", "pod": "w-0"}, {"namespace": "test", "pod": "w-0"}]
    assert find_scope(rows, pods("w-0")).member_of(rows[1]) is None


def test_a_pods_name_alone_does_not_count_beside_a_namespace() -> None:
    scope = find_scope([{"namespace": "test", "pod": "w-0"}], pods("w-0"))
    assert not scope.by_member
    assert "test" in scope.nothing


def test_a_pods_name_alone_counts_without_any_namespace() -> None:
    scope = find_scope([{"pod": "w-0"}], pods("w-0"))
    assert scope.member_of({"pod": "w-0"}) == "prod/w-0"
    assert 'namespace=""' in scope.matchers


def test_members_of_two_namespaces_are_asked_for_together() -> None:
    rows = [{"namespace": "prod", "pod": "w-0"}, {"namespace": "routers", "pod": "r-0"}]
    scope = find_scope(rows, [*pods("w-0"), router("r-0", namespace="routers")])
    assert scope.matchers == 'namespace=~"prod|routers"'


@pytest.mark.parametrize("instance", ["10.0.0.1:8000", "10.0.0.1"])
def test_an_instance_is_mapped_by_the_pods_address(instance: str) -> None:
    scope = find_scope([{"instance": instance}], [worker("w-0", ip="10.0.0.1")])
    assert scope.member_of({"instance": instance}) == "prod/w-0"


def test_an_instance_of_ipv6_is_mapped() -> None:
    scope = find_scope([{"instance": "[fd00::1]:8000"}], [worker("w-0", ip="fd00::1")])
    assert scope.member_of({"instance": "[fd00::1]:8000"}) == "prod/w-0"


def test_processes_of_one_address_are_told_apart_by_port() -> None:
    members = [
        worker(f"w-{at}", namespace="", ip="127.0.0.1", url=f"http://localhost:810{at}", kind="Process")
        for at in range(2)
    ]
    rows = [{"instance": "127.0.0.1:8101"}, {"instance": "127.0.0.1:9999"}]
    scope = find_scope(rows, members)
    assert [scope.member_of(row) for row in rows] == ["w-1", None]
    assert scope.matchers == 'instance="127.0.0.1:8101"'


def test_further_addresses_of_a_member_are_used() -> None:
    scope = find_scope([{"instance": "127.0.0.1:9100"}], pods("w-0"), {"localhost:9100": "prod/w-0"})
    assert scope.member_of({"instance": "127.0.0.1:9100"}) == "prod/w-0"


def test_without_pod_or_address_the_fleet_of_the_namespace_is_known() -> None:
    scope = find_scope([{"namespace": "prod", "instance": "x:1"}, {"namespace": "test"}], pods("w-0"))
    assert (scope.by_member, scope.matchers, scope.member_of({"instance": "x:1"})) == (False, 'namespace="prod"', "")


def test_without_any_label_the_fleet_is_everything() -> None:
    assert find_scope([{"instance": "x:1"}], pods("w-0")) == Scope()


def test_other_namespaces_only_are_named() -> None:
    rows = [{"namespace": f"n{at}"} for at in range(7)]
    assert find_scope(rows, pods("w-0")).nothing == (
        "it has such series of namespaces n0, n1, n2, n3, n4, …, none of prod"
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["prod"], 'a="prod"'),
        (["a", "b"], 'a=~"a|b"'),
        (["1.2:3", "x"], r'a=~"1\\.2\\:3|x"'),
        (['q"uote\\'], r'a="q\"uote\\"'),
    ],
)
def test_values_are_quoted_for_promql(values: list[str], expected: str) -> None:
    assert matcher("a", values) == expected


def test_a_selector_joins_scope_and_more() -> None:
    assert Scope(matchers='a="b"').selector('server=""', "") == '{a="b",server=""}'
    assert Scope().selector("") == ""
