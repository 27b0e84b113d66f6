"""Addresses of Redis servers: what is taken, and that no password is shown."""

from __future__ import annotations

import pytest

from router.redis_url import RedisUrl


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://10.0.0.1", "redis://10.0.0.1:6379"),
        ("redis://redis.ns.svc.cluster.local:6380/2", "redis://redis.ns.svc.cluster.local:6380/2"),
        ("rediss://user:pass@h:1/", "rediss://h:1"),
        ("redis://[::1]:7000/0", "redis://[::1]:7000/0"),
    ],
)
def test_an_address_is_shown_without_its_user_and_password(text: str, shown: str) -> None:
    assert str(RedisUrl(text)) == shown
    assert "pass" not in repr(RedisUrl(text))
    assert RedisUrl(text).secret == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must begin with redis:// or rediss://"),
        ("redis", "must begin with redis:// or rediss://"),
        ("valkey://h", "must begin with redis:// or rediss://"),
        ("redis://", "without a host"),
        ("redis://h:port", "expected redis://HOST:PORT"),
        ("redis://h:70000", "expected redis://HOST:PORT"),
        ("redis://:s3cret@h/path1", "is a number, as in redis://h:6379/0"),
    ],
)
def test_a_wrong_address_is_refused_without_showing_it(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="Redis") as refused:
        RedisUrl(text)
    assert said in str(refused.value)
    assert "s3cret" not in str(refused.value)
