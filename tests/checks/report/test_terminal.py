"""The report for a person, at 80 columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from checks.model import Diagnosis, Evidence, Group, Reason, Status, Target, Verdict, failed
from checks.report.terminal import Form, show
from checks.runner import diagnose
from checks.verdict import Severity
from tests.checks.build import snapshot
from tests.checks.diagnoses import check, diagnosis, mixed, pod, result


def printed(
    one: Diagnosis, form: Form = Form.TEXT, *, tty: bool = False, width: int = 80, least: Severity = Severity.NONE
) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=tty, color_system=None)
    show(one, console, form, least=least)
    return out.getvalue()


def line_with(text: str, words: str) -> str:
    return next(line for line in text.splitlines() if words in line)


def many(bad: int, of: int, message: str = "did not start") -> Diagnosis:
    return diagnosis(
        *(
            result(
                "KV302",
                Status.FAIL if at < bad else Status.PASS,
                Group.LMCACHE,
                pod(f"w-{at}"),
                message=message if at < bad else f"started in {at} s",
            )
            for at in range(of)
        )
    )


def test_states_are_signs_on_a_terminal_and_words_elsewhere() -> None:
    on = printed(mixed(), tty=True)
    assert [line_with(on, f"{id} title")[0] for id in ("KV002", "KV004", "KV152")] == ["√", "‼", "×"]
    off = printed(mixed())
    assert [line_with(off, f"{id} title").split()[0] for id in ("KV002", "KV004", "KV152", "KV704")] == [
        "ok",
        "warn",
        "FAIL",
        "err",
    ]
    assert off.isascii()


def test_sections_stand_in_the_order_of_the_report() -> None:
    text = printed(mixed())
    heads = ["Access and discovery", "Configuration and versions", "LMCache initialisation and backends"]
    places = [text.index(head + "\n") for head in heads]
    assert places == sorted(places)


def test_a_section_with_only_skips_is_left_out() -> None:
    assert "Other stacks" not in printed(mixed())


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("width", [80, 40])
def test_no_line_is_wider_than_the_terminal(form: Form, width: int) -> None:
    long = "http://10.0.0.1:8000/" + "x" * 200
    seen = Evidence("log", "prod/w-0", long)
    one = diagnosis(*mixed().results, result("KV401", Status.FAIL, Group.IDENTITY, message=long, evidence=(seen,)))
    assert max(len(line.rstrip()) for line in printed(one, form, width=width).splitlines()) <= width


def test_many_targets_are_one_line_with_how_many_of_how_many() -> None:
    text = printed(many(12, 50))
    assert text.count("FAIL") == 1
    assert "KV302 title of KV302: 12 of 50 pods" in text
    assert "w-0, w-1, w-10 and 9 more: did not start" in text
    assert "38 of 50 pods" in text


def test_a_namespace_is_named_only_where_it_is_another() -> None:
    one = result("KV302", Status.FAIL, Group.LMCACHE, pod("w-0", "prod"))
    assert "w-0: message" in printed(diagnosis(one))
    assert "w-0.prod: message" in printed(diagnosis(one, namespace="routers"))


def test_no_line_ends_in_white_space() -> None:
    assert [line for form in Form for line in printed(mixed(), form).splitlines() if line != line.rstrip()] == []


def test_processes_are_counted_as_such() -> None:
    told = [result("KV302", Status.FAIL, Group.LMCACHE, Target("Process", "", name)) for name in ("a", "b")]
    assert "all 2 processes" in printed(diagnosis(*told))


def test_all_targets_are_said_to_be_all() -> None:
    assert "all 3 pods" in printed(many(3, 3))


def test_messages_that_differ_are_listed_by_frequency_up_to_three() -> None:
    texts = ["a", "a", "b", "c", "d", "e"]
    one = diagnosis(
        *(
            result("KV302", Status.FAIL, Group.LMCACHE, pod(f"w-{at}"), message=f"because {text}")
            for at, text in enumerate(texts)
        )
    )
    text = printed(one)
    assert text.index("w-0, w-1: because a") < text.index("w-2: because b")
    assert "because d" not in text
    assert "and 2 other messages" in text


def test_a_failure_has_its_evidence_its_hint_and_its_page() -> None:
    text = printed(mixed())
    assert "log prod/w-0: Failed to initialize <LMCacheManager> & co" in text
    assert "hint: do this about KV302" in text
    assert "see docs/checks/KV302.md" in text


def test_what_passed_has_neither_hint_nor_page() -> None:
    assert "docs/checks/KV002.md" not in printed(mixed())


def test_a_folded_failure_is_named_under_its_cause_only() -> None:
    text = printed(mixed())
    assert "explains KV203" in text
    assert "title of KV203" not in text
    assert "(caused by KV152)" in printed(mixed(), Form.WIDE)


def test_a_suppressed_failure_is_marked_and_brings_no_hint() -> None:
    text = printed(mixed())
    assert "(suppressed)" in text
    assert "do this about KV312" not in text
    assert "KV312" not in printed(mixed(), Form.SHORT)


def test_skips_are_one_line_a_reason() -> None:
    one = diagnosis(
        *(result(f"KV90{at}", Status.SKIP, Group.OTHER_STACKS, reason=Reason.NO_DATA) for at in range(1, 9)),
        result("KV501", Status.SKIP, reason=Reason.NO_TRAFFIC),
    )
    text = " ".join(printed(one).split())
    assert "8 skipped, no data: KV901, KV902, KV903, KV904, KV905, KV906 and 2 more" in text
    assert "1 skipped, too little traffic: KV501" in text


def test_checks_for_other_systems_are_counted_last() -> None:
    told = [result(f"KV90{at}", Status.SKIP, Group.OTHER_STACKS, reason=Reason.NOT_APPLICABLE) for at in range(1, 9)]
    lines = printed(diagnosis(*told, result("KV501", Status.SKIP, reason=Reason.NO_TRAFFIC))).splitlines()
    skipped = [line.split(" ", 1)[1].strip() for line in lines if line.startswith("skip")]
    assert skipped == ["1 skipped, too little traffic: KV501", "8 skipped, not for this system (-o wide lists them)"]


def denied(count: int) -> Diagnosis:
    told = [result(f"KV20{at}", Status.ERROR, Group.REGISTRATION, reason=Reason.RBAC) for at in range(1, count + 1)]
    return diagnosis(result("KV001", Status.ERROR, Group.ACCESS, reason=Reason.RBAC), *told)


@pytest.mark.parametrize("form", [Form.TEXT, Form.SHORT])
def test_many_checks_that_one_reason_keeps_from_an_answer_are_one_line(form: Form) -> None:
    text = " ".join(printed(denied(8), form).split())
    assert "err 8 checks could not be evaluated, permission denied: KV201, KV202, KV203, KV204, KV205, KV206" in text
    assert "title of KV202" not in text
    assert "title of KV001" in text


def test_few_checks_without_an_answer_stand_in_their_sections() -> None:
    text = printed(denied(3))
    assert text.count("err  KV20") == 3
    assert "checks could not be evaluated" not in text


def test_wide_shows_each_check_without_an_answer() -> None:
    assert printed(denied(8), Form.WIDE).count("err  KV20") == 8


def test_the_last_line_of_a_working_system_does_not_speak_of_first_things() -> None:
    one = diagnosis(result("KV005", Status.WARN, Group.ACCESS), verdict=Verdict.WORKING)
    assert printed(one).rstrip().endswith("Worth a look: KV005 (docs/checks/KV005.md)")


def test_wide_shows_each_target_with_all_its_evidence_and_each_skip() -> None:
    text = printed(mixed(), Form.WIDE)
    assert "Pod w-0.prod/vllm: did not start" in text
    assert "2026-08-01T10:00:01" in text
    assert "3 requests [no_traffic]" in text


def test_short_shows_only_what_did_not_pass() -> None:
    text = printed(mixed(), Form.SHORT)
    assert "KV002" not in text
    assert "KV152" in text
    assert "skipped, too" not in text


def test_quiet_is_the_verdict_alone() -> None:
    text = printed(mixed(), Form.QUIET)
    assert text.startswith("BROKEN (confidence high). Routing by cache does not work: because.")
    assert "KV302 title" not in text


def test_the_verdict_says_what_to_do_first() -> None:
    text = printed(mixed())
    assert "First: do this about KV152 (docs/checks/KV152.md)." in text
    assert "2 failed, 1 warned, 1 passed, 2 skipped, 1 could not be evaluated" in " ".join(text.split())


def test_verdict_and_first_step_stand_before_the_sections() -> None:
    text = printed(mixed())
    assert text.index("BROKEN (confidence") < text.index("First: do this") < text.index("Access and discovery")


def test_the_last_line_tells_verdict_counts_and_where_to_begin() -> None:
    last = " ".join(printed(mixed()).split("\n\n")[-1].split())
    assert last.startswith("BROKEN: 2 failed, 1 warned, 1 passed")
    assert last.endswith("First: KV152 (docs/checks/KV152.md)")


def test_a_message_that_only_repeats_the_title_is_left_out() -> None:
    assert "title of KV501: Title" not in printed(
        diagnosis(result("KV501", Status.PASS, message="Title of KV501"), verdict=Verdict.WORKING)
    )


@pytest.mark.parametrize(
    ("reasons", "advice"),
    [
        ([Reason.NO_TRAFFIC, Reason.NO_DATA], "--probe"),
        ([Reason.LOG_TRUNCATED, Reason.NO_DATA], "restart one worker"),
        ([Reason.LOG_TRUNCATED, Reason.LOG_TRUNCATED, Reason.NO_TRAFFIC], "restart one worker"),
        ([Reason.LOG_TRUNCATED, Reason.NO_TRAFFIC, Reason.NO_TRAFFIC], "--probe"),
        ([Reason.NO_DATA], "give it more to read"),
        ([], "give it more to read"),
    ],
)
def test_an_inconclusive_verdict_says_how_to_get_proof(reasons: list[Reason], advice: str) -> None:
    skipped = [result(f"KV50{at}", Status.SKIP, reason=reason) for at, reason in enumerate(reasons)]
    assert advice in printed(diagnosis(*skipped, verdict=Verdict.INCONCLUSIVE))


def test_an_inconclusive_verdict_with_unreadable_sources_says_what_to_do_about_them() -> None:
    denied = result("KV001", Status.ERROR, Group.ACCESS, reason=Reason.RBAC, hint="grant the Role")
    assert "First: grant the Role (docs/checks/KV001.md)." in printed(diagnosis(denied, verdict=Verdict.INCONCLUSIVE))


def test_an_inconclusive_verdict_with_a_failure_says_what_to_do_about_it() -> None:
    hidden = result("KV701", Status.FAIL, Group.METRICS, hint="compare the port")
    assert "First: compare the port (docs/checks/KV701.md)." in printed(diagnosis(hidden, verdict=Verdict.INCONCLUSIVE))


def test_a_working_system_has_nothing_to_do() -> None:
    one = diagnosis(result("KV501", Status.PASS), verdict=Verdict.WORKING)
    assert "First:" not in printed(one)
    assert "Worth a look" not in printed(one)


def test_a_warning_of_a_working_system_is_worth_a_look() -> None:
    one = diagnosis(result("KV005", Status.WARN, Group.ACCESS), verdict=Verdict.WORKING)
    assert "Worth a look: do this about KV005 (docs/checks/KV005.md)." in printed(one)


def test_results_below_the_wanted_severity_are_left_out_but_errors_stay() -> None:
    text = printed(mixed(), least=Severity.HIGH)
    assert "KV152" in text
    assert "KV704" in text
    assert "KV302" not in text
    assert "KV002" not in text


def test_a_run_that_ended_early_says_so() -> None:
    assert "ended early (interrupted)" in printed(diagnosis(cut_short="interrupted"))


def test_markup_and_escapes_in_messages_are_printed_as_text_or_not_at_all() -> None:
    made = diagnose(snapshot(), [check("KV401", failed("[red]x[/red] \x1b[31m[link=http://a]b[/link]"))])
    text = printed(made)
    assert "[red]x[/red]" in text
    assert "[link=http://a]b[/link]" in text
    assert "\x1b" not in text
