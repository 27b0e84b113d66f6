"""The router's own token ids against the engine's: the self-check, and what takes over when they differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import RunningRouter, running_router

TOKENIZER = Path(__file__).parents[2] / "bench/sim/tokenizer"
CHAT: dict[str, Any] = {
    "model": "sim",
    "messages": [
        {"role": "system", "content": "You are brief. " * 20},
        {"role": "user", "content": "Zürich, 日本?\n1 + 1"},
    ],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}],
    "max_tokens": 2,
}


def chat(router: RunningRouter) -> dict[str, Any]:
    """The decision of a chat with a system message and a tool; its token count must be the engine's own."""
    answer = router.http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 200, answer.text
    decision = router.decision(answer)
    assert decision["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
    return decision


def tokenizer_state(router: RunningRouter) -> dict[str, Any]:
    found: dict[str, Any] = router.get("/workers")["workers"][0]["tokenizer"]["sim"]
    return found


def test_a_right_tokenizer_passes_the_self_check_and_is_used(worker_options: list[str]) -> None:
    with running_router("--tokenizer", str(TOKENIZER), *worker_options) as router:
        router.wait("the self-check ran", lambda: tokenizer_state(router)["self_check"])
        assert tokenizer_state(router)["source"] == "local"
        assert chat(router)["degraded"] == []


def test_another_template_is_named_and_the_engines_tokenize_takes_over(
    worker_options: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TOKENIZER, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for message in messages %}{{ message.content }}|{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for beside in folder.glob("chat_template*"):
        beside.unlink()
    with running_router("--tokenizer", str(folder), *worker_options) as router:
        router.wait("the difference is found", lambda: tokenizer_state(router)["distrusted"])
        assert tokenizer_state(router)["distrusted"] == "template"
        assert "template" in router.log()
        assert chat(router)["degraded"] == []


def test_another_vocabulary_is_named_and_the_engines_tokenize_takes_over(
    worker_options: list[str], tmp_path: Path
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    other = tokenizers.Tokenizer(tokenizers.models.BPE())
    other.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    other.train_from_iterator(
        ["lorem ipsum dolor sit amet"] * 10,
        tokenizers.trainers.BpeTrainer(initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()),
    )
    other.save(str(tmp_path / "tokenizer.json"))
    with running_router("--tokenizer", str(tmp_path), *worker_options) as router:
        router.wait("the difference is found", lambda: tokenizer_state(router)["distrusted"])
        assert tokenizer_state(router)["distrusted"] == "vocabulary"
        assert chat(router)["degraded"] == []


def test_without_a_tokenizer_the_engine_is_asked(kv_router: RunningRouter) -> None:
    assert tokenizer_state(kv_router)["source"] == "engine"
    assert chat(kv_router)["degraded"] == []


def test_embedded_engines_are_ready_with_the_router() -> None:
    with running_router("--sim", "4", "--sim-speedup", "20") as router:
        assert router.ready["workers"] == 4
        assert {worker["kv_events"] for worker in router.get("/workers")["workers"]} == {"live"}
        assert router.ask().status_code == 200
