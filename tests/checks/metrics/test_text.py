"""The parser of /metrics pages: what real pages hold, and what hostile ones do."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from checks.metrics import text as module
from checks.metrics.text import Series, parse
from checks.model import Reason


def one(line: str) -> Series:
    (series,) = parse(line).series
    return series


def values(page: str) -> dict[str, float]:
    return {series.name: series.value for series in parse(page).series}


def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("vllm:prompt_tokens", "Prompt tokens", ["model_name"], registry=made).labels('a "quoted" \\ name').inc(7)
    Gauge("vllm:num_requests_running", "Running", registry=made).set(3)
    hist = Histogram("vllm:ttft", "TTFT", ["engine"], buckets=(0.1, 1.0), registry=made)
    hist.labels("0").observe(0.05)
    return made


def test_what_the_client_library_writes_is_read_as_its_own_parser_reads_it() -> None:
    page = generate_latest(registry()).decode()
    expected = {
        (sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert {(one.name, one.labels, one.value) for one in parse(page).series} == expected


def test_openmetrics_is_read_too() -> None:
    page = (
        "# HELP vllm:ttft_seconds TTFT.\n# TYPE vllm:ttft_seconds histogram\n# UNIT vllm:ttft_seconds seconds\n"
        'vllm:ttft_seconds_bucket{le="+Inf"} 3 # {trace_id="a}b"} 0.2 1785578400.5\n'
        "vllm:ttft_seconds_count 3\nvllm:ttft_seconds_sum 1.5\nvllm:ttft_seconds_created 1785578400.1\n# EOF\n"
    )
    read = parse(page)
    assert (read.problem, read.unreadable, read.families) == (None, 0, {"vllm:ttft_seconds"})
    assert [(one.name.removeprefix("vllm:ttft_seconds"), one.value) for one in read.series] == [
        ("_bucket", 3),
        ("_count", 3),
        ("_sum", 1.5),
    ]


def test_the_client_librarys_openmetrics_is_read_without_a_bad_line() -> None:
    read = parse(openmetrics(registry()).decode())
    assert (read.problem, read.unreadable) == (None, 0)


def test_a_sample_without_help_or_type_is_a_family() -> None:
    assert parse("vllm:x 1\n").families == {"vllm:x"}


def test_parts_of_a_declared_family_are_no_families_of_their_own() -> None:
    page = '# TYPE h histogram\nh_bucket{le="+Inf"} 1\nh_sum 1\nh_count 1\nh_created 1\n'
    assert parse(page).families == {"h"}


def test_a_family_without_samples_is_named() -> None:
    assert parse("# HELP lmcache:x text\n# TYPE lmcache:x gauge\n").families == {"lmcache:x"}


def test_families_given_twice_keep_both_their_samples() -> None:
    page = "# TYPE a counter\na_total 1\n# TYPE a counter\na_total 2\n"
    assert [series.value for series in parse(page).series] == [1, 2]


def test_created_samples_are_left_out() -> None:
    assert values("a_total 1\na_created 1.7e9\n") == {"a_total": 1}


@pytest.mark.parametrize(("text", "value"), [("+Inf", math.inf), ("-Inf", -math.inf), ("1e3", 1000.0), ("-0.5", -0.5)])
def test_numbers_are_read_as_the_format_writes_them(text: str, value: float) -> None:
    assert one(f"a {text}").value == value


def test_nan_is_read() -> None:
    assert math.isnan(one("a NaN").value)


def test_escapes_in_labels_are_undone() -> None:
    assert one('a{b="x\\"y\\\\z"} 1').labels == (("b", 'x"y\\z'),)


def test_braces_and_commas_in_labels_are_text() -> None:
    assert one('a{b="{x,y}",c="}"} 1').labels == (("b", "{x,y}"), ("c", "}"))


def test_a_comma_may_end_the_labels() -> None:
    assert one('a{b="1",} 1').labels == (("b", "1"),)


def test_no_labels_in_braces_are_no_labels() -> None:
    assert one("a{} 1").labels == ()


def test_timestamps_and_exemplars_are_passed_over() -> None:
    assert one('a_bucket{le="1"} 5 1700000000 # {trace_id="t"} 0.5 1700000000.1').value == 5


def test_carriage_returns_and_tabs_are_blanks() -> None:
    assert values("a\t1\r\nb 2\r\n") == {"a": 1, "b": 2}


def test_control_characters_of_labels_never_come_through() -> None:
    ((_, value),) = one('a{b="x\x1b[31mred\\nnext"} 1').labels
    assert value == "xred next"


def test_long_labels_are_cut() -> None:
    ((_, value),) = one(f'a{{b="{"x" * 5000}"}} 1').labels
    assert len(value) == module.LABEL_CHARACTERS


def test_only_wanted_names_are_kept_but_all_families_are_known() -> None:
    read = parse('a{x="1"} 1\nb{x="1"} 2\n', {"b"})
    assert [series.name for series in read.series] == ["b"]
    assert read.families == {"a", "b"}


def test_names_in_quotes_are_no_mistake() -> None:
    read = parse('{"my.metric",a="b"} 1\nc 2\n')
    assert (read.unreadable, read.problem) == (0, None)


@pytest.mark.parametrize(
    "line", ["a{b=1} 1", 'a{b="1" c="2"} 1', 'a{b="1",b="2"} 1', 'a{b="1} 1', "a", "a b", "a 1_000", "1a 2", "a 1 b"]
)
def test_a_few_unreadable_lines_are_counted_and_the_rest_is_read(line: str) -> None:
    read = parse(f"before 1\n{line}\nafter 2\n")
    assert [series.name for series in read.series] == ["before", "after"]
    assert (read.unreadable, read.problem) == (1, None)
    assert read.message == "1 lines of the page cannot be read"


@pytest.mark.parametrize(
    "page",
    [
        "<html><body>login</body></html>",
        '{"detail":"Not Found"}',
        "upstream connect error or disconnect",
        "\x00\x01\x02",
    ],
)
def test_what_is_no_page_is_a_parse_problem(page: str) -> None:
    read = parse(page)
    assert read.problem is Reason.PARSE
    assert read.series == ()
    assert read.message == "the answer is not a Prometheus page"


def test_an_empty_page_is_a_page() -> None:
    assert parse("").problem is None


def test_a_page_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_CHARACTERS", 1 << 20)
    read = parse("a 1\n" * (1 << 19))
    assert (read.problem, read.message) == (Reason.PARSE, "the page is larger than 1 MiB")


def test_too_many_series_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_LIMIT", 10)
    assert parse("a 1\n" * 11).problem is Reason.PARSE


def test_a_line_beyond_the_limit_is_unreadable() -> None:
    read = parse(f'a{{b="{"x" * module.LINE_CHARACTERS}"}} 1\nc 2\nd 3\n')
    assert read.unreadable == 1


@pytest.mark.parametrize(
    "line",
    [
        'a{b="' + "\\" * 60_000,
        "a{" * 30_000,
        'a{b="' + '","' * 20_000 + "} 1",
        '{"' + "\\\\" * 30_000,
        "a" + " " * 60_000,
    ],
    ids=["backslashes", "braces", "quotes", "quoted name", "blanks"],
)
def test_lines_made_to_be_slow_are_passed_over(line: str) -> None:
    """A parser that goes back for each character would take minutes; the suite's time limit would end it."""
    assert parse("\n".join([line] * 50)).problem is Reason.PARSE
