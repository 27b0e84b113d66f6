"""What a caller says about where its request should go: our headers, and the spellings of Dynamo and others.

Pure parsing. Headers beat the body's `nvext`; an empty value is absent. Every mistake is a `BadRequest` that names the
header or field. `x-tenant-id` is the tenant for limits only: the engine never sees it, so folding it into block keys as
a cache salt would make every look-up miss. A request without any of them costs one set look-up a header.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec

from router.model import NO_HINTS, BadRequest, Hints
from router.policies.kv import KvWeights
from router.proxy.request_ids import HEADERS as REQUEST_IDS
from router.proxy.request_ids import given

PIN = (b"x-kvctl-worker", b"x-dynamo-worker-instance-id", b"x-worker-instance-id")
RANK = (b"x-kvctl-dp-rank", b"x-dynamo-dp-rank", b"x-dp-rank", b"x-data-parallel-rank")
MODE = b"x-kvctl-mode"
SESSION = (b"x-session-id", b"x-dynamo-session-id", b"x-claude-code-session-id")
_OSL = b"x-kvctl-osl"
_PRIORITY = b"x-kvctl-priority"
_STRICT = b"x-kvctl-strict-priority"
_DEADLINE = b"x-kvctl-deadline-ms"
_WORKERS = b"x-kvctl-workers"
_REQUIRED = b"x-kvctl-required-taints"
_PREFERRED = b"x-kvctl-preferred-taints"
_WEIGHTS = b"x-kvctl-weights"
_CLASS = (b"x-kvctl-class", b"x-dynamo-meta-policy-class")
_TENANT = b"x-tenant-id"
READ = frozenset(
    {
        *PIN,
        *RANK,
        *REQUEST_IDS,
        *SESSION,
        *_CLASS,
        MODE,
        _OSL,
        _PRIORITY,
        _STRICT,
        _DEADLINE,
        _WORKERS,
        _REQUIRED,
        _PREFERRED,
        _WEIGHTS,
        _TENANT,
    }
)
"""Every header that routing reads, in lower case; a configured session header is read beside them."""

_MOST_NAMES = 256
_MOST_OSL = 10_000_000
_MOST_PRIORITY = 999_999_999
_MOST_STRICT = 2**31 - 1
_NAME = re.compile(r"[!-~]{1,128}")


@dataclass(slots=True)
class Asked:
    """What headers and `nvext` together ask for."""

    pin_worker: str | None = None
    pin_param: str = "x-kvctl-worker"
    """The header or field that named the pin, for the error's `param`."""
    pin_rank: int | None = None
    rank_param: str = "x-kvctl-dp-rank"
    mode: str | None = None
    request_id: str = ""
    weights: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of kv weights by name; the caller checks whether they are allowed."""
    hints: Hints = NO_HINTS


def from_headers(headers: list[tuple[bytes, bytes]], session_header: bytes | None = None) -> Asked | None:
    """None where no header says anything.

    Raises:
        BadRequest: a header that cannot be understood, or two that contradict each other.
    """
    found = {
        name: value.strip(b" \t").decode("latin-1") for name, value in headers if name in READ or name == session_header
    }
    found = {name: value for name, value in found.items() if value}
    if not found:
        return None
    asked = Asked()
    for name in PIN:
        if name in found:
            if any(
                read in PIN and value.strip(b" \t") not in (b"", found[name].encode("latin-1"))
                for read, value in headers
            ):
                raise BadRequest("two headers pin the request to different workers", param=name.decode())
            asked.pin_worker, asked.pin_param = found[name], name.decode()
            break
    for name in RANK:
        if name in found:
            rank = _whole(found[name], name.decode(), 9999, "a dp rank, a whole number")
            if asked.pin_rank not in (None, rank):
                raise BadRequest("two headers ask for different dp ranks", param=name.decode())
            asked.pin_rank, asked.rank_param = rank, name.decode()
    asked.mode = found.get(MODE)
    asked.request_id = given(headers)
    if _WEIGHTS in found:
        asked.weights = _numbers(found[_WEIGHTS], _WEIGHTS.decode())
    asked.hints = _header_hints(found, session_header)
    return asked


def _header_hints(found: dict[bytes, str], session_header: bytes | None) -> Hints:
    said: dict[str, Any] = {}
    session = _first(found, SESSION if session_header is None else (session_header, *SESSION))
    if session:
        said["session"] = session[:512]
    if _OSL in found:
        said["osl"] = _whole(found[_OSL], _OSL.decode(), _MOST_OSL, "the expected number of output tokens")
    if _PRIORITY in found:
        said["priority"] = _signed(found[_PRIORITY], _PRIORITY.decode())
    if _STRICT in found:
        said["strict_priority"] = _whole(found[_STRICT], _STRICT.decode(), _MOST_STRICT, "a whole number")
    if _DEADLINE in found:
        said["deadline_s"] = _whole(found[_DEADLINE], _DEADLINE.decode(), 86_400_000, "milliseconds") / 1000
    if _WORKERS in found:
        said["allowed"] = _names(found[_WORKERS], _WORKERS.decode())
    if _REQUIRED in found:
        said["required_taints"] = _names(found[_REQUIRED], _REQUIRED.decode())
    if _PREFERRED in found:
        said["preferred_taints"] = tuple(sorted(_numbers(found[_PREFERRED], _PREFERRED.decode()).items()))
    if _TENANT in found:
        said["tenant"] = found[_TENANT][:128]
    if policy_class := _first(found, _CLASS):
        said["policy_class"] = policy_class[:128]
    return Hints(**said) if said else NO_HINTS


class _AgentHints(msgspec.Struct):
    priority: int | None = None
    strict_priority: int | None = None
    osl: int | None = None


class _Constraints(msgspec.Struct):
    required_taints: list[str] | None = None
    preferred_taints: dict[str, float] | None = None


class _Nvext(msgspec.Struct):
    """The fields of Dynamo's request extension that routing can honour; the others are the engine's or ignored."""

    backend_instance_id: int | str | None = None
    decode_worker_id: int | str | None = None
    dp_rank: int | None = None
    token_data: list[int] | None = None
    agent_hints: _AgentHints | None = None
    routing_constraints: _Constraints | None = None


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING = msgspec.json.Decoder(str)
_NVEXT = msgspec.json.Decoder(_Nvext)


def with_nvext(asked: Asked | None, nvext: bytes) -> tuple[Asked, list[int] | None]:
    """What the body's `nvext` adds to what the headers said, and its `token_data` (the prompt's token ids).

    Raises:
        BadRequest: a field of the wrong kind or outside its range.
    """
    try:
        said = _NVEXT.decode(nvext)
    except (msgspec.DecodeError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error).replace("`", "")
        raise BadRequest(f"nvext cannot be read: {what}", param="nvext") from None
    asked = asked or Asked()
    instance = said.backend_instance_id if said.backend_instance_id is not None else said.decode_worker_id
    if asked.pin_worker is None and instance is not None:
        asked.pin_worker, asked.pin_param = str(instance), "nvext.backend_instance_id"
    if asked.pin_rank is None and said.dp_rank is not None:
        if not 0 <= said.dp_rank <= 9999:
            raise BadRequest("nvext.dp_rank must be a dp rank, a whole number", param="nvext.dp_rank")
        asked.pin_rank, asked.rank_param = said.dp_rank, "nvext.dp_rank"
    asked.hints = _nvext_hints(asked.hints, said)
    return asked, said.token_data


def _nvext_hints(hints: Hints, said: _Nvext) -> Hints:
    more: dict[str, Any] = {}
    agent = said.agent_hints
    if agent is not None:
        if hints.osl is None and agent.osl is not None:
            if not 0 <= agent.osl <= _MOST_OSL:
                raise BadRequest("nvext.agent_hints.osl is no number of output tokens", param="nvext.agent_hints.osl")
            more["osl"] = agent.osl
        if not hints.priority and agent.priority:
            if abs(agent.priority) > _MOST_PRIORITY:
                raise BadRequest(
                    f"nvext.agent_hints.priority must be between -{_MOST_PRIORITY} and {_MOST_PRIORITY}",
                    param="nvext.agent_hints.priority",
                )
            more["priority"] = agent.priority
        if not hints.strict_priority and agent.strict_priority:
            if not 0 <= agent.strict_priority <= _MOST_STRICT:
                raise BadRequest(
                    f"nvext.agent_hints.strict_priority must be between 0 and {_MOST_STRICT}",
                    param="nvext.agent_hints.strict_priority",
                )
            more["strict_priority"] = agent.strict_priority
    rules = said.routing_constraints
    if rules is not None:
        if not hints.required_taints and rules.required_taints:
            more["required_taints"] = _checked_names(rules.required_taints, "nvext.routing_constraints.required_taints")
        if not hints.preferred_taints and rules.preferred_taints:
            name = "nvext.routing_constraints.preferred_taints"
            _checked_names(list(rules.preferred_taints), name)
            more["preferred_taints"] = tuple(sorted(rules.preferred_taints.items()))
    return replace(hints, **more) if more else hints


def with_session_field(asked: Asked | None, body: bytes, name: str) -> Asked | None:
    """The session from the top-level field `name` of the JSON body, where no header named one."""
    if asked is not None and asked.hints.session:
        return asked
    try:
        value = _FIELDS.decode(body).get(name)
        session = None if value is None else _STRING.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return asked
    if not session:
        return asked
    asked = asked or Asked()
    asked.hints = replace(asked.hints, session=session[:512])
    return asked


def session_source(key: str | None) -> tuple[str | None, str | None]:
    """`--session-key` -> (header in lower case, field of the body), one of them or neither.

    Raises:
        ValueError: neither a header's name nor `body:FIELD`.
    """
    if key is None:
        return None, None
    kind, colon, name = key.partition(":")
    if colon and kind == "body" and name:
        return None, name
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", key):
        raise ValueError(f"--session-key must be a header's name or body:FIELD, not '{key}'")
    return key.lower(), None


def checked_weights(weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises BadRequest where a name is no kv weight or a value is outside its range."""
    if not weights:
        return weights
    try:
        KvWeights(**weights)
    except (TypeError, ValueError) as error:
        known = ", ".join(spec.name for spec in fields(KvWeights))
        what = f"the weights are {known}" if isinstance(error, TypeError) else str(error)
        raise BadRequest(f"x-kvctl-weights: {what}", param="x-kvctl-weights") from None
    return weights


