"""A cold start counts only when it is proven: a reset that lies, an engine that does not report, a busy engine."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from bench import cold
from bench.client.bodies import BodyStyle
from bench.client.connection import Target
from bench.client.load import BlockRun, LoadGenerator
from bench.client.timing import Timing
from bench.client.watch import SelfWatch
from bench.cold import (
    ColdProof,
    ColdStarter,
    Engine,
    Nonces,
    first_is_cold,
    nonce_length,
    samples_by_worker,
    unexplained,
)
from bench.control import Control
from bench.workload.describe import PrefixKeys
from bench.workload.model import Request
from bench.workload.tokens import Piece, PieceText, Tokens, Vocabulary
from tests.bench.fakes import FakeEngine, serving

VOCABULARY = Vocabulary()
PROMPT = np.arange(100, 200, dtype=np.uint32)


async def proof(*engines: FakeEngine, samples: dict[str, list[Tokens]] | None = None) -> ColdProof:
    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(engine)) for engine in engines]
        control = await stack.enter_async_context(Control())
        named = [Engine(f"e{i}", url) for i, url in enumerate(urls)]
        starter = ColdStarter(control, named, "m", VOCABULARY)
        assert await starter.can_reset()
        return await starter.start(samples or {})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "RESET_PATIENCE", 0.3)
    monkeypatch.setattr(cold, "DRAIN_PATIENCE", 0.3)


async def test_an_honest_reset_is_proven() -> None:
    engines = [FakeEngine(), FakeEngine()]
    found = await proof(*engines, samples={"e0": [PROMPT]})
    assert found.proven
    assert found.way == "reset"


async def test_samples_that_share_a_prefix_do_not_accuse_each_other() -> None:
    longer = np.concatenate([PROMPT, PROMPT + 1000])
    assert (await proof(FakeEngine(), samples={"e0": [PROMPT, longer]})).proven


async def test_after_the_proof_no_prompt_of_the_block_before_is_cached() -> None:
    engine = FakeEngine()
    engine.cached_tokens(PROMPT.tolist())
    await proof(engine, samples={"e0": [PROMPT]})
    assert engine.cached_tokens(PROMPT.tolist()) == 0


async def test_a_reset_that_answers_200_and_keeps_the_cache_is_found_out(impatient: None) -> None:
    found = await proof(FakeEngine(), FakeEngine(resets="lying"))
    assert found.reasons == ["e1: the cache survived its reset"]


async def test_an_engine_that_does_not_report_cached_tokens_proves_nothing() -> None:
    found = await proof(FakeEngine(reports=False))
    assert "reports no cached tokens for a prompt sent twice" in found.reasons[0]


async def test_a_busy_engine_is_not_reset(impatient: None) -> None:
    engine = FakeEngine(busy=2)
    found = await proof(engine)
    assert "still busy" in found.reasons[0]


async def test_an_engine_without_the_reset_endpoint_cannot_be_reset() -> None:
    async with serving(FakeEngine(resets="missing")) as url, Control() as control:
        starter = ColdStarter(control, [Engine("e0", url)], "m", VOCABULARY)
        assert not await starter.can_reset()
        assert starter.block_sizes == [16]


async def test_without_known_engines_nothing_can_be_reset() -> None:
    async with Control() as control:
        assert not await ColdStarter(control, [], "m", VOCABULARY).can_reset()


def test_every_block_has_a_nonce_of_its_own_and_constant_length() -> None:
    nonces = Nonces(64)
    leads = [nonces.lead(block) for block in range(5)]
    assert len({PieceText(VOCABULARY).tokens(lead).tobytes() for lead in leads}) == 5
    assert {sum(piece.length for piece in lead) for lead in leads} == {64}


def test_two_runs_have_different_nonces() -> None:
    assert Nonces(64).lead(0) != Nonces(64).lead(0)


@pytest.mark.parametrize(("sizes", "length"), [([], 512), ([16], 64), ([32, 32], 64), ([128], 128), ([48], 96)])
def test_a_nonce_is_whole_blocks(sizes: list[int], length: int) -> None:
    assert nonce_length(sizes) == length


def request(number: int, *pieces: Piece) -> Request:
    return Request(f"r{number}", "s", 0, "g", 0, float(number), 1, pieces)


def answered(sent: float, first: float, cached: int | None) -> Timing:
    timing = Timing(sent, t_send=sent, t_first=first, t_last=first, t_end=first, status=200, cached_tokens=cached)
    timing.worker = "w0"
    return timing


def block(*pairs: tuple[Request, Timing]) -> BlockRun:
    return BlockRun([r for r, _ in pairs], [t for _, t in pairs], 0.0, SelfWatch())


SHARED = Piece(1, 64)


def test_hits_on_a_prefix_sent_earlier_in_the_block_are_explained() -> None:
    run = block(
        (request(0, SHARED, Piece(2, 32)), answered(0, 1, 0)),
        (request(1, SHARED, Piece(3, 32)), answered(2, 3, 64)),
    )
    assert unexplained(run, PrefixKeys(VOCABULARY)) == 0


def test_hits_that_nothing_in_the_block_explains_are_counted() -> None:
    run = block(
        (request(0, SHARED, Piece(2, 32)), answered(0, 1, 64)),
        (request(1, SHARED, Piece(3, 32)), answered(2, 3, 96)),
    )
    assert unexplained(run, PrefixKeys(VOCABULARY)) == 2


def test_a_prefix_sent_only_later_explains_nothing() -> None:
    run = block(
        (request(0, SHARED, Piece(2, 32)), answered(0, 1, 64)),
        (request(1, SHARED, Piece(3, 32)), answered(2, 3, 64)),
    )
    assert unexplained(run, PrefixKeys(VOCABULARY)) == 1


def test_the_same_prompt_twice_explains_all_of_it() -> None:
    run = block((request(0, SHARED), answered(0, 1, 0)), (request(1, SHARED), answered(0.5, 2, 48)))
    assert unexplained(run, PrefixKeys(VOCABULARY)) == 0


def test_the_first_request_of_a_block_must_be_cold() -> None:
    warm = block((request(0, SHARED), answered(0, 1, 16)), (request(1, SHARED), answered(2, 3, 0)))
    fresh = block((request(0, SHARED), answered(0, 1, None)), (request(1, SHARED), answered(2, 3, 64)))
    assert not first_is_cold(warm)
    assert first_is_cold(fresh)


def test_samples_are_the_last_prompts_of_each_worker() -> None:
    run = block(*((request(i, Piece(i, 16)), answered(i, i, 0)) for i in range(5)))
    text = PieceText(VOCABULARY)
    found = samples_by_worker(run, text)["w0"]
    assert [t.tolist() for t in found] == [text.tokens((Piece(i, 16),)).tolist() for i in (3, 4)]


async def test_a_nonce_keeps_sharing_inside_a_block_and_ends_it_between_blocks() -> None:
    engine = FakeEngine(resets="missing")
    text = PieceText(VOCABULARY)
    nonces = Nonces(64)
    requests = [request(i, SHARED, Piece(10 + i, 32)) for i in range(2)]
    requests = [Request(r.id, r.session, 0, "g", 0, 0.3 * i, 2, r.pieces) for i, r in enumerate(requests)]
    cached = []
    async with serving(engine) as url:
        generator = LoadGenerator(text, timeout=10)
        for number in range(2):
            style = BodyStyle("m", {}, nonces.lead(number))
            run = await generator.run(requests, Target.parse(url), style, label="t")
            assert unexplained(run, PrefixKeys(VOCABULARY, nonces.lead(number))) == 0
            cached.append([timing.cached_tokens or 0 for timing in run.timings])
        generator.pool.close()
    assert cached == [[0, 128], [0, 128]]
