"""The run: arms made ready, the A/A pilot, then block after block, each on a fleet proven cold. Only measures; judging
is `verdict`.

Touches the network through `control` and `client`. One arm gets requests at a time. Cancelling the task ends the run
at once and keeps the blocks that were complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.arms import Arm, ArmError
from bench.client.bodies import Api, BodyStyle
from bench.client.load import BlockRun, LoadGenerator
from bench.client.timing import Timing
from bench.clocks import BlockClocks, read_clocks
from bench.cold import ColdProof, ColdStarter, Nonces, first_is_cold, nonce_length, samples_by_worker, unexplained
from bench.control import Control, Unreachable
from bench.design import Block
from bench.guards import BlockFacts
from bench.metrics import Measured, Measurements
from bench.outages import Outages
from bench.prime import prime_requests
from bench.workload.describe import PrefixKeys
from bench.workload.model import Request, Workload
from bench.workload.tokens import Piece, PieceText, Tokens, piece_key

READY_PATIENCE = 60.0
WARM_UP = 16
SETTLE = 0.15


@dataclass(slots=True)
class BlockResult:
    """One finished block. `interrupted`: it was stopped half way and counts in no metric. `prime`: the requests sent
    before it, one after the other, where priming was asked for.
    """

    block: Block
    arm: Arm
    facts: BlockFacts
    proof: ColdProof
    start: float
    interrupted: bool = False
    unexplained: int = 0
    prime: list[Measured] = field(default_factory=list)
    clocks: BlockClocks = field(default_factory=BlockClocks)


@dataclass(slots=True)
class Experiment:
    """All that was measured, in the order in which it was.

    `pilot`: the blocks of the A/A control, which are in no comparison. `plan`: the blocks that were to follow.
    `actions_planned`: engines go and come as the workload says. `broken`: what ended the run before its end,
    `stopped`: the time limit that did.
    """

    model: str
    way: str
    blocks: list[BlockResult] = field(default_factory=list)
    pilot: list[BlockResult] = field(default_factory=list)
    plan: list[Block] = field(default_factory=list)
    actions_planned: bool = False
    interrupted: bool = False
    broken: str | None = None
    stopped: str | None = None
    client_priority_raised: bool = False
    versions: dict[str, str | None] = field(default_factory=dict)
    version_sources: dict[str, dict[str, object]] = field(default_factory=dict)


class Observer(Protocol):
    """Who watches the run: a display, a log, nobody."""

    def piloted(self, arms: Sequence[Arm], blocks: Sequence[Block], way: str) -> None: ...
    def planned(self, arms: Sequence[Arm], blocks: Sequence[Block], way: str) -> None: ...
    def block_started(self, block: Block, requests: Sequence[Request]) -> None: ...
    def request_done(self, block: Block, timing: Timing) -> None: ...
    def block_ended(self, result: BlockResult) -> None: ...


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How the run is made. `model` None: the one that the arms serve. `timeout`: seconds for one request. `extra`:
    merged into each body. `duration`: seconds; no round begins that would end later. `prime`: see `bench.prime`.
    `outages`: what is done to the fleet in every block. `api`, `words`, `real_answers`: see `BodyStyle`. `on_block`:
    told of each block of the design when it has ended.
    """

    model: str | None = None
    timeout: float = 120.0
    extra: dict[str, object] = field(default_factory=dict)
    duration: float | None = None
    prime: bool = False
    outages: Outages | None = None
    api: Api = Api.COMPLETIONS
    words: bool = False
    real_answers: bool = False
    on_block: Callable[[BlockResult], None] | None = None

    def style(self, model: str, lead: tuple[Piece, ...] = ()) -> BodyStyle:
        """The bodies of a block."""
        return BodyStyle(model, self.extra, lead, self.api, self.words, self.real_answers)


@dataclass(frozen=True, slots=True)
class Design:
    """The blocks of a run. `pilot`: those of the A/A control, which come first. `blocks`: from their results the blocks
    that follow; it must depend on the noise that they show alone, not on who was faster.
    """

    pilot: Sequence[Block]
    blocks: Callable[[Sequence[BlockResult]], Sequence[Block]]


async def run(
    workload: Workload, arms: Sequence[Arm], design: Design, options: RunOptions, observer: Observer
) -> Experiment:
    """Runs the pilot and all blocks.

    Raises:
        ArmError: an arm cannot be reached or does not serve before the first block.
    """
    async with Control() as control:
        runner = Runner(workload, arms, options, observer, control)
        try:
            await runner.prepare()
            await runner.run(design)
        except asyncio.CancelledError:
            runner.experiment.interrupted = True
        except Unreachable as error:
            if not runner.experiment.blocks and not runner.experiment.pilot:
                raise ArmError(str(error)) from error
            runner.experiment.broken = str(error)
        finally:
            runner.generator.pool.close()
        return runner.experiment


