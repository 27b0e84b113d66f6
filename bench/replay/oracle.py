"""oracle: decides with knowledge that no router has, as a figure to hold others against.

It sees every engine as it is at that moment: what is cached there and what the requests placed there will leave, which
prompt tokens are still to be computed, how far each answer has come and how long it will be; and it knows the timing.

    ttft      = rest of the running step + steps for (tokens ahead + uncached tokens) with the decoding beside them
    decoding  = its own answer at the decode step it would find, and the growth of that step by its blocks for each
                answer there as long as both last
    cost      = ttft + prefill of the uncached tokens + 0.02 * decoding               milliseconds

Prefill counts once more because whoever comes next waits for it. With 0.02 the mean time to first token on the Mooncake
conversation trace is as low as with 0, and the time between tokens lower. Greedy: it knows nothing of requests to come,
so it is no proven optimum. Cost: about 20 us a worker and decision.
"""

from __future__ import annotations

import numpy as np

from bench.replay.engines import Engines, VirtualEngine
from bench.sim import step_time
from bench.sim.nouns import SYMBOLS
from bench.workload.tokens import Tokens
from router.core import RoutingCore
from router.model import Decision, Reason, RouteRequest, Term
from router.prefix.hashing import Keys, block_keys, root_key
from router.reuse import reusable_tokens

MODE = "oracle"
_DECODING = 0.02


class Oracle:
    """A `Chooser`. `outputs`: tokens of each request's answer, by id. Engines have one seed and one block size."""

    def __init__(self, engines: Engines, outputs: dict[str, int]) -> None:
        self._engines = engines
        self._outputs = outputs
        self._config = engines.members[0].engine.config

    def decide(
        self, core: RoutingCore, request: RouteRequest, symbols: Tokens, lora: str | None, now: float
    ) -> Decision:
        """Books nothing. Raises nothing: every worker of a replay is up."""
        self._engines.catch_up(now)
        block = self._config.block_size
        keys = block_keys(symbols, SYMBOLS, root_key(self._config.seed, block, lora, None))
        candidates = core.candidates(request, now)
        ((_, routed),) = request.keys.items()
        live = core.loads.active.shared_depth(routed)[candidates.slots]
        output = self._outputs[request.id]
        found = [
            self._costs(member, keys, int(depth), request.prompt_tokens, output, now)
            for member, depth in zip(self._engines.members, live.tolist(), strict=True)
        ]
        held, ttft, prefill, decoding = (np.array(column) for column in zip(*found, strict=True))
        candidates.device = held.astype(np.int64)
        decoding *= _DECODING
        cost = ttft + prefill + decoding
        winner = int(cost.argmin())
        terms = Term("ttft", "ms", ttft), Term("prefill", "ms", prefill), Term("decoding", "ms", decoding)
        decision = Decision(
            MODE, winner, Reason.LOWEST_COST, terms, cost,
            candidates, request_id=request.id, model=request.model, at=now, prompt_tokens=request.prompt_tokens,
            block_size=block,
        )  # fmt: skip
        decision.predicted_cached_tokens = reusable_tokens(int(held[winner]), request.prompt_tokens, block)
        return decision

    @staticmethod
    def _costs(
        member: VirtualEngine, keys: Keys, live: int, prompt: int, output: int, now: float
    ) -> tuple[int, float, float, float]:
        """Blocks that will be found, ms until the first token, of its own prefill, of its answer and others' delay."""
        engine, config = member.engine, member.engine.config
        form, scale = engine.timing.form, engine.timing.scale
        size, batch = config.block_size, config.max_num_batched_tokens
        seen = engine.outlook(keys)
        held = max(seen.cached, live)
        uncached = max(prompt - held * size, 1)
        total = config.num_blocks * size
        seqs = len(seen.to_go)
        decode = step_time.decode_ms(form, seqs, seen.context, seen.used * size, total)
        whole, rest = divmod(seen.prefill + uncached, max(batch - seqs, 1))
        steps = whole + (rest > 0)
        computing = whole * step_time.prefill_ms(form, max(batch - seqs, 1)) + step_time.prefill_ms(form, rest)
        ttft = (computing + steps * decode) * scale + (0.0 if member.idle else (member.free - now) * 1000.0)
        mine = -(-(prompt + output) // size) - seen.cached
        after = step_time.decode_ms(form, seqs + 1, seen.context + prompt, (seen.used + mine) * size, total)
        shared = float(np.minimum(seen.to_go, output).sum())
        own = step_time.prefill_ms(form, uncached) * scale
        return held, ttft, own, (max(after - decode, 0.0) * shared + after * output) * scale
