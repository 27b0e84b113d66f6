# ruff: noqa: E501
"""Bytes that the classes of LMCache 0.5.6 encode, and chunk keys that its token database gives; recorded, not computed.

Prompt of the keys: 600 ids, `(7*i*i + 13*i) % 151936`; PYTHONHASHSEED=0 unless said otherwise; the last chunk of 256 is
partial (88 ids).
"""

from __future__ import annotations

import numpy as np

# fmt: off
SENT = {
    "register": b'\x86\xa4type\xabRegisterMsg\xabinstance_id\xa6vllm-a\xa9worker_id\x00\xa2ip\xa810.0.0.7\xa4port\xcd\x1fA\xadpeer_init_url\xc0',
    "register_p2p": b'\x86\xa4type\xabRegisterMsg\xabinstance_id\xa6vllm-a\xa9worker_id\x00\xa2ip\xa810.0.0.7\xa4port\xcd\x1fA\xadpeer_init_url\xad10.0.0.7:8200',
    "heartbeat": b'\x86\xa4type\xacHeartbeatMsg\xabinstance_id\xa6vllm-a\xa9worker_id\x00\xa2ip\xa810.0.0.7\xa4port\xcd\x1fA\xadpeer_init_url\xc0',
    "deregister": b'\x85\xa4type\xadDeRegisterMsg\xabinstance_id\xa6vllm-a\xa9worker_id\x00\xa2ip\xa810.0.0.7\xa4port\xcd\x1fA',
    "ops": b'\x85\xa4type\xb5BatchedKVOperationMsg\xabinstance_id\xa6vllm-a\xa9worker_id\x00\xa8location\xafLocalCPUBackend\xaaoperations\x92\x83\xa7op_type\xa5admit\xa3key\xd3\xa9\xff\xa5\xb4y\xca\xbd\xc0\xa7seq_num\x00\x83\xa7op_type\xa5evict\xa3key\xcf\x80\x00\x00\x00\x00\x00\x00\x05\xa7seq_num\x01',
    "sync_start": b'\x87\xa4type\xb0FullSyncStartMsg\xabinstance_id\xa6vllm-a\xa9worker_id\x00\xa8location\xafLocalCPUBackend\xa7sync_id\xaavllm-a_0_1\xaatotal_keys\x03\xabbatch_count\x02',
    "sync_batch": b'\x87\xa4type\xb0FullSyncBatchMsg\xabinstance_id\xa6vllm-a\xa9worker_id\x00\xa8location\xafLocalCPUBackend\xa7sync_id\xaavllm-a_0_1\xa8batch_id\x01\xa4keys\x92\x01\xfe',
    "sync_end": b'\x86\xa4type\xaeFullSyncEndMsg\xabinstance_id\xa6vllm-a\xa9worker_id\x00\xa8location\xafLocalCPUBackend\xa7sync_id\xaavllm-a_0_1\xb1actual_total_keys\x03',
    "sync_status": b'\x84\xa4type\xb1FullSyncStatusMsg\xabinstance_id\xa6vllm-a\xa9worker_id\x00\xa7sync_id\xaavllm-a_0_1',
    "lookup": b'\x84\xa4type\xb3BatchedP2PLookupMsg\xa6hashes\x92\x05\x06\xabinstance_id\xa6vllm-a\xa9worker_id\x00',
    "orch_lookup": b'\x83\xa4type\xa9LookupMsg\xa8event_id\xa1e\xa6tokens\x92\x01\x02',
    "old_admit": b'\x86\xa4type\xaaKVAdmitMsg\xabinstance_id\xa6vllm-a\xa9worker_id\x00\xa3key\x05\xa8location\xafLocalCPUBackend\xa7seq_num\x00',
}
"""By a worker, instance vllm-a, worker 0; the last two are none that a controller is asked."""

ANSWERS = {
    "register_ret": b'\x82\xa4type\xaeRegisterRetMsg\xacextra_config\x81\xadheartbeat_url\xae127.0.0.1:9002',
    "heartbeat_ret": b'\x82\xa4type\xafHeartbeatRetMsg\xa8commands\x90',
    "heartbeat_ret_sync": b'\x82\xa4type\xafHeartbeatRetMsg\xa8commands\x91\x83\xaccommand_type\xa9full_sync\xa6reason\xacsequence_gap\xa4args\xc0',
    "sync_start_ret": b'\x84\xa4type\xb3FullSyncStartRetMsg\xa7sync_id\xa1s\xa8accepted\xc3\xa9error_msg\xc0',
    "sync_status_ret": b'\x86\xa4type\xb4FullSyncStatusRetMsg\xa7sync_id\xa1s\xabis_complete\xc2\xafglobal_progress\xcb?\xe0\x00\x00\x00\x00\x00\x00\xafcan_exit_freeze\xc2\xafmissing_batches\x91\x01',
    "lookup_ret": b'\x82\xa4type\xb6BatchedP2PLookupRetMsg\xablayout_info\x91\x94\xa6vllm-b\xafLocalCPUBackend\x02\xad10.0.0.8:8200',
    "error": b'\x82\xa4type\xa8ErrorMsg\xa5error\xa2no',
}
# fmt: on

IDS = np.array([(7 * i * i + 13 * i) % 151936 for i in range(600)], np.uint32)

BUILTIN_NONE_HASH = 5313149338359954478
BUILTIN_256 = [1114795127310494361, -164009686414772595, -4298034447097223134]
BUILTIN_16 = [4155489860867997052, 2067112225132812941, -3740632353444199200, -1217698320616320433]
"""The first four."""
CBOR_NONE_HASH = 5625442194607170974
CBOR_256 = [15137937037719000043, 2860296514494330772, 18235204287294995762]
CBOR_16 = [15291851864576283002, 7999641948236578573, 10713767440952051527, 5962632802046371226]
CBOR_UNSEEDED_NONE_HASH = 11230124004819357437
"""PYTHONHASHSEED not set, vLLM 0.32."""
CBOR_UNSEEDED_256 = [11961419249545984798, 18328244584337932353, 12018191797748621136]
