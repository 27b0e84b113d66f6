"""The tape: live, recording, replaying; what is on disk, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.model import Reason
from checks.sources.recording import RecordingError
from checks.sources.tape import Answer, Tape

POD = json.dumps({"spec": {"containers": [{"env": [{"name": "HF_TOKEN", "value": "hf_verysecretvalue"}]}]}})


def never() -> Answer:
    raise AssertionError("asked the source in a replay")


def write(folder: Path, *rows: dict[str, object], manifest: dict[str, object] | None = None) -> Path:
    """A recording by hand."""
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest or {"schema_version": 1, "now": 1000.0}))
    (folder / "index.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_live_asks_the_source_each_time() -> None:
    texts = iter(["one", "two"])
    tape = Tape.live()
    assert [tape.ask("page", "k", lambda: Answer(200, next(texts))).text for _ in range(2)] == ["one", "two"]


def test_live_says_when_an_answer_came() -> None:
    assert Tape.live().ask("page", "k", lambda: Answer(200, "x")).at > 1.7e9


def test_a_recording_replays_what_was_answered(tmp_path: Path) -> None:
    with Tape.record(tmp_path / "rec", options={"namespace": "prod"}, version="9") as tape:
        first = tape.ask("page", "prod/w-0:8000/metrics", lambda: Answer(200, "a 1\n", at=5.0))
        denied = tape.ask("log", "prod/w-0/vllm head", lambda: Answer(403, "", Reason.RBAC, "forbidden", at=6.0))
        tape.ended(77.0, "")
    replay = Tape.replay(tmp_path / "rec")
    assert replay.ask("page", "prod/w-0:8000/metrics", never) == first == Answer(200, "a 1\n", at=5.0)
    assert replay.ask("log", "prod/w-0/vllm head", never) == denied
    assert replay.options == {"namespace": "prod"}


def test_clock_and_end_of_the_recorded_run_are_replayed(tmp_path: Path) -> None:
    with Tape.record(tmp_path / "rec", options={}, version="9") as tape:
        tape.ended(77.0, "--timeout of 3 s was over")
    assert Tape.replay(tmp_path / "rec").ended(99.0, "") == (77.0, "--timeout of 3 s was over")


def test_a_question_asked_again_is_replayed_in_order_and_then_stays(tmp_path: Path) -> None:
    texts = iter(["one", "two"])
    with Tape.record(tmp_path / "rec", options={}, version="9") as tape:
        for _ in range(2):
            tape.ask("page", "k", lambda: Answer(200, next(texts)))
    replay = Tape.replay(tmp_path / "rec")
    assert [replay.ask("page", "k", never).text for _ in range(3)] == ["one", "two", "two"]


def test_what_a_recording_does_not_hold_is_no_data(tmp_path: Path) -> None:
    replay = Tape.replay(write(tmp_path / "rec"))
    answer = replay.ask("kubernetes", "prod/pods", never)
    assert (answer.status, answer.error) == (0, Reason.NO_DATA)


def test_secrets_are_neither_stored_nor_returned(tmp_path: Path) -> None:
    with Tape.record(tmp_path / "rec", options={"prometheus": "http://me:pw1234@prom"}, version="9") as tape:
        told = tape.ask("kubernetes", "prod/pods", lambda: Answer(200, POD))
        tape.ask("log", "prod/w-0/vllm head", lambda: Answer(200, "x\x1b[31m Authorization: Bearer abcdefgh\n"))
    stored = "".join(path.read_text() for path in (tmp_path / "rec").rglob("*") if path.is_file())
    assert "verysecret" not in stored + told.text
    assert "abcdefgh" not in stored
    assert "pw1234" not in stored
    assert "\x1b" not in stored


def test_folders_have_names_that_a_person_can_read(tmp_path: Path) -> None:
    with Tape.record(tmp_path / "rec", options={}, version="9") as tape:
        tape.ask("kubernetes", "prod/pods", lambda: Answer(200, "{}"))
        tape.ask("log", "prod/w-0/vllm head", lambda: Answer(200, "x"))
        tape.ask("prometheus", "sum(up)", lambda: Answer(200, "[]"))
    names = {str(path.relative_to(tmp_path / "rec")) for path in (tmp_path / "rec").rglob("*.*")}
    assert {"kubernetes/prod.pods.json", "logs/prod.w-0.vllm.head.log", "prometheus/sum.up.json"} <= names


def test_keys_that_differ_only_in_odd_characters_do_not_overwrite_each_other(tmp_path: Path) -> None:
    with Tape.record(tmp_path / "rec", options={}, version="9") as tape:
        for key in ("a/b", "a b", "A.B", "a.b"):
            tape.ask("page", key, lambda key=key: Answer(200, key))  # type: ignore[misc]
    replay = Tape.replay(tmp_path / "rec")
    assert [replay.ask("page", key, never).text for key in ("a/b", "a b", "A.B", "a.b")] == ["a/b", "a b", "A.B", "a.b"]


def test_an_interrupted_recording_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Tape.record(tmp_path / "rec", options={}, version="9") as tape:
        tape.ask("page", "k", lambda: Answer(200, "x"))
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_nothing_stands_under_the_name_before_the_end(tmp_path: Path) -> None:
    with Tape.record(tmp_path / "rec", options={}, version="9") as tape:
        tape.ask("page", "k", lambda: Answer(200, "x"))
        assert not (tmp_path / "rec").exists()
    assert (tmp_path / "rec").is_dir()


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(RecordingError, match="not an empty folder"):
        Tape.record(tmp_path, options={}, version="9")
    assert (tmp_path / "mine").read_text() == "x"


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    with Tape.record(tmp_path / "rec", options={}, version="9"):
        pass
    assert (tmp_path / "rec" / "manifest.json").is_file()


def test_an_index_line_needs_only_kind_key_and_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "rec", {"kind": "page", "key": "k", "file": "pages/k.txt"})
    (folder / "pages").mkdir()
    (folder / "pages" / "k.txt").write_text("hello")
    assert Tape.replay(folder).ask("page", "k", never) == Answer(200, "hello", at=1000.0)


def test_an_error_line_needs_no_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "rec", {"kind": "page", "key": "k", "error": "timeout", "message": "too slow"})
    assert Tape.replay(folder).ask("page", "k", never) == Answer(0, "", Reason.TIMEOUT, "too slow", 1000.0)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"kind": "page"}, "line 1.*key"),
        ({"kind": "pagge", "key": "k"}, "line 1.*pagge"),
        ({"kind": "page", "key": "k", "fiel": "x"}, "line 1.*fiel"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: dict[str, object], told: str) -> None:
    with pytest.raises(RecordingError, match=told):
        Tape.replay(write(tmp_path / "rec", row))


def test_a_folder_without_manifest_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="is not a recording"):
        Tape.replay(tmp_path)


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "rec", manifest={"schema_version": 2, "now": 1.0})
    with pytest.raises(RecordingError, match="schema_version 2"):
        Tape.replay(folder)


def test_a_file_outside_the_recording_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    replay = Tape.replay(write(tmp_path / "rec", {"kind": "page", "key": "k", "file": "../secret"}))
    with pytest.raises(RecordingError, match="outside"):
        replay.ask("page", "k", never)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    replay = Tape.replay(write(tmp_path / "rec", {"kind": "page", "key": "k", "file": "pages/none.txt"}))
    with pytest.raises(RecordingError, match=r"none\.txt"):
        replay.ask("page", "k", never)
