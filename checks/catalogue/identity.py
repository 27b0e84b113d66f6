"""KV401-KV403, KV405, KV406: do router and workers hash alike? Pure; reads logs, environment and configuration.

A difference here is silent: requests succeed and no lookup ever hits. Only what must agree is compared: all LMCache
workers and the router under kvaware, workers that share a second tier otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from checks.evidence import env, lmcache_setting
from checks.model import FLEET, Check, Evidence, Finding, Group, Reason, Status, failed, passed, skipped, warned
from checks.sharing import defaults_known, in_process_workers, key_sharers, kvaware
from checks.snapshot import Member, Role, Snapshot

SEED = "PYTHONHASHSEED"
ALGORITHM = "pre_caching_hash_algorithm"
BUILTIN = "builtin"
NOBODY = "no worker looks for another's KV cache by LMCache (neither kvaware nor a shared second tier)"


def _comparable(snapshot: Snapshot) -> tuple[Member, ...]:
    """Members whose keys must be equal; the router first, where its controller computes keys."""
    workers = key_sharers(snapshot)
    return (*snapshot.routers, *workers) if workers and kvaware(snapshot) else workers


# -- KV401 -----------------------------------------------------------------------------------------------------------


def none_hash(snapshot: Snapshot) -> Iterator[Finding]:
    members = _comparable(snapshot)
    if not members:
        yield skipped(Reason.NOT_APPLICABLE, NOBODY)
        return
    if snapshot.sampled:
        members = tuple(member for member in members if member.log is not None)
    told = {member.key: _none_hashes(member) for member in members}
    values = Counter(value for found in told.values() for value in found)
    reference = _reference(members, told, values)
    for member in members:
        found = told[member.key]
        if not found:
            reason = member.why_absence_proves_nothing(snapshot.patterns["none-hash"], snapshot.lmcache_version(member))
            yield skipped(reason or Reason.NO_DATA, "NONE_HASH was not printed", member.target)
        elif len(found) > 1:
            message = f"its processes have different NONE_HASH values: {', '.join(sorted(found))}"
            yield failed(message, member.target, *found.values())
        elif reference is not None and (value := next(iter(found))) != reference[1]:
            message = f"NONE_HASH is {value} here and {reference[1]} on {reference[0]}: no key can ever match"
            pair = (member, *(one for one in members if one.key == reference[0]))
            both = (*found.values(), *told[reference[0]].values())
            yield failed(message, member.target, *both, hint=_without_vllm(pair))
    if len(values) == 1:
        value = next(iter(values))
        silent = [member.key for member in members if not told[member.key]]
        if not silent and len(members) > 1:
            lines = [evidence for found in told.values() for evidence in found.values()]
            yield passed(f"NONE_HASH is {value} on all {len(members)}", FLEET, *lines[:3])
        elif not silent:
            yield skipped(Reason.NOT_APPLICABLE, f"only one member, with NONE_HASH {value}: nothing to compare")


def _none_hashes(member: Member) -> dict[str, Evidence]:
    """Each value that the member printed since its last start, with its line."""
    log = member.log
    return {} if log is None else {match["value"]: log.evidence(match) for match in log.all("none-hash")}


def _without_vllm(members: tuple[Member, ...]) -> str:
    """What to do where one of them printed the default, which LMCache takes where it finds no vLLM; '' otherwise."""
    bare = [member for member in members if member.log is not None and member.log.has("none-hash-default")]
    if not bare or len(bare) == len(members):
        return ""
    return f"LMCache of {bare[0].key} found no vLLM and took 0: install the workers' vLLM in its image"


def _reference(
    members: tuple[Member, ...], told: dict[str, dict[str, Evidence]], values: Counter[str]
) -> tuple[str, str] | None:
    """Whom the others are compared with: the first router that told one value, else a holder of the commonest."""
    single = [(member, next(iter(told[member.key]))) for member in members if len(told[member.key]) == 1]
    for member, value in single:
        if member.role is Role.ROUTER:
            return member.key, value
    if not single:
        return None
    common = max(values, key=lambda value: (values[value], value))
    return next(((member.key, value) for member, value in single if value == common), None)


# -- KV402 -----------------------------------------------------------------------------------------------------------


def hash_seed(snapshot: Snapshot) -> Iterator[Finding]:
    members = _comparable(snapshot)
    if not members:
        yield skipped(Reason.NOT_APPLICABLE, NOBODY)
        return
    if not snapshot.cluster:
        yield skipped(Reason.NO_DATA, "the environment of a process cannot be read without a cluster")
        return
    hidden = [member for member in members if member.env_unread(SEED)]
    known = [member for member in members if member not in hidden]
    for member in hidden:
        yield skipped(Reason.NO_DATA, f"{SEED} comes from what was not read", member.target, env(member, SEED))
    seeds = Counter(seed for member in known if (seed := _seed(member)) is not None)
    equal = _agreed_none_hash(members)
    usual = max(seeds, key=lambda seed: (seeds[seed], seed)) if seeds else None
    for member in known:
        seed = _seed(member)
        if seed is not None and seed == usual:
            continue
        message = (
            f"{SEED} is {member.env(SEED) or 'not set'}: every process hashes differently"
            if seed is None
            else f"{SEED} is {seed} here and {usual} on others"
        )
        if equal is not None:
            yield passed(f"{message}; the image must set it, for NONE_HASH is equal", member.target, equal)
        else:
            yield failed(message, member.target, env(member, SEED))
    if usual is not None and seeds[usual] == len(known) and not hidden:
        yield passed(f"{SEED} is {usual} on all {len(known)}", FLEET, *(env(member, SEED) for member in known[:2]))
    elif usual is not None and seeds[usual] == len(known):
        yield skipped(Reason.NO_DATA, f"{SEED} is {usual} where it could be read")


def _seed(member: Member) -> str | None:
    """The seed as set in the pod; None where it is unset or `random`, which is the same."""
    value = (member.env(SEED) or "").strip()
    return value if value and value.lower() != "random" else None


def _agreed_none_hash(members: tuple[Member, ...]) -> Evidence | None:
    """Proof that all members start from one hash: each printed the same single NONE_HASH."""
    told = [_none_hashes(member) for member in members]
    values = {value for found in told for value in found}
    return next(iter(told[0].values())) if len(members) > 1 and all(told) and len(values) == 1 else None


# -- KV403 -----------------------------------------------------------------------------------------------------------


def hash_algorithm(snapshot: Snapshot) -> Iterator[Finding]:
    workers = key_sharers(snapshot)
    if not workers:
        yield skipped(Reason.NOT_APPLICABLE, NOBODY)
        return
    told = {worker.key: _algorithm(snapshot, worker) for worker in workers}
    known = {name for name, _evidence in told.values() if name is not None}
    for worker in workers:
        name, evidence = told[worker.key]
        fallback = None if worker.log is None else worker.log.last("lmcache-hash-fallback")
        if name is None:
            yield skipped(Reason.NO_DATA, "the hash algorithm was neither printed nor set", worker.target)
        elif fallback is not None and fallback["algorithm"] != BUILTIN and worker.log is not None:
            message = f"hash algorithm {fallback['algorithm']} could not be loaded from vLLM: {BUILTIN} is used"
            yield warned(message, worker.target, worker.log.evidence(fallback))
        elif kvaware(snapshot) and name != BUILTIN:
            message = f"hash algorithm is {name}; the router's controller always uses {BUILTIN}"
            yield failed(message, worker.target, *evidence)
        elif len(known) > 1:
            shown = ", ".join(sorted(known))
            yield warned(f"workers that share a second tier hash differently: {shown}", worker.target, *evidence)
        else:
            yield passed(f"hash algorithm is {name}", worker.target, *evidence)


def _algorithm(snapshot: Snapshot, worker: Member) -> tuple[str | None, tuple[Evidence, ...]]:
    """The algorithm in effect: builtin after a fallback, else as printed, else as configured. None: unknown."""
    log = worker.log
    if log is not None and (match := log.last("lmcache-hash-fallback")) is not None:
        return BUILTIN, (log.evidence(match),)
    if log is not None and (match := log.last("lmcache-hash-algorithm", "lmcache-hash-loaded")) is not None:
        return match["algorithm"], (log.evidence(match),)
    config = snapshot.lmcache_config(worker)
    if told := config.get(ALGORITHM):
        return str(told), (lmcache_setting(worker, ALGORITHM, config),)
    if not defaults_known(snapshot, worker, config, ALGORITHM):
        return None, ()
    return BUILTIN, (Evidence("env", worker.key, f"{ALGORITHM} is not set: {BUILTIN} by default"),)


# -- KV405 -----------------------------------------------------------------------------------------------------------


def python_version(snapshot: Snapshot) -> Iterator[Finding]:
    members = _comparable(snapshot)
    if not members:
        yield skipped(Reason.NOT_APPLICABLE, NOBODY)
        return
    canonical = next(epoch.first for epoch in snapshot.compatibility.hash if epoch.name == "H3")
    for member in members:
        version = snapshot.lmcache_version(member)
        if version is None or (not version.exact and version < canonical):
            message = "LMCache's version is not known" if version is None else f"of LMCache only {version} is known"
            yield skipped(Reason.VERSION_UNKNOWN, message, member.target)
            continue
        if version >= canonical:
            yield passed(f"LMCache {version} does not hash None", member.target)
            continue
        found = _python_minor(member)
        if found is None:
            message = f"LMCache {version} needs Python 3.12 or newer, and no line tells Python's version"
            yield skipped(Reason.NO_DATA, message, member.target)
        elif found[0] < 12:
            message = f"Python 3.{found[0]} with LMCache {version}: the hash of None differs in every process"
            yield failed(message, member.target, found[1])
        else:
            yield passed(f"Python 3.{found[0]} with LMCache {version}", member.target, found[1])


def _python_minor(member: Member) -> tuple[int, Evidence] | None:
    """Python's minor version by the newest path in a traceback."""
    for log in (member.log, member.previous):
        if log is not None and (match := log.last("python-path-version")) is not None:
            line = next(part for part in match.record.message.split("\n") if f"/python3.{match['minor']}/" in part)
            return int(match["minor"]), Evidence("log", log.where, line.strip()[:240], match.record.time)
    return None


