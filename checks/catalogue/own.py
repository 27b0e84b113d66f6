"""KV951-KV953, KV957: the fleet as kvctl's own router knows it: workers, KV events, index, block sizes. Pure.

The admin port answers with what the router itself decides by, so little has to be guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checks.admin import Json, Row, number, objects, other_mode, rows, served, unread
from checks.evidence import shown
from checks.model import FLEET, Check, Evidence, Finding, Group, Reason, Stack, Status, failed, passed, skipped, warned
from checks.serving import block_tokens
from checks.snapshot import Member, Snapshot
from checks.traffic import percent

STACKS = frozenset({Stack.KVCTL})


# -- KV951 -----------------------------------------------------------------------------------------------------------


def registered(snapshot: Snapshot) -> Iterator[Finding]:
    if (missing := unread(snapshot, "/workers")) is not None:
        yield missing
        return
    found = rows(snapshot)
    if not found:
        yield failed("the router has no worker")
    for row in found:
        yield _ready(row)
    known = {row.member.key for row in found if row.member is not None}
    for worker in snapshot.workers:
        if worker.key not in known and worker.url:
            yield failed(
                "the router does not know this worker", worker.target, Evidence("http", worker.key, worker.url)
            )


def _ready(row: Row) -> Finding:
    health, why = row.data.get("health"), row.data.get("health_why")
    evidence = row.evidence("health", "health_why", "draining")
    if health == "down":
        return failed(f"worker {row.id} is down: {shown(str(why))}", row.target, evidence)
    if health != "up":
        return warned(f"worker {row.id} is {shown(str(health))}: {shown(str(why))}", row.target, evidence)
    if row.data.get("draining"):
        return warned(f"worker {row.id} is draining and takes no new request", row.target, evidence)
    return passed(f"worker {row.id} is up", row.target, evidence)


# -- KV952 -----------------------------------------------------------------------------------------------------------


def events(snapshot: Snapshot) -> Iterator[Finding]:
    missing = unread(snapshot, "/workers") or other_mode(snapshot)
    if missing is not None:
        yield missing
        return
    found = rows(snapshot)
    if not found:
        yield skipped(Reason.NO_DATA, "the router has no worker")
    for row in found:
        yield _events(row)


def _events(row: Row) -> Finding:
    state = row.data.get("kv_events")
    sources = objects(row.data, "kv_sources")
    evidence = row.evidence("kv_events", "kv_endpoint")
    if row.data.get("health") != "up":
        return skipped(Reason.NO_DATA, f"worker {row.id} is not up", row.target, evidence)
    if state == "none":
        message = f"worker {row.id} publishes no KV events: what it has cached is guessed (approximate mode)"
        return failed(message, row.target, evidence)
    if state == "lost":
        why = next((str(one["lost"]) for one in sources if one.get("lost")), "a gap could not be repaired")
        return failed(f"KV events of worker {row.id} were lost: {shown(why)}", row.target, evidence)
    if state != "live":
        return warned(f"KV events of worker {row.id}: {shown(str(state))}, not connected yet", row.target, evidence)
    broken = sum(number(one.get("malformed")) for one in sources)
    lost = sum(number(one.get("frames_lost")) for one in sources)
    if broken > 0 or lost > 0:
        message = f"worker {row.id}: {broken:.0f} KV events could not be read, {lost:.0f} times some were lost"
        return warned(message, row.target, evidence)
    blocks = sum(number(one.get("blocks")) for one in sources)
    return passed(f"KV events of worker {row.id} arrive ({blocks:.0f} blocks so far)", row.target, evidence)


# -- KV953 -----------------------------------------------------------------------------------------------------------


def index_filled(snapshot: Snapshot) -> Iterator[Finding]:
    missing = unread(snapshot, "/index") or other_mode(snapshot)
    if missing is not None:
        yield missing
        return
    for router in snapshot.routers:
        if isinstance(router.answers.get("/index"), Mapping):
            yield from _index(snapshot, router, router.answers["/index"])


def _index(snapshot: Snapshot, router: Member, index: Json) -> Iterator[Finding]:
    blocks: dict[str, float] = {}
    for one in objects(index, "workers"):
        worker = str(one.get("worker"))
        blocks[worker] = blocks.get(worker, 0.0) + number(one.get("blocks"))
    total = sum(blocks.values())
    counters = index.get("counters")
    told = shown(f"/index: {total:.0f} blocks, {counters if isinstance(counters, Mapping) else ''}")
    evidence = Evidence("http", router.key, told)
    prompt = snapshot.metrics.now("kvctl_prompt_tokens", router.key)
    seen = prompt.value
    if seen is None:
        seen = sum(number(one.get("prompt_tokens")) for one in objects(router.answers.get("/decisions"), "decisions"))
    size = max((number(row.data.get("block_size")) for row in rows(snapshot)), default=0.0) or 1.0
    if total == 0 and seen < snapshot.thresholds.store_chunks_sure * size:
        message = f"the index is empty after {seen:.0f} prompt tokens: too few to judge"
        yield skipped(Reason.NO_TRAFFIC, message, router.target, evidence)
        return
    if total == 0 and _caching_off(snapshot):
        yield skipped(Reason.DISABLED, "the engines' prefix caching is off: there is nothing to know", router.target)
        return
    if total == 0:
        yield failed(f"the index is empty after {seen:.0f} prompt tokens", router.target, evidence)
        return
    evicted = number(counters.get("evicted")) if isinstance(counters, Mapping) else 0.0
    if evicted > 0:
        message = f"the index is at its limit: {evicted:.0f} blocks were dropped from it that workers still have"
        yield warned(message, router.target, evidence, hint="give the router a larger --index-limit-mib")
    yield from _empty(snapshot, router, blocks)
    yield passed(
        f"the index holds {total:.0f} blocks of {sum(map(bool, blocks.values()))} workers", router.target, evidence
    )


def _caching_off(snapshot: Snapshot) -> bool:
    """Every ready worker says that it caches no prefixes."""
    find, workers = snapshot.metrics.find, snapshot.ready_workers
    off = [find("cache_config_info", worker.key, enable_prefix_caching="False") for worker in workers]
    return bool(off) and all(off)


def _empty(snapshot: Snapshot, router: Member, blocks: Mapping[str, float]) -> Iterator[Finding]:
    """Workers that serve and whose events arrive, but of which no block is known."""
    answered = served(snapshot, router)
    for row in rows(snapshot):
        count = answered.get(row.id, 0.0)
        live = row.router is router and row.data.get("kv_events") == "live"
        if live and count >= snapshot.thresholds.routed_requests_min and not blocks.get(row.id):
            message = f"no block of worker {row.id} is known although it served {count:.0f} requests"
            yield warned(message, row.target, row.evidence("kv_events", "cached_blocks"))


# -- KV957 -----------------------------------------------------------------------------------------------------------


GUESSED = ("no_tokens", "approximate_tokens", "block_size_unknown", "block_size_differs")


def agreement(snapshot: Snapshot) -> Iterator[Finding]:
    missing = unread(snapshot, "/workers") or other_mode(snapshot)
    if missing is not None:
        yield missing
        return
    found = [row for row in rows(snapshot) if row.data.get("health") == "up"]
    if not found:
        yield skipped(Reason.NO_DATA, "the router has no worker that is up")
    for row in found:
        yield _agrees(snapshot, row)
    yield from _guessed(snapshot)


def _agrees(snapshot: Snapshot, row: Row) -> Finding:
    size, models = row.data.get("block_size"), row.data.get("models")
    evidence = row.evidence("block_size", "block_size_from", "models")
    if not number(size):
        return warned(f"the block size of worker {row.id} is not known", row.target, evidence)
    engine = None if row.member is None else block_tokens(snapshot, row.member)
    if engine is not None and engine != size:
        message = f"worker {row.id} has blocks of {engine} tokens, and the router takes them to be {size}"
        return failed(message, row.target, evidence)
    if not models:
        return warned(f"worker {row.id} tells no model: it is taken to serve any", row.target, evidence)
    told = row.data.get("warnings")
    if isinstance(told, Mapping) and told:
        first = shown("; ".join(str(text) for text in told.values()))
        return warned(f"worker {row.id}: {first}", row.target, evidence)
    distrusted = [
        f"{model}: {about['distrusted']}"
        for model, about in (row.data.get("tokenizer") or {}).items()
        if isinstance(about, Mapping) and about.get("distrusted")
    ]
    if distrusted:
        message = f"the router's tokenizer does not count as worker {row.id} does ({shown(distrusted[0])})"
        return warned(message, row.target, evidence)
    return passed(f"worker {row.id}: blocks of {size} tokens", row.target, evidence)


def _guessed(snapshot: Snapshot) -> Iterator[Finding]:
    """Decisions that had to do without the prompt's blocks."""
    metrics = snapshot.metrics
    every = metrics.grown(("kvctl_decisions",))[0]
    if not every.or_zero():
        return
    read = metrics.now if every.lifetime else metrics.increase
    for what in GUESSED:
        count = read("kvctl_degraded_decisions", None, what=what).or_zero()
        share = count / every.or_zero()
        if share > snapshot.thresholds.degraded_share_warn:
            message = f"{percent(min(1.0, share))} of {every.or_zero():.0f} decisions ({every.window}): {what}"
            yield warned(message, FLEET, every.evidence())


