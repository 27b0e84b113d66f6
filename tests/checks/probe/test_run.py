"""The probe of a scripted fleet, over HTTP: what it concludes, what it sends, when it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.model import Reason, Status
from checks.probe import course
from checks.probe.options import ProbeOptions
from checks.probe.session import probed
from checks.sources.deadline import INTERRUPTED
from checks.sources.tape import Tape
from tests.checks.build import only, statuses
from tests.checks.probe.scripted import (
    Choice,
    Engine,
    Fleet,
    after,
    always_first,
    by_lot,
    by_turns,
    evidence,
    fleet,
    request,
    running,
    snapshot,
    sticky,
    tokens_of,
)


def state(check_id: str, of: Any) -> Status:
    return statuses(check_id, of)["fleet"]


# -- what it concludes -----------------------------------------------------------------------------------------------


def test_a_router_that_remembers_prompts_passes() -> None:
    with running(fleet(sticky())) as of:
        found = after(of)
    assert {check: state(check, found) for check in ("KV801", "KV802", "KV803", "KV805")} == {
        "KV801": Status.PASS,
        "KV802": Status.PASS,
        "KV803": Status.PASS,
        "KV805": Status.PASS,
    }


@pytest.mark.parametrize("choose", [by_turns(), by_lot(3), by_lot(11)], ids=["by turns", "by lot", "by another lot"])
def test_a_router_without_a_memory_fails(choose: Choice) -> None:
    with running(fleet(choose)) as of:
        assert state("KV801", after(of)) is Status.FAIL


def test_a_router_that_always_takes_the_first_worker_proves_nothing() -> None:
    with running(fleet(always_first())) as of:
        assert only("KV801", after(of)).reason is Reason.NO_DATA


def test_where_all_go_to_one_worker_three_more_prompts_are_sent_to_make_sure() -> None:
    with running(fleet(always_first())) as of:
        found = evidence(after(of))
    assert (len(found.named("repeat")), len(found.named("control"))) == (5, 8)


def test_cached_tokens_come_from_usage() -> None:
    with running(fleet(sticky())) as of:
        repeats = evidence(after(of)).named("repeat")
    assert {step.cached_from for step in repeats} == {"usage"}
    tokens = tokens_of(of.prompts()[1])
    assert {step.cached_tokens for step in repeats} == {(tokens - 1) // 16 * 16}


def test_a_usage_without_details_is_filled_from_counters() -> None:
    with running(fleet(sticky(), details=False)) as of:
        repeats = evidence(after(of)).named("repeat")
    assert {step.cached_from for step in repeats} == {"metric"}
    assert {step.cached_tokens for step in repeats} == {(tokens_of(of.prompts()[1]) - 1) // 16 * 16}


def test_cached_tokens_that_nobody_tells_are_unknown_and_not_0() -> None:
    with running(fleet(sticky(), details=False)) as of:
        found = after(of, workers=False)
    assert {step.cached_tokens for step in evidence(found).named("repeat")} == {None}
    assert only("KV802", found).reason is Reason.NO_DATA


def test_an_engine_that_keeps_nothing_fails() -> None:
    of = fleet(sticky())
    for engine in of.engines:
        engine._common = lambda one, other: 0  # type: ignore[method-assign]
    with running(of):
        assert state("KV802", after(of)) is Status.FAIL


# -- who served ------------------------------------------------------------------------------------------------------


def test_a_header_with_an_address_names_the_worker() -> None:
    of = fleet(sticky(), header="target-pod")
    with running(of):
        for engine in of.engines:
            engine.name = engine.url.removeprefix("http://")
        found = evidence(after(of))
    assert {step.how for step in found.steps} == {"header"}
    assert {step.served_by for step in found.steps} <= {engine.name for engine in of.engines}


def test_a_name_that_only_the_router_knows_is_learnt_from_counters() -> None:
    of = fleet(sticky())
    with running(of):
        known = snapshot(of)
        for engine in of.engines:
            engine.name = f"router-name-{engine.name}"
        found = evidence(probed(known, request(of), Tape.live(), ProbeOptions()))
    assert {step.served_by for step in found.steps} <= {"e0", "e1", "e2"}


def test_a_router_without_a_header_is_read_by_its_log(tmp_path: Path) -> None:
    with running(fleet(sticky(), header="", log=tmp_path / "router.log")) as of:
        found = after(of)
    routed = [step for step in evidence(found).steps if step.status == 200]
    assert {step.how for step in routed} == {"router-log"}
    assert state("KV801", found) is Status.PASS


def test_a_router_without_header_and_log_is_known_by_the_workers_counters() -> None:
    with running(fleet(sticky(), header="")) as of:
        found = after(of)
    assert {step.how for step in evidence(found).steps} == {"metric"}
    assert state("KV801", found) is Status.PASS


def test_nothing_that_tells_who_served_leaves_it_open() -> None:
    with running(fleet(sticky(), header="")) as of:
        found = after(of, workers=False)
    assert only("KV803", found).reason is Reason.NO_DATA
    assert only("KV801", found).reason is Reason.NO_DATA


# -- kvaware ---------------------------------------------------------------------------------------------------------

KVAWARE = ("--routing-logic", "kvaware")


def test_kvaware_needs_its_line_for_each_repeat(tmp_path: Path) -> None:
    line = "Routing request to inst found by kvaware router"
    with running(fleet(sticky(), log=tmp_path / "router.log", found_line=line)) as of:
        found = after(of, router_args=KVAWARE)
    assert {step.kv_routed for step in evidence(found).named("repeat")} == {True}
    assert {step.kv_routed for step in evidence(found).named("control")} == {False}
    assert state("KV801", found) is Status.PASS


def test_kvaware_whose_fallback_is_sticky_fails(tmp_path: Path) -> None:
    with running(fleet(sticky(), log=tmp_path / "router.log")) as of:
        assert state("KV801", after(of, router_args=KVAWARE)) is Status.FAIL


def test_kvaware_without_its_log_is_open() -> None:
    with running(fleet(sticky())) as of:
        assert only("KV801", after(of, router_args=KVAWARE)).reason is Reason.NO_DATA


def test_repeats_wait_until_the_controller_knows_the_prompt() -> None:
    looks = 0
    asked: list[int] = []

    def page() -> str:
        nonlocal looks
        looks += 1
        return f"lmcache:cache_controller_kv_pool_keys_count {3 if len(of.bodies) > 1 and looks > 6 else 0}\n"

    of = fleet(sticky(), page=page, before=lambda number: asked.append(looks))
    with running(of):
        found = evidence(after(of))
    assert asked[1] <= 6 < asked[2]
    assert any("keys of LMCache's controller grew" in note for note in found.notes)


def test_a_prompt_that_is_never_stored_is_told() -> None:
    with running(fleet(sticky(), page=lambda: "lmcache:cache_controller_kv_pool_keys_count 0\n")) as of:
        found = evidence(after(of))
    assert any("within 20 s" in note for note in found.notes)


# -- the second tier -------------------------------------------------------------------------------------------------

L2 = {"LMCACHE_REMOTE_URL": "redis://redis:6379"}


def with_tier(shared: Callable[[], set[str]]) -> Fleet:
    return Fleet(sticky(), [Engine(f"e{number}", shared=shared()) for number in range(3)])


def test_another_engine_that_finds_the_prompt_in_the_second_tier_passes() -> None:
    tier: set[str] = set()
    with running(with_tier(lambda: tier)) as of:
        found = after(of, env=L2)
    (step,) = evidence(found).named("other-instance")
    assert step.how == "direct"
    assert step.served_by not in {one.served_by for one in evidence(found).named("repeat")}
    assert statuses("KV804", found) == {step.served_by: Status.PASS}


def test_another_engine_that_finds_nothing_fails() -> None:
    with running(with_tier(set)) as of:
        found = after(of, env=L2)
    assert list(statuses("KV804", found).values()) == [Status.FAIL]


def test_without_a_second_tier_no_other_engine_is_asked() -> None:
    with running(fleet(sticky())) as of:
        found = after(of)
    assert evidence(found).named("other-instance") == []
    assert only("KV804", found).reason is Reason.NOT_APPLICABLE


# -- guards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [{"waiting": 2}, {"usage": 0.95}], ids=["requests wait", "the cache is full"])
def test_a_busy_fleet_is_left_alone(busy: dict[str, float]) -> None:
    of = fleet(sticky())
    vars(of.engines[1]).update(busy)
    with running(of):
        found = after(of)
    assert of.bodies == []
    assert "e1" in evidence(found).refused and "--yes" in evidence(found).refused
    assert only("KV801", found).reason is Reason.DISABLED


@pytest.mark.parametrize("options", [ProbeOptions(yes=True), ProbeOptions(force=True)], ids=["--yes", "--probe-force"])
def test_the_user_may_send_all_the_same(options: ProbeOptions) -> None:
    of = fleet(sticky())
    of.engines[1].waiting = 2
    with running(of):
        assert state("KV801", after(of, options)) is Status.PASS


def grows_busy(number: int, of: Fleet) -> None:
    of.engines[0].waiting = 5 if number > 3 else 0


def test_the_probe_stops_where_requests_begin_to_wait() -> None:
    of = fleet(sticky())
    of.before = lambda number: grows_busy(number, of)
    with running(of):
        found = evidence(after(of))
    assert "5 requests wait at e0" in found.cut_short
    assert {step.name for step in found.steps} == {"size", "cold", "repeat", "control"}


def test_force_does_not_look_again() -> None:
    of = fleet(sticky())
    of.before = lambda number: grows_busy(number, of)
    with running(of):
        assert evidence(after(of, ProbeOptions(force=True))).cut_short == ""


def test_no_router_is_a_reason_not_to_send() -> None:
    with running(fleet(sticky())) as of:
        without = request(of)
        object.__setattr__(without, "routers", ())
        found = probed(snapshot(of), without, Tape.live(), ProbeOptions())
    assert "--router" in evidence(found).refused


# -- what it sends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "count"), [(6, 2), (9, 4), (24, 1), (24, 2)])
def test_never_more_requests_than_allowed(most: int, count: int) -> None:
    tier: set[str] = set()
    of = Fleet(sticky(), [Engine(f"e{number}", shared=tier) for number in range(count)])
    with running(of):
        found = evidence(after(of, ProbeOptions(requests=most), env=L2))
    sent = len(of.ids)
    assert 5 <= sent <= most
    assert len(found.steps) == sent


def test_never_more_tokens_than_allowed() -> None:
    with running(fleet(sticky())) as of:
        after(of, ProbeOptions(tokens=3000), env=L2)
    assert sum(map(tokens_of, of.prompts())) <= 3000


def test_one_request_at_a_time() -> None:
    with running(fleet(sticky())) as of:
        after(of)
    assert of.most_at_once == 1


def test_every_request_asks_for_one_token_and_names_itself() -> None:
    with running(fleet(sticky())) as of:
        after(of)
    assert {(body["max_tokens"], body["temperature"], body["model"]) for body in of.bodies} == {(1, 0, "m")}
    assert len(set(of.ids)) == len(of.ids)
    assert all(name.startswith("kvctl-") for name in of.ids)


def test_prompts_of_the_control_arm_differ_in_their_first_line() -> None:
    with running(fleet(sticky())) as of:
        found = evidence(after(of))
    control = [text for text, step in zip(of.prompts(), found.steps, strict=True) if step.name in ("control", "cold")]
    assert len({text.split("\n")[0] for text in control}) == len(control) == 6


def test_repeats_are_the_cold_prompt_letter_by_letter() -> None:
    with running(fleet(sticky())) as of:
        found = evidence(after(of))
    sent = [text for text, step in zip(of.prompts(), found.steps, strict=True) if step.name in ("cold", "repeat")]
    assert len(set(sent)) == 1
    assert len(sent) == 6


def test_two_runs_share_no_prompt() -> None:
    with running(fleet(sticky())) as of:
        after(of)
        first = set(of.prompts())
        of.bodies.clear()
        after(of)
    assert first.isdisjoint(of.prompts())


def test_the_key_goes_into_a_header_and_nowhere_else(tmp_path: Path) -> None:
    with running(fleet(sticky())) as of, Tape.record(tmp_path / "kept", options={}, version="0") as tape:
        found = after(of, ProbeOptions(api_key="sesame-4711"), tape)
    kept = "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    assert "sesame" not in kept + repr(found.probe)


def test_an_endpoint_of_ones_own_is_used() -> None:
    with running(fleet(sticky())) as of:
        found = after(of, ProbeOptions(endpoint=f"{of.router}/v1/chat/completions"))
    assert all("messages" in body for body in of.bodies)
    assert state("KV801", found) is Status.PASS


# -- routers that misbehave ------------------------------------------------------------------------------------------


def test_a_router_that_answers_500_is_asked_once() -> None:
    with running(fleet(sticky(), status=lambda number: 500)) as of:
        found = after(of)
    assert len(of.bodies) == 1
    finding = only("KV801", found)
    assert (finding.status, finding.reason) == (Status.ERROR, Reason.UNREACHABLE)
    assert "HTTP 500: sorry, no" in finding.message


def test_three_failures_in_a_row_end_the_probe() -> None:
    with running(fleet(sticky(), status=lambda number: 500 if number > 4 else 200)) as of:
        found = evidence(after(of))
    assert len(of.bodies) == 7
    assert "3 requests in a row failed" in found.cut_short


def test_a_busy_answer_ends_the_probe_at_once() -> None:
    with running(fleet(sticky(), status=lambda number: 429 if number == 4 else 200)) as of:
        found = evidence(after(of))
    assert len(of.bodies) == 4
    assert "busy" in found.cut_short


def test_a_router_that_hangs_is_given_up_and_its_connection_closed() -> None:
    with running(fleet(sticky(), hang=True)) as of:
        found = after(of, ProbeOptions(timeout_s=0.3))
        assert of.closed_early.wait(10)
    assert len(of.bodies) == 1
    assert only("KV801", found).reason is Reason.TIMEOUT


def test_an_answer_that_is_cut_off_is_a_failure() -> None:
    with running(fleet(sticky(), cut=True)) as of:
        found = after(of)
    assert only("KV801", found).status is Status.ERROR


def test_a_model_without_chats_skips_only_the_chat() -> None:
    with running(fleet(sticky(), chat=False)) as of:
        found = after(of)
    assert only("KV806", found).reason is Reason.NOT_APPLICABLE
    assert state("KV801", found) is Status.PASS
    assert len(evidence(found).named("stream-cold")) == 1


# -- the end ---------------------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_was_seen() -> None:
    def told(stage: str, done: int, total: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with running(fleet(sticky())) as of:
        found = probed(snapshot(of), request(of), Tape.live(), ProbeOptions(), told)
    assert [step.name for step in evidence(found).steps] == ["size", "cold", "repeat", "repeat", "repeat"]
    assert evidence(found).cut_short == found.cut_short == INTERRUPTED


def test_ctrl_c_before_the_first_request_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("checks.probe.run.make", interrupted)
    with running(fleet(sticky())) as of:
        found = after(of)
    assert of.bodies == []
    assert "Ctrl-C" in evidence(found).refused


def test_a_recorded_probe_is_replayed_without_a_request(tmp_path: Path) -> None:
    with running(fleet(sticky())) as of:
        with Tape.record(tmp_path / "kept", options={}, version="0") as tape:
            live = evidence(after(of, tape=tape))
        sent = len(of.bodies)
        with Tape.replay(tmp_path / "kept") as tape:
            again = evidence(probed(snapshot(of), request(of), tape, None))
        assert len(of.bodies) == sent
    assert again == live


def test_a_recording_holds_no_prompt(tmp_path: Path) -> None:
    with running(fleet(sticky())) as of, Tape.record(tmp_path / "kept", options={}, version="0") as tape:
        after(of, tape=tape)
    kept = "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    assert "kvctl probe" not in kept
    assert of.prompts()[1].split("\n")[1][:60] not in kept


def test_a_recording_without_a_probe_replays_without_one(tmp_path: Path) -> None:
    with running(fleet(sticky())) as of:
        with Tape.record(tmp_path / "kept", options={}, version="0"):
            pass
        with Tape.replay(tmp_path / "kept") as tape:
            assert probed(snapshot(of), request(of), tape, None).probe is None


def test_without_options_nothing_is_sent() -> None:
    with running(fleet(sticky())) as of:
        assert probed(snapshot(of), request(of), Tape.live(), None).probe is None
        assert of.bodies == []


@pytest.mark.parametrize(("left", "expected"), [(3, Status.PASS), (1, Status.FAIL)], ids=["all stay", "some dropped"])
def test_registrations_are_counted_again_after_an_idle_time(
    left: int, expected: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "EXPIRY_MARGIN_S", 0.0)

    def page() -> str:
        registered = left if any("expiry" in name for name in of.ids) else 3
        return f"lmcache:cache_controller_registered_workers_count {registered}\n"

    of = fleet(sticky(), page=page)
    with running(of):
        found = after(of, ProbeOptions(heartbeat=True))
    assert state("KV808", found) is expected
