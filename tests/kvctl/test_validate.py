"""`kvctl validate` as a user runs it: help, lists, bad usage, no cluster, a recording."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from checks.catalogue.registry import ALL
from tests.kvctl.conftest import Run


def one_line(text: str) -> str:
    assert text.startswith("kvctl: "), text
    assert text.count("\n") == 1, text
    return text


def test_help_has_panels_examples_and_environment_twins(kvctl: Run) -> None:
    done = kvctl("--help")
    assert done.returncode == 0
    for words in ("Cluster", "Without a cluster", "What is read", "Which checks", "Report and exit code"):
        assert words in done.stdout
    assert "kvctl validate --namespace prod" in done.stdout
    assert "KVCTL_FAIL_ON" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['kvctl', 'validate', '--help']\n"
        "from kvctl.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'kubernetes', 'numpy', 'pandas', 'prometheus_api_client', 'yaml', 'httpx', 'checks'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("HEAVY []")


def test_list_checks_names_every_check(kvctl: Run) -> None:
    done = kvctl("--list-checks")
    assert done.returncode == 0
    assert [one.id for one in ALL if f"{one.id} " not in done.stdout] == []


def test_list_checks_as_json_can_be_narrowed(kvctl: Run) -> None:
    done = kvctl("--list-checks", "-o", "json", "--checks", "KV00*", "--skip", "KV001")
    listed = [one["id"] for one in json.loads(done.stdout)]
    assert listed == [one.id for one in ALL if one.id.startswith("KV00") and one.id != "KV001"]
    assert listed


@pytest.mark.parametrize("id", ["KV001", "kv001"])
def test_explain_says_what_a_check_reads_its_rule_and_its_page(kvctl: Run, id: str) -> None:
    done = kvctl("--explain", id)
    assert done.returncode == 0
    for words in ("KV001 API access", "What it reads", "SelfSubjectAccessReview", "kind: Role", "docs/checks/KV001.md"):
        assert words in done.stdout


def test_explain_as_json(kvctl: Run) -> None:
    data = json.loads(kvctl("--explain", "KV001", "-o", "json").stdout)
    assert data["id"] == "KV001"
    assert data["rule"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--explain", "KV000"), "KV000"),
        (("--checks", "KV0*,KV999", "--log", "worker=x"), "KV999"),
        (("--suppress", "KV999", "--log", "worker=x"), "KV999"),
        (("--suppress-file", "nowhere", "--log", "worker=x"), "nowhere"),
        (("--log", "engine=x"), "ROLE=FILE"),
        (("--logs", "middle"), "middle"),
        (("--window", "soon"), "--window"),
        (("--log-limit-bytes", "much"), "--log-limit-bytes"),
        (("--router", "10.0.0.1:8000"), "--router"),
        (("--worker", "http://10.0.0.1", "-n", "prod"), "--namespace"),
        (("-n", "prod", "-A"), "--all-namespaces"),
        (("--replay", "x", "--record", "y"), "--record"),
        (("--record", "y", "--wait", "1m"), "--wait"),
        (("--replay", "nowhere"), "nowhere"),
        (("--replay", "nowhere", "--worker", "http://10.0.0.1"), "--worker"),
        (("-o", "html"), "html"),
        (("--list-checks", "-o", "sarif"), "sarif"),
    ],
)
def test_bad_usage_is_one_line_with_exit_code_2(
    kvctl: Run, arguments: tuple[str, ...], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").touch()
    done = kvctl(*arguments)
    assert done.returncode == 2, done.stderr
    assert named in one_line(done.stderr)
    assert done.stdout == ""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    data: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "prod"}}],
        "clusters": [{"name": "test", "cluster": {"server": server}}],
        "users": [{"name": "test", "user": {"token": "t"}}],
    }
    path.write_text(yaml.safe_dump(data))
    return path


def test_without_any_configuration_it_says_so_in_one_line_and_exits_3(kvctl: Run, tmp_path: Path) -> None:
    done = kvctl(HOME=str(tmp_path), KUBERNETES_SERVICE_HOST="")
    assert done.returncode == 3
    assert "--kubeconfig" in one_line(done.stderr)
    assert "--router" in done.stderr
    assert done.stdout == ""


def test_a_server_that_does_not_answer_is_named_in_one_line_with_exit_code_3(kvctl: Run, tmp_path: Path) -> None:
    port = free_port()
    done = kvctl(KUBECONFIG=str(kubeconfig(tmp_path, f"http://127.0.0.1:{port}")))
    assert done.returncode == 3
    assert str(port) in one_line(done.stderr)
    assert "--kubeconfig" in done.stderr
    assert done.stdout == ""


def test_a_context_that_does_not_exist_is_named_with_exit_code_3(kvctl: Run, tmp_path: Path) -> None:
    done = kvctl("--context", "elsewhere", KUBECONFIG=str(kubeconfig(tmp_path, "http://127.0.0.1:1")))
    assert done.returncode == 3
    assert "elsewhere" in one_line(done.stderr)


DEGRADED = """\
(EngineCore pid=7) [2026-08-01 10:00:02,000] LMCache INFO: LMCache initialized for role KVConnectorRole.WORKER with \
version 0.3.14, vllm version 0.11.1, lmcache cache_engine metadata: None (vllm_v1_adapter.py:485:lmcache.vllm)
(EngineCore pid=7) [2026-08-01 10:00:01,000] LMCache ERROR: Failed to initialize LMCacheManager components: \
no such backend. System will operate in degraded mode (recompute). (manager.py:120:lmcache.v1.manager)
"""


def degraded(folder: Path) -> Path:
    path = folder / "engine.log"
    path.write_text(DEGRADED)
    return path


def test_a_log_file_alone_is_judged(kvctl: Run, tmp_path: Path) -> None:
    done = kvctl("--log", f"worker={degraded(tmp_path)}")
    assert done.returncode == 1, done.stderr
    assert "KV302" in done.stdout
    assert "no such backend" in done.stdout
    assert "DEGRADED" in done.stdout
    assert done.stderr == ""
    assert max(len(line) for line in done.stdout.splitlines()) <= 100


def test_a_recording_replays_to_the_same_report(kvctl: Run, tmp_path: Path) -> None:
    first = kvctl("--log", f"worker={degraded(tmp_path)}", "--record", str(tmp_path / "bundle"), "-o", "json")
    assert first.returncode == 1, first.stderr
    again = kvctl("--replay", str(tmp_path / "bundle"), "-o", "json")
    assert again.stdout == first.stdout
    assert again.returncode == 1
    data = json.loads(again.stdout)
    assert data["summary"]["verdict"] == "degraded"
    assert [one["id"] for one in data["results"] if one["status"] == "fail" and not one["caused_by"]] == ["KV302"]


def test_a_suppressed_finding_does_not_count(kvctl: Run, tmp_path: Path) -> None:
    log = f"worker={degraded(tmp_path)}"
    done = kvctl("--log", log, "--suppress", "KV302", "--checks", "KV302", "-o", "json")
    assert done.returncode == 0
    (one,) = [one for one in json.loads(done.stdout)["results"] if one["status"] == "fail"]
    assert one["suppressed"] is True


def test_strict_makes_an_open_verdict_exit_code_4(kvctl: Run, tmp_path: Path) -> None:
    log = f"worker={degraded(tmp_path)}"
    assert kvctl("--log", log, "--suppress", "KV302", "--checks", "KV302", "--strict").returncode == 4


def test_only_the_chosen_checks_are_run(kvctl: Run, tmp_path: Path) -> None:
    done = kvctl("--log", f"worker={degraded(tmp_path)}", "--checks", "KV30*", "--skip", "KV305", "-o", "json")
    ids = {one["id"] for one in json.loads(done.stdout)["results"]}
    assert ids == {"KV301", "KV302", "KV303", "KV304"}


def test_quiet_is_the_verdict_alone(kvctl: Run, tmp_path: Path) -> None:
    done = kvctl("--log", f"worker={degraded(tmp_path)}", "--quiet")
    assert done.stdout.startswith("DEGRADED")
    assert "docs/checks/KV302.md" in done.stdout
    assert done.stderr == ""


def test_wait_tries_until_its_time_is_up(kvctl: Run, tmp_path: Path) -> None:
    done = kvctl("--log", f"worker={degraded(tmp_path)}", "--wait", "1s", "-o", "short")
    assert done.returncode == 1
    assert "trying again" in done.stderr
    assert done.stdout.count("DEGRADED (confidence") == 1


def test_a_log_file_that_is_not_there_is_one_line(kvctl: Run, tmp_path: Path) -> None:
    done = kvctl("--log", f"worker={tmp_path / 'nowhere'}")
    assert done.returncode == 2
    assert "nowhere" in one_line(done.stderr)


def interrupted(*arguments: str) -> tuple[int, str, str]:
    """`kvctl validate ARGUMENTS --worker URL` whose worker accepts and says nothing; Ctrl-C comes once it was asked."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(60)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "kvctl", "validate", "--worker", url, "-o", "json", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            asked, _ = silent.accept()
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            asked.close()
            silent.close()
            out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_ctrl_c_reports_what_was_read_and_exits_130(tmp_path: Path) -> None:
    code, out, err = interrupted("--log", f"worker:other={degraded(tmp_path)}")
    assert code == 130, err
    assert "interrupted" in json.loads(out)["cut_short"]
    assert err == ""


def test_ctrl_c_before_anything_answered_reports_nothing_and_exits_130() -> None:
    code, out, err = interrupted()
    assert code == 130, err
    assert out == ""
    assert one_line(err) == "kvctl: interrupted with Ctrl-C before anything had answered\n"


def test_a_router_that_does_not_answer_is_one_line_with_exit_code_3(kvctl: Run) -> None:
    done = kvctl("--router", f"http://127.0.0.1:{free_port()}", "--timeout", "20s")
    assert done.returncode == 3, done.stdout
    assert "127.0.0.1" in one_line(done.stderr)


def test_a_used_folder_for_a_recording_is_refused_before_a_system_is_started(kvctl: Run, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    done = kvctl("--sim", "2", "--record", str(tmp_path))
    assert done.returncode == 2
    assert "is not an empty folder" in one_line(done.stderr)
    assert (tmp_path / "kept").read_text() == "mine"