CHECKS: tuple[Check, ...] = (
    Check(
        id="KV951",
        title="kvctl knows every worker, and each is up",
        group=Group.REGISTRATION,
        worst=Status.FAIL,
        reads="/workers of the admin port",
        rule="Fails where the router has no worker, does not know one that was given, or a worker is down. Warns "
        "where one is starting or draining.",
        hint="start the worker, or register it: POST /workers on the admin port",
        run=registered,
        stacks=STACKS,
        required=True,
    ),
    Check(
        id="KV952",
        title="KV events arrive from every worker",
        group=Group.REGISTRATION,
        worst=Status.FAIL,
        reads="kv_events and kv_sources in /workers",
        rule="For modes that look at caches. Fails where a worker publishes none (it is then routed by guess) or "
        "events were lost; warns where the source is not connected yet, events could not be read, or gaps "
        "were not repaired.",
        hint="start the engine with KV events on, or give the worker kv=tcp://HOST:PORT and replay=tcp://HOST:PORT",
        run=events,
        stacks=STACKS,
        caused_by=("KV951",),
        required=True,
    ),
    Check(
        id="KV953",
        title="The index fills with traffic",
        group=Group.REGISTRATION,
        worst=Status.FAIL,
        reads="/index, kvctl_prompt_tokens and kvctl_legs",
        rule="For modes that look at caches. Skips below 20 blocks of prompt tokens. Fails where the index is "
        "empty after more; warns where a worker with live events and 20 answers has no block in it, and where "
        "the index is at its limit.",
        hint="see KV952; engines with prefix caching off publish no blocks",
        run=index_filled,
        stacks=STACKS,
        caused_by=("KV952", "KV142"),
    ),
    Check(
        id="KV957",
        title="Router and engines agree on blocks, models and tokens",
        group=Group.IDENTITY,
        worst=Status.FAIL,
        reads="block_size, models, warnings and tokenizer in /workers; vllm:cache_config_info; "
        "kvctl_degraded_decisions",
        rule="For modes that look at caches. Fails where the router takes a block size that the engine has not. "
        "Warns where a block size or the models are not known, workers of a model differ, the router's "
        "tokenizer is distrusted, or more than half of the decisions did without the prompt's blocks.",
        hint="start all workers of a model with one --block-size, and give the router the engines' tokenizer",
        run=agreement,
        stacks=STACKS,
        caused_by=("KV952",),
    ),
)
