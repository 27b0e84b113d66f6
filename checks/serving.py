"""How an engine was started, as far as its arguments, environment, log and answers tell. Pure.

Only vLLM's spelling of arguments is read; every function says None or '' where nothing tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from checks.numerals import loads, whole
from checks.snapshot import Member, Snapshot

DEFAULT_CHUNK_TOKENS = 256
"""LMCache's chunk_size where nothing sets it."""

MP_CONNECTOR = "LMCacheMPConnector"
_TOKENS = re.compile(r"^(\d{1,12}(?:\.\d{1,6})?)([kKmMgG]?)$")
_SCALE = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True, slots=True)
class Transfer:
    """What `--kv-transfer-config` (or its shorthand) asks for."""

    connectors: tuple[str, ...] = ()
    """Class names, those inside a MultiConnector too."""
    role: str = ""
    """kv_producer, kv_consumer, kv_both; '' where it is not given."""
    problem: str = ""
    """Why it could not be read."""

    @property
    def lmcache(self) -> bool:
        return any("lmcache" in name.lower() for name in self.connectors)

    @property
    def multi_process(self) -> bool:
        """LMCache runs as a server of its own; nothing of it registers with a router's controller."""
        return MP_CONNECTOR in self.connectors


def transfer(member: Member) -> Transfer | None:
    """The connector a worker was started with; None where no argument names one."""
    text = member.arg("--kv-transfer-config")
    if text is None:
        name = member.arg("--kv-transfer-config.kv_connector")
        if name:
            return Transfer((name,), member.arg("--kv-transfer-config.kv_role") or "")
        backend = (member.arg("--kv-offloading-backend") or "").lower()
        if backend == "lmcache" and member.has_arg("--kv-offloading-size"):
            return Transfer(("LMCacheConnectorV1",), "kv_both")
        return None
    try:
        config = loads(text)
    except ValueError:
        return Transfer(problem="--kv-transfer-config is not JSON")
    if not isinstance(config, dict):
        return Transfer(problem="--kv-transfer-config is not a JSON object")
    return Transfer(tuple(_connectors(config)), str(config.get("kv_role") or ""))


def model_argument(member: Member) -> str:
    """What the engine loads: a repository name or a path; '' where no argument tells."""
    if told := member.arg("--model"):
        return told
    args = member.container.args
    for at, word in enumerate(args):
        if word == "serve" and at + 1 < len(args) and not args[at + 1].startswith("-"):
            return args[at + 1]
    first = args[0] if args else ""
    return first if "/" in first and not first.startswith("-") and " " not in first and len(args) > 1 else ""


def served_names(member: Member) -> tuple[str, ...]:
    """Names that requests use for the base model, the first one first: argument, /v1/models, else what it loads."""
    args = member.container.args
    for at, word in enumerate(args):
        if word.replace("_", "-") == "--served-model-name":
            names = []
            for following in args[at + 1 :]:
                if following.startswith("-"):
                    break
                names.append(following)
            if names:
                return tuple(names)
    if told := member.arg("--served-model-name"):
        return (told,)
    bases = [str(card["id"]) for card in _cards(member) if card.get("id") and not card.get("parent")]
    if bases:
        return tuple(bases)
    model = model_argument(member)
    return (model,) if model else ()


def max_model_len(member: Member) -> int | None:
    """Tokens of the longest sequence: /v1/models, the argument (`16k` too), else what the engine printed."""
    for card in _cards(member):
        if isinstance(told := card.get("max_model_len"), int) and told > 0:
            return told
    match = _TOKENS.match(member.arg("--max-model-len") or "")
    if match is not None:
        return int(float(match.group(1)) * _SCALE[match.group(2)])
    if member.log is not None and (printed := member.log.last("vllm-max-model-len")) is not None:
        return int(printed["tokens"])
    return None


def block_tokens(snapshot: Snapshot, member: Member) -> int | None:
    """Tokens of a block: the engine's metric, else its argument; None where neither tells."""
    for one in snapshot.metrics.find("cache_config_info", member.key):
        if (told := whole(one.labels.get("block_size"))) is not None:
            return told
    return whole(member.arg("--block-size"))


def chunk_tokens(config: Mapping[str, Any]) -> int:
    """LMCache's chunk size in a configuration as `Snapshot.lmcache_config` gives it."""
    told = config.get("chunk_size")
    return told if isinstance(told, int) and told > 0 else DEFAULT_CHUNK_TOKENS


def printed_argument(member: Member, name: str) -> str | None:
    """A number or truth value among the arguments that vLLM printed, by its Python name; None where it is not there."""
    printed = member.log.last("vllm-args") if member.log is not None else None
    found = re.search(rf"['\"]{name}['\"]: (\d+|True|False)\b", printed["args"]) if printed is not None else None
    return found.group(1) if found else None


def switched_on(config: Mapping[str, Any], name: str, default: bool) -> bool:
    """A switch as LMCache takes it: true and 1 are on, every other value that is given is off."""
    value = config.get(name)
    return default if value is None else str(value).lower() in ("true", "1")


def config_unread(member: Member, config: Mapping[str, Any], name: str) -> bool:
    """LMCache's value of `name` stands where it was not read: a file, a Secret, a ConfigMap, another machine."""
    if member.env_unread(f"LMCACHE_{name.upper()}"):
        return True
    printed = member.log is not None and member.log.has("lmcache-configuration")
    elsewhere = "LMCACHE_CONFIG_FILE" in member.container.env or not (member.container.env or member.container.args)
    return name not in config and not printed and elsewhere


def arguments_known(member: Member) -> bool:
    """vLLM's arguments are known: from the pod, or because vLLM printed those that are not defaults."""
    return bool(member.container.args) or (member.log is not None and member.log.has("vllm-args"))


def numbers(value: object) -> tuple[str, ...]:
    """A list of ports or ids as LMCache takes them: `8001`, `8001,8002`, `[8001, 8002]`; () where there is none."""
    if isinstance(value, list | tuple):
        return tuple(str(item) for item in value)
    text = str(value if value is not None else "").strip().strip("[]")
    return tuple(part.strip() for part in text.split(",") if part.strip() and part.strip() != "None")


def _connectors(config: Mapping[str, Any]) -> Iterator[str]:
    if name := config.get("kv_connector"):
        yield str(name)
    inner = config.get("kv_connector_extra_config")
    nested = inner.get("connectors") if isinstance(inner, dict) else None
    for one in nested if isinstance(nested, list) else ():
        if isinstance(one, dict):
            yield from _connectors(one)


def _cards(member: Member) -> list[Mapping[str, Any]]:
    answer = member.answers.get("/v1/models")
    listed = answer.get("data") if isinstance(answer, dict) else None
    return [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
