"""What a user says of a worker: `URL[,key=value]...` on the command line, the same or a mapping in a workers file.

Pure parsing. Every mistake is a `SpecError` that names the spec and the part that was not understood.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from router.events.endpoint import resolve_endpoint
from router.model import WorkerSpec
from router.user_file import read_user_file

MAX_FILE = 8 << 20
"""Bytes of a workers file."""
KEYS = ("id", "kv", "replay", "model", "device", "ranks", "block-size", "batch-tokens", "taint", "instance")
_Loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_REPEATED = ("taint", "instance")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9._~:%-]+")
_PATH = re.compile(r"[A-Za-z0-9._~!$&'()*+;=:@%/-]*")
_PORTS = {"http": 80, "https": 443}
_ENDPOINT = re.compile(r"(tcp|ipc|inproc)://[!-~]+")


class SpecError(ValueError):
    """A worker spec or workers file that cannot be understood."""


def parse_spec(text: str) -> WorkerSpec:
    """`http://host:port[/prefix][,id=…][,kv=tcp://…][,taint=a][,taint=b]` -> WorkerSpec."""
    url, *parts = (part.strip() for part in text.strip().split(","))
    fields: dict[str, list[str]] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise SpecError(f"worker '{text}': '{part}' is not key=value; the keys are {', '.join(KEYS)}")
        fields.setdefault(key.strip(), []).append(value.strip())
    return build_spec(url, fields, text)


def build_spec(url: str, fields: Mapping[str, list[str]], shown: str) -> WorkerSpec:
    """`fields`: key -> its values, in the spelling of `KEYS`; `shown`: how errors name the spec."""
    for key, values in fields.items():
        if key not in KEYS:
            raise SpecError(f"worker '{shown}': unknown key '{key}'; the keys are {', '.join(KEYS)}")
        if len(values) != 1 and key not in _REPEATED:
            raise SpecError(f"worker '{shown}': '{key}' is given {len(values)} times")
    url = _checked_url(url, shown)
    single = {key: values[0] for key, values in fields.items() if key not in _REPEATED}
    device = single.get("device")
    if device is not None and device not in ("cuda", "cpu"):
        raise SpecError(f"worker '{shown}': device must be cuda or cpu, not '{device}'")
    worker_id = single.get("id") or default_id(url)
    if not _ID.fullmatch(worker_id):
        raise SpecError(f"worker '{shown}': id '{worker_id}' may hold letters, digits and . _ : - only, 128 at most")
    ranks = _count(single.get("ranks"), "ranks", 64, shown)
    instances = tuple(fields.get("instance", ()))
    if len(instances) not in (0, 1, ranks or 1) or any(len(name) > 256 for name in instances):
        raise SpecError(f"worker '{shown}': give one instance, or one for each of its {ranks or 1} ranks in rank order")
    for key in ("kv", "replay"):
        if key in single:
            _check_endpoint(single[key], key, ranks or 1, shown)
    return WorkerSpec(
        url=url,
        id=worker_id,
        kv=single.get("kv"),
        replay=single.get("replay"),
        model=single.get("model"),
        device=device,
        ranks=ranks,
        block_size=_count(single.get("block-size"), "block-size", 65536, shown),
        batch_tokens=_count(single.get("batch-tokens"), "batch-tokens", 1 << 24, shown),
        taints=tuple(fields.get("taint", ())),
        instances=instances,
    )


def _checked_url(url: str, shown: str) -> str:
    if "://" not in url:
        url = "http://" + url
    try:
        parts = urlsplit(url)
        port = _PORTS.get(parts.scheme, 80) if parts.port is None else parts.port
    except ValueError as error:
        raise SpecError(f"worker '{shown}': {error}") from None
    if parts.scheme not in _PORTS:
        raise SpecError(f"worker '{shown}': only http:// and https:// engines are supported, not {parts.scheme}://")
    name = parts.hostname or ""
    if not _HOST.fullmatch(name) or not port or "@" in parts.netloc or parts.query or parts.fragment:
        raise SpecError(f"worker '{shown}': a worker is http[s]://HOST:PORT[/PREFIX]")
    if not _PATH.fullmatch(parts.path):
        raise SpecError(f"worker '{shown}': the path may hold only what a URL may; the rest is written %XX")
    host = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"


def _check_endpoint(endpoint: str, key: str, ranks: int, shown: str) -> None:
    if not _ENDPOINT.fullmatch(endpoint):
        raise SpecError(f"worker '{shown}': {key} must be a ZMQ endpoint such as tcp://host:5557")
    try:
        resolve_endpoint(endpoint, "*", ranks - 1)
    except ValueError as error:
        raise SpecError(f"worker '{shown}': {key}: {error}") from None


def default_id(url: str) -> str:
    """`host-port`, and a short hash of the path where there is one: stable over restarts of the router."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    name = f"ip6-{re.sub('[:%]', '_', host)}" if ":" in host else host
    name += f"-{parts.port or _PORTS.get(parts.scheme, 80)}"
    if parts.path.strip("/"):
        name += "-" + hashlib.blake2s(parts.path.encode(), digest_size=3).hexdigest()
    return name