# -- KV406 -----------------------------------------------------------------------------------------------------------


def seed_warnings(snapshot: Snapshot) -> Iterator[Finding]:
    workers = in_process_workers(snapshot)
    if not workers:
        yield skipped(Reason.NOT_APPLICABLE, "no worker runs LMCache in its own process")
        return
    pattern = snapshot.patterns["lmcache-seed-warning"]
    for worker in workers:
        log = worker.log
        found = [] if log is None else log.all("lmcache-seed-warning")
        if log is not None and found:
            split = next((match for match in found if "P/D" in match["kind"]), None)
            judge, match = (warned, found[-1]) if split is None else (failed, split)
            yield judge(f"LMCache itself warns: {match['kind']} without {SEED}", worker.target, log.evidence(match))
            continue
        reason = worker.why_absence_proves_nothing(pattern, snapshot.lmcache_version(worker))
        if reason is not None:
            yield skipped(reason, f"whether LMCache warned of {SEED} cannot be told", worker.target)
        else:
            yield passed(f"LMCache did not warn of {SEED}", worker.target)


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV401",
        title="NONE_HASH is equal on router and workers",
        group=Group.IDENTITY,
        worst=Status.FAIL,
        reads="the line `Initialized NONE_HASH=…` or `Using default NONE_HASH=0` of the router and of each worker "
        "(LMCache 0.3.9 and newer)",
        rule="Compares the router and all LMCache workers under kvaware, workers with a shared second tier "
        "otherwise. Fails where two values differ, between members or between the processes of one. Skips "
        "where one of them did not print it. It covers seed, algorithm and whether vLLM is installed beside "
        "the router.",
        hint="set one PYTHONHASHSEED everywhere and install the workers' vLLM in the router's image",
        run=none_hash,
        caused_by=("KV152", "KV402"),
        required=True,
    ),
    Check(
        id="KV402",
        title="PYTHONHASHSEED is set and equal",
        group=Group.IDENTITY,
        worst=Status.FAIL,
        reads="the pods' environment, router and workers; NONE_HASH lines",
        rule="Fails where it is unset, `random` or unequal under kvaware or with a shared second tier. Passes all "
        "the same where every member printed one and the same NONE_HASH: the image sets it then.",
        hint="set PYTHONHASHSEED=0 on the router and on every worker",
        run=hash_seed,
    ),
    Check(
        id="KV403",
        title="The hash algorithm is equal",
        group=Group.IDENTITY,
        worst=Status.FAIL,
        reads="the line `Using hash algorithm: …`, LMCACHE_PRE_CACHING_HASH_ALGORITHM, LMCache's printed configuration",
        rule="Fails under kvaware where a worker uses anything but builtin: the router's controller takes no "
        "configuration. Warns where the algorithm that was asked for could not be loaded (not for builtin "
        "itself: that line is normal), and where workers with a shared second tier differ.",
        hint="leave LMCACHE_PRE_CACHING_HASH_ALGORITHM at its default",
        run=hash_algorithm,
    ),
    Check(
        id="KV405",
        title="Python hashes None alike in every process",
        group=Group.IDENTITY,
        worst=Status.FAIL,
        reads="Python's version in paths of tracebacks (also before a restart), LMCache's version",
        rule="LMCache before 0.4.1 hashes tuples with None in them, and before Python 3.12 the hash of None is its "
        "address. Fails on Python 3.11 or older with such an LMCache, under kvaware or with a shared second "
        "tier.",
        hint="upgrade LMCache to 0.4.1 or newer, or the image to Python 3.12",
        run=python_version,
    ),
    Check(
        id="KV406",
        title="LMCache does not warn of the hash seed",
        group=Group.IDENTITY,
        worst=Status.FAIL,
        reads="LMCache's own warnings of PYTHONHASHSEED at start",
        rule="Warns where LMCache warned; fails where it did so for prefill and decode apart. Skips where the "
        "log's beginning is missing.",
        hint="set PYTHONHASHSEED=0 on the router and on every worker",
        run=seed_warnings,
        caused_by=("KV402",),
    ),
)
