"""Traces: what is refused and where, that sharing is exact, that jitter and dealing are seeded and stay in bounds."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bench.workload.describe import PrefixKeys, describe, shared_prefixes
from bench.workload.model import Workload, WorkloadError
from bench.workload.mooncake import block_accesses, build, jitter, load, parse, sessions

REAL = Path(__file__).parents[4] / "shared/data/traces/mooncake_conversation.jsonl"


def line(
    timestamp: float = 0, length: int = 600, output: int = 5, ids: list[int] | None = None, **more: object
) -> bytes:
    ids = [0, 1] if ids is None else ids
    row = {"timestamp": timestamp, "input_length": length, "output_length": output, "hash_ids": ids}
    return json.dumps(row | more).encode() + b"\n"


def trace(folder: Path, *lines: bytes) -> Path:
    path = folder / "t.jsonl"
    path.write_bytes(b"".join(lines))
    return path


def conversation(folder: Path) -> Path:
    """Block 0 is common; four sessions of two turns each, on a 3 s grid."""
    lines = []
    for turn in range(2):
        for s in range(4):
            ids = [0] + [10 * (s + 1) + k for k in range(1 + turn)]
            lines.append(line(3000 * turn, 512 * len(ids) - 100, 10, ids))
    return trace(folder, *lines)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"{nonsense\n", r":2: not JSON"),
        (b"[1]\n", r":2: a line must be a JSON object"),
        (line(timestamp=-1), r":2: timestamp: .* got -1"),
        (line(timestamp="soon"), r":2: timestamp: .* got 'soon'"),  # type: ignore[arg-type]
        (line(length=0, ids=[]), r":2: input_length: .* at least 1 wanted, got 0"),
        (line(output=-1), r":2: output_length: .* got -1"),
        (line(output=1.5), r":2: output_length: .* got 1.5"),  # type: ignore[arg-type]
        (line(output=True), r":2: output_length: .* got True"),
        (line(hash_ids="no"), r":2: hash_ids: a list of integers wanted"),
        (line(hash_ids=[0, None]), r":2: hash_ids: a list of integers wanted"),
        (line(ids=[0, -1]), r":2: hash_ids: ids of 64 bits wanted"),
        (line(ids=[0, 2**64]), r":2: hash_ids: "),
        (line(delay=5), r":2: delay: turns that wait for one another"),
        (line(ids=[0]), r":2: hash_ids: 600 tokens are 2 blocks of 512, the line names 1"),
        (line(ids=[7, 7]), r":2: hash_ids: an id appears twice"),
        (line(ids=[5, 1]), r":2: hash_ids\[1\]: id 1 follows 5 here and 0 on line 1"),
    ],
)
def test_a_bad_line_is_refused_with_its_line_and_field(bad: bytes, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        parse([line(), bad], "t")


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(WorkloadError, match="no requests"):
        parse([b"\n"], "t")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"cannot read trace .*absent"):
        load(tmp_path / "absent.jsonl")


def test_only_the_first_requests_are_taken() -> None:
    assert len(parse([line(), line(), b"{nonsense"], "t", limit=2)) == 2


def test_an_output_length_of_zero_is_sent_as_one_and_noted(tmp_path: Path) -> None:
    workload = build(trace(tmp_path, line(output=0), line(output=3)), slices=1, seed=0, speedup=1)
    assert sorted(r.output_len for r in workload.requests) == [1, 3]
    assert workload.notes == ["1 requests with output_length 0 are sent with 1"]


def test_prompts_have_the_length_of_the_trace_and_share_what_their_ids_share(tmp_path: Path) -> None:
    path = trace(tmp_path, line(0, 1100, 5, [0, 1, 2]), line(1, 1200, 5, [0, 1, 3]), line(2, 1050, 5, [0, 1, 2]))
    workload = build(path, slices=1, seed=0, speedup=1, use_jitter=False)
    a, b, c = (workload.tokens(r).tolist() for r in workload.requests)
    assert [len(a), len(b), len(c)] == [1100, 1200, 1050]
    assert a[:1024] == b[:1024]
    assert a[1024] != b[1024]
    assert a[:1050] == c


def test_jitter_stays_inside_the_cell_and_is_seeded() -> None:
    times = [0.0, 0.0, 3.0, 3.0, 6.0]
    moved, cell = jitter(times, random.Random(1))
    assert cell == 3.0
    assert all(t <= m <= t + 3.0 for t, m in zip(times, moved, strict=True))
    assert len(set(moved)) == 5
    assert moved == jitter(times, random.Random(1))[0]


def test_without_jitter_the_grid_is_kept(tmp_path: Path) -> None:
    workload = build(conversation(tmp_path), slices=1, seed=0, speedup=1, use_jitter=False)
    assert {r.at for r in workload.requests} == {0.0, 3.0}


def test_requests_that_continue_one_another_are_one_session(tmp_path: Path) -> None:
    names = sessions(load(conversation(tmp_path)))
    assert [session for session, _ in names] == ["s10", "s20", "s30", "s40"] * 2
    assert {group for _, group in names} == {"p0"}


def test_a_session_is_never_cut_by_a_slice(tmp_path: Path) -> None:
    workload = build(conversation(tmp_path), slices=2, seed=0, speedup=1)
    where: dict[str, set[int]] = {}
    for r in workload.requests:
        where.setdefault(r.session, set()).add(r.slice)
    assert all(len(slices) == 1 for slices in where.values())
    assert [len(workload.of_slice(i)) for i in range(2)] == [4, 4]


def test_dealing_over_slices_keeps_the_request_rate(tmp_path: Path) -> None:
    one = build(conversation(tmp_path), slices=1, seed=0, speedup=1, use_jitter=False)
    two = build(conversation(tmp_path), slices=2, seed=0, speedup=1, use_jitter=False)
    assert one.of_slice(0)[-1].at == 3.0
    assert two.of_slice(0)[-1].at == 1.5


def test_speedup_divides_all_times(tmp_path: Path) -> None:
    workload = build(conversation(tmp_path), slices=1, seed=0, speedup=6, use_jitter=False)
    assert {r.at for r in workload.requests} == {0.0, 0.5}


def test_without_a_speedup_the_token_rate_is_met(tmp_path: Path) -> None:
    workload = build(conversation(tmp_path), slices=1, seed=0, token_rate=40, use_jitter=False)
    assert workload.facts["speedup"] == 1.5


def test_the_whole_trace_can_be_replayed_in_every_slice(tmp_path: Path) -> None:
    workload = build(conversation(tmp_path), slices=3, seed=0, speedup=1, whole=True)
    first = [(r.id, r.at) for r in workload.of_slice(0)]
    assert len(first) == 8
    assert all([(r.id, r.at) for r in workload.of_slice(i)] == first for i in range(3))


def test_too_few_sessions_for_the_slices_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="4 sessions, too few for 5"):
        build(conversation(tmp_path), slices=5, seed=0, speedup=1)


def test_turns_count_up_in_the_order_of_time(tmp_path: Path) -> None:
    workload = build(conversation(tmp_path), slices=1, seed=0, speedup=1)
    turns: dict[str, list[int]] = {}
    for r in workload.requests:
        turns.setdefault(r.session, []).append(r.turn)
    assert set(map(tuple, turns.values())) == {(0, 1)}


def test_the_same_seed_gives_the_same_sha256_and_another_one_does_not(tmp_path: Path) -> None:
    def made(seed: int) -> Workload:
        return build(conversation(tmp_path), slices=2, seed=seed, speedup=1)

    assert made(1).sha256 == made(1).sha256
    assert made(1).sha256 != made(2).sha256


@pytest.mark.skipif(not REAL.exists(), reason="the conversation trace is not here")
def test_the_conversation_traces_infinite_cache_hit_is_the_published_one() -> None:
    """1,500 requests of it: the bound from tokens equals the one counted from the ids."""
    rows = load(REAL, 1500)
    seen: set[int] = set()
    hits = total = 0
    for row in rows:
        depth = 0
        while depth < len(row.hash_ids) and row.hash_ids[depth] in seen:
            depth += 1
        hits += min(row.input_length, 512 * depth) // 16 * 16
        total += row.input_length
        seen.update(row.hash_ids)
    workload = build(REAL, slices=1, seed=0, requests=1500, speedup=1, use_jitter=False)
    assert describe(workload).bound == pytest.approx(hits / total, rel=0.01)


def test_shared_prefixes_are_whole_grid_blocks(tmp_path: Path) -> None:
    path = trace(tmp_path, line(0, 600, 5, [0, 1]), line(1, 700, 5, [0, 2]), line(2, 600, 5, [0, 1]))
    workload = build(path, slices=1, seed=0, speedup=1, use_jitter=False)
    assert shared_prefixes(workload.requests, PrefixKeys(workload.vocabulary)) == [0, 512, 592]


def test_unsorted_timestamps_are_sent_in_the_order_of_time_and_noted(tmp_path: Path) -> None:
    path = trace(tmp_path, line(2000, 600, 1, [0, 1]), line(1000, 600, 2, [0, 2]))
    workload = build(path, slices=1, seed=0, speedup=1, use_jitter=False)
    assert [(r.at, r.output_len) for r in workload.requests] == [(0.0, 2), (1.0, 1)]
    assert workload.notes == [
        "timestamps are not in order at 1 places of the file; requests are sent in the order of time"
    ]


def test_ids_that_are_equal_in_their_low_32_bits_share_nothing(tmp_path: Path) -> None:
    path = trace(tmp_path, line(0, 600, 5, [7, 8]), line(1, 600, 5, [7 + 2**32, 8 + 2**32]))
    workload = build(path, slices=1, seed=0, speedup=1, use_jitter=False)
    assert shared_prefixes(workload.requests, PrefixKeys(workload.vocabulary)) == [0, 0]


def test_a_traces_own_blocks_count_a_partial_last_one(tmp_path: Path) -> None:
    found = block_accesses(load(trace(tmp_path, line(0, 600, 5, [0, 1]), line(1, 512, 5, [0]))))
    assert (found.keys.tolist(), found.tokens.tolist(), found.ends.tolist()) == ([0, 1, 0], [512, 88, 512], [2, 3])
