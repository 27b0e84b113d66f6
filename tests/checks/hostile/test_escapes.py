"""Control characters and secrets that stand anywhere in a system reach no report, and secrets no recording."""

from __future__ import annotations

import io
import json
import re
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from rich.console import Console

from checks.model import Diagnosis, Stack, Status
from checks.report import json_, junit, sarif, yaml_
from checks.report.terminal import Form, show
from checks.sources.tape import Answer, Tape
from tests.checks.hostile.systems import Script, cluster, logs, places, processes, with_at

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x00\x08"
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_LOG = """\
2026-08-01T10:00:04Z [2026-08-01 10:00:04,000] LMCache ERROR: Failed to initialize LMCacheManager components: {0}. \
System will operate in degraded mode (recompute). (manager.py:1:x)
2026-08-01T10:00:05Z [2026-08-01 10:00:05,000] INFO: Routing request r1 with session id s1 to http://[{0} at 1.5, \
process time = 0.1 (request.py:1:x)
{0}
"""


def poisoned(value: Any, text: str) -> Any:
    """Every string inside with the text behind it."""
    if isinstance(value, str):
        return value + text
    if isinstance(value, list):
        return [poisoned(one, text) for one in value]
    return {key: poisoned(one, text) for key, one in value.items()} if isinstance(value, dict) else value


def everywhere(script: Script, text: str) -> Script:
    """A system with the text in what people may write: annotations, names, messages, logs, labels of metrics."""
    for key, value in script.answers.items():
        if key[0] == "log":
            script = script.changed(key, value + _LOG.format(text))
        elif isinstance(value, str):
            script = script.changed(key, value + f'vllm:lora_requests_info{{model_name="{text}"}} 1\n')
        elif key[1] in ("context", "apis", "prod/access"):
            continue
        else:
            script = script.changed(key, poisoned(value, text))
    return script


def terminal(diagnosis: Diagnosis, form: Form) -> str:
    out = io.StringIO()
    show(diagnosis, Console(file=out, width=100), form)
    return out.getvalue()


def strings(value: Any) -> list[str]:
    inside = [value] if isinstance(value, str) else []
    for path in places(value):
        one = value
        for step in path:
            one = one[step]
        inside += [one] if isinstance(one, str) else []
    return inside


@pytest.mark.parametrize("system", [cluster, processes])
@pytest.mark.parametrize("stack", [None, *Stack])
def test_no_escape_sequence_reaches_any_report(system: Any, stack: Stack | None) -> None:
    options = {} if stack is None else {"stack": stack.value}
    diagnosis = everywhere(system(), ESCAPES).diagnosis(**options)
    texts = [terminal(diagnosis, form) for form in Form]
    texts += strings(json.loads(json_.render(diagnosis, "1")))
    texts += strings(json.loads(sarif.render(diagnosis, "1")))
    texts += strings(yaml.safe_load(yaml_.render(diagnosis, "1")))
    document = ElementTree.fromstring(junit.render(diagnosis, "1"))
    texts += [text for one in document.iter() for text in (one.text or "", *one.attrib.values())]
    assert [text for text in texts if _UNWANTED.search(text)] == []


def test_the_poisoned_logs_are_evidence() -> None:
    diagnosis = everywhere(cluster(), ESCAPES).diagnosis(stack="production-stack")
    assert any(one.status is Status.FAIL and one.evidence for one in diagnosis.results)


@pytest.mark.parametrize("text", ["", "\x00" * 10_000, "\r" * 10_000, "x" * 1_000_000, "[" * 100_000, "\x1b[" * 50_000])
def test_any_log_is_judged_without_internal_errors(text: str) -> None:
    assert [one for one in logs(text).diagnosis().results if one.reason == "internal"] == []


def test_clock_jumps_of_a_log_are_judged_without_internal_errors() -> None:
    text = "\n".join(
        f"{stamp} INFO 08-01 10:00:05 [x.py:1] vLLM API server version 0.19.1"
        for stamp in (
            "2026-08-01T10:00:01Z",
            "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:59.999999999Z",
            "2026-02-31T10:00:00Z",
            "1970-01-01T00:00:00+99:99",
            "2026-08-01T09:00:00-12:00",
        )
    )
    assert [one for one in logs(text).diagnosis().results if one.reason == "internal"] == []


# -- secrets -----------------------------------------------------------------------------------------------------


