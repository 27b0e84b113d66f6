"""How a running router is written: what each key means, and what is refused with a word on the way out."""

from __future__ import annotations

import pytest

from bench.arm_spec import ArmSpec, ArmSpelling, parse_arm
from bench.cold import Engine


def test_a_name_and_an_address_are_enough() -> None:
    assert parse_arm("ours=http://h:1/x/") == ArmSpec("ours", "http://h:1/x")


def test_engines_are_named_by_the_id_that_a_router_gives_them() -> None:
    found = parse_arm("a=http://h:1,engines=http://h:2+http://h:3/p")
    assert [engine.url for engine in found.engines] == ["http://h:2", "http://h:3/p"]
    assert found.engines[0] == Engine("h-2", "http://h:2")


def test_an_engine_may_be_named_as_its_router_names_it() -> None:
    assert parse_arm("a=http://h:1,engines=e0@http://h:2+e1@http://h:3").engines == (
        Engine("e0", "http://h:2"),
        Engine("e1", "http://h:3"),
    )


def test_a_reset_is_off_or_an_address_to_post_to() -> None:
    assert not parse_arm("a=http://h:1,reset=none").resets
    assert parse_arm("a=http://h:1,reset=none").reset_url is None
    assert parse_arm("a=http://h:1,reset=http://h:1/flush").resets
    assert parse_arm("a=http://h:1,reset=http://h:1/flush").reset_url == "http://h:1/flush"


def test_a_version_may_hold_spaces_and_equals_signs() -> None:
    assert parse_arm("a=http://h:1,version=smg 1.13.0 policy=cache").version == "smg 1.13.0 policy=cache"


def test_an_admin_port_is_an_address() -> None:
    assert parse_arm("a=http://h:1,admin=http://h:9/").admin == "http://h:9"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b=http://h:1", "NAME=http"),
        ("a=http://h:1,colour=red", "'colour=red' is not key=value; the keys are engines, admin, reset, version"),
        ("a=http://h:1,admin=", "'admin=' is not key=value"),
        ("a=http://h:1,admin=http://h:2,admin=http://h:3", "admin is given twice"),
        ("a=http://h:1,reset=off", "'off' is not an http:// URL"),
        ("a=http://h:1,engines=http://h:2+http://h:2", "one is named twice"),
        ("a=http://h:1,engines=e@http://h:2+e@http://h:3", "one is named twice"),
        ("a=http://h:1,engines=@http://h:2", "id="),
        ("a=http://h:1,engines=http://h:2+", "'' is not an http:// URL"),
        ("a=http://h:1,version=a\nb", "printable"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, said: str) -> None:
    with pytest.raises(ArmSpelling, match=said.replace("'", "['\"]")):
        parse_arm(text)
