"""What callers may say of routing, in headers and in the body's nvext."""

from __future__ import annotations

import json

import pytest

from router.hints import Asked, checked_weights, from_headers, with_nvext, with_session_field
from router.model import NO_HINTS, BadRequest


def asked(*headers: tuple[bytes, bytes]) -> Asked:
    found = from_headers(list(headers))
    assert found is not None
    return found


def test_headers_that_say_nothing_of_routing_ask_for_nothing() -> None:
    assert from_headers([(b"accept", b"*/*"), (b"x-session-id", b"  ")]) is None


@pytest.mark.parametrize("name", [b"x-kvctl-worker", b"x-dynamo-worker-instance-id", b"x-worker-instance-id"])
def test_each_spelling_of_the_pin_names_the_worker_and_itself(name: bytes) -> None:
    found = asked((name, b"w1"))
    assert (found.pin_worker, found.pin_param) == ("w1", name.decode())


@pytest.mark.parametrize("name", [b"x-kvctl-dp-rank", b"x-dynamo-dp-rank", b"x-dp-rank", b"x-data-parallel-rank"])
def test_each_spelling_of_the_rank_is_read(name: bytes) -> None:
    assert asked((name, b"3")).pin_rank == 3


def test_two_rank_headers_may_agree_but_not_contradict() -> None:
    assert asked((b"x-dp-rank", b"1"), (b"x-kvctl-dp-rank", b"1")).pin_rank == 1
    with pytest.raises(BadRequest, match="different dp ranks"):
        asked((b"x-dp-rank", b"1"), (b"x-kvctl-dp-rank", b"2"))


@pytest.mark.parametrize("name", [b"x-session-id", b"x-dynamo-session-id", b"x-claude-code-session-id"])
def test_each_spelling_of_the_session_is_read(name: bytes) -> None:
    assert asked((name, b" s-1 ")).hints.session == "s-1"


def test_a_configured_session_header_beats_the_usual_ones() -> None:
    found = from_headers([(b"x-session-id", b"a"), (b"x-user", b"b")], b"x-user")
    assert found is not None
    assert found.hints.session == "b"


