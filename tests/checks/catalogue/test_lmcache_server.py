"""KV303 where LMCache is a server of its own: by the lines of its client in the engine."""

from __future__ import annotations

from checks.model import Reason, Status
from tests.checks.build import NOW, only, said, snapshot, statuses, worker

CONNECTOR = ("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}')
MP_CONNECTOR = ("--kv-transfer-config", '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}')
SERVER_GONE = "LMCache server is unhealthy — entering degraded mode"
SERVER_BACK = "LMCache server is healthy again — resuming normal operation"


class TestServerHealth:
    """KV303 where LMCache is a server of its own: by the lines of its client in the engine."""

    def status(self, log: str, version: str = "0.5.6") -> Status:
        return only("KV303", snapshot(worker(args=MP_CONNECTOR, version_line=version, log=log))).status

    def test_a_server_that_does_not_answer_fails(self) -> None:
        assert self.status(said(SERVER_GONE, "WARNING")) is Status.FAIL

    def test_a_server_that_answers_again_within_the_window_warns(self) -> None:
        log = said(SERVER_GONE, "WARNING", at=NOW - 300) + said(SERVER_BACK, "WARNING", at=NOW - 240)
        assert self.status(log) is Status.WARN

    def test_a_server_that_answers_again_since_long_passes(self) -> None:
        log = said(SERVER_GONE, "WARNING", at=NOW - 1500) + said(SERVER_BACK, "WARNING", at=NOW - 1440)
        assert self.status(log) is Status.PASS

    def test_a_complete_log_without_a_word_of_it_passes(self) -> None:
        assert self.status("") is Status.PASS

    def test_a_log_whose_beginning_is_gone_skips(self) -> None:
        one = worker(args=MP_CONNECTOR, version_line="0.5.6", head_complete=False)
        assert only("KV303", snapshot(one)).reason is Reason.LOG_TRUNCATED

    def test_workers_of_both_kinds_are_judged_each_in_its_way(self) -> None:
        mixed = snapshot(
            worker("w-0", args=MP_CONNECTOR, version_line="0.5.6", log=said(SERVER_GONE, "WARNING")),
            worker("w-1", args=CONNECTOR, version_line="0.5.6"),
        )
        assert statuses("KV303", mixed) == {"w-0": Status.FAIL, "w-1": Status.PASS}
