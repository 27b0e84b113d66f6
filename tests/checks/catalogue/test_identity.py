"""KV401-KV403, KV405, KV406: the same key for the same tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.model import Reason, Stack, Status
from checks.snapshot import Member, Snapshot
from tests.checks.build import only, router, snapshot, statuses, worker

KVAWARE = ("--routing-logic", "kvaware")
LMC = ("--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}')
SHARED = {"LMCACHE_REMOTE_URL": "redis://redis.prod.svc:6379"}


def line(message: str, level: str = "INFO") -> str:
    return f"[2026-08-01 10:00:01,300] LMCache {level}: {message} (token_database.py:60:lmcache.v1.token_database)"


def seeded(value: str) -> str:
    return line(f"Initialized NONE_HASH={value} from vLLM (>= PR#20511)")


def lmcache(name: str = "w-0", log: str = "", **more: object) -> Member:
    return worker(name, log=log, args=LMC, **more)  # type: ignore[arg-type]


def fleet(*members: Member, **more: object) -> Snapshot:
    return snapshot(*members, **more)  # type: ignore[arg-type]


# -- KV401 -----------------------------------------------------------------------------------------------------------


def test_kv401_passes_where_router_and_workers_print_one_value() -> None:
    found = only(
        "KV401",
        fleet(router(args=KVAWARE, log=seeded("-42")), lmcache("w-0", seeded("-42")), lmcache("w-1", seeded("-42"))),
    )
    assert found.status is Status.PASS
    assert found.message == "NONE_HASH is -42 on all 3"


def test_kv401_fails_the_worker_whose_value_is_not_the_routers() -> None:
    default = line("Using default NONE_HASH=0 (vLLM not available)")
    found = only("KV401", fleet(router(args=KVAWARE, log=default), lmcache("w-0", seeded("-6197052367682486848"))))
    assert found.status is Status.FAIL
    assert found.target.name == "w-0"
    assert found.message == ("NONE_HASH is -6197052367682486848 here and 0 on prod/router-0: no key can ever match")
    assert found.evidence[1].text == "Using default NONE_HASH=0 (vLLM not available)"
    assert found.hint == "LMCache of prod/router-0 found no vLLM and took 0: install the workers' vLLM in its image"


def test_kv401_fails_processes_of_one_worker_that_differ() -> None:
    log = seeded("b'\\x01'") + "\n" + seeded("b'\\x02'")
    found = statuses("KV401", fleet(router(args=KVAWARE, log=seeded("b'\\x01'")), lmcache("w-0", log)))
    assert found == {"w-0": Status.FAIL}


def test_kv401_compares_workers_with_a_shared_tier_without_kvaware() -> None:
    of = fleet(
        router(args=("--routing-logic", "session"), log=seeded("9")),
        lmcache("w-0", seeded("1"), env=SHARED),
        lmcache("w-1", seeded("1"), env=SHARED),
        lmcache("w-2", seeded("2"), env=SHARED),
    )
    assert statuses("KV401", of) == {"w-2": Status.FAIL}


def test_kv401_does_not_pass_where_one_printed_nothing() -> None:
    of = fleet(router(args=KVAWARE, log=""), lmcache("w-0", seeded("1"), version_line=None))
    assert statuses("KV401", of) == {"router-0": Status.SKIP}


def test_kv401_skips_a_worker_whose_log_lost_its_beginning() -> None:
    of = fleet(router(args=KVAWARE, log=seeded("1")), lmcache("w-0", head_complete=False))
    found = only("KV401", of)
    assert (found.target.name, found.reason) == ("w-0", Reason.LOG_TRUNCATED)


def test_kv401_skips_a_version_that_does_not_print_it() -> None:
    of = fleet(router(args=KVAWARE, log=seeded("1")), lmcache("w-0", version_line="0.3.7"))
    found = only("KV401", of)
    assert (found.target.name, found.reason) == ("w-0", Reason.NOT_APPLICABLE)


def test_kv401_compares_only_the_logs_that_were_sampled() -> None:
    of = fleet(
        router(args=KVAWARE, log=seeded("1")),
        lmcache("w-0", seeded("1")),
        worker("w-1", log=None, args=LMC),
        sampled="1 of 2 worker logs",
    )
    assert statuses("KV401", of) == {"fleet": Status.PASS}


def test_kv401_is_not_asked_where_nobody_looks_for_anothers_keys() -> None:
    of = fleet(router(args=("--routing-logic", "session")), lmcache("w-0", seeded("1")))
    assert only("KV401", of).reason is Reason.NOT_APPLICABLE


def test_kv401_has_nothing_to_compare_with_a_single_member() -> None:
    of = fleet(router(args=("--routing-logic", "session")), lmcache("w-0", seeded("1"), env=SHARED))
    assert only("KV401", of).reason is Reason.NOT_APPLICABLE


# -- KV402 -----------------------------------------------------------------------------------------------------------

SEED = {"PYTHONHASHSEED": "123"}


def test_kv402_passes_with_one_seed_everywhere() -> None:
    found = only("KV402", fleet(router(args=KVAWARE, env=SEED), lmcache(env=SEED)))
    assert (found.status, found.message) == (Status.PASS, "PYTHONHASHSEED is 123 on all 2")


def test_kv402_fails_where_it_is_unset_under_kvaware() -> None:
    assert statuses("KV402", fleet(router(args=KVAWARE, env=SEED), lmcache())) == {"w-0": Status.FAIL}


def test_kv402_fails_where_it_is_unset_everywhere() -> None:
    found = statuses("KV402", fleet(router(args=KVAWARE), lmcache()))
    assert found == {"router-0": Status.FAIL, "w-0": Status.FAIL}


def test_kv402_counts_random_as_unset() -> None:
    random = {"PYTHONHASHSEED": "random"}
    found = only("KV402", fleet(router(args=KVAWARE, env=SEED), lmcache(env=random)))
    assert (found.status, found.target.name) == (Status.FAIL, "w-0")
    assert found.message == "PYTHONHASHSEED is random: every process hashes differently"


def test_kv402_fails_where_seeds_differ() -> None:
    other = {"PYTHONHASHSEED": "7"}
    of = fleet(router(args=KVAWARE, env=SEED), lmcache("w-0", env=SEED), lmcache("w-1", env=other))
    assert statuses("KV402", of) == {"w-1": Status.FAIL}


def test_kv402_fails_unset_with_a_shared_tier_and_leaves_the_router_alone() -> None:
    of = fleet(
        router(args=("--routing-logic", "session")),
        lmcache("w-0", env=SHARED | SEED),
        lmcache("w-1", env=SHARED),
    )
    assert statuses("KV402", of) == {"w-1": Status.FAIL}


def test_kv402_believes_an_equal_none_hash_over_an_unset_variable() -> None:
    of = fleet(router(args=KVAWARE, log=seeded("5")), lmcache("w-0", seeded("5")))
    assert statuses("KV402", of) == {"router-0": Status.PASS, "w-0": Status.PASS}


def test_kv402_skips_a_value_from_a_secret() -> None:
    hidden = {"PYTHONHASHSEED": "<from:secret/seed>"}
    of = fleet(router(args=KVAWARE, env=SEED), lmcache(env=hidden))
    assert statuses("KV402", of) == {"w-0": Status.SKIP, "fleet": Status.SKIP}


def test_kv402_skips_processes_whose_environment_cannot_be_read() -> None:
    of = replace(fleet(router(args=KVAWARE), lmcache()), cluster=False)
    assert only("KV402", of).reason is Reason.NO_DATA


def test_kv402_is_not_asked_without_shared_keys() -> None:
    assert only("KV402", fleet(router(args=("--routing-logic", "session")), lmcache())).reason is Reason.NOT_APPLICABLE


# -- KV403 -----------------------------------------------------------------------------------------------------------


def test_kv403_passes_with_builtin() -> None:
    log = line("Using hash algorithm: builtin")
    assert statuses("KV403", fleet(router(args=KVAWARE), lmcache(log=log))) == {"w-0": Status.PASS}


def test_kv403_passes_with_the_default_where_nothing_sets_it() -> None:
    assert statuses("KV403", fleet(router(args=KVAWARE), lmcache())) == {"w-0": Status.PASS}


def test_kv403_does_not_mind_the_fallback_of_builtin_itself() -> None:
    log = line("Could not load 'builtin' from vLLM. Using builtin hash.", "WARNING")
    assert statuses("KV403", fleet(router(args=KVAWARE), lmcache(log=log))) == {"w-0": Status.PASS}


def test_kv403_fails_another_algorithm_under_kvaware() -> None:
    log = line("Using hash algorithm: sha256_cbor")
    found = only("KV403", fleet(router(args=KVAWARE), lmcache(log=log)))
    assert found.status is Status.FAIL
    assert found.message == "hash algorithm is sha256_cbor; the router's controller always uses builtin"


def test_kv403_fails_another_algorithm_from_the_environment() -> None:
    env = {"LMCACHE_PRE_CACHING_HASH_ALGORITHM": "sha256_cbor"}
    assert statuses("KV403", fleet(router(args=KVAWARE), lmcache(env=env))) == {"w-0": Status.FAIL}


def test_kv403_warns_of_an_algorithm_that_could_not_be_loaded() -> None:
    log = line("Could not load 'sha256_cbor' from vLLM. Using builtin hash.", "WARNING")
    assert statuses("KV403", fleet(router(args=KVAWARE), lmcache(log=log))) == {"w-0": Status.WARN}


def test_kv403_warns_where_workers_of_a_shared_tier_differ() -> None:
    of = fleet(
        lmcache("w-0", line("Using hash algorithm: builtin"), env=SHARED),
        lmcache("w-1", line("Using hash algorithm: sha256_cbor"), env=SHARED),
    )
    assert statuses("KV403", of) == {"w-0": Status.WARN, "w-1": Status.WARN}


def test_kv403_skips_where_a_file_may_set_it() -> None:
    env = {"LMCACHE_CONFIG_FILE": "/etc/lmcache.yaml"}
    assert only("KV403", fleet(router(args=KVAWARE), lmcache(env=env))).reason is Reason.NO_DATA


def test_kv403_is_not_asked_without_lmcache() -> None:
    assert only("KV403", fleet(router(args=KVAWARE), worker())).reason is Reason.NOT_APPLICABLE


# -- KV405 -----------------------------------------------------------------------------------------------------------


def trace(minor: int) -> str:
    return (
        line("Failed to load: Traceback (most recent call last):", "ERROR")
        + f'\n  File "/usr/lib/python3.{minor}/site-packages/lmcache/v1/manager.py", line 7, in __init__\nValueError: x'
    )


@pytest.mark.parametrize(
    ("version", "minor", "status"),
    [("0.3.14", 10, Status.FAIL), ("0.3.14", 11, Status.FAIL), ("0.3.14", 12, Status.PASS), ("0.4.1", 10, Status.PASS)],
)
def test_kv405_fails_old_python_only_with_an_lmcache_that_hashes_none(version: str, minor: int, status: Status) -> None:
    of = fleet(lmcache(log=trace(minor), version_line=version, env=SHARED))
    assert statuses("KV405", of) == {"w-0": status}


def test_kv405_takes_pythons_version_from_before_a_restart_too() -> None:
    of = fleet(lmcache(version_line="0.3.14", previous=trace(11), env=SHARED))
    assert statuses("KV405", of) == {"w-0": Status.FAIL}


def test_kv405_skips_where_no_line_tells_pythons_version() -> None:
    assert only("KV405", fleet(lmcache(version_line="0.3.14", env=SHARED))).reason is Reason.NO_DATA


def test_kv405_skips_where_lmcaches_version_is_not_known() -> None:
    assert only("KV405", fleet(lmcache(log=trace(10), env=SHARED))).reason is Reason.VERSION_UNKNOWN


def test_kv405_skips_where_only_a_low_bound_of_the_version_is_known() -> None:
    log = line("Health monitor initialized and started") + "\n" + trace(10)
    assert only("KV405", fleet(lmcache(log=log, env=SHARED))).reason is Reason.VERSION_UNKNOWN


def test_kv405_is_not_asked_without_shared_keys() -> None:
    assert only("KV405", fleet(lmcache(version_line="0.3.14"))).reason is Reason.NOT_APPLICABLE


# -- KV406 -----------------------------------------------------------------------------------------------------------


def test_kv406_passes_where_the_whole_beginning_holds_no_warning() -> None:
    assert statuses("KV406", fleet(lmcache(version_line="0.4.3"))) == {"w-0": Status.PASS}


def test_kv406_warns_of_lmcaches_own_warning() -> None:
    log = line("Centralized cache sharing detected but PYTHONHASHSEED not set. Keys may differ.", "WARNING")
    assert statuses("KV406", fleet(lmcache(log=log))) == {"w-0": Status.WARN}


def test_kv406_fails_for_prefill_and_decode_apart() -> None:
    log = line("P/D Disaggregation detected but PYTHONHASHSEED not set. Keys may differ.", "WARNING")
    assert statuses("KV406", fleet(lmcache(log=log))) == {"w-0": Status.FAIL}


def test_kv406_skips_a_log_without_its_beginning() -> None:
    assert only("KV406", fleet(lmcache(version_line="0.4.3", head_complete=False))).reason is Reason.LOG_TRUNCATED


def test_kv406_is_not_asked_without_lmcache() -> None:
    assert only("KV406", fleet(worker(), stack=Stack.UNKNOWN)).reason is Reason.NOT_APPLICABLE