class Runner:
    """State of a run: who is cold, what the block before left in the caches. Call `prepare` first."""

    def __init__(
        self, workload: Workload, arms: Sequence[Arm], options: RunOptions, observer: Observer, control: Control
    ) -> None:
        self._workload = workload
        self._arms = arms
        self._options = options
        self._observer = observer
        self._control = control
        self._text = PieceText(workload.vocabulary)
        self._keys = PrefixKeys(workload.vocabulary)
        self._samples: dict[str, list[Tokens]] = {}
        self._starter: ColdStarter | None = None
        self._nonces: Nonces | None = None
        self.generator = LoadGenerator(self._text, timeout=options.timeout)
        self.experiment = Experiment("", "reset", actions_planned=bool(workload.actions))
        texts = any(piece.text is not None for request in workload.requests for piece in request.pieces)
        self._sends_ids = options.api is Api.COMPLETIONS and not options.words and not texts
        self._began = self._main_began = asyncio.get_running_loop().time()

    async def run(self, design: Design) -> None:
        """The pilot, then the blocks that follow from it, until one was stopped or the time is over."""
        if design.pilot:
            self._observer.piloted(self._arms, design.pilot, self.experiment.way)
        for block in design.pilot:
            if not await self.block(block, self._workload.of_slice(block.round), self.experiment.pilot):
                return
        self.experiment.plan = list(design.blocks(self.experiment.pilot))
        self._observer.planned(self._arms, self.experiment.plan, self.experiment.way)
        self._main_began = asyncio.get_running_loop().time()
        for block in self.experiment.plan:
            if self.out_of_time(block):
                return
            if not await self.block(block, self._workload.of_slice(block.round), self.experiment.blocks):
                return

    async def prepare(self) -> None:
        """Every arm serves; the way to a cold fleet is chosen; connections are open and code is warm."""
        model = await self._model()
        self.experiment.model = model
        known = list({engine.url: engine for arm in self._arms for engine in arm.engines}.values())
        starter = ColdStarter(self._control, known, model, self._workload.vocabulary)
        for arm in self._arms:
            await self._warm(arm, model)
            await self._learn_version(arm)
        if all(arm.engines and arm.resets for arm in self._arms) and await starter.can_reset():
            self._starter = starter
        else:
            await starter.learn_block_sizes()
            self._nonces = Nonces(nonce_length(starter.block_sizes))
            self.experiment.way = "nonce"

    async def _learn_version(self, arm: Arm) -> None:
        """Of the router, given or asked for; where it knows its engines, theirs too."""
        asked = (arm.version, "given") if arm.version is not None else await self._control.version(arm.url)
        version, source = asked or (None, None)
        self.experiment.versions[arm.name] = version
        engines = {told[0] for engine in arm.engines if (told := await self._control.version(engine.url))}
        self.experiment.version_sources[arm.name] = {"from": source, "engines": sorted(engines)}

    async def _model(self) -> str:
        longest = max(request.prompt_len + request.output_len for request in self._workload.requests)
        names: list[set[str]] = []
        for arm in self._arms:
            served = await self._served(arm)
            names.append(set(served))
            for name, limit in served.items():
                if limit is not None and longest > limit and self._options.model in (None, name):
                    raise ArmError(
                        f"the longest request needs {longest} tokens, model {name} on {arm.name} takes {limit}"
                    )
        if self._options.model is not None:
            return self._options.model
        common = set.intersection(*names)
        if len(common) != 1:
            raise ArmError(f"the arms serve {sorted(common) or 'no common model'}: name one with --model")
        return common.pop()

    async def _served(self, arm: Arm) -> dict[str, int | None]:
        """The arm's models; waits until it has one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_PATIENCE
        while True:
            last = "it lists no model"
            try:
                models = await self._control.models(arm.url)
                if models:
                    return models
            except Unreachable as error:
                last = str(error)
            if loop.time() > deadline:
                raise ArmError(f"arm {arm.name} does not serve: {last}")
            await asyncio.sleep(0.1)

    async def _warm(self, arm: Arm, model: str) -> None:
        """A few prompts of no workload through the arm: it works, its connections are open, its code is warm."""
        key = piece_key("warm-up", arm.name)
        requests = [Request(f"warm{i}", "", 0, "", 0, 0.02 * i, 2, (Piece(key ^ (i + 1), 64),)) for i in range(WARM_UP)]
        style = self._options.style(model)
        run = await self.generator.run(requests, arm.target, style, label="warm-up")
        bad = next((timing for timing in run.timings if not timing.ok), None)
        if bad is not None:
            raise ArmError(f"arm {arm.name} does not serve: {bad.error} {bad.detail}".rstrip())

    def out_of_time(self, block: Block) -> bool:
        """Whether `block` begins a round that would end after the time allowed. The first round always runs."""
        limit, now = self._options.duration, asyncio.get_running_loop().time()
        begins = not self.experiment.blocks or self.experiment.blocks[-1].block.round != block.round
        if limit is None or not begins or not block.round:
            return False
        if now - self._began + (now - self._main_began) / block.round <= limit:
            return False
        self.experiment.stopped = f"stopped by --duration after {block.round} rounds"
        return True

    async def block(self, block: Block, requests: Sequence[Request], into: list[BlockResult]) -> bool:
        """Runs one block of these requests and adds it to `into`; False if the run was stopped in it."""
        arm = self._arms[block.arm]
        proof = await self._cold(block)
        before = await self._control.workers(arm.admin) if arm.admin else None
        self._observer.block_started(block, requests)
        style = self._options.style(self.experiment.model, proof.lead)
        primed = await self._prime(block, arm, requests, style) if self._options.prime else []
        if self.experiment.interrupted:
            return False
        if self._options.outages is not None:
            self._options.outages.begin()
        ticking = await read_clocks(self._control, arm)
        run = await self.generator.run(
            requests,
            arm.target,
            style,
            label=f"b{block.index}",
            on_done=lambda timing: self._observer.request_done(block, timing),
        )
        if self._options.outages is not None:
            await self._options.outages.end()
        result = await self._result(block, arm, run, proof, before, primed)
        if not run.interrupted:
            result.clocks = (await read_clocks(self._control, arm)).since(ticking)
        into.append(result)
        self._observer.block_ended(result)
        if self._options.on_block is not None and into is self.experiment.blocks:
            self._options.on_block(result)
        self.experiment.interrupted = run.interrupted
        return not run.interrupted

    async def _prime(self, block: Block, arm: Arm, requests: Sequence[Request], style: BodyStyle) -> list[Measured]:
        """Sends the shared prefixes one after the other."""
        shared = prime_requests(requests)
        run = await self.generator.run(shared, arm.target, style, label=f"b{block.index}")
        self.experiment.interrupted = run.interrupted
        return [Measured(request, timing) for request, timing in zip(run.requests, run.timings, strict=True)]

    async def _cold(self, block: Block) -> ColdProof:
        arm = self._arms[block.arm]
        if self._starter is None:
            assert self._nonces is not None
            if arm.reset_url:
                await self._control.post(arm.reset_url)
            return ColdProof("nonce", lead=self._nonces.lead(block.index))
        proof = await self._starter.start(self._samples, arm.engines)
        for each in self._arms:
            if each.admin:
                await self._control.reset_router(each.admin)
        if arm.reset_url:
            await self._control.post(arm.reset_url)
        await asyncio.sleep(SETTLE)
        return proof

    async def _result(
        self,
        block: Block,
        arm: Arm,
        run: BlockRun,
        proof: ColdProof,
        before: frozenset[str] | None,
        primed: list[Measured],
    ) -> BlockResult:
        decisions, after = {}, None
        if arm.admin and not run.interrupted:
            decisions = await self._control.decisions(arm.admin, 2 * len(run.requests) + 100)
            after = await self._control.workers(arm.admin)
        measured = Measurements.block(run.requests, run.timings, decisions)
        keys = PrefixKeys(self._workload.vocabulary, proof.lead) if proof.lead else self._keys
        result = BlockResult(block, arm, BlockFacts(measured, run.watch, before, after), proof, run.start, prime=primed)
        result.interrupted = run.interrupted
        if not run.interrupted:
            everything = _with_prime(run, primed)
            if self._sends_ids:
                result.unexplained = unexplained(everything, keys)
                self._samples = samples_by_worker(run, self._text)
            self._check_cold(result, everything)
        return result

    def _check_cold(self, result: BlockResult, run: BlockRun) -> None:
        if result.unexplained:
            result.proof.reasons.append(
                f"{result.unexplained} requests report more cached tokens than this block's own prompts explain"
            )
        if result.proof.way == "nonce" and not first_is_cold(run):
            result.proof.reasons.append("the first request of the block was not cold in spite of its nonce")


def _with_prime(run: BlockRun, primed: Sequence[Measured]) -> BlockRun:
    """All that the caches saw since they were cold."""
    if not primed:
        return run
    requests = [*(m.request for m in primed), *run.requests]
    return BlockRun(requests, [*(m.timing for m in primed), *run.timings], run.start, run.watch)
