"""One way to a workload: by name, or from a file whose format is told from its content.

Reads at most the file it is given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from bench.workload import conversations, datafiles, mooncake, schedule
from bench.workload.arrivals import Arrivals, Process, rearranged
from bench.workload.catalogue import find
from bench.workload.frame import Frame
from bench.workload.model import Workload, WorkloadError
from bench.workload.tokens import Vocabulary


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. None: choose well.

    Args:
        name: a built-in workload with parameters; not looked at if `file` is given.
        file: a trace or data set.
        slices: rounds of the experiment.
        requests: of all slices; of a file the first so many.
        seed: of everything drawn.
        rate: requests a second over a slice.
        speedup: of all times. None for a trace with `token_rate`: the one that gives that.
        arrivals: the process; None: the workload's own, Poisson for a file without times.
        whole: send a file whole in every slice.
        jitter: spread a trace's arrivals inside its time grid.
        token_rate: output tokens a second that a trace without `speedup` aims at; None: its own rate.
        workers: engines of the fleet.
        vocabulary: ids to make prompts of.
    """

    name: str = "multi-turn"
    file: Path | None = None
    slices: int = 1
    requests: int | None = None
    seed: int = 0
    rate: float | None = None
    speedup: float | None = None
    arrivals: Arrivals | None = None
    whole: bool = False
    jitter: bool = True
    token_rate: float | None = None
    workers: int = 8
    vocabulary: Vocabulary = field(default_factory=Vocabulary)


class Format(StrEnum):
    MOONCAKE = "mooncake"
    SHAREGPT = "sharegpt"
    SHAREGPT_ARRAY = "sharegpt-array"
    BATCH = "openai-batch"
    SCHEDULE = "kvctl-schedule"


KNOWN = (
    "a Mooncake trace (timestamp, input_length, output_length, hash_ids), ShareGPT conversations (conversations or "
    "messages), an OpenAI batch (custom_id, method, url, body), or a schedule of `kvctl bench workload make`"
)


def format_of(path: Path) -> Format:
    """What a file holds, by its first line.

    Raises:
        WorkloadError: unreadable, empty, or nothing known; the message lists what is.
    """
    if schedule.is_schedule(path):
        return Format.SCHEDULE
    first = next(iter(datafiles.lines(path)), None)
    if first is None:
        raise WorkloadError(f"{path}: no requests in it")
    number, raw = first
    if raw.lstrip().startswith(b"["):
        return Format.SHAREGPT_ARRAY
    entry = datafiles.decoded(raw, f"{path}:{number}")
    keys = set(entry) if isinstance(entry, dict) else set()
    if keys & {"hash_ids", "input_length", "timestamp"}:
        return Format.MOONCAKE
    if keys & {"custom_id", "method", "url"}:
        return Format.BATCH
    if keys & {"conversations", "conversation", "messages"}:
        return Format.SHAREGPT
    raise WorkloadError(f"{path}:{number}: neither of {KNOWN}; the line has {', '.join(sorted(keys)[:6]) or 'no keys'}")


def make(wish: Wish) -> Workload:
    """The workload.

    Raises:
        WorkloadError: for the user, with what to change.
    """
    if wish.file is None:
        return _built_in(wish)
    kind = format_of(wish.file)
    if kind is Format.SCHEDULE:
        return _schedule(wish, wish.file)
    if kind is Format.MOONCAKE:
        return _trace(wish, wish.file)
    if kind is Format.BATCH:
        data = datafiles.batch(wish.file)
    else:
        data = datafiles.sharegpt(wish.file, array=kind is Format.SHAREGPT_ARRAY)
    return conversations.build(
        data, name=wish.file.name, slices=wish.slices, seed=wish.seed, requests=wish.requests, rate=wish.rate,
        speedup=wish.speedup or 1.0, arrivals=wish.arrivals, whole=wish.whole, vocabulary=wish.vocabulary,
    )  # fmt: skip


def _built_in(wish: Wish) -> Workload:
    entry, spec = find(wish.name)
    frame = Frame(
        slices=wish.slices,
        requests=wish.requests if wish.requests is not None else entry.a_round(spec, wish.workers) * wish.slices,
        seed=wish.seed,
        rate=wish.rate,
        speedup=1.0 if wish.speedup is None else wish.speedup,
        arrivals=wish.arrivals,
        workers=wish.workers,
        vocabulary=wish.vocabulary,
    )
    return entry.build(spec, frame)


def _trace(wish: Wish, file: Path) -> Workload:
    own = wish.arrivals is None or wish.arrivals.process is Process.TRACE
    if wish.rate is not None and own:
        raise WorkloadError("--rate is for built-in workloads; a trace has its own, scale it with --speedup")
    workload = mooncake.build(
        file,
        slices=wish.slices,
        seed=wish.seed,
        requests=wish.requests,
        speedup=wish.speedup if wish.speedup is not None or wish.token_rate is not None else 1.0,
        whole=wish.whole,
        token_rate=wish.token_rate or 1.0,
        use_jitter=wish.jitter,
        vocabulary=wish.vocabulary,
    )
    return workload if wish.arrivals is None else rearranged(workload, wish.arrivals, wish.rate, wish.seed)


def _schedule(wish: Wish, file: Path) -> Workload:
    """A schedule is sent as it was written: what would change it is refused."""
    set_here = {
        "--requests": wish.requests, "--rate": wish.rate, "--speedup": wish.speedup, "--arrivals": wish.arrivals,
        "--whole-trace": wish.whole or None,
    }  # fmt: skip
    for option, value in set_here.items():
        if value is not None:
            raise WorkloadError(f"{option} cannot change a schedule ({file}): make another with `bench workload make`")
    workload = schedule.read(file)
    if workload.slices != wish.slices:
        raise WorkloadError(f"{file}: a schedule of {workload.slices} blocks an arm: give --blocks {workload.slices}")
    return workload
