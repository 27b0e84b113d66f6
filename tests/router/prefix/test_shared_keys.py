"""The names of blocks in a shared store are part of a contract between processes and releases."""

from __future__ import annotations

import numpy as np

from router.prefix.shared_keys import names, namespace, shared_keys

TOKENS = np.arange(32, dtype=np.uint32)


def test_the_names_of_a_prompt_are_the_same_in_every_process_and_release() -> None:
    assert names(namespace("org/model", 16), shared_keys(TOKENS, 16).tolist()) == [
        "kvctl:kv:org/model:16:5b5a0389987949ef",
        "kvctl:kv:org/model:16:d5191828b79a6c66",
    ]


def test_adapter_salt_and_block_size_each_change_every_key() -> None:
    plain = set(shared_keys(TOKENS, 8).tolist())
    others = [shared_keys(TOKENS, 8, "lora"), shared_keys(TOKENS, 8, None, "salt"), shared_keys(TOKENS, 4)]
    assert all(not plain & set(keys.tolist()) for keys in others)
