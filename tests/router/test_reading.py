"""Headers of one client repeat; what they ask for is the same each time."""

from __future__ import annotations

from router.core import CoreSettings, RoutingCore
from router.reading import DispatchSettings, RequestReader

PLAIN = [(b"host", b"a"), (b"content-type", b"application/json")]
ASKING = [(b"host", b"a"), (b"x-request-id", b"mine"), (b"x-session-id", b"s1")]


def reader() -> RequestReader:
    return RequestReader(RoutingCore(CoreSettings(seed=1)), DispatchSettings(mode="round-robin"), "p")


def test_headers_that_ask_for_something_are_read_each_time() -> None:
    one = reader()
    for _ in range(3):
        request, _mode = one.request(ASKING)
        assert (request.id, request.hints.session) == ("mine", "s1")


def test_headers_that_ask_for_nothing_give_a_new_id_each_time() -> None:
    one = reader()
    ids = [one.request(PLAIN)[0].id for _ in range(3)]
    assert len(set(ids)) == 3


def test_very_many_different_headers_are_told_apart() -> None:
    one = reader()
    for number in range(2000):
        plain = [(b"host", b"%d" % number)]
        asking = [(b"host", b"%d" % number), (b"x-request-id", b"id-%d" % number)]
        assert one.request(plain)[0].id != f"id-{number}"
        assert one.request(asking)[0].id == f"id-{number}"
        assert one.request(plain)[0].id != f"id-{number}"


def test_an_empty_header_of_ours_asks_for_nothing_and_is_not_passed_over() -> None:
    one = reader()
    headers = [(b"host", b"a"), (b"x-request-id", b"")]
    for _ in range(2):
        one.request(headers)
        assert not one.plain(headers)


def test_headers_without_any_of_ours_are_known_the_second_time() -> None:
    one = reader()
    assert not one.plain(PLAIN)
    one.request(PLAIN)
    assert one.plain(PLAIN)
    assert not one.plain(list(PLAIN))
