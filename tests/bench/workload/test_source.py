"""Files: the format is told from the content, mistakes are named by file, line and field, text keeps its sharing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.workload.arrivals import Arrivals
from bench.workload.model import Role, Workload, WorkloadError
from bench.workload.source import Format, Wish, format_of, make

TRACE = {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [0, 1]}
TALK = {
    "conversations": [
        {"from": "system", "value": "Be kind."},
        {"from": "human", "value": "Hello there"},
        {"from": "gpt", "value": "12345678"},
        {"from": "human", "value": "And now?"},
        {"from": "gpt", "value": "Now this."},
    ]
}
ASK = {"role": "user", "content": "How?"}
BATCH = {
    "custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
    "body": {"model": "gpt", "messages": [{"role": "system", "content": "S"}, ASK], "max_tokens": 7, "top_p": 0.5},
}  # fmt: skip


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def made(path: Path, **wish: Any) -> Workload:
    return make(Wish(file=path, **wish))


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (TRACE, Format.MOONCAKE),
        (TALK, Format.SHAREGPT),
        ({"messages": [ASK]}, Format.SHAREGPT),
        (BATCH, Format.BATCH),
        ([TALK], Format.SHAREGPT_ARRAY),
    ],
)
def test_the_format_is_told_from_the_content(tmp_path: Path, row: Any, kind: Format) -> None:
    assert format_of(written(tmp_path, row)) is kind


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no requests in it"),
        ('{"a": 1}\n', r"data.jsonl:1: neither of a Mooncake trace .* the line has a"),
        ("hello\n", r"data.jsonl:1: not JSON"),
        ("[1, 2\n", "not JSON"),
        ("[1]", r"\[0\]: an object wanted"),
    ],
)
def test_what_is_no_known_format_says_what_is(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=said):
        made(path)


def test_a_conversation_is_a_request_an_answer_and_each_waits_for_the_one_before(tmp_path: Path) -> None:
    first, second = made(written(tmp_path, TALK)).requests
    assert [piece.text for piece in first.pieces] == ["Be kind.", "Hello there"]
    assert second.pieces[: len(first.pieces)] == first.pieces
    assert second.roles == (Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER)
    assert (first.output_len, second.output_len) == (2, 3)
    assert (first.after, second.after) == (None, first.id)


def test_role_and_content_mean_the_same_as_from_and_value(tmp_path: Path) -> None:
    names = {"system": "system", "human": "user", "gpt": "assistant"}
    other = {"messages": [{"role": names[m["from"]], "content": m["value"]} for m in TALK["conversations"]]}
    one, two = made(written(tmp_path, TALK)), made(written(tmp_path, other))
    assert one.sha256 == two.sha256


def test_an_array_means_the_same_as_lines(tmp_path: Path) -> None:
    lines = made(written(tmp_path, TALK, TALK)).sha256
    assert made(written(tmp_path, [TALK, TALK])).sha256 == lines


def test_a_conversation_that_begins_with_an_answer_loses_it_and_that_is_noted(tmp_path: Path) -> None:
    late = {"conversations": [{"from": "gpt", "value": "Hi"}, *TALK["conversations"][1:]]}
    workload = made(written(tmp_path, late))
    assert workload.requests[0].pieces[0].text == "Hello there"
    assert workload.notes == ["1 conversations began with an answer, which is left out"]


def test_a_question_without_an_answer_is_asked(tmp_path: Path) -> None:
    (request,) = made(written(tmp_path, {"messages": [ASK]})).requests
    assert request.output_len == 128


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"conversations": 5}, r":2: conversations or messages: a list"),
        ({"conversations": [5]}, r":2: conversations\[0\]: an object"),
        ({"conversations": [{"from": "tool", "value": "x"}]}, r"conversations\[0\]: from: one of system"),
        ({"conversations": [{"from": "human", "value": None}]}, r"conversations\[0\]: value: a text wanted"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, r"content: only text parts"),
    ],
)
def test_a_bad_conversation_is_refused_with_line_and_field(tmp_path: Path, row: Any, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        made(written(tmp_path, TALK, row))


def test_a_batch_request_keeps_its_messages_its_length_and_its_other_fields(tmp_path: Path) -> None:
    workload = made(written(tmp_path, BATCH))
    (request,) = workload.requests
    assert [(r.value, p.text) for r, p in zip(request.roles, request.pieces, strict=True)] == [
        ("system", "S"),
        ("user", "How?"),
    ]
    assert request.output_len == 7
    assert json.loads(request.body or b"") == {"top_p": 0.5}
    assert workload.facts["api"] == "chat"
    assert "gpt" in workload.notes[0]


def test_batches_of_completions_and_responses_are_read(tmp_path: Path) -> None:
    plain = BATCH | {"url": "/v1/completions", "body": {"prompt": "P"}}
    (request,) = made(written(tmp_path, plain)).requests
    assert (request.pieces[0].text, request.roles) == ("P", ())
    asked = BATCH | {"url": "/v1/responses", "body": {"input": "I", "instructions": "S", "max_output_tokens": 4}}
    (request,) = made(written(tmp_path, asked)).requests
    assert ([p.text for p in request.pieces], request.output_len) == (["S", "I"], 4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"custom_id": None}, "custom_id: a text wanted"),
        ({"custom_id": "a"}, "custom_id: 'a' is also on line 1"),
        ({"method": "GET"}, "method: POST wanted, got 'GET'"),
        ({"url": "/v1/embeddings"}, "url: one of /v1/chat/completions"),
        ({"url": "/v1/completions"}, "one endpoint a file"),
        ({"body": []}, "body: an object wanted"),
        ({"body": {"messages": [ASK], "max_tokens": 0}}, "body: max_tokens: an integer from 1"),
        ({"body": {"messages": []}}, r"body.messages: a list of messages"),
        ({"body": {"messages": [{"role": "tool", "content": "x"}]}}, r"body.messages\[0\]: role: one of"),
    ],
)
def test_a_bad_batch_line_is_refused_with_line_and_field(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=f":2: .*{said}|:2: {said}"):
        made(written(tmp_path, BATCH, BATCH | {"custom_id": "b"} | change))


def test_equal_first_messages_are_shared_and_different_ones_are_not(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "system", "content": s}, {"role": "user", "content": u}]} for s, u in
            (("S", "1"), ("S", "2"), ("T", "1"))]  # fmt: skip
    groups = sorted(r.group for r in made(written(tmp_path, *rows)).requests)
    assert len(set(groups)) == 2


def test_a_file_of_text_is_dealt_by_session_and_arrives_as_asked_for(tmp_path: Path) -> None:
    workload = made(written(tmp_path, *[TALK] * 6), slices=2, arrivals=Arrivals.parse("constant"), rate=4.0)
    for index in range(2):
        part = workload.of_slice(index)
        assert len({r.session for r in part}) == 3
        assert sorted(r.at for r in part if r.turn == 0) == pytest.approx([0.0, 0.5, 1.0])


def test_a_file_of_text_holds_no_times(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="holds no times"):
        made(written(tmp_path, TALK), arrivals=Arrivals.parse("trace"))


def test_a_trace_can_arrive_by_another_process(tmp_path: Path) -> None:
    path = written(tmp_path, *[TRACE | {"hash_ids": [0, 1 + i]} for i in range(5)])
    workload = made(path, arrivals=Arrivals.parse("constant"), rate=2.0)
    assert [r.at for r in workload.requests] == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0])


def test_a_built_in_workload_has_no_times_of_a_trace() -> None:
    for name in ("multi-turn", "zipf"):
        with pytest.raises(WorkloadError, match="no times of its own"):
            make(Wish(name, arrivals=Arrivals.parse("trace")))
