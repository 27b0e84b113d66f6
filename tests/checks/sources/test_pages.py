"""A page of metrics cut down to what is used."""

from __future__ import annotations

from checks.metrics.text import parse
from checks.sources.pages import slim

PAGE = """# HELP vllm:a Something long.
# TYPE vllm:a counter
vllm:a{le="1"} 1
vllm:a{le="2"} 2
# TYPE other histogram
other_bucket{le="1"} 1
other_bucket{le="2"} 2
bare 1
bare 2
"""


def test_wanted_samples_stay() -> None:
    assert [(one.name, one.value) for one in parse(slim(PAGE, {"vllm:a"}), {"vllm:a"}).series] == [
        ("vllm:a", 1.0),
        ("vllm:a", 2.0),
    ]


def test_the_page_gets_shorter() -> None:
    assert len(slim(PAGE, {"vllm:a"}).splitlines()) == 6


def test_all_families_stay_known() -> None:
    assert parse(slim(PAGE, {"vllm:a"})).families == parse(PAGE).families


def test_what_is_no_page_stays_none() -> None:
    html = "<html>\n<body>hello</body>\n</html>\n"
    assert slim(html, {"vllm:a"}) == html
    assert parse(slim(html, {"vllm:a"})).problem is parse(html).problem
