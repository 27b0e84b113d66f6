"""One real LMCache worker, run by the interpreter of the real-engine environment: the package's own worker, local CPU
backend, batched sender, full-sync sender and chunk hashes; only the engine around them is missing.

Takes JSON lines on stdin and answers each with one on stdout:
    {"put": [token ids]}      the chunks of a prompt come into the local CPU backend -> {"keys": [...]}
    {"remove": [token ids]}   they leave it
    {"lose": n}               n sequence numbers are never sent
    {"frozen": null}          how often the engine was frozen for a full sync -> {"frozen": n}
    {"close": null}           deregisters and ends
"""

import json
import os
import sys
import time
from types import SimpleNamespace

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1 import token_database
from lmcache.v1.cache_controller.worker import LMCacheWorker
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend


class Engine:
    """As much of a cache engine as a full sync asks of one."""

    def __init__(self) -> None:
        self.freezes = 0
        self.storage_manager = SimpleNamespace(local_cpu_backend=None)

    def freeze(self, enabled: bool) -> None:
        self.freezes += enabled


def main() -> None:
    said = json.loads(sys.argv[1])
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=said["chunk_size"],
        local_cpu=True,
        max_local_cpu_size=0.05,
        enable_controller=True,
        lmcache_instance_id=said["instance"],
        controller_pull_url=said["pull"],
        controller_reply_url=said["reply"],
        lmcache_worker_ports=[said["port"]],
        lmcache_worker_heartbeat_delay_time=0,
        lmcache_worker_heartbeat_time=1,
        pre_caching_hash_algorithm=said["algorithm"],
        extra_config={"full_sync_startup_delay_s": 0.1, "full_sync_status_poll_interval_s": 0.2},
    )
    metadata = LMCacheMetadata(
        model_name="tiny",
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.bfloat16,
        kv_shape=(1, 2, said["chunk_size"], 1, 8),
        chunk_size=said["chunk_size"],
    )
    engine = Engine()
    worker = LMCacheWorker(config, metadata, engine)
    backend = LocalCPUBackend(config, metadata, dst_device="cpu", lmcache_worker=worker)
    engine.storage_manager.local_cpu_backend = backend
    chunks = token_database.ChunkedTokenDatabase(config, metadata)

    def keys_of(ids: list[int]) -> list[CacheEngineKey]:
        return [key for _start, _end, key in chunks.process_tokens(ids)]

    answer({"none_hash": token_database.NONE_HASH})
    for line in sys.stdin:
        [(command, value)] = json.loads(line).items()
        found: dict[str, object] = {}
        if command == "put":
            for key in keys_of(value):
                shapes, dtypes = metadata.get_shapes(), metadata.get_dtypes()
                backend.submit_put_task(key, backend.allocate(shapes, dtypes, MemoryFormat.KV_2LTD))
            found["keys"] = [key.chunk_hash for key in keys_of(value)]
        elif command == "remove":
            for key in keys_of(value):
                backend.remove(key)
        elif command == "lose":
            backend.batched_msg_sender.sequence_number += value
        elif command == "frozen":
            found["frozen"] = engine.freezes
        else:
            backend.batched_msg_sender.close()
            worker.deregister()
            time.sleep(0.3)  # LMCacheWorker.close would stop its loop before the message is sent
            answer(found)
            os._exit(0)
        answer(found)


def answer(found: dict[str, object]) -> None:
    print("\n" + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