def with_secrets() -> tuple[Script, dict[str, str]]:
    """A cluster with a secret in each place that may hold one, and where each of them stands."""
    numbers = count()
    planted: dict[str, str] = {}

    def secret(where: str, text: str = "{}") -> str:
        value = f"zq{next(numbers):03}planted"
        planted[value] = where
        return text.format(value)

    script = cluster()
    pods = script.answers["kubernetes", "prod/pods"]
    container = pods["items"][1]["spec"]["containers"][0]
    names = [
        "HF_TOKEN",
        "VLLM_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "DB_PWD",
        "AUTH",
        "BEARER",
        "WEBHOOK",
        "GITHUB_PAT",
    ]
    environment = [{"name": name, "value": secret(f"variable {name}")} for name in names]
    texts = {
        "user of a URL": "redis://user:{}@cache:6379",
        "password of a URL": "redis://:{}@cache:6379",
        "query of a URL": "https://h/y?api_key={}&b=1",
        "signature of a URL": "https://b.s3.amazonaws.com/k?X-Amz-Signature={}&x=1",
        "JSON": '{{"password": "{}"}}',
    }
    environment += [{"name": f"X{at}", "value": secret(f"variable, {one}", texts[one])} for at, one in enumerate(texts)]
    container["env"] += environment
    container["args"] = [secret("shell command", "vllm serve m --api-key {} --port 8000")]
    pods["items"][2]["spec"]["containers"][0] |= {
        "command": ["vllm"],
        "args": ["serve", "m", "--api-key", secret("next argument"), secret("argument", "--hf-token={}")],
    }
    annotations = pods["items"][1]["metadata"]["annotations"]
    annotations["kubectl.kubernetes.io/last-applied-configuration"] = secret("last applied")
    annotations["vault.token"] = secret("annotation")
    data = script.answers["kubernetes", "prod/configmaps/epp"]["data"]
    data["x.yaml"] = secret("ConfigMap, YAML", "kind: EndpointPickerConfig\npassword: {}\n")
    data["tls.key"] = secret("ConfigMap, PEM", "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n")
    script.answers["kubernetes", "prod/events/w-0"]["items"][0]["message"] = secret("event", "pull of https://u:{}@r")
    spec = script.answers["kubernetes", "prod/inferenceendpointconfigs"]["items"][0]["spec"]
    spec["environmentVariables"] = [{"name": "HF_TOKEN", "value": secret("custom resource, variable")}]
    spec["kvCacheSpec"]["l2CacheSpec"]["l2CacheLocalUrl"] = secret("custom resource, URL", "redis://a:{}@h:1")
    lines = {
        "log, arguments": "INFO 08-01 10:00:05 [api_server.py:1] non-default args: {{'api_key': ['{}']}}",
        "log, prompt": "INFO 08-01 10:00:05 [logger.py:1] Received request cmpl-1: prompt: 'my {}', params: x",
        "log, messages": "INFO: body messages=[{{'role': 'user', 'content': '{}'}}]",
        "log, header": "Authorization: Bearer {}",
        "log, JSON": '{{"level": "info", "message": "x", "prompt": "{}"}}',
        "log, reason": "[2026-08-01 10:00:05,000] LMCache ERROR: Failed to initialize LMCacheManager components: "
        "redis://u:{}@h. System will operate in degraded mode (recompute). (m.py:1:x)",
        "log, configuration": "[2026-08-01 10:00:02,000] LMCache INFO: LMCache Configuration: "
        "{{'remote_url': 'redis://:{}@h', 'chunk_size': 256}} (m.py:1:x)",
    }
    log = script.answers["log", "prod/w-0/vllm head"]
    for where, line in lines.items():
        log += f"2026-08-01T10:00:06Z {secret(where, line)}\n"
    labels = ",".join(
        (
            secret("label, URL", 'url="redis://u:{}@h"'),
            secret("label", 'api_key="{}"'),
            secret("label, prompt", 'prompt="{}"'),
        )
    )
    page = script.answers["page", "prod/w-0:8000/metrics"] + f"vllm:lora_requests_info{{{labels}}} 1\n"
    script.answers |= {
        ("log", "prod/w-0/vllm head"): log,
        ("page", "prod/w-0:8000/metrics"): page,
        ("page", "prod/w-0:8000/version"): {
            "version": "0.19.1",
            "api_key": secret("answer"),
            "last_prompt": secret("answer, prompt"),
        },
        ("page", "prod/w-0:6999/conf"): {"chunk_size": 256, "remote_url": secret("answer, URL", "redis://:{}@x")},
    }
    return script, planted


def test_no_secret_reaches_a_recording(tmp_path: Path) -> None:
    script, planted = with_secrets()
    script.snapshot()
    with Tape.record(tmp_path / "rec", options=script.options, version="1") as tape:
        for kind, key in sorted(script.asked):

            def fetch(kind: str = kind, key: str = key) -> Answer:
                return script.answer(kind, key, 1)

            tape.ask(kind, key, fetch)  # type: ignore[arg-type]
    stored = "\n".join(path.read_text() for path in sorted((tmp_path / "rec").rglob("*")) if path.is_file())
    assert len(script.asked) > 20
    assert {where for value, where in planted.items() if value in stored} == set()


def test_no_secret_reaches_a_report() -> None:
    script, planted = with_secrets()
    told: list[str] = []
    for stack in Stack:
        diagnosis = script.diagnosis(stack=stack.value)
        told += [terminal(diagnosis, Form.WIDE), json_.render(diagnosis, "1")]
    assert {where for value, where in planted.items() if any(value in text for text in told)} == set()


def test_a_page_that_lies_about_its_counters_is_judged() -> None:
    lies = "\n".join(
        f'vllm:prefix_cache_{name}_total{{model_name="m"}} {value}'
        for name in ("queries", "hits")
        for value in ("NaN", "-1", "+Inf", "1e308", "1e999", "0x10", "1_000")
    )
    script = cluster().changed(("page", "prod/w-0:8000/metrics"), lies)
    script = Script(script.options, script.answers)
    assert [one for one in script.diagnosis().results if one.reason == "internal"] == []


def test_with_at_leaves_the_original_alone() -> None:
    value = {"a": [1]}
    assert (with_at(value, ("a", 0), 2), value) == ({"a": [2]}, {"a": [1]})
