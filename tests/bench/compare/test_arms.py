"""The arms of `make compare`: ours before a simulated fleet, absent peers with a reason, prompts that are refused."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from bench.arm_spec import parse_arm
from bench.cold import Engine
from bench.compare.arms import Places, Prompts, Running, installed, refusal, started
from tests.bench.fakes import FakeEngine
from tests.bench.test_run import routers

TOKENIZER = Path(__file__).resolve().parents[3] / "bench" / "sim" / "tokenizer"


def test_an_arm_is_spelled_as_the_bench_reads_it() -> None:
    arm = Running("smg", "SMG", "http://h:1", "smg 1.13.0", ("http://e:1", "http://e:2"))
    spec = parse_arm(arm.spec)
    assert (spec.name, spec.url, spec.version, spec.admin) == ("smg", "http://h:1", "smg 1.13.0", None)
    assert spec.engines == (Engine("e-1", "http://e:1"), Engine("e-2", "http://e:2"))


def test_our_own_arm_serves_and_peers_that_are_not_installed_are_absent_with_a_reason(tmp_path: Path) -> None:
    places = Places(tmp_path / "no-peers", tmp_path / "no-dynamo", TOKENIZER, tmp_path)
    with started(["kvctl-rr", "smg", "dynamo-kv"], Prompts.TEXT, places, lambda _line: None) as found:
        assert [arm.name for arm in found.arms] == ["kvctl-rr"]
        assert refusal(found.arms[0].url, Prompts.TEXT) is None
        assert len(found.arms[0].engines) == 4
        url = found.arms[0].url
    assert set(found.absent) == {"smg", "dynamo-kv"}
    assert all("No such file" in why for why in found.absent.values())
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{url}/v1/models", timeout=2, trust_env=False)


def test_a_router_that_refuses_is_quoted() -> None:
    with routers(FakeEngine(fail_every=1)) as urls:
        said = refusal(urls[0], Prompts.IDS)
    assert said is not None
    assert said.startswith("HTTP 500")


def test_a_router_that_streams_is_taken() -> None:
    with routers(FakeEngine()) as urls:
        assert refusal(urls[0], Prompts.IDS) is None


def test_a_version_that_cannot_be_asked_is_unknown(tmp_path: Path) -> None:
    assert installed(tmp_path / "python", "smg") == "smg unknown"