def _count(value: str | None, key: str, most: int, shown: str) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or len(value) > len(str(most)) or not 1 <= int(value) <= most:
        raise SpecError(f"worker '{shown}': {key} must be a whole number from 1 to {most}, not '{value}'")
    return int(value)


def read_workers_file(path: Path) -> list[WorkerSpec]:
    """The workers of a file: one SPEC a line (`#` comments), or YAML/JSON (`.yaml .yml .json`): a list of SPECs or
    mappings, at the top or under `workers`.

    Raises:
        SpecError: unreadable, not understood, or two workers with one id; nothing is taken from such a file.
    """
    try:
        text = read_user_file(path, MAX_FILE).decode("utf-8-sig")
    except OSError as error:
        raise SpecError(f"workers file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"workers file {path}: {error}") from None
    if path.suffix in (".yaml", ".yml", ".json"):
        specs = _from_yaml(text, path)
    else:
        lines = (line.split(" #")[0].strip() for line in text.splitlines())
        specs = [parse_spec(line) for line in lines if line and not line.startswith("#")]
    return check_unique(specs)


def check_unique(specs: list[WorkerSpec]) -> list[WorkerSpec]:
    seen: dict[str, str] = {}
    for spec in specs:
        if spec.id in seen:
            raise SpecError(f"two workers have the id '{spec.id}': {seen[spec.id]} and {spec.url}; give them id=…")
        seen[spec.id] = spec.url
    return specs


def _from_yaml(text: str, path: Path) -> list[WorkerSpec]:
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a date that is none
        raise SpecError(f"workers file {path}: {' '.join(str(error).split())}") from None
    if isinstance(data, dict):
        unknown = set(data) - {"workers"}
        if unknown:
            raise SpecError(f"workers file {path}: unknown key '{sorted(map(str, unknown))[0]}'; expected 'workers'")
        data = data.get("workers")
    if data is None:
        return []
    if not isinstance(data, list):
        raise SpecError(f"workers file {path}: expected a list of workers")
    return [spec_from_item(item, f"{path} item {number}") for number, item in enumerate(data, 1)]


def spec_from_item(item: object, shown: str) -> WorkerSpec:
    """A SPEC string, or a mapping with `url` and the keys of `KEYS` (`taints` may be a list), from JSON or YAML."""
    if isinstance(item, str):
        return parse_spec(item)
    if not isinstance(item, dict) or not isinstance(item.get("url"), str):
        raise SpecError(f"worker '{shown}': expected a SPEC string or a mapping with 'url'")
    fields: dict[str, list[str]] = {}
    for key, value in item.items():
        if key == "url" or value is None:
            continue
        name = {"taints": "taint", "instances": "instance", "block_size": "block-size"}.get(str(key), str(key))
        fields[name] = [str(part) for part in value] if isinstance(value, list) else [str(value)]
    return build_spec(str(item["url"]), fields, shown)
