"""What a request says of its own routing, and the modes that listen to it, live over HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest

from bench.sim.fleet import SimFleet
from tests.live.conftest import RunningRouter, running_router

TAINTS = {
    "sim-0": ["zone-a"],
    "sim-1": ["zone-a", "spot"],
    "sim-2": ["zone-b"],
    "sim-3": ["zone-b", "spot"],
}


@pytest.fixture(scope="module")
def router(sims: SimFleet) -> Iterator[RunningRouter]:
    workers: list[str] = []
    for engine in sims.engines:
        marks = "".join(f",taint={taint}" for taint in TAINTS[engine.id])
        device = "cpu" if engine.id == "sim-3" else "cuda"
        workers += ["--worker", f"{engine.url},id={engine.id},device={device}{marks}"]
    with running_router(
        "--allow-mode-override",
        *("--seed", "3", "--shadow", "prefixaware,least-loaded", "--session-key", "body:user"),
        *("--kvaware-threshold", "32"),
        *workers,
    ) as running:
        yield running


def served(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.headers["x-kvctl-worker"]


def long_prompt() -> str:
    return f"{uuid.uuid4()} " + "def main(argument): return argument + 1\n" * 60


def workers_of(router: RunningRouter, mode: str, count: int, **headers: str) -> list[str]:
    named = {"x-kvctl-mode": mode} | {name.replace("_", "-"): value for name, value in headers.items()}
    return [served(router.ask(f"{uuid.uuid4()}", headers=named)) for _ in range(count)]


def test_required_taints_restrict_every_mode(router: RunningRouter) -> None:
    for mode in ("kv", "round-robin", "session"):
        found = workers_of(router, mode, 6, x_kvctl_required_taints="zone-b,spot", x_session_id="s")
        assert set(found) == {"sim-3"}


def test_a_taint_that_nobody_has_is_a_503_that_says_so(router: RunningRouter) -> None:
    answer = router.ask(headers={"x-kvctl-required-taints": "zone-c"})
    assert answer.status_code == 503
    assert "sim-0: taint" in answer.json()["error"]["message"]


def test_preferred_taints_attract(router: RunningRouter) -> None:
    found = workers_of(router, "kv", 8, x_kvctl_preferred_taints="zone-a=2,spot=-1")
    assert set(found) == {"sim-0"}


def test_nvext_restricts_like_the_headers(router: RunningRouter) -> None:
    rules = {"routing_constraints": {"required_taints": ["zone-a", "spot"]}}
    assert served(router.ask("hello", nvext=rules)) == "sim-1"
    assert served(router.ask("hello", nvext={"backend_instance_id": "sim-2"})) == "sim-2"


def test_an_allow_list_is_kept(router: RunningRouter) -> None:
    assert set(workers_of(router, "random", 12, x_kvctl_workers="sim-1,sim-2")) == {"sim-1", "sim-2"}


def test_weights_of_one_request_change_its_decision_only(router: RunningRouter) -> None:
    prompt = long_prompt()
    router.wait("the blocks are told", lambda: router.decision(router.ask(prompt))["predicted_cached_tokens"])

    def prefills(**headers: str) -> set[float]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        rows = router.decision(router.ask(prompt, headers=named))["candidates"]
        return {next(term["value"] for term in row["terms"] if term["name"] == "prefill") for row in rows}

    assert len(prefills(x_kvctl_workers="sim-0,sim-1,sim-2,sim-3")) > 1
    assert len(prefills(x_kvctl_weights="overlap_score_credit=0")) == 1


def test_a_session_stays_in_session_mode_and_sessions_spread(router: RunningRouter) -> None:
    homes = {name: set(workers_of(router, "session", 4, x_session_id=name)) for name in map(str, range(24))}
    assert {len(found) for found in homes.values()} == {1}
    assert set().union(*homes.values()) == set(TAINTS)


def test_the_session_may_stand_in_the_body(router: RunningRouter) -> None:
    named = {"x-kvctl-mode": "session"}
    by_body = {served(router.ask(f"{uuid.uuid4()}", headers=named, user="u-7")) for _ in range(4)}
    assert by_body == set(workers_of(router, "session", 2, x_session_id="u-7"))


def test_prefixaware_keeps_prompts_with_one_beginning_together(router: RunningRouter) -> None:
    shared, named = long_prompt(), {"x-kvctl-mode": "prefixaware"}
    found = {served(router.ask(f"{shared} {number}", headers=named)) for number in range(6)}
    assert len(found) == 1


def test_kvaware_follows_a_hit_for_completions_and_for_chat(router: RunningRouter) -> None:
    named = {"x-kvctl-mode": "kvaware"}
    text = long_prompt()
    chat = {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 2}
    for path, body in (
        ("/v1/completions", {"model": "sim", "prompt": text, "max_tokens": 2}),
        ("/v1/chat/completions", chat),
    ):
        home = served(router.http.post(path, json=body, headers={"x-kvctl-mode": "random"}))

        def hit(path: str = path, body: dict[str, object] = body, home: str = home) -> bool:
            answer = router.http.post(path, json=body, headers=named)
            return router.decision(answer)["reason"] == "kv_hit" and served(answer) == home

        router.wait(f"{path} follows the hit", hit)
    assert "found by kvaware router" in router.log()


def test_kvaware_without_a_hit_names_its_fallback(router: RunningRouter) -> None:
    answer = router.ask(long_prompt(), headers={"x-kvctl-mode": "kvaware", "x-session-id": "s"})
    assert router.decision(answer)["reason"] == "session"


def test_device_aware_weighted_starts_on_the_device_of_an_idle_fleet(router: RunningRouter) -> None:
    assert "sim-3" not in workers_of(router, "device-aware-weighted", 8)


def test_shadows_are_counted_on_the_admin_port_and_in_the_metrics(router: RunningRouter) -> None:
    before = router.get("/shadow")["shadows"]["prefixaware"]["decisions"]
    workers_of(router, "kv", 5)
    shadow = router.get("/shadow")["shadows"]["prefixaware"]
    assert shadow["decisions"] == before + 5
    assert sum(shadow["chosen"].values()) == shadow["decisions"]
    assert 'kvctl_shadow_decisions_total{mode="least-loaded"}' in router.control.get("/metrics").text


def test_affinity_keeps_a_session_in_a_mode_that_knows_none(worker_options: list[str]) -> None:
    options = ("--router-mode", "round-robin", "--session-affinity-ttl", "60")
    with running_router(*options, *worker_options) as router:
        found = [served(router.ask(headers={"x-session-id": "a"})) for _ in range(5)]
        assert len(set(found)) == 1
        assert router.decision(router.ask(headers={"x-session-id": "a"}))["reason"] == "affinity"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--router-mode", "magic", "the modes are kv"),
        ("--shadow", "kv,magic", "unknown router mode 'magic'"),
        ("--session-affinity-ttl", "0", "session-affinity-ttl must be between"),
        ("--kvaware-fallback", "magic", "kvaware-fallback must be one of"),
        ("--balance-factor", "0.5", "balance-factor must be 1 or more"),
        ("--session-key", "no header", "--session-key must be"),
    ],
)
def test_a_wrong_setting_is_usage_in_one_line(option: str, value: str, said: str) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "kvctl", "serve", option, value], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
