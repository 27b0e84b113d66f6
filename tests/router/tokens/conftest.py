"""Tiny tokenizers of the kinds that engines use, trained once a session on the standard library's own sources, and a
fake of an engine's `/tokenize`."""

from __future__ import annotations

import asyncio
import json
import textwrap as corpus_module
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from router.tokens.engine_http import EngineHttp

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    "{{ m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def _corpus() -> list[str]:
    folder = Path(corpus_module.__file__).parent
    return [(folder / name).read_text("utf-8") for name in ("textwrap.py", "string.py", "shlex.py")]


def _byte_level(special: list[str], split: str | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    steps: list[Any] = [] if split is None else [pre_tokenizers.Split(Regex(split), "isolated")]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def _chatml() -> Tokenizer:
    return _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def _llama3() -> Tokenizer:
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    split = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = _byte_level(special, split)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    return tokenizer


def _nfc_qwen() -> Tokenizer:
    tokenizer = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False, special=False)])
    return tokenizer


def _sentencepiece(scheme: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)])
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special[:5], show_progress=False)
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def _legacy_llama() -> Tokenizer:
    tokenizer = _sentencepiece("never")
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def _bert() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        _corpus(), trainers.WordPieceTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def _greedy_specials() -> Tokenizer:
    """Special tokens that begin with one another, and one that takes the spaces around it."""
    tokenizer = _byte_level(["<|a|>", "<|a|><|b|>", "<|b|>", "<|c|>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<|c|>!", normalized=False, special=False)])
    return tokenizer


def _no_specials() -> Tokenizer:
    return _byte_level([])


_KINDS: dict[str, Callable[[], Tokenizer]] = {
    "chatml": _chatml,
    "llama3": _llama3,
    "qwen_nfc": _nfc_qwen,
    "metaspace_first": lambda: _sentencepiece("first"),
    "metaspace_always": lambda: _sentencepiece("always"),
    "legacy_llama": _legacy_llama,
    "bert": _bert,
    "greedy_specials": _greedy_specials,
    "no_specials": _no_specials,
}


@pytest.fixture(scope="session")
def tokenizers_by_kind() -> dict[str, str]:
    """The tokenizer.json of each kind."""
    return {name: make().to_str() for name, make in _KINDS.items()}


@pytest.fixture(scope="session")
def model_folder(tokenizers_by_kind: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a ChatML tokenizer and template."""
    return write_model(tmp_path_factory.mktemp("chatml"), tokenizers_by_kind["chatml"], CHATML)


@pytest.fixture(scope="session")
def llama_folder(tokenizers_by_kind: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder whose post-processor and template both write a BOS."""
    return write_model(
        tmp_path_factory.mktemp("llama3"), tokenizers_by_kind["llama3"], LLAMA3, bos_token="<|begin_of_text|>"
    )


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a model's folder: tokenizer.json text, template, further keys of tokenizer_config.json."""

    def make(tokenizer: str, template: Any = None, **config: Any) -> Path:
        return write_model(tmp_path_factory.mktemp("model"), tokenizer, template, **config)

    return make


def write_model(folder: Path, tokenizer: str, template: Any, **config: Any) -> Path:
    (folder / "tokenizer.json").write_text(tokenizer, "utf-8")
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


@pytest.fixture(scope="session")
def templates() -> dict[str, str]:
    return {"chatml": CHATML, "llama3": LLAMA3, "plain": PLAIN}


class FakeEngine:
    """An engine's `/tokenize` on a loopback port: `answer` gets the question, returns a status and a JSON value, or
    None to close the connection without a word. `delay` in seconds. Keeps what it was asked."""

    def __init__(self, answer: Callable[[dict[str, Any]], tuple[int, Any] | None]) -> None:
        self.answer = answer
        self.delay = 0.0
        self.chunked = False
        self.close_after = False
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.connections = 0
        self.running = 0
        self.most_running = 0
        self.url = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> FakeEngine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                length = next(int(line.split(":")[1]) for line in head if line.lower().startswith("content-length"))
                self.paths.append(head[0].split()[1])
                self.asked.append(json.loads(await reader.readexactly(length)))
                self.running += 1
                self.most_running = max(self.most_running, self.running)
                await asyncio.sleep(self.delay)
                self.running -= 1
                found = self.answer(self.asked[-1])
                if found is None:
                    break
                writer.write(self._answer(*found))
                await writer.drain()
                if self.close_after:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, status: int, value: Any) -> bytes:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        if not self.chunked:
            return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)
        half = len(body) // 2
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
        return b"HTTP/1.1 %d X\r\ntransfer-encoding: chunked\r\n\r\n%s0\r\n\r\n" % (status, chunks)


@pytest.fixture
async def start_engine() -> AsyncIterator[Callable[..., Awaitable[FakeEngine]]]:
    engines: list[FakeEngine] = []

    async def start(answer: Callable[[dict[str, Any]], tuple[int, Any] | None], port: int = 0) -> FakeEngine:
        engines.append(await FakeEngine(answer).start(port))
        return engines[-1]

    yield start
    for engine in engines:
        await engine.stop()


@pytest.fixture
async def engine_http() -> AsyncIterator[EngineHttp]:
    http = EngineHttp()
    yield http
    http.close()
