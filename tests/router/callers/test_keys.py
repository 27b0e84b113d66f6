"""The keys file: what it takes, what it refuses, and that no error quotes a value."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from router.callers.keys import KeysFileError, digest_of, new_key, read_keys_file

HASH = hashlib.sha256(b"kv-" + b"x" * 43).hexdigest()
OTHER = hashlib.sha256(b"kv-" + b"y" * 43).hexdigest()


def written(folder: Path, text: str, name: str = "keys.jsonl") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_json_lines_with_comments_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, f'# ours\n\n{{"name": "a", "sha256": "{HASH}"}}\n{{"name": "b", "sha256": "{OTHER}"}}\n')
    assert [caller.name for caller in read_keys_file(path)] == ["a", "b"]


def test_yaml_with_every_limit_is_read(tmp_path: Path) -> None:
    text = f"""keys:
- name: a
  sha256: {HASH}
  tenant: team
  requests-per-minute: 10
  tokens_per_minute: 1000
  concurrent-requests: 2
  models: [m1, m2]
  expires: 2027-01-31
"""
    (caller,) = read_keys_file(written(tmp_path, text, "keys.yaml"))
    assert caller.digest == bytes.fromhex(HASH)
    assert (caller.tenant, caller.requests_per_minute, caller.tokens_per_minute) == ("team", 10, 1000)
    assert (caller.concurrent_requests, caller.models) == (2, {"m1", "m2"})
    assert caller.expires == 1801353600.0


def test_name_stands_for_the_tenant_where_none_is_given(tmp_path: Path) -> None:
    (caller,) = read_keys_file(written(tmp_path, json.dumps({"name": "a", "sha256": HASH})))
    assert caller.tenant == "a"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"name": "a", "key": "hunter2-secret"}, "plain text"),
        ({"name": "a", "sha256": HASH, "token": "hunter2-secret"}, "plain text"),
        ({"name": "a", "sha256": "hunter2-secret"}, "64 hexadecimal digits"),
        ({"name": "a", "sha256": HASH[:-2]}, "64 hexadecimal digits"),
        ({"name": "a", "sha256": hashlib.sha256(b"changeme").hexdigest()}, "anybody can guess"),
        ({"name": "hunter2-secret", "sha256": hashlib.sha256(b"hunter2-secret").hexdigest()}, "anybody can guess"),
        ({"name": "a", "sha256": "00" * 32}, "anybody can guess"),
        ({"name": "a", "sha256": HASH, "limit": 3}, "limit"),
        ({"name": "a"}, "sha256"),
        ({"sha256": HASH}, "name"),
        ({"name": "a b", "sha256": HASH}, "visible"),
        ({"name": "a\nb", "sha256": HASH}, "visible"),
        ({"name": "a", "sha256": HASH, "requests-per-minute": 0}, "requests-per-minute"),
        ({"name": "a", "sha256": HASH, "tokens-per-minute": "many"}, "tokens-per-minute"),
        ({"name": "a", "sha256": HASH, "expires": "soon"}, "expires"),
        ({"name": "a", "sha256": HASH, "models": [""]}, "models"),
        ("kv-hunter2-secret", "not an object"),
    ],
)
def test_entry_that_cannot_be_taken_is_named(tmp_path: Path, entry: object, says: str) -> None:
    with pytest.raises(KeysFileError, match=says) as caught:
        read_keys_file(written(tmp_path, json.dumps(entry)))
    assert "line 1" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["keys.jsonl", "keys.yaml", "keys.json"])
@pytest.mark.parametrize(
    "text",
    [
        "- {name: a, key: hunter2",
        "hunter2",
        '{"name": "a", "sha256": hunter2}',
        "- hunter2",
        "keys: hunter2",
        "\x00hunter2",
    ],
)
def test_no_error_quotes_the_file(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(KeysFileError) as caught:
        read_keys_file(written(tmp_path, text, name))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_two_entries_with_one_name_are_refused(tmp_path: Path) -> None:
    text = f'{{"name": "a", "sha256": "{HASH}"}}\n{{"name": "a", "sha256": "{OTHER}"}}\n'
    with pytest.raises(KeysFileError, match="two entries have the name 'a'"):
        read_keys_file(written(tmp_path, text))


def test_two_entries_with_one_key_are_refused(tmp_path: Path) -> None:
    text = f'{{"name": "a", "sha256": "{HASH}"}}\n{{"name": "b", "sha256": "{HASH}"}}\n'
    with pytest.raises(KeysFileError, match="'a' and 'b' have the same key"):
        read_keys_file(written(tmp_path, text))


def test_absent_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(KeysFileError, match="No such file"):
        read_keys_file(tmp_path / "none")


def test_new_keys_have_256_bits_of_chance_and_differ() -> None:
    one, other = new_key(), new_key()
    assert one != other
    assert len(one.removeprefix("kv-")) == 43


def test_key_that_is_too_long_has_no_digest_of_its_own() -> None:
    assert digest_of(b"x" * 513) == bytes(32)
    assert digest_of(b"x" * 512) == hashlib.sha256(b"x" * 512).digest()


def test_device_is_no_keys_file() -> None:
    with pytest.raises(KeysFileError, match="not a regular file"):
        read_keys_file(Path("/dev/null"))


def test_keys_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"name": "a", "sha256": HASH}).encode())
    assert [caller.name for caller in read_keys_file(path)] == ["a"]