def _first(found: dict[bytes, str], names: tuple[bytes, ...]) -> str:
    return next((found[name] for name in names if name in found), "")


def _whole(text: str, name: str, most: int, what: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) > most:
        raise BadRequest(f"{name} must be {what}, {most} at most", param=name)
    return int(text)


def _signed(text: str, name: str) -> int:
    if not re.fullmatch("-?[0-9]{1,9}", text):
        raise BadRequest(f"{name} must be a whole number; higher goes first", param=name)
    return int(text)


def _names(text: str, name: str) -> frozenset[str]:
    return _checked_names([part.strip() for part in text.split(",") if part.strip()], name)


def _checked_names(names: list[str], name: str) -> frozenset[str]:
    if len(names) > _MOST_NAMES:
        raise BadRequest(f"{name} lists {len(names)} names; {_MOST_NAMES} at most", param=name)
    wrong = next((one for one in names if not _NAME.fullmatch(one)), None)
    if wrong is not None:
        raise BadRequest(f"{name}: '{wrong[:40]}' is not a name of 1 to 128 visible characters", param=name)
    return frozenset(names)


def _numbers(text: str, name: str) -> dict[str, float]:
    """`a=1,b=-0.5` -> {"a": 1.0, "b": -0.5}."""
    numbers: dict[str, float] = {}
    for part in text.split(","):
        key, equals, value = part.strip().rpartition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not equals or not key or not math.isfinite(number):
            raise BadRequest(f"{name}: '{part.strip()[:60]}' is not NAME=NUMBER", param=name)
        numbers[key] = number
    _checked_names(list(numbers), name)
    return numbers
