"""Makes `bench/sim/tokenizer`: a byte-level BPE of 2,048 entries, trained on the Python standard library's
own sources.

Run once and commit the result: `python -m bench.sim.train_tokenizer [FOLDER]`. Another Python version gives
another vocabulary; nothing depends on which. Reads the standard library, writes two files, takes some
seconds.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2048
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = """\
{%- set ns = namespace(system='') %}
{%- if messages and messages[0].role == 'system' %}{% set ns.system = messages[0].content or '' %}{% endif %}
{%- if ns.system or tools %}
    {{- '<|im_start|>system\\n' + ns.system }}
    {%- if tools %}
        {{- '\\n\\nTools, one a line:\\n' if ns.system else 'Tools, one a line:\\n' }}
        {%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}
        {{- 'Call one with <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content %}{{ message.content }}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set function = {'name': call.function.name, 'arguments': call.function.arguments} %}
            {{- '<tool_call>' + (function | tojson) + '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def sources() -> list[str]:
    """The standard library's modules, without tests and third-party packages, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skip = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "__pycache__"}
    return [str(path) for path in sorted(root.rglob("*.py")) if not skip & set(path.relative_to(root).parts)]


def train(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(sources(), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 131072,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    train(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "tokenizer")
