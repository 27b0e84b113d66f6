"""Container text to records: every shape that a line may have, what a record may hold."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from checks.logs import read as reading
from checks.logs.patterns import Patterns
from checks.logs.read import GAP, RECORD_CHARACTERS, RECORD_LINES, merge, read_log
from checks.logs.view import LogView, Record

STARTED = datetime(2026, 8, 1, 10, tzinfo=UTC).timestamp()
LMCACHE = "[2026-08-01 10:00:01,120] LMCache INFO: "
REAL = Path(__file__).parents[4] / "shared" / "data" / "logs"


def read(text: str, started_at: float | None = STARTED, **more: bool) -> LogView:
    return read_log(text, where="prod/w-0/vllm", started_at=started_at, patterns=Patterns.load(), **more)


def only(text: str) -> Record:
    (record,) = read(text).records
    return record


def messages(text: str) -> list[str]:
    return [record.message for record in read(text).records]


# One line.


@pytest.mark.parametrize(
    ("line", "level", "component", "message", "printed"),
    [
        (
            "[2026-08-01 10:00:01,120] LMCache INFO: Registering KV caches (vllm_v1_adapter.py:748:lmcache.vllm)",
            *("INFO", "lmcache", "Registering KV caches", "2026-08-01 10:00:01,120"),
        ),
        (
            "[2026-08-01 10:00:01,120] WARNING: Slow (routing_logic.py:3:vllm_router.routers.routing_logic)",
            *("WARNING", "router", "Slow", "2026-08-01 10:00:01,120"),
        ),
        (
            "INFO 08-01 10:00:30 [v1/core.py:133] Starting to load",
            *("INFO", "vllm", "Starting to load", "08-01 10:00:30"),
        ),
        ("INFO 08-01 10:00:30 __init__.py:190] Old style", "INFO", "vllm", "Old style", "08-01 10:00:30"),
        ("ERROR: Matched nothing", "ERROR", "aws", "Matched nothing", ""),
        ("INFO:     Started server process [7]", "INFO", "", "Started server process [7]", ""),
        (
            "2026-08-01 10:00:30,001 WARNING Worker lost: w-1",
            *("WARNING", "kvctl", "Worker lost: w-1", "2026-08-01 10:00:30,001"),
        ),
        ("Triton is installed", "", "", "Triton is installed", ""),
    ],
)
def test_each_kind_of_header_is_told(line: str, level: str, component: str, message: str, printed: str) -> None:
    record = only(line)
    assert (record.level, record.component, record.message, record.printed_time) == (level, component, message, printed)


def test_the_words_lmcache_and_info_inside_a_message_are_no_header() -> None:
    assert only("see [2026-08-01 10:00:01,120] LMCache INFO: x").component == ""


def test_a_json_logger_gives_level_message_and_time() -> None:
    record = only('{"timestamp": "2026-08-01T10:00:00", "level": "WARNING", "logger": "r", "message": "Slow"}')
    assert (record.level, record.component, record.message) == ("WARNING", "json", "Slow")
    assert record.printed_time == "2026-08-01T10:00:00"


def test_zaps_json_gives_level_message_and_error() -> None:
    record = only('{"level":"error","ts":"2026-08-01T10:00:00Z","msg":"Failed to get endpoint scores","error":"eof"}')
    assert (record.level, record.component, record.message) == ("ERROR", "json", "Failed to get endpoint scores\neof")


def test_the_exception_of_a_json_record_belongs_to_its_message() -> None:
    record = only('{"level": "ERROR", "message": "Oh", "exception": "Traceback\\n  x\\nKeyError: \'i\'"}')
    assert record.message == "Oh\nTraceback\n  x\nKeyError: 'i'"


def test_lmcaches_lines_between_json_lines_stay_records_of_their_own() -> None:
    text = f'{{"level": "INFO", "message": "a"}}\n{LMCACHE}b\n{{"level": "INFO", "message": "c"}}'
    assert messages(text) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "line", ['{"level": "INFO"}', "{not json", "[1]", '{"message": 7, "level": "INFO"}', "{" * 5000]
)
def test_what_only_looks_like_a_json_record_is_plain_text(line: str) -> None:
    assert only(line).message == line


def test_the_kubelets_timestamp_is_taken_off_and_kept() -> None:
    record = only("2026-08-01T10:00:02.500000000Z INFO: x")
    assert (record.message, record.time, record.at) == ("x", "2026-08-01T10:00:02.500000000Z", STARTED + 2.5)


def test_a_timestamp_with_an_offset_is_the_same_moment() -> None:
    assert only("2026-08-01T12:00:02+02:00 INFO: x").at == STARTED + 2


def test_a_timestamp_that_is_no_date_has_no_time() -> None:
    assert only("2026-02-31T10:00:02Z INFO: x").at is None


def test_an_empty_line_with_a_timestamp_is_empty() -> None:
    assert only("2026-08-01T10:00:02Z ").message == ""


@pytest.mark.parametrize(
    ("prefix", "process"),
    [
        ("(EngineCore_DP0 pid=77)", "EngineCore_DP0:77"),
        ("(APIServer pid=1)", "APIServer:1"),
        ("(VllmWorker rank=0 pid=5)", "VllmWorker rank=0:5"),
        ("(VllmWorker TP0 pid=5)", "VllmWorker TP0:5"),
    ],
)
def test_vllms_process_prefix_is_taken_off_and_kept(prefix: str, process: str) -> None:
    record = only(f"{prefix} INFO 08-01 10:00:30 [core.py:1] Up")
    assert (record.message, record.process) == ("Up", process)


def test_an_lmcache_line_under_a_process_prefix_is_lmcaches() -> None:
    record = only(f"2026-08-01T10:00:02Z (EngineCore_0 pid=328) {LMCACHE}Reqid: x (a.py:1:lmcache.b)")
    assert (record.component, record.process, record.message) == ("lmcache", "EngineCore_0:328", "Reqid: x")


def test_colours_do_not_hide_header_and_source() -> None:
    record = only("\x1b[33;20m[2026-08-01 10:00:01,120] LMCache WARNING:\x1b[0m Odd \x1b[3m(a.py:7:lmcache.b)\x1b[0m")
    assert (record.level, record.component, record.message) == ("WARNING", "lmcache", "Odd")


def test_of_a_progress_bar_the_last_part_stays() -> None:
    assert only("2026-08-01T10:00:02Z model:  10%\rmodel:  50%\rmodel: 100%\r").message == "model: 100%"


def test_windows_line_ends_are_line_ends() -> None:
    assert messages(f"{LMCACHE}a\r\n{LMCACHE}b\r\n") == ["a", "b"]


# Several lines.


def test_lines_without_a_header_belong_to_the_record_before() -> None:
    assert only(f"{LMCACHE}Oh\n  File x\nValueError: y").message == "Oh\n  File x\nValueError: y"


def test_a_source_at_the_end_of_a_later_line_is_taken_off_and_ends_the_record() -> None:
    text = f"{LMCACHE}Oh: Traceback\nValueError: y\n. Degraded. (manager.py:107:lmcache.v1.manager)\nsomething else"
    assert messages(text) == ["Oh: Traceback\nValueError: y\n. Degraded.", "something else"]


def test_a_traceback_after_a_first_line_with_its_source_belongs_to_it() -> None:
    assert only(f"{LMCACHE}Oh (a.py:1:b)\nTraceback (most recent call last):\nKeyError: 'x'").message == (
        "Oh\nTraceback (most recent call last):\nKeyError: 'x'"
    )


def test_records_of_interleaved_processes_stay_whole() -> None:
    text = (
        "(Worker_TP0 pid=1) ERROR 08-01 10:00:00 [a.py:1] zero\n"
        "(Worker_TP1 pid=2) ERROR 08-01 10:00:00 [a.py:1] one\n"
        "(Worker_TP0 pid=1)   of zero\n"
        "(Worker_TP1 pid=2)   of one\n"
    )
    assert messages(text) == ["zero\n  of zero", "one\n  of one"]


def test_a_process_of_the_same_name_with_another_pid_is_another() -> None:
    text = "(Worker pid=1) INFO 08-01 10:00:00 [a.py:1] first\n(Worker pid=2)   of nobody\n"
    assert messages(text) == ["first", "  of nobody"]


def test_lines_of_no_known_format_are_records_each() -> None:
    assert messages("one\ntwo\n  of two\nthree") == ["one", "two\n  of two", "three"]


def test_a_traceback_of_its_own_is_one_record_up_to_its_exception() -> None:
    text = (
        "Traceback (most recent call last):\n  File x\nKeyError: 'a'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File y\nValueError: b\nserving again"
    )
    first, second = messages(text)
    assert first.endswith("ValueError: b")
    assert second == "serving again"


def test_the_records_time_is_that_of_its_first_line() -> None:
    assert only(f"2026-08-01T10:00:02Z {LMCACHE}a\n2026-08-01T10:00:09Z b").at == STARTED + 2


def test_a_record_of_too_many_lines_is_clipped() -> None:
    record = only(LMCACHE + "\n".join(["x"] * (RECORD_LINES + 5)))
    assert record.clipped
    assert record.message.count("\n") == RECORD_LINES - 1


def test_a_record_of_too_many_characters_is_clipped() -> None:
    record = only(LMCACHE + "\n".join(["x" * 1000] * 100))
    assert record.clipped
    assert len(record.message) <= RECORD_CHARACTERS


def test_a_line_longer_than_a_record_may_be_is_clipped() -> None:
    record = only(LMCACHE + "x" * (RECORD_CHARACTERS + 1))
    assert record.clipped
    assert len(record.message) == RECORD_CHARACTERS


def test_a_record_does_not_outgrow_its_bound_by_being_redacted() -> None:
    assert len(only(LMCACHE + "token=a " * (RECORD_CHARACTERS // 8)).message) <= RECORD_CHARACTERS


def test_a_record_that_fits_is_not_clipped() -> None:
    assert not only(f"{LMCACHE}a\nb").clipped


# Matches.


def test_a_match_on_a_continuation_line_quotes_that_line() -> None:
    view = read(f"{LMCACHE}Oh: Traceback\n. System will operate in degraded mode (recompute). (a.py:1:b)")
    match = view.first("lmcache-degraded-mode")
    assert match is not None
    assert view.evidence(match).text == ". System will operate in degraded mode (recompute)."


def test_evidence_names_the_log_and_the_kubelets_time() -> None:
    view = read(f"2026-08-01T10:00:02Z {LMCACHE}Registering KV caches (a.py:1:b)")
    match = view.first("lmcache-registering-kv-caches")
    assert match is not None
    evidence = view.evidence(match)
    assert (evidence.source, evidence.where, evidence.time) == ("log", "prod/w-0/vllm", "2026-08-01T10:00:02Z")


def test_matches_stand_in_the_logs_order_even_where_records_end_out_of_order() -> None:
    text = (
        f"(A pid=1) {LMCACHE}Using hash algorithm: one\n"
        f"(B pid=2) {LMCACHE}Using hash algorithm: two\n"
        f"(B pid=2) {LMCACHE}x\n"
        f"(A pid=1) {LMCACHE}x\n"
    )
    assert [match["algorithm"] for match in read(text).all("lmcache-hash-algorithm")] == ["one", "two"]


def test_secrets_are_gone_from_records_and_fields() -> None:
    view = read(f"{LMCACHE}Connected to remote storage at redis://:hunter2@r:6379 (a.py:1:b)")
    match = view.first("lmcache-remote-connected")
    assert match is not None
    assert match["url"] == "redis://***@r:6379"
    assert all("hunter2" not in record.message for record in view.records)


def test_a_secret_in_a_json_record_is_gone() -> None:
    text = '{"level": "DEBUG", "message": "headers: {\\"authorization\\": \\"Bearer hunter2\\"}"}'
    assert "hunter2" not in only(text).message


def test_the_configuration_stays_readable_after_redaction() -> None:
    view = read(
        f"{LMCACHE}LMCache Configuration: {{'chunk_size': 256, 'remote_url': 'redis://:pw@r:1', "
        "'extra_config': {'redis_password': 'pw2'}, 'api_key': None} (config.py:895:lmcache.v1.config)"
    )
    assert view.lmcache_config() == {
        "chunk_size": 256,
        "remote_url": "redis://***@r:1",
        "extra_config": {"redis_password": "***"},
        "api_key": None,
    }


def busy(requests: int) -> str:
    line = "Reqid: cmpl-{}, Total tokens 713, LMCache hit tokens: 512, need to load: 0"
    return "\n".join(LMCACHE + line.format(number) for number in range(requests))


def test_of_a_frequent_pattern_the_newest_are_kept_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reading.KEPT_OF_PATTERN, "worker", 100)
    view = read(busy(3000))
    kept = view.all("lmcache-request")
    assert [match["rid"] for match in kept] == [f"cmpl-{number}" for number in range(2900, 3000)]
    assert view.count("lmcache-request") == 3000
    assert view.lines == 3000


def test_of_a_long_log_its_ends_and_what_is_remarkable_are_kept() -> None:
    quiet = [f"{LMCACHE}quiet {number}" for number in range(10_000)]
    quiet[5000] = "[2026-08-01 10:00:01,120] LMCache ERROR: loud"
    kept = messages("\n".join(quiet))
    assert kept[0] == "quiet 0"
    assert kept[-1] == "quiet 9999"
    assert "loud" in kept
    assert "quiet 5001" not in kept


def test_who_wrote_in_the_middle_of_a_long_log_is_known() -> None:
    lines = ["INFO 08-01 10:00:00 [a.py:1] x"] * 9000
    lines[4500] = f"{LMCACHE}quiet"
    assert read("\n".join(lines)).any_of_component("lmcache")


def test_more_records_than_a_log_may_have_are_left_unread_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_RECORDS", 3)
    view = read("a\nb\nc\nd")
    assert view.unread_bytes
    assert [record.message for record in view.records] == ["a", "b", "c"]


# Head and tail.


def stamped(seconds: float, text: str = "INFO: x") -> str:
    return datetime.fromtimestamp(STARTED + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ ") + text


def lines(*seconds: int) -> list[str]:
    return [stamped(second, f"INFO: line {second}") for second in seconds]


def test_lines_that_head_and_tail_both_hold_come_once() -> None:
    head, tail = "\n".join(lines(1, 2, 3)) + "\n", "\n".join(lines(2, 3, 4)) + "\n"
    assert merge(head, tail).split("\n") == [*lines(1, 2, 3, 4), ""]


def test_where_head_and_tail_do_not_touch_a_gap_stands_between() -> None:
    assert merge("\n".join(lines(1)), "\n".join(lines(9))).split("\n") == [*lines(1), GAP, *lines(9)]


def test_a_line_that_the_limit_cut_off_is_replaced_by_the_whole_one() -> None:
    head = "\n".join(lines(1, 2))[:-4]
    assert merge(head, "\n".join(lines(1, 2, 3))).split("\n") == lines(1, 2, 3)


def test_the_same_text_at_another_time_is_another_line() -> None:
    head, tail = stamped(1, "INFO: tick") + "\n", stamped(2, "INFO: tick")
    assert merge(head, tail).count("tick") == 2


def test_a_record_does_not_reach_across_a_gap() -> None:
    text = merge(stamped(1, f"{LMCACHE}before\n"), stamped(9, "  continuation of something unread"))
    assert messages(text) == ["before", "  continuation of something unread"]


@pytest.mark.parametrize(("head", "tail"), [("", "a"), ("a", "")])
def test_one_part_alone_is_the_whole(head: str, tail: str) -> None:
    assert merge(head, tail) == "a"


# Real logs.


def real(name: str) -> str:
    if not (REAL / name).exists():
        pytest.skip(f"{name} is not here")
    return (REAL / name).read_text("utf-8")


def test_the_real_failure_is_one_record_of_eleven_lines_with_its_reason() -> None:
    view = read(real("vllm-lmcache-degraded.log"))
    (match,) = view.all("lmcache-manager-failed")
    assert match["reason"].endswith("No supported cpu connector found")
    assert match.record.message.count("\n") + 1 == 11
    assert (match.record.level, match.record.component) == ("ERROR", "lmcache")


def test_the_real_degraded_log_says_degraded_in_the_same_record() -> None:
    view = read(real("vllm-lmcache-degraded.log"))
    failed, degraded = view.first("lmcache-manager-failed"), view.first("lmcache-degraded-mode")
    assert failed is not None and degraded is not None
    assert failed.record is degraded.record


def test_both_versions_are_in_the_real_degraded_log() -> None:
    match = read(real("vllm-lmcache-degraded.log")).last("lmcache-initialized")
    assert match is not None
    assert (match["version"], match["vllm"]) == ("0.5.6-g3e11e108", "0.32.0")


def test_the_real_logs_hold_their_programs_start() -> None:
    assert read(real("vllm-lmcache-degraded.log")).head_complete
    assert read(real("vllm-plain.log")).head_complete


def test_the_real_plain_log_has_no_record_of_lmcache() -> None:
    view = read(real("vllm-plain.log"))
    assert not view.any_of_component("lmcache")
    assert not [pattern for pattern in view.matches if pattern.startswith("lmcache-")]


def test_no_record_of_a_real_log_holds_an_escape_sequence() -> None:
    for record in read(real("vllm-lmcache-degraded.log")).records:
        assert "\x1b" not in record.message
        assert "[0m" not in record.message
