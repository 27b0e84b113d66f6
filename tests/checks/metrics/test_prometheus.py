"""`from_prometheus` without a Prometheus: what it asks, what becomes of failures. A real one is asked elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from checks.metrics.connection import PrometheusServer
from checks.metrics.prometheus import from_prometheus
from checks.model import Reason
from checks.sources.tape import Answer, Tape
from tests.checks.build import worker

ANCHOR = [{"metric": {"namespace": "prod", "pod": "w-0"}, "value": [500.0, "1"]}]
NAMES = [{"metric": {"__name__": "vllm:num_requests_running"}, "value": [500.0, "1"]}]
MEMBER = worker("w-0", namespace="prod")


class Scripted(PrometheusServer):
    """Answers from a function of the query; remembers what it was asked and as of when."""

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        super().__init__("http://prometheus.test:9090")
        self.script = answer
        self.asked: list[tuple[str, float | None]] = []

    def query(self, text: str, *, at: float | None = None) -> Answer:
        self.asked.append((text, at))
        return self.script(text)


def rows(found: list[dict[str, object]]) -> Answer:
    return Answer(200, json.dumps(found))


def fleet(query: str) -> Answer:
    if "__name__" in query:
        return rows(NAMES if query.startswith("count by (__name__)") else ANCHOR)
    if "num_requests_running" in query and "timestamp" not in query and "[5m]" not in query:
        return rows(ANCHOR)
    return rows([])


@pytest.mark.parametrize("reason", [Reason.UNREACHABLE, Reason.RBAC, Reason.TIMEOUT, Reason.PARSE])
def test_where_the_first_query_fails_no_other_is_asked(reason: Reason) -> None:
    server = Scripted(lambda _: Answer(0, error=reason, message="why"))
    metrics, (unread,) = from_prometheus(Tape.live(), server, [MEMBER])
    assert (metrics.missing, metrics.samples, metrics.source) == (reason, {}, "prometheus")
    assert (unread.what, unread.reason, unread.message) == ("1 of 1 Prometheus queries", reason, "why")
    assert len(server.asked) == 1


def test_an_empty_prometheus_is_no_data_and_says_so() -> None:
    metrics, (unread,) = from_prometheus(Tape.live(), Scripted(lambda _: rows([])), [MEMBER])
    assert metrics.missing is Reason.NO_DATA
    assert unread.message == "Prometheus at http://prometheus.test:9090: it has no series of engines or routers"


def test_all_queries_after_the_first_are_as_of_its_time() -> None:
    server = Scripted(fleet)
    from_prometheus(Tape.live(), server, [MEMBER])
    assert server.asked[0][1] is None
    assert {at for _, at in server.asked[1:]} == {500.0}


def test_only_names_that_exist_are_asked_for() -> None:
    server = Scripted(fleet)
    metrics, unread = from_prometheus(Tape.live(), server, [MEMBER])
    assert not any("prefix_cache" in query for query, _ in server.asked[2:])
    assert (metrics.now("requests_running", "prod/w-0").value, unread) == (1, ())


def test_no_query_is_asked_twice() -> None:
    server = Scripted(fleet)
    from_prometheus(Tape.live(), server, [MEMBER])
    queries = [query for query, _ in server.asked]
    assert len(queries) == len(set(queries))


def test_a_failure_among_good_answers_is_told_and_the_rest_stands() -> None:
    def some(query: str) -> Answer:
        return Answer(0, error=Reason.TIMEOUT, message="slow") if query.startswith("max by") else fleet(query)

    metrics, (unread,) = from_prometheus(Tape.live(), Scripted(some), [MEMBER])
    assert (metrics.missing, metrics.now("requests_running").value) == (None, 1)
    assert (unread.reason, unread.message) == (Reason.TIMEOUT, "slow")
    assert unread.what.startswith("1 of ")


def test_an_answer_that_is_no_result_list_is_a_parse_failure() -> None:
    metrics, (unread,) = from_prometheus(Tape.live(), Scripted(lambda _: Answer(200, "{}")), [MEMBER])
    assert (metrics.missing, unread.reason) == (Reason.PARSE, Reason.PARSE)


def test_without_time_left_nothing_more_is_asked() -> None:
    server = Scripted(fleet)
    metrics, (unread,) = from_prometheus(Tape.live(), server, [MEMBER], budget_s=-1.0)
    assert (metrics.missing, unread.reason, server.asked) == (Reason.TIMEOUT, Reason.TIMEOUT, [])


def test_an_error_of_our_own_is_not_hidden() -> None:
    class Bug(Exception):
        pass

    def broken(_: str) -> Answer:
        raise Bug

    with pytest.raises(Bug):
        from_prometheus(Tape.live(), Scripted(broken), [MEMBER])


@pytest.mark.parametrize(("every", "told"), [(15, 0), (240, 1)])
def test_a_window_shorter_than_four_scrapes_is_told(every: int, told: int) -> None:
    def raw(query: str) -> Answer:
        if query.endswith("[5m]"):
            return rows([{"metric": {}, "values": [[0, "1"], [every, "1"]]}])
        return rows(ANCHOR) if "timestamp" in query else fleet(query)

    _, unread = from_prometheus(Tape.live(), Scripted(raw), [MEMBER], window_s=900.0)
    assert ["--window 1920s" in one.message for one in unread] == [True] * told
