"""Model folders for a real engine on a CPU: random weights, a real tokenizer, a real chat template.

Writes `config.json`, `tokenizer.json`, `tokenizer_config.json` and `generation_config.json` and nothing else; the
engine makes the weights (`--load-format dummy`). Training the tokenizer costs a few seconds; a folder that is already
there for the same shape is left alone.

    python -m tests.real.models DIR        writes DIR/tiny, DIR/tiny-bos and DIR/middle
"""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

FORMAT = 1
"""Part of a folder's fingerprint: raise it when what is written changes."""

START, END, PAD, BOS = "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>"
SPECIAL = [PAD, START, END, BOS]

CHATML = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>' + (call.function | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """One model.

    `bos`: whether the tokenizer itself puts a BOS before plain prompts, as Llama's does. `ascii`: no token is a piece
    of a UTF-8 sequence. A random model may repeat such a piece for a whole answer, which then has no text at all and
    counts as failed in a measurement.
    """

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int = 2048
    positions: int = 8192
    bos: bool = False
    ascii: bool = False


TINY = Shape("tiny", hidden=128, intermediate=256, layers=2, heads=4, kv_heads=2, head_dim=32)
TINY_BOS = Shape("tiny-bos", hidden=128, intermediate=256, layers=2, heads=4, kv_heads=2, head_dim=32, bos=True)
MIDDLE = Shape(
    "middle", hidden=384, intermediate=1024, layers=6, heads=6, kv_heads=2, head_dim=64, positions=16384, ascii=True
)
SHAPES = (TINY, TINY_BOS, MIDDLE)


def build(shape: Shape, root: Path) -> Path:
    """The folder of a shape below `root`, written if it is absent or of another shape."""
    folder = root / shape.name
    seal = folder / "shape.sha256"
    fingerprint = hashlib.sha256(json.dumps([FORMAT, asdict(shape), CHATML, sys.version_info[:3]]).encode()).hexdigest()
    if seal.is_file() and seal.read_text() == fingerprint:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train(shape)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL}
    _write(folder / "config.json", _config(shape, ids))
    _write(folder / "tokenizer_config.json", _tokenizer_config(shape))
    _write(
        folder / "generation_config.json",
        {"bos_token_id": ids[BOS], "eos_token_id": ids[END], "pad_token_id": ids[PAD], "do_sample": False},
    )
    seal.write_text(fingerprint)
    return folder


def train(shape: Shape) -> Tokenizer:
    """A byte-level BPE of `shape.vocab` entries, trained on the standard library's own sources."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocab,
        special_tokens=SPECIAL,
        initial_alphabet=[] if shape.ascii else pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in sorted(stdlib.glob("*.py")))
    lines = (line for text in texts for line in text.splitlines(keepends=True))
    tokenizer.train_from_iterator((line for line in lines if line.isascii() or not shape.ascii), trainer)
    if tokenizer.get_vocab_size() != shape.vocab:
        raise RuntimeError(f"the tokenizer has {tokenizer.get_vocab_size()} entries, not {shape.vocab}")
    if shape.bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
        )
    return tokenizer


def _config(shape: Shape, ids: dict[str, int]) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.positions,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": ids[BOS],
        "eos_token_id": ids[END],
        "pad_token_id": ids[PAD],
    }


def _tokenizer_config(shape: Shape) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": PAD,
        "add_bos_token": shape.bos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.positions,
        "chat_template": ("{{- bos_token }}" if shape.bos else "") + CHATML,
    }


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in SHAPES:
        print(build(each, Path(sys.argv[1])))
