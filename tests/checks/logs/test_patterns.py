"""Every row of patterns.yaml, by its literal sample, and the quick search against the plain one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import checks
from checks.logs.patterns import Pattern, PatternRow, Patterns
from checks.logs.read import KEPT_OF_PATTERN, read_log
from checks.logs.view import LogView
from tests.checks.logs.hostile import hostile_lines

PATTERNS = Patterns.load()
ROWS = [pattern.row for pattern in PATTERNS]
IDS = [row.id for row in ROWS]
COMPONENTS = {"lmcache", "router", "vllm", "aws", "kvctl", "epp", "hyperpod", "uvicorn"}


def read(text: str) -> LogView:
    return read_log(text, where="test", started_at=None, patterns=PATTERNS)


def row(regex: str, sample: str = "x", **more: object) -> PatternRow:
    return PatternRow(id="one", regex=regex, component="lmcache", role="worker", polarity="good", sample=sample, **more)


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_the_sample_gives_its_pattern_and_no_other(row: PatternRow) -> None:
    assert set(read(row.sample).matches) == {row.id, *row.also}


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_the_sample_gives_its_fields(row: PatternRow) -> None:
    match = read(row.sample).first(row.id)
    assert match is not None
    assert {name: value for name, value in match.fields.items() if value is not None} == row.fields


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_the_sample_gives_its_pattern_under_a_kubelet_timestamp(row: PatternRow) -> None:
    stamped = "\n".join(f"2026-08-01T10:00:00.000000001Z {line}" for line in row.sample.rstrip("\n").split("\n"))
    assert set(read(stamped).matches) == {row.id, *row.also}


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_the_sample_has_the_level_that_the_row_says(row: PatternRow) -> None:
    match = read(row.sample).first(row.id)
    assert match is not None
    if match.record.component != "json" and match.record.level:
        assert match.record.level == row.level


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_the_row_uses_known_words(row: PatternRow) -> None:
    assert row.component in COMPONENTS
    assert row.role in KEPT_OF_PATTERN
    assert row.polarity in ("good", "bad", "neutral")
    assert set(row.also) <= set(IDS) - {row.id}


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_every_needle_is_in_some_text_that_matches(row: PatternRow) -> None:
    """A needle that no match can hold would be dead; the literal start is in the sample by its nature."""
    needles = PATTERNS[row.id].needles
    assert any(needle in row.sample for needle in needles)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", list(PATTERNS), ids=IDS)
def test_a_hostile_line_as_long_as_a_record_does_not_hold_the_search_up(pattern: Pattern) -> None:
    """Bounded by the timeout: backtracking over 64 KiB would take minutes."""
    found = [pattern.expression.search(line) for line in hostile_lines(pattern.row)]
    assert len(found) >= 10


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("LMCache INFO: Using default NONE_HASH=0 (vLLM < PR#20511)", {"value": "0"}),
        ("LMCache INFO: Initialized NONE_HASH=b'\\x01 a' from vLLM (>= PR#20511)", {"value": "b'\\x01 a'"}),
        ("LMCache INFO: Initialized NONE_HASH=17 from vLLM", {"value": "17"}),
        ("LMCache INFO: Computed NONE_HASH=18 using hash function", {"value": "18"}),
    ],
)
def test_every_spelling_of_none_hash_is_read(text: str, fields: dict[str, str]) -> None:
    match = read(f"[2026-08-01 10:00:00,000] {text}").first("none-hash")
    assert match is not None
    assert match.fields == fields


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (". System will operate in degraded mode (recompute).", ""),
        ("list index out of range. System will operate in degraded mode", "list index out of range"),
        ("cut off", "cut off"),
    ],
)
def test_the_one_line_failure_of_older_versions_gives_its_reason(text: str, reason: str) -> None:
    line = f"[2026-08-01 10:00:00,000] LMCache ERROR: Failed to initialize LMCacheManager components: {text}"
    match = read(line).first("lmcache-manager-failed")
    assert match is not None
    assert match.fields == {"reason": reason}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (
            "Reqid: cmpl-1, Total tokens 713, LMCache hit tokens: 512, need to load: -192",
            {"rid": "cmpl-1", "total": "713", "computed": None, "hit": "512", "load": "-192"},
        ),
        (
            "Reqid: cmpl-1, Total tokens 713, LMCache hit tokens: None.",
            {"rid": "cmpl-1", "total": "713", "computed": None, "hit": "None", "load": None},
        ),
    ],
)
def test_requests_of_older_versions_and_pending_lookups_are_read(text: str, fields: dict[str, str | None]) -> None:
    match = read(text).first("lmcache-request")
    assert match is not None
    assert match.fields == fields


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Stored 512 out of total 713 tokens. size: 0.0625 gb, cost 12.3 ms", "512"),
        ("Stored 512 tokens in 0.012 seconds", "512"),
    ],
)
def test_stored_is_read_without_a_request_id_and_from_the_mp_server(text: str, tokens: str) -> None:
    match = read(text).first("lmcache-stored")
    assert match is not None
    assert match["tokens"] == tokens
    assert match["rid"] == ""


@pytest.mark.parametrize("text", ["Retrieved 6 out of 6 out of total 6 tokens", "Retrieved 6 tokens in 0.004 seconds"])
def test_retrieved_is_read_layerwise_and_from_the_mp_server(text: str) -> None:
    match = read(text).first("lmcache-retrieved")
    assert match is not None
    assert match["tokens"] == "6"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("(APIServer pid=1) INFO 08-01 10:00:00 [api_utils.py:347]  ▄▄ ▄█ █     █ ▀▄▀ █  version 0.32.0", "0.32.0"),
        ("INFO 08-01 10:00:00 [api_server.py:1] vLLM API server version 0.9.2", "0.9.2"),
        ("INFO 08-01 10:00:00 [core.py:1] Initializing a V1 LLM engine (v0.11.1) with config: model='m'", "0.11.1"),
        ("INFO 08-01 10:00:00 [core.py:1] Initializing a V0 LLM engine (v0.8.5) with config: model='m'", "0.8.5"),
    ],
)
def test_every_spelling_of_vllms_version_is_read(text: str, version: str) -> None:
    match = read(text).first("vllm-version")
    assert match is not None
    assert match["version"] == version


def test_a_controller_error_with_its_traceback_on_the_next_lines_gives_the_traceback() -> None:
    match = read(
        "[2026-08-01 10:00:00,000] LMCache ERROR: Controller Manager error (observability.py:206:lmcache.x)\n"
        'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: bad frame'
    ).first("lmcache-controller-error")
    assert match is not None
    assert match["reason"].endswith("ValueError: bad frame")


def test_the_routers_kv_hit_is_not_taken_for_a_request() -> None:
    view = read("[2026-08-01 10:00:00,000] INFO: Routing request to inst-1 found by kvaware router")
    assert set(view.matches) == {"router-kv-hit"}


def test_a_normal_peer_line_is_not_flagged() -> None:
    text = "LMCache INFO: peer init url of ('x', 0) is None, only register when p2p is used."
    assert not read(f"[2026-08-01 10:00:00,000] {text}").matches


# The quick search.


def plain(patterns: Patterns, messages: list[str]) -> set[tuple[int, str, str, int]]:
    """The judge: each expression on each message."""
    found = ((at, one.id, one.expression.search(text)) for at, text in enumerate(messages) for one in patterns)
    return {(at, name, hit.group(), hit.start()) for at, name, hit in found if hit is not None}


def quick(patterns: Patterns, messages: list[str]) -> set[tuple[int, str, str, int]]:
    found = [(at, pattern.id, hit.group(), hit.start()) for at, pattern, hit in patterns.find(messages)]
    assert len(found) == len(set(found)), "a pattern was given twice for one message"
    return set(found)


def fragments() -> st.SearchStrategy[str]:
    """Pieces of samples, whole or cut anywhere, joined: near misses of every pattern."""
    words = st.sampled_from([word for row in ROWS for word in re.split(r"(?<= )", row.sample)])
    cut = st.sampled_from([row.sample for row in ROWS]).flatmap(
        lambda sample: st.tuples(st.integers(0, len(sample)), st.integers(0, len(sample))).map(
            lambda ends: sample[min(ends) : max(ends)]
        )
    )
    whole = st.sampled_from([row.sample for row in ROWS])
    return st.lists(st.one_of(words, cut, whole, st.text(max_size=5)), max_size=8).map("".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(fragments().map(lambda text: text.replace("\0", "")), max_size=6))
def test_the_quick_search_finds_what_each_expression_finds(messages: list[str]) -> None:
    assert quick(PATTERNS, messages) == plain(PATTERNS, messages)


def test_the_quick_search_finds_all_samples_in_one_batch() -> None:
    messages = [row.sample for row in ROWS]
    assert quick(PATTERNS, messages) == plain(PATTERNS, messages)


@pytest.mark.parametrize("pattern", list(PATTERNS), ids=IDS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_the_expression_matches_the_quick_search_finds(pattern: Pattern, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(_short(pattern.expression.pattern), alphabet=st.characters(exclude_characters="\0")))
    assert (0, pattern.id) in {(at, one.id) for at, one, _ in PATTERNS.find([text])}


def _short(expression: str) -> str:
    """The expression with small counts, so that texts made from it are small."""
    return re.sub(r"\{(\d+),\d{2,}\}", r"{\1,3}", expression)


REAL_LOGS = [
    Path(__file__).parents[4] / "shared" / "data" / "logs" / name
    for name in ("vllm-lmcache-degraded.log", "vllm-plain.log")
]


@pytest.mark.parametrize("path", REAL_LOGS, ids=lambda path: path.stem)
def test_the_quick_search_finds_what_each_expression_finds_in_a_real_log(path: Path) -> None:
    if not path.exists():
        pytest.skip("the real logs are not here")
    messages = [record.message for record in read(path.read_text("utf-8")).records]
    assert quick(PATTERNS, messages) == plain(PATTERNS, messages)


@pytest.mark.parametrize(
    ("regex", "needle"),
    [
        (r"Stored blocks \(all\)", "Stored blocks (all)"),
        (r"Stored blocks?", "Stored block"),
        (r"Stored\.*", "Stored"),
        (r"Stored (?:a|b)", "Stored "),
        (r"Stored [a|b]", "Stored "),
        (r"Stored a|Loaded b", ""),
        (r"Sto", ""),
        (r"(?:Stored|Loaded)", ""),
        (r"\d+ stored", ""),
    ],
)
def test_the_needle_is_the_literal_start_or_nothing(regex: str, needle: str) -> None:
    assert Pattern.compile(row(regex)).needles == (needle,)


def test_a_pattern_without_a_needle_is_looked_for_in_every_message() -> None:
    patterns = Patterns({"one": Pattern.compile(row(r"\d+ stored|^$"))})
    assert [at for at, _, _ in patterns.find(["7 stored", "stored", "", "x 8 stored", ""])] == [0, 2, 3, 4]


def test_a_version_range_says_who_prints_a_line() -> None:
    from checks.compatibility import Version

    pattern = Pattern.compile(row("Stored all", first="0.4.6", last="0.5.4"))
    assert [pattern.printed_by(Version.parse(text)) for text in ("0.4.5", "0.4.6", "0.5.4", "0.5.5")] == [
        False,
        True,
        True,
        False,
    ]


def test_every_pattern_is_read_by_a_check_or_says_why_not() -> None:
    root = Path(checks.__file__).parent
    data = (root / "data/compatibility.yaml").read_text(encoding="utf-8")
    code = [data, *(path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py")))]
    told = {row.id for row in ROWS if row.note.startswith("Read by no check:")}
    built = {f"lmcache-{socket}-handler" for socket in ("pull", "reply", "heartbeat")}  # checks/catalogue/plumbing.py
    unread = {one for one in IDS if not any(re.search(rf"[\"' ]{one}[\"',}}]", text) for text in code)} - built
    assert unread == told
