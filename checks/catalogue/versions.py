"""KV150 to KV154: do the versions go together: HyperPod's matrix, wire and hash epochs of LMCache, binary interfaces.

Pure functions of a snapshot; which versions fit is data (data/compatibility.yaml).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from checks.compatibility import MatrixRow, Version, may_satisfy
from checks.evidence import image, shown
from checks.hyperpod import Operator, operator
from checks.lmcache import why_not_in_process
from checks.logs.view import LogView, Match
from checks.model import (
    CONTROLLER_STACKS,
    FLEET,
    Check,
    Evidence,
    Finding,
    Group,
    Reason,
    Stack,
    Status,
    failed,
    passed,
    skipped,
    warned,
)
from checks.sharing import NOT_KVAWARE, kvaware
from checks.snapshot import Member, Role, Snapshot

_ABI = ("undefined-symbol", "c-ops-import", "no-module-lmcache", "import-failed")


def support_matrix(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.strategy != "kvaware":
        yield skipped(Reason.NOT_APPLICABLE, "the support matrix is for kvaware only")
        return
    if not snapshot.workers:
        yield skipped(Reason.NO_DATA, "no worker was found")
    found = operator(snapshot)
    for worker in snapshot.workers:
        yield _in_matrix(snapshot, worker, found)


def _in_matrix(snapshot: Snapshot, worker: Member, found: Operator) -> Finding:
    lmcache, vllm = snapshot.lmcache_version(worker), snapshot.vllm_version(worker)
    versions = {"operator": found.version, "addon": found.addon, "lmcache": lmcache, "vllm": vllm}
    named = f"LMCache {lmcache or 'unknown'}, vLLM {vllm or 'unknown'}"
    evidence = (image(worker), Evidence("pod", worker.key, named), *found.evidence)
    verdicts = [(row, _row_verdict(row, versions)) for row in snapshot.compatibility.matrix]
    if any(verdict is True for _, verdict in verdicts):
        return passed("operator, LMCache and vLLM are one row of the support matrix", worker.target, *evidence)
    if all(verdict is False for _, verdict in verdicts):
        row = _nearest(snapshot.compatibility.matrix, found)
        with_ = f"with operator {row.operator} (add-on {row.addon}) go LMCache {row.lmcache} and vLLM {row.vllm}"
        message = f"LMCache {lmcache or 'unknown'} and vLLM {vllm or 'unknown'} are not supported together here"
        return failed(f"{message}: {with_}", worker.target, *evidence)
    names = {"operator": "operator", "lmcache": "LMCache", "vllm": "vLLM"}
    unclear = [
        shown_name
        for key, shown_name in names.items()
        if (version := versions[key]) is None or version.coarse or not version.exact
    ]
    message = f"not all versions are known exactly ({', '.join(unclear)}): the support matrix cannot be judged"
    return warned(message, worker.target, *evidence)


def _row_verdict(row: MatrixRow, versions: dict[str, Version | None]) -> bool | None:
    """Whether a row holds; operator and add-on name the same thing, so one of them is enough."""
    bounds = {"operator": row.operator, "addon": row.addon, "lmcache": row.lmcache, "vllm": row.vllm}
    held = {
        key: None if (version := versions[key]) is None else may_satisfy(version, bound)
        for key, bound in bounds.items()
    }
    if False in held.values():
        return False
    managed = held["operator"] or held["addon"]
    return True if managed and held["lmcache"] and held["vllm"] else None


def _nearest(matrix: tuple[MatrixRow, ...], found: Operator) -> MatrixRow:
    """The row of the operator that is installed, else the newest."""
    for row in matrix:
        version, bound = (found.version, row.operator) if found.version is not None else (found.addon, row.addon)
        if version is not None and may_satisfy(version, bound):
            return row
    return matrix[0]


def recommended_operator(snapshot: Snapshot) -> Iterator[Finding]:
    found, least = operator(snapshot), snapshot.compatibility.recommended_operator
    bound = f">={least}"
    verdict = None if found.version is None else may_satisfy(found.version, bound)
    if verdict is None and found.addon is not None:
        verdict = may_satisfy(found.addon, snapshot.compatibility.matrix[0].addon)
    if verdict is None:
        known = f"only {found.version} is known of the operator's version" if found.version else "it is not known"
        yield skipped(Reason.VERSION_UNKNOWN, f"{known}; {least} or later is recommended", FLEET, *found.evidence)
    elif verdict:
        yield passed(f"the operator is {least} or later", FLEET, *found.evidence)
    else:
        yield warned(f"the operator is older than {least}", FLEET, *found.evidence)


def wire_epoch(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.strategy != "kvaware":
        yield skipped(Reason.NOT_APPLICABLE, NOT_KVAWARE)
        return
    if not snapshot.routers:
        yield skipped(Reason.NO_DATA, "no router was found")
        return
    workers = [worker for worker in snapshot.workers if not why_not_in_process(snapshot, worker)]
    if not workers:
        yield skipped(Reason.NOT_APPLICABLE, "no worker runs LMCache in its process")
    for router in snapshot.routers:
        mine = snapshot.lmcache_version(router)
        for worker in workers:
            yield _same_wire(snapshot, router, mine, worker)


def _same_wire(snapshot: Snapshot, router: Member, mine: Version | None, worker: Member) -> Finding:
    theirs = snapshot.lmcache_version(worker)
    evidence = (_told(snapshot, router), _told(snapshot, worker))
    if mine is None or theirs is None:
        who = " and ".join(name for name, version in (("router", mine), ("worker", theirs)) if version is None)
        return skipped(Reason.VERSION_UNKNOWN, f"LMCache's version on the {who} is not known", worker.target, *evidence)
    left, right = snapshot.compatibility.wire_epochs(mine), snapshot.compatibility.wire_epochs(theirs)
    if not left or not right or (left & right and len(left | right) > 1):
        message = f"LMCache {mine} on the router and {theirs} on the worker: too rough to compare"
        return skipped(Reason.VERSION_UNKNOWN, message, worker.target, *evidence)
    if left & right:
        message = f"router and worker speak LMCache's {next(iter(left))} protocol"
        return passed(message, worker.target, *evidence)
    message = f"the router's LMCache {mine} and the worker's {theirs} speak different protocols"
    return failed(message, worker.target, *evidence)


def _told(snapshot: Snapshot, member: Member) -> Evidence:
    """Where the version of LMCache was read: its own line, a line that only newer versions print, or the image."""
    log = member.log
    if log is not None:
        names = ["lmcache-initialized", *(name for name, _ in snapshot.compatibility.fingerprints)]
        told = log.last("lmcache-initialized")
        version = snapshot.lmcache_version(member)
        if told is None and version is not None and not version.exact:
            told = next((match for name in names if (match := log.last(name)) is not None), None)
        if told is not None:
            return log.evidence(told)
    return image(member)


def binary_interfaces(snapshot: Snapshot) -> Iterator[Finding]:
    judged = [*snapshot.workers, *(snapshot.routers if kvaware(snapshot) else ())]
    if not judged:
        yield skipped(Reason.NO_DATA, "no worker was found")
    for member in judged:
        yield _loads(snapshot, member)


def _loads(snapshot: Snapshot, member: Member) -> Finding:
    for log in (member.log, member.previous):
        if log is not None and (match := log.last(*_ABI)) is not None:
            return _broken(snapshot, member, log, match)
    why_not = why_not_in_process(snapshot, member) if member.role is Role.WORKER else ""
    if why_not:
        return skipped(Reason.NOT_APPLICABLE, why_not, member.target)
    if (misfit := _misfit(snapshot, member)) is not None:
        return misfit
    if member.log is None:
        return skipped(member.log_missing or Reason.NO_DATA, "its log was not read", member.target)
    if member.log.any_of_component("lmcache"):
        return passed("LMCache was loaded", member.target)
    if not member.log.head_complete:
        message = "the log's beginning is gone: whether LMCache could be loaded is not known"
        return skipped(Reason.LOG_TRUNCATED, message, member.target)
    return passed("no sign of a library that could not be loaded", member.target)


def _misfit(snapshot: Snapshot, member: Member) -> Finding | None:
    """Versions that load together and are known not to work together."""
    lmcache, vllm = snapshot.lmcache_version(member), snapshot.vllm_version(member)
    if lmcache is None or vllm is None:
        return None
    for row in snapshot.compatibility.vllm_needs:
        if may_satisfy(vllm, row.vllm) and may_satisfy(lmcache, row.lmcache) is False:
            message = f"vLLM {vllm} needs LMCache {row.lmcache}; here is {lmcache}, which loads and then misbehaves"
            named = Evidence("pod", member.key, f"LMCache {lmcache}, vLLM {vllm}")
            hint = f"use an image whose LMCache is {row.lmcache} ({row.see})"
            return failed(message, member.target, named, image(member), hint=hint)
    return None


def _broken(snapshot: Snapshot, member: Member, log: LogView, match: Match) -> Finding:
    evidence = (log.evidence(match), image(member))
    message = {
        "undefined-symbol": "a compiled library does not fit torch or vLLM",
        "c-ops-import": "LMCache's compiled part does not load",
        "no-module-lmcache": "LMCache is not installed",
        "import-failed": "LMCache and vLLM do not fit: one imports what the other has not",
    }[match.pattern]
    named = "lmcache" in match.record.message.lower() or "c_ops" in match.record.message
    if match.pattern == "undefined-symbol" and not named:
        return warned(f"{message} (not LMCache's own)", member.target, *evidence)
    if match.pattern == "import-failed" and not named and log is not member.previous and member.ready:
        return warned("something imports what this vLLM has not", member.target, *evidence)
    if match.pattern == "no-module-lmcache" and member.role is Role.WORKER and not snapshot.lmcache_active(member):
        return warned(f"{message}, and nothing else asks for it", member.target, *evidence)
    return failed(message, member.target, *evidence)


def mixed_workers(snapshot: Snapshot) -> Iterator[Finding]:
    if not snapshot.workers:
        yield skipped(Reason.NO_DATA, "no worker was found")
    for model, workers in snapshot.by_model():
        yield _mixed(snapshot, f"model {shown(model)}" if model else "the model", workers)


def _mixed(snapshot: Snapshot, named: str, workers: tuple[Member, ...]) -> Finding:
    epochs: set[frozenset[str]] = set()
    running: dict[str, dict[str, list[Member]]] = {"LMCache": defaultdict(list), "vLLM": defaultdict(list)}
    for worker in workers:
        lmcache = snapshot.lmcache_version(worker)
        for name, version in (("LMCache", lmcache), ("vLLM", snapshot.vllm_version(worker))):
            if version is not None and version.exact:
                running[name][_short(version)].append(worker)
        if lmcache is not None and not why_not_in_process(snapshot, worker):
            algorithm = str(snapshot.lmcache_config(worker).get("pre_caching_hash_algorithm") or "builtin")
            epochs.add(snapshot.compatibility.hash_epochs(lmcache, algorithm))
    told = "; ".join(
        f"{name} " + ", ".join(f"{version} on {len(members)}" for version, members in sorted(found.items()))
        for name, found in running.items()
        if found
    )
    if not told:
        return skipped(Reason.VERSION_UNKNOWN, f"versions of the workers of {named} are not known")
    examples = {members[0].key: members[0] for found in running.values() for members in found.values()}
    evidence = tuple(_told(snapshot, member) for member in list(examples.values())[:4])
    known = {epoch for epoch in epochs if epoch}
    if known and not frozenset.intersection(*known):
        message = f"workers of {named} compute different keys for the same tokens ({told})"
        return failed(message, FLEET, *evidence)
    if any(len(found) > 1 for found in running.values()):
        return warned(f"workers of {named} run different versions ({told})", FLEET, *evidence)
    return passed(f"workers of {named} run one version ({told})", FLEET, *evidence)


def _short(version: Version) -> str:
    """Without a leading v and the spelling of post releases: one version, one text."""
    major, minor, patch, stage, number = version.parts
    return f"{major}.{minor}.{patch}" + (f".post{number}" if stage > 0 else ("" if stage == 0 else " pre-release"))


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV150",
        title="HyperPod's support matrix",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="the operator's image, labels and add-on version; LMCache's and vLLM's versions by log, /version and "
        "image",
        rule="For kvaware only. Passes where operator (or EKS add-on), LMCache and vLLM fit one row: operator "
        "3.1.3 and later (add-on 1.2.1) with LMCache >= 0.4.3 and vLLM >= 0.19.1; older operators with exactly "
        "LMCache 0.3.9.post2 and vLLM 0.11.1. Fails where no row can hold; warns where a version that decides is "
        "not known.",
        hint="upgrade the operator to 3.1.3 or later and move router and worker images together",
        run=support_matrix,
        stacks=frozenset({Stack.HYPERPOD}),
    ),
    Check(
        id="KV151",
        title="Recommended operator",
        group=Group.CONFIGURATION,
        worst=Status.WARN,
        reads="the operator's image, labels and add-on version",
        rule="Warns below 3.1.3, which AWS recommends. Skipped where the version is not known that finely.",
        hint="upgrade the HyperPod inference operator (EKS add-on) to 3.1.3 or later",
        run=recommended_operator,
        stacks=frozenset({Stack.HYPERPOD}),
    ),
    Check(
        id="KV152",
        title="Router and workers speak one protocol",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="LMCache's version on router and workers: its own line, lines only newer versions print, image tags "
        "and pins",
        rule="LMCache's controller protocol changed in 0.3.10 and 0.3.12 (epochs W1, W2, W3). Fails where router "
        "and worker are of different epochs: workers then never register, or their messages are unknown, and "
        "nothing says so. Released production-stack routers carry LMCache 0.3.11 (0.1.8: 0.3.9.post2), which no "
        "worker from 0.3.12 on can register with.",
        hint="build the router with the workers' LMCache version (production-stack#1060)",
        run=wire_epoch,
        stacks=CONTROLLER_STACKS,
        required=True,
    ),
    Check(
        id="KV153",
        title="Libraries load",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="log and previous log: undefined symbol, ImportError of lmcache.c_ops, No module named 'lmcache' or "
        "'vllm.…', cannot import name; versions that are known not to work together",
        rule="Fails on any of them that concerns LMCache or ended the engine, and for an LMCache older than this vLLM "
        "needs (0.3.9 for vLLM 0.15); warns on what concerns another library.",
        hint="use an image whose LMCache was built for its torch and vLLM (LMCache#1712, LMCache#1840, vllm#26452)",
        run=binary_interfaces,
    ),
    Check(
        id="KV154",
        title="Workers of a model run one version",
        group=Group.CONFIGURATION,
        worst=Status.FAIL,
        reads="LMCache's and vLLM's versions of each worker, the hash algorithm",
        rule="Warns where workers of one model differ. Fails where their LMCache versions compute different keys "
        "for the same tokens: 0.3.9 to 0.3.15 against 0.4.1 and later, and from 0.4.6 on for algorithms other than "
        "builtin.",
        hint="finish the rollout, or roll it back",
        run=mixed_workers,
    ),
)
