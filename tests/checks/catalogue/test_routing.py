"""KV501, KV502, KV505-KV507: where requests go and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.model import Reason, Stack, Status
from checks.probe_evidence import ProbeEvidence, ProbeStep
from checks.snapshot import Member, Snapshot
from tests.checks.build import NOW, kubelet_time, only, router, sample, snapshot, statuses, worker

KVAWARE = ("--routing-logic", "kvaware")


def line(message: str, at: float = NOW - 60, level: str = "INFO") -> str:
    return f"{kubelet_time(at)} [2026-08-01 10:29:00,000] {level}: {message} (routing_logic.py:6:vllm_router.routers)"


def hit(at: float = NOW - 60) -> str:
    return line("Routing request to lmcacheengineconfig_ab12 found by kvaware router", at)


def routed(ip: str = "10.0.0.1", at: float = NOW - 60) -> str:
    return line(
        f"Routing request 8f0c-1 with session id None to http://{ip}:8000 at 1785578460.0, process time = 0.1", at
    )


def log(hits: int, requests: int, at: float = NOW - 60) -> str:
    return "\n".join([*[hit(at)] * hits, *[routed(at=at)] * requests])


def kvaware(text: str = "", **more: object) -> Member:
    return router(args=KVAWARE, log=text, **more)  # type: ignore[arg-type]


HITTING = [
    sample("prefix_cache_hits", 9000, increase=9000.0),
    sample("prefix_cache_queries", 20000, increase=20000.0),
    sample("request_success", 100, increase=100.0),
]
"""An engine that found 45 % of 20,000 prompt tokens: prompts repeat."""


# -- KV501 -----------------------------------------------------------------------------------------------------------


def test_kv501_passes_from_five_percent_on() -> None:
    found = only("KV501", snapshot(kvaware(log(1, 20)), worker()))
    assert found.status is Status.PASS
    assert found.message == "1 of 20 requests (5.0%, 15m) were routed by cache"


def test_kv501_warns_below_five_percent() -> None:
    found = only("KV501", snapshot(kvaware(log(1, 21)), worker()))
    assert (found.status, found.message[:7]) == (Status.WARN, "1 of 21")


def test_kv501_fails_where_none_was_and_an_engine_shows_that_prompts_repeat() -> None:
    found = only("KV501", snapshot(kvaware(log(0, 50)), worker(), samples=HITTING))
    assert found.status is Status.FAIL
    assert found.message == "none of 50 requests (15m) was routed by cache, although prompts share prefixes"


def test_kv501_fails_where_none_was_and_the_probe_repeated() -> None:
    steps = (ProbeStep("cold", "a", 200), ProbeStep("repeat", "b", 200))
    of = snapshot(kvaware(log(0, 50)), worker(), probe=ProbeEvidence(steps))
    assert only("KV501", of).status is Status.FAIL


def test_kv501_passes_where_only_the_probes_repeats_were_routed_by_cache() -> None:
    steps = (ProbeStep("cold", "a", 200), ProbeStep("repeat", "b", 200, kv_routed=True))
    of = snapshot(kvaware(log(0, 50)), worker(), probe=ProbeEvidence(steps))
    assert only("KV501", of).status is Status.PASS


def test_kv501_cannot_tell_where_nothing_shows_that_prompts_repeat() -> None:
    found = only("KV501", snapshot(kvaware(log(0, 5000)), worker()))
    assert found.reason is Reason.NO_DATA
    assert "nothing shows that prompts repeat" in found.message


def test_kv501_needs_fifty_requests_before_none_is_a_failure() -> None:
    found = only("KV501", snapshot(kvaware(log(0, 49)), worker(), samples=HITTING))
    assert found.reason is Reason.NO_TRAFFIC


def test_kv501_skips_below_twenty_requests() -> None:
    assert only("KV501", snapshot(kvaware(log(5, 19)), worker())).reason is Reason.NO_TRAFFIC


def test_kv501_counts_the_window_only_where_it_holds_enough() -> None:
    text = log(50, 50, at=NOW - 3600) + "\n" + log(0, 50)
    assert only("KV501", snapshot(kvaware(text), worker(), samples=HITTING)).status is Status.FAIL


def test_kv501_counts_the_whole_log_where_the_window_holds_too_little() -> None:
    text = log(10, 40, at=NOW - 3600) + "\n" + log(0, 10)
    assert only("KV501", snapshot(kvaware(text), worker())).message == (
        "10 of 50 requests (20%, the whole log) were routed by cache"
    )


def test_kv501_knows_that_a_quiet_router_names_no_hits() -> None:
    args = (*KVAWARE, "--log-level", "warning")
    text = log(0, 60)
    assert only("KV501", snapshot(router(args=args, log=text), worker())).reason is Reason.LOG_LEVEL_HIDES


def test_kv501_skips_where_the_log_was_not_read() -> None:
    of = snapshot(router(args=KVAWARE, log=None, log_missing=Reason.RBAC), worker())
    found = only("KV501", of)
    assert (found.status, found.reason) == (Status.ERROR, Reason.RBAC)


def test_kv501_is_not_asked_of_another_strategy() -> None:
    of = snapshot(router(args=("--routing-logic", "session"), log=log(0, 60)), worker())
    assert only("KV501", of).reason is Reason.NOT_APPLICABLE


def test_kv501_skips_where_nothing_tells_the_strategy() -> None:
    assert only("KV501", snapshot(router(log=log(0, 60)), worker())).reason is Reason.NO_DATA


def test_kv501_takes_the_strategy_from_the_routers_own_line() -> None:
    text = line("Initializing kvaware routing logic") + "\n" + log(20, 20)
    assert only("KV501", snapshot(router(log=text), worker(), stack=Stack.UNKNOWN)).status is Status.PASS


def test_kv501_is_for_stacks_whose_router_writes_such_lines() -> None:
    assert statuses("KV501", snapshot(worker(), stack=Stack.LLM_D)) == {"fleet": Status.SKIP}


# -- KV502 -----------------------------------------------------------------------------------------------------------

DEBUG = (*KVAWARE, "--log-level", "debug")
AWS_MISS = line("Matched instance url None", level="DEBUG")
MISS = (
    line("Lookup return message: LookupRetMsg(event_id='1', layout_info={})", level="DEBUG")
    + "\n"
    + line("Fallback to using session id: None", level="DEBUG")
)


def debug(hits: int, misses: int, miss: str = MISS) -> Snapshot:
    text = "\n".join([*[hit()] * hits, *[miss] * misses])
    return snapshot(router(args=DEBUG, log=text), worker())


def test_kv502_counts_a_miss_that_two_lines_tell_once() -> None:
    found = only("KV502", debug(10, 10))
    assert (found.status, found.message) == (Status.PASS, "10 of 20 lookups missed (50%)")


def test_kv502_passes_at_exactly_four_of_five() -> None:
    assert only("KV502", debug(4, 16)).status is Status.PASS


def test_kv502_warns_above_four_of_five() -> None:
    assert only("KV502", debug(4, 17, AWS_MISS)).status is Status.WARN


def test_kv502_fails_where_all_missed_and_prompts_repeat() -> None:
    text = "\n".join([AWS_MISS] * 50)
    of = snapshot(router(args=DEBUG, log=text), worker(), samples=HITTING)
    assert only("KV502", of).status is Status.FAIL


def test_kv502_only_warns_where_all_missed_and_prompts_may_be_unique() -> None:
    assert only("KV502", debug(0, 50)).status is Status.WARN


def test_kv502_needs_fifty_misses_before_all_is_a_failure() -> None:
    text = "\n".join([AWS_MISS] * 49)
    of = snapshot(router(args=DEBUG, log=text), worker(), samples=HITTING)
    assert only("KV502", of).status is Status.WARN


def test_kv502_skips_below_twenty_lookups() -> None:
    assert only("KV502", debug(0, 19)).reason is Reason.NO_TRAFFIC


def test_kv502_skips_at_the_default_level() -> None:
    assert only("KV502", snapshot(kvaware(log(20, 20)), worker())).reason is Reason.LOG_LEVEL_HIDES


def test_kv502_skips_without_a_log() -> None:
    assert only("KV502", snapshot(kvaware(""), worker())).reason is Reason.NO_DATA


def test_kv502_is_not_asked_of_another_strategy() -> None:
    assert only("KV502", snapshot(router(args=("--routing-logic", "session")))).reason is Reason.NOT_APPLICABLE


# -- KV505 -----------------------------------------------------------------------------------------------------------


def spread(first: int, second: int, third: int, *samples: object) -> Snapshot:
    text = "\n".join(
        routed(f"10.0.0.{at + 1}") for at, count in enumerate((first, second, third)) for _ in range(count)
    )
    members = [worker(f"w-{at}", ip=f"10.0.0.{at + 1}") for at in range(3)]
    return snapshot(kvaware(text), *members, samples=samples)  # type: ignore[arg-type]


WAITING = sample("requests_waiting", 4, "prod/w-0")
IDLE = sample("requests_running", 0, "prod/w-1")


def test_kv505_passes_at_three_times_the_median() -> None:
    assert only("KV505", spread(30, 10, 10, WAITING, IDLE)).status is Status.PASS


def test_kv505_warns_above_it_where_requests_wait_and_another_idles() -> None:
    found = only("KV505", spread(31, 10, 10, WAITING, IDLE))
    assert (found.status, found.target.name) == (Status.WARN, "w-0")
    assert found.message == "w-0 got 61% of 51 requests, where 4 wait while another worker idles"


def test_kv505_lets_skew_be_where_nothing_waits() -> None:
    assert only("KV505", spread(31, 10, 10, sample("requests_waiting", 0, "prod/w-0"), IDLE)).status is Status.PASS


def test_kv505_lets_skew_be_where_no_worker_idles() -> None:
    busy = [sample("requests_running", 2, f"prod/w-{at}") for at in (1, 2)]
    assert only("KV505", spread(31, 10, 10, WAITING, *busy)).status is Status.PASS


def test_kv505_cannot_judge_skew_without_the_queues() -> None:
    assert only("KV505", spread(31, 10, 10)).reason is Reason.NO_DATA


def test_kv505_counts_by_the_engines_where_the_log_does_not_tell() -> None:
    served = [
        sample("request_success", 100, f"prod/w-{at}", increase=count) for at, count in enumerate((40.0, 5.0, 5.0))
    ]
    of = spread(0, 0, 0, WAITING, IDLE, *served)
    assert only("KV505", of).status is Status.WARN


@pytest.mark.parametrize(
    ("ended", "queue", "running"),
    [
        ("sglang_requests", "sglang_queue_requests", "sglang_running_requests"),
        ("trtllm_requests", "trtllm_requests_waiting", "trtllm_requests_running"),
    ],
)
def test_kv505_reads_other_engines_numbers_too(ended: str, queue: str, running: str) -> None:
    counts = [sample(ended, count, f"prod/w-{at}", increase=count) for at, count in enumerate((40, 10, 10))]
    queues = [sample(queue, 4, "prod/w-0"), sample(running, 0, "prod/w-1")]
    of = snapshot(*(worker(f"w-{at}", ip=f"10.0.0.{at}") for at in range(3)), samples=[*counts, *queues])
    assert statuses("KV505", of) == {"w-0": Status.WARN}


def test_kv505_skips_below_twenty_requests() -> None:
    assert only("KV505", spread(17, 1, 1)).reason is Reason.NO_TRAFFIC


def test_kv505_is_not_asked_of_one_worker() -> None:
    assert only("KV505", snapshot(kvaware(log(0, 30)), worker())).reason is Reason.NOT_APPLICABLE


# -- KV506 -----------------------------------------------------------------------------------------------------------


def prefixaware(*args: str, image: str = "") -> Snapshot:
    return snapshot(router(args=("--routing-logic", "prefixaware", *args), image=image))


def test_kv506_passes_without_a_minimal_length() -> None:
    assert statuses("KV506", prefixaware()) == {"router-0": Status.PASS}


@pytest.mark.parametrize(
    ("tag", "status"),
    [("v0.1.11", Status.FAIL), ("v0.1.12", Status.PASS), ("latest", Status.WARN)],
)
def test_kv506_judges_a_minimal_length_by_the_routers_version(tag: str, status: Status) -> None:
    of = prefixaware("--prefix-min-match-length", "128", image=f"lmcache/lmstack-router:{tag}")
    assert statuses("KV506", of) == {"router-0": status}


def test_kv506_skips_where_arguments_are_not_known() -> None:
    text = line("Initializing prefixaware routing logic")
    assert only("KV506", snapshot(router(log=text))).reason is Reason.NO_DATA


def test_kv506_is_not_asked_of_another_strategy() -> None:
    assert only("KV506", snapshot(kvaware())).reason is Reason.NOT_APPLICABLE


# -- KV507 -----------------------------------------------------------------------------------------------------------


def test_kv507_passes_with_a_session_key() -> None:
    found = only("KV507", snapshot(router(args=(*KVAWARE, "--session-key", "x-user-id"), log=log(0, 60))))
    assert (found.status, found.message) == (Status.PASS, "what no cache decides follows the session key x-user-id")


def test_kv507_warns_without_one_where_most_requests_miss() -> None:
    found = only("KV507", snapshot(kvaware(log(3, 20))))
    assert found.status is Status.WARN
    assert found.message.endswith("least used worker, which is 85% of 20 requests")


def test_kv507_passes_without_one_where_enough_is_routed_by_cache() -> None:
    assert only("KV507", snapshot(kvaware(log(4, 20)))).status is Status.PASS


def test_kv507_passes_without_one_where_too_little_was_routed() -> None:
    assert only("KV507", snapshot(kvaware(log(0, 19)))).status is Status.PASS


def test_kv507_skips_where_arguments_are_not_known() -> None:
    of = snapshot(router(log=line("Initializing kvaware routing logic")))
    assert only("KV507", replace(of, cluster=False)).reason is Reason.NO_DATA


def test_kv507_skips_without_a_router() -> None:
    custom = {"spec": {"intelligentRoutingSpec": {"enabled": True, "routingStrategy": "kvaware"}}}
    of = snapshot(worker(), stack=Stack.HYPERPOD)
    of = replace(of, resources=replace(of.resources, by_plural={"inferenceendpointconfigs": (custom,)}))
    assert only("KV507", of).reason is Reason.NO_DATA


def test_kv507_is_not_asked_of_another_strategy() -> None:
    assert only("KV507", snapshot(router(args=("--routing-logic", "session")))).reason is Reason.NOT_APPLICABLE


def test_kv501_adds_hits_and_misses_where_no_line_a_request_is_logged() -> None:
    text = "\n".join([*[hit()] * 15, *[AWS_MISS] * 5])
    of = snapshot(router(args=DEBUG, log=text), worker(), stack=Stack.HYPERPOD)
    assert only("KV501", of).message == "15 of 20 requests (75%, 15m) were routed by cache"
