"""Who is let in, and that whoever is not learns nothing and leaves nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from pathlib import Path

import pytest

from router.callers.gate import Gate, ModelNotAllowed, Unauthorized
from router.callers.keys import Caller, read_keys_file

KEY = b"kv-secret-of-a"


def caller(name: str = "a", key: bytes = KEY, **fields: object) -> Caller:
    return Caller(name, hashlib.sha256(key).digest(), name, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "header",
    [
        (b"authorization", b"Bearer " + KEY),
        (b"authorization", b"bearer   " + KEY + b" "),
        (b"x-api-key", KEY),
    ],
)
def test_key_is_taken_in_both_spellings(header: tuple[bytes, bytes]) -> None:
    assert Gate([caller()]).account([(b"host", b"h"), header]).caller.name == "a"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", KEY)],
        [(b"authorization", b"Basic " + KEY)],
        [(b"authorization", b"Bearer wrong"), (b"x-api-key", KEY)],
        [(b"x-api-key", KEY + b"x")],
        [(b"x-api-key", KEY * 1000)],
        [(b"x-api-key", b"\xff\x00")],
        [(b"authorization", b"Bearer " + hashlib.sha256(KEY).hexdigest().encode())],
    ],
)
def test_everything_else_is_refused_alike(headers: list[tuple[bytes, bytes]]) -> None:
    gate = Gate([caller()])
    with pytest.raises(Unauthorized) as caught:
        gate.account(headers)
    assert str(caught.value) == str(Unauthorized())
    assert caught.value.headers == (("www-authenticate", "Bearer"),)
    assert caught.value.extra is None


def test_expired_key_is_refused_like_an_unknown_one() -> None:
    with pytest.raises(Unauthorized) as caught:
        Gate([caller(expires=time.time() - 1)]).account([(b"x-api-key", KEY)])
    assert str(caught.value) == str(Unauthorized())


def test_unknown_keys_leave_nothing_behind() -> None:
    gate = Gate([caller()])
    for number in range(1000):
        with pytest.raises(Unauthorized):
            gate.account([(b"x-api-key", b"guess-%d" % number)])
    assert len(list(gate.accounts)) == 1
    assert gate.unauthorized == 1000


def test_caller_with_a_list_of_models_gets_no_other() -> None:
    gate = Gate([caller(models=frozenset({"m1"}))])
    account = gate.account([(b"x-api-key", KEY)])
    gate.check_model(account, "m1")
    with pytest.raises(ModelNotAllowed, match="'m2' is not allowed"):
        gate.check_model(account, "m2")
    with pytest.raises(ModelNotAllowed, match="has to name a model"):
        gate.check_model(account, "")


def test_other_name_of_an_allowed_model_is_allowed() -> None:
    gate = Gate([caller(models=frozenset({"m1"}))], {"alias": "m1", "other": "m2"})
    assert gate.allowed(gate.account([(b"x-api-key", KEY)])) == {"m1", "alias"}


def test_new_reading_keeps_the_counts_of_who_stays() -> None:
    gate = Gate([caller(requests_per_minute=5)])
    account = gate.account([(b"x-api-key", KEY)])
    account.enter(1000.0)
    gate.take([caller(key=b"rotated", requests_per_minute=7)])
    again = gate.account([(b"x-api-key", b"rotated")])
    assert again is account
    assert again.requests.total == 1
    assert again.caller.requests_per_minute == 7
    with pytest.raises(Unauthorized):
        gate.account([(b"x-api-key", KEY)])


async def until(true: object) -> None:
    async with asyncio.timeout(20):
        while not true():  # type: ignore[operator] # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_changed_file_is_taken_and_a_bad_one_keeps_the_old_keys(tmp_path: Path) -> None:
    def entry(key: bytes) -> str:
        return json.dumps({"name": "a", "sha256": hashlib.sha256(key).hexdigest()}) + "\n"

    path = tmp_path / "keys.jsonl"
    path.write_text(entry(KEY))
    gate = Gate(read_keys_file(path))
    following = asyncio.create_task(gate.follow(path, 0.01))
    await asyncio.sleep(0.05)
    path.write_text(entry(b"kv-another-key"))
    await until(lambda: gate.reloads == 1)
    assert gate.account([(b"x-api-key", b"kv-another-key")]).caller.name == "a"
    path.write_text('{"name": "a", "key": "plain"}')
    await until(lambda: gate.file_errors == 1)
    assert gate.account([(b"x-api-key", b"kv-another-key")]).caller.name == "a"
    path.unlink()
    await until(lambda: gate.file_errors == 2)
    assert gate.account([(b"x-api-key", b"kv-another-key")]).caller.name == "a"
    following.cancel()