def test_the_other_hints_are_read() -> None:
    hints = asked(
        (b"x-kvctl-osl", b"250"),
        (b"x-kvctl-priority", b"-2"),
        (b"x-kvctl-strict-priority", b"7"),
        (b"x-kvctl-deadline-ms", b"1500"),
        (b"x-kvctl-workers", b"w1, w2"),
        (b"x-kvctl-required-taints", b"zone-a"),
        (b"x-kvctl-preferred-taints", b"gpu-h200=1.0, spot=-0.5"),
        (b"x-dynamo-meta-policy-class", b"batch"),
        (b"x-tenant-id", b"acme"),
    ).hints
    assert (hints.osl, hints.priority, hints.strict_priority, hints.deadline_s) == (250, -2, 7, 1.5)
    assert hints.allowed == {"w1", "w2"}
    assert hints.required_taints == {"zone-a"}
    assert hints.preferred_taints == (("gpu-h200", 1.0), ("spot", -0.5))
    assert (hints.policy_class, hints.tenant) == ("batch", "acme")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-kvctl-osl", b"many"),
        (b"x-kvctl-osl", b"99999999999"),
        (b"x-kvctl-dp-rank", b"-1"),
        (b"x-kvctl-priority", b"high"),
        (b"x-kvctl-deadline-ms", b"1.5"),
        (b"x-kvctl-preferred-taints", b"gpu"),
        (b"x-kvctl-preferred-taints", b"gpu=nan"),
        (b"x-kvctl-weights", b"=1"),
        (b"x-kvctl-required-taints", b"a b"),
        (b"x-kvctl-workers", ",".join(f"w{n}" for n in range(257)).encode()),
    ],
)
def test_a_value_that_cannot_be_understood_is_refused_by_its_name(name: bytes, value: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        asked((name, value))
    assert refused.value.param == name.decode()


def test_nvext_adds_what_headers_left_open() -> None:
    body = (
        b'{"backend_instance_id": 7, "dp_rank": 1, "token_data": [5, 6], "extra_fields": ["timing"],'
        b' "agent_hints": {"osl": 40, "priority": 3, "strict_priority": 1, "latency_sensitivity": 0.5},'
        b' "routing_constraints": {"required_taints": ["zone-a"], "preferred_taints": {"spot": -0.5}}}'
    )
    found, ids = with_nvext(None, body)
    assert (found.pin_worker, found.pin_rank, ids) == ("7", 1, [5, 6])
    assert (found.hints.osl, found.hints.priority, found.hints.strict_priority) == (40, 3, 1)
    assert found.hints.required_taints == {"zone-a"}
    assert found.hints.preferred_taints == (("spot", -0.5),)


def test_headers_beat_nvext() -> None:
    said = asked((b"x-kvctl-worker", b"w1"), (b"x-kvctl-osl", b"10"))
    found, _ids = with_nvext(said, b'{"backend_instance_id": "w2", "agent_hints": {"osl": 40}}')
    assert (found.pin_worker, found.hints.osl) == ("w1", 10)


@pytest.mark.parametrize(
    "body", [b'{"dp_rank": "x"}', b"[1]", b'{"dp_rank": -1}', b'{"agent_hints": {"osl": -5}}', b"[" * 5000]
)
def test_an_nvext_of_the_wrong_kind_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        with_nvext(None, body)


def test_the_session_comes_from_the_bodys_field_where_no_header_names_one() -> None:
    found = with_session_field(None, b'{"user": "u-1", "prompt": "x"}', "user")
    assert found is not None
    assert found.hints.session == "u-1"
    header = asked((b"x-session-id", b"h"))
    assert with_session_field(header, b'{"user": "u-1"}', "user") is header


@pytest.mark.parametrize("body", [b"{}", b'{"user": 3}', b'{"user": ""}', b"not json"])
def test_a_body_without_that_field_names_no_session(body: bytes) -> None:
    assert with_session_field(None, body, "user") is None


def test_overrides_of_weights_are_checked_like_the_options() -> None:
    assert checked_weights({"router_temperature": 0.5}) == {"router_temperature": 0.5}
    with pytest.raises(BadRequest, match="the weights are overlap_score_credit"):
        checked_weights({"nonsense": 1.0})
    with pytest.raises(BadRequest, match="host_cache_hit_weight must be between 0 and 1"):
        checked_weights({"host_cache_hit_weight": 2.0})


def test_without_hints_all_requests_share_one_object() -> None:
    assert asked((b"x-kvctl-worker", b"w1")).hints is NO_HINTS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", 10**400),
        ("priority", -(10**9)),
        ("strict_priority", 2**31),
        ("strict_priority", -1),
        ("osl", 10**400),
        ("osl", -1),
    ],
)
def test_a_number_in_nvext_outside_its_range_is_refused_by_its_name(field: str, value: int) -> None:
    with pytest.raises(BadRequest) as refused:
        with_nvext(None, json.dumps({"agent_hints": {field: value}}).encode())
    assert refused.value.param == f"nvext.agent_hints.{field}"


@pytest.mark.parametrize("other", [b"x-kvctl-worker", b"x-dynamo-worker-instance-id"])
def test_two_pins_to_different_workers_are_refused(other: bytes) -> None:
    with pytest.raises(BadRequest, match="different workers"):
        asked((b"x-kvctl-worker", b"a"), (other, b"b"))


def test_the_same_pin_twice_is_one() -> None:
    found = asked((b"x-kvctl-worker", b"a "), (b"x-worker-instance-id", b"a"), (b"x-kvctl-worker", b""))
    assert found is not None
    assert found.pin_worker == "a"
