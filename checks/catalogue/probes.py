"""KV801, KV803, KV805, KV806: where the probe's requests went. Pure; asks `Snapshot.probe`, sends nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from checks.model import FLEET, Evidence, Finding, Reason, Stack, Status, failed, passed, skipped, warned
from checks.probe_evidence import ProbeEvidence, ProbeStep
from checks.probed import answered, cold_of, evidence_of, probe_check, shown_steps, why_not
from checks.sharing import kvaware
from checks.snapshot import Snapshot

_BLIND = frozenset({"random", "roundrobin", "poweroftwo", "leastloaded"})
LIKE_CHANCE = 0.1
"""Repeats that a router without a memory would keep together at least as often spread like the control arm."""


# -- KV801 -----------------------------------------------------------------------------------------------------------


def same_prompt(snapshot: Snapshot) -> Iterator[Finding]:
    probe = evidence_of(snapshot)
    cold = cold_of(probe)
    if (reason := why_not(probe, "cold", "repeat", "control")) is not None or cold is None:
        yield reason or skipped(Reason.NO_DATA, "no cold request was answered")
        return
    repeats, control = answered(probe, "repeat"), answered(probe, "control")
    if probe.choices == 1:
        yield skipped(Reason.NOT_APPLICABLE, "one worker only: the router has nothing to choose from")
    elif any(not step.served_by for step in (cold, *repeats)) or not all(step.served_by for step in control):
        yield skipped(Reason.NO_DATA, "it is not known who served the requests (KV803)", FLEET, *shown_steps([cold]))
    else:
        yield _affinity(snapshot, probe, cold, repeats, control)


def _affinity(
    snapshot: Snapshot, probe: ProbeEvidence, cold: ProbeStep, repeats: list[ProbeStep], control: list[ProbeStep]
) -> Finding:
    kept = sum(step.served_by == cold.served_by for step in repeats)
    same = sum(step.served_by == cold.served_by for step in control)
    busiest = max(Counter(step.served_by for step in control).values())
    told = (
        f"{kept} of {len(repeats)} repeats of one prompt went to the worker that had it; of {len(control)} prompts "
        f"that differ at most {busiest} went to one worker"
    )
    evidence = shown_steps([cold, *repeats[:1], *[step for step in repeats if step.served_by != cold.served_by][:2]])
    routed = [step for step in repeats if step.kv_routed]
    if kept == len(repeats):
        if len(routed) == len(repeats):
            return passed(f"{told}; the router named a cache for each repeat", FLEET, *evidence)
        if kvaware(snapshot):
            return _without_lines(told, repeats, evidence)
        if same == len(control):
            return skipped(Reason.NO_DATA, f"{told}: this router may always take that one", FLEET, *evidence)
        return passed(told, FLEET, *evidence)
    choices = probe.choices or len({step.served_by for step in (cold, *repeats, *control)})
    share = max(1 / max(choices, 2), same / len(control))
    if _at_least(kept, len(repeats), min(share, 1.0)) > LIKE_CHANCE:
        hint = ""
        if snapshot.strategy in _BLIND:
            hint = (
                f"The router's strategy is {snapshot.strategy}, which looks at no cache: choose one that does (KV121)"
            )
        return failed(f"repeats spread like prompts that differ: {told}", FLEET, *evidence, hint=hint)
    return warned(told, FLEET, *evidence)


def _without_lines(told: str, repeats: list[ProbeStep], evidence: list[Evidence]) -> Finding:
    """All repeats went to one worker of a kvaware router, whose fallback may do the same."""
    known = [step for step in repeats if step.kv_routed is not None]
    if not known:
        message = f"{told}; kvaware's fallback may look the same, and the router's log does not tell of these requests"
        return skipped(Reason.NO_DATA, message, FLEET, *evidence)
    found = sum(bool(step.kv_routed) for step in known)
    if not found:
        return failed(f"{told}, but kvaware found no cache for any of them: its fallback did it", FLEET, *evidence)
    return warned(f"{told}; kvaware found a cache for {found} of {len(repeats)}", FLEET, *evidence)


def _at_least(kept: int, of: int, share: float) -> float:
    """How likely that many or more repeats meet by chance, each with probability `share`."""
    return sum(math.comb(of, n) * share**n * (1 - share) ** (of - n) for n in range(kept, of + 1))


# -- KV803 -----------------------------------------------------------------------------------------------------------


def who_served(snapshot: Snapshot) -> Iterator[Finding]:
    probe = evidence_of(snapshot)
    if (reason := why_not(probe, "cold")) is not None:
        yield reason
        return
    routed = [step for step in probe.steps if step.status == 200 and not step.error and step.how != "direct"]
    known = [step for step in routed if step.served_by]
    counts = Counter(step.served_by for step in known)
    told = ", ".join(f"{name} {count}" for name, count in sorted(counts.items())[:8])
    hows = "/".join(sorted({step.how for step in known}))
    if len(known) == len(routed):
        yield passed(f"all {len(routed)} requests are known by {hows}: {told}", FLEET, *shown_steps(known[:1]))
    elif known:
        missing = [step for step in routed if not step.served_by]
        message = f"{len(known)} of {len(routed)} requests are known by {hows}: {told}"
        yield warned(message, FLEET, *shown_steps(missing))
    else:
        message = "no header, no line of the router's log and no counter tells who served the requests"
        yield skipped(Reason.NO_DATA, message, FLEET, *shown_steps(routed[:1]))


# -- KV805, KV806 ----------------------------------------------------------------------------------------------------


def shared_prefix(snapshot: Snapshot) -> Iterator[Finding]:
    probe = evidence_of(snapshot)
    cold = cold_of(probe)
    if (reason := why_not(probe, "cold", "suffix")) is not None or cold is None:
        yield reason or skipped(Reason.NO_DATA, "no cold request was answered")
        return
    step = answered(probe, "suffix")[0]
    having = [cold, *(one for one in probe.named("other-instance") if one.status == 200)]
    evidence = shown_steps([step])
    if probe.choices == 1:
        yield skipped(Reason.NOT_APPLICABLE, "one worker only: the router has nothing to choose from")
    elif not step.served_by or not cold.served_by:
        yield skipped(Reason.NO_DATA, "it is not known who served the requests (KV803)", FLEET, *evidence)
    elif step.served_by in {one.served_by for one in having}:
        yield passed("a prompt that begins alike went to a worker that had its beginning", FLEET, *evidence)
    else:
        message = f"a prompt that begins alike went to {step.served_by}, its beginning is on {cold.served_by}"
        yield warned(message, FLEET, *evidence)


def chat(snapshot: Snapshot) -> Iterator[Finding]:
    probe = evidence_of(snapshot)
    if (reason := why_not(probe, "cold")) is not None:
        yield reason
        return
    if "chat" not in probe.skipped and (bad := [step for step in probe.named("chat") if step.error]):
        message = f"chat requests are not answered here: {bad[0].error}"
        yield skipped(Reason.NOT_APPLICABLE, message, FLEET, *shown_steps(bad))
        return
    if (reason := why_not(probe, "chat")) is not None:
        yield reason
        return
    yield _chat(snapshot, probe, answered(probe, "chat"))


def _chat(snapshot: Snapshot, probe: ProbeEvidence, steps: list[ProbeStep]) -> Finding:
    evidence = shown_steps(steps)
    if probe.choices == 1:
        return skipped(Reason.NOT_APPLICABLE, "one worker only: the router has nothing to choose from")
    if len(steps) < 2 or not all(step.served_by for step in steps):
        return skipped(Reason.NO_DATA, "it is not known who served both chats", FLEET, *evidence)
    again = steps[-1]
    together = again.served_by == steps[0].served_by
    if kvaware(snapshot) and snapshot.stack is not Stack.KVCTL:
        what = "a cache was found for it" if again.kv_routed else "no cache was found for it, as upstream does"
        return passed(f"a chat sent twice went to {_workers(together)}; {what} (KV122)", FLEET, *evidence)
    if together:
        return passed("a chat that was sent twice went to one worker", FLEET, *evidence)
    return warned("a chat that was sent twice went to two workers", FLEET, *evidence)


def _workers(together: bool) -> str:
    return "one worker" if together else "two workers"


CHECKS = (
    probe_check(
        "KV801",
        "One prompt goes to one worker",
        Status.FAIL,
        same_prompt,
        reads="a prompt sent again and again, and as many prompts that differ; who served them (KV803)",
        rule="Passes where every repeat goes to the worker that served the prompt first and the prompts that differ do "
        "not all go there too; with kvaware only if the router's log names a cache for each repeat, because its "
        "fallback can look the same. Fails where the repeats spread as they would by chance (10 %), and where kvaware "
        "found no cache for any. Warns in between. Repeats: so many that a router without a memory keeps them "
        "together in one of a hundred runs, 3 to 10.",
        hint="see the registrations (KV2xx) and the hashes (KV4xx): the router does not know where prompts are cached",
        caused_by=("KV152", "KV401", "KV402", "KV201", "KV202", "KV209", "KV121", "KV123"),
        proves=True,
    ),
    probe_check(
        "KV803",
        "It is known who served a request",
        Status.WARN,
        who_served,
        reads="response headers that name a worker, the router's line about the request id, counters of the workers",
        rule="Passes where each request of the probe can be put to a worker, warns where only some can, skips where "
        "none can: KV801 then says nothing.",
        hint="give the workers with --worker and the router's log with --log, so that lines and counters can be read",
    ),
    probe_check(
        "KV805",
        "A prompt that begins alike goes to the same worker",
        Status.WARN,
        shared_prefix,
        reads="the prompt with another end of 64 tokens; who served it",
        rule="Passes where it goes to a worker that has the beginning: the first one, or the one that KV804 sent it "
        "to; a single request, so it warns at most.",
        hint="raise the router's match limits (--kv-aware-threshold, --prefix-min-match-length), or look for load that "
        "outweighs the cache",
        caused_by=("KV801",),
    ),
    probe_check(
        "KV806",
        "A chat that comes again goes to the same worker",
        Status.WARN,
        chat,
        reads="the prompt as a chat, twice; who served it",
        rule="kvaware of the production stack never routes chats by cache; that is told and passes. For all others it "
        "passes where both chats went to one worker and warns otherwise.",
        hint="send completions where the router can match only those (KV122), or a strategy that reads chats",
        caused_by=("KV801", "KV122"),
    ),
)
