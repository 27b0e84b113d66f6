"""Where conversations go on two engines that were idle and empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .engines import Engine
from .router_process import Router
from .traffic import Corpus, Thread

if TYPE_CHECKING:
    from openai import OpenAI

FLEET = "pair"


def test_a_growing_conversation_stays_on_one_engine(router: Router, engines: Sequence[Engine], client: OpenAI) -> None:
    corpus = Corpus(seed=11)
    thread = Thread("chat", corpus, engines[0].model, opening=corpus.slice(400, 400))
    turns = [thread.turn(client, router) for _ in range(12)]
    assert len({turn.worker for turn in turns}) == 1


def test_each_turn_reuses_the_blocks_of_the_turn_before(
    router: Router, engines: Sequence[Engine], client: OpenAI
) -> None:
    corpus = Corpus(seed=12)
    thread = Thread("chat-stream", corpus, engines[0].model, opening=corpus.slice(600, 600))
    turns = [thread.turn(client, router) for _ in range(6)]
    block = router.decision(turns[0].decision)["block_size"]
    least = [turn.prompt_tokens // block * block for turn in turns[:-1]]
    assert all(turn.told >= floor for turn, floor in zip(turns[1:], least, strict=True)), turns


def test_interleaved_conversations_use_both_engines(router: Router, engines: Sequence[Engine], client: OpenAI) -> None:
    """Nothing is shared between them, so each settles where there was least to do, and ties are broken at random."""
    corpus = Corpus(seed=13)
    threads = [Thread("chat", corpus, engines[0].model, opening=corpus.slice(300, 500)) for _ in range(12)]
    homes = [{thread.turn(client, router).worker for _ in range(3)} for thread in threads]
    assert all(len(home) == 1 for home in homes), homes
    assert len(set.union(*homes)) == 2, homes
