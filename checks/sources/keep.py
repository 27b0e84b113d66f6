"""What of an answer may be kept: text cleaned and redacted, objects without secrets.

Applied before anything is stored or judged. JSON is redacted value by value, so that it stays JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from checks.redact import MASK, clean, redact

_SECRET_NAME = re.compile(
    r"KEY|TOKEN(?!IZ)|SECRET|PASSW|PWD|CREDENTIAL|(?:^|_)(?:AUTH|AUTHORIZATION|PASS|PAT)(?:_|$)|BEARER|COOKIE|WEBHOOK|SALT"
    r"|SIGNATURE",
    re.IGNORECASE,
)
_SECRET_FIELD = re.compile(
    r"(?:(?:api|private|secret)[-_]?key|(?:^|[-_.]|hf|access|auth|bearer)token|password|passwd|secret|webhook)$",
    re.IGNORECASE,
)
_PROMPT = re.compile(r"(?:^|[-_])prompts?$|^(?:messages|content|prompt_token_ids)$", re.IGNORECASE)
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)[^-]*(?:-----END [A-Z ]{0,40}-----)?")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_SECRET_OPTION = re.compile(r"--[\w-]*(?:api[-_]key|password|secret|token(?=$|=))|-u$|--user$", re.I)
"""`-u NAME:PASSWORD` is what curl takes."""
_DROPPED = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})


def kept(kind: str, text: str) -> str:
    """The text as it may be stored. JSON (of any kind but logs) stays JSON with the same shape."""
    if kind != "log" and text[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return _text(text)
        return json.dumps(without_secrets(value), ensure_ascii=False, separators=(",", ":"))
    return _text(text)


def _text(text: str) -> str:
    safe = redact(clean(text))
    return _PRIVATE_KEY.sub(rf"\g<1>{MASK}", safe) if "PRIVATE KEY" in safe else safe


def without_secrets(value: Any) -> Any:
    """A copy of decoded JSON: strings cleaned and redacted, literal values of secret-looking names and options gone.

    A name is that of an environment entry (`{"name": …, "value": …}`). Fields that repeat the object as it was applied
    are dropped; so are prompts.
    """
    return _copy(value, {})


def _copy(value: Any, seen: dict[str, str]) -> Any:
    if isinstance(value, str):
        if (known := seen.get(value)) is None:
            known = seen[value] = _text(value) if len(value) > 3 else clean(value)
        return known
    if isinstance(value, Mapping):
        copied = {key: _copy(item, seen) for key, item in value.items() if key not in _DROPPED}
        for key, item in copied.items():
            if _PROMPT.search(str(key)) and item is not None and not isinstance(item, (bool, int, float)):
                copied[key] = MASK
            name = copied.get("name") if key == "value" else key
            if isinstance(item, str) and isinstance(name, str) and _secret(name, item, variable=key == "value"):
                copied[key] = MASK
        return copied
    if isinstance(value, list):
        return _options([_copy(item, seen) for item in value])
    return value


def _secret(name: str, value: str, *, variable: bool) -> bool:
    """`variable`: the name is an environment variable's for sure; else only if it is spelled like one."""
    if not value or _SECRET_FIELD.search(name):
        return bool(value)
    counts = "TOKENS" in name.upper() and value.isdigit()
    return (variable or _VARIABLE.fullmatch(name) is not None) and not counts and _SECRET_NAME.search(name) is not None


def _options(items: list[Any]) -> list[Any]:
    """Arguments without the values of `--api-key` and its like, as one word or two."""
    for at, item in enumerate(items):
        if not isinstance(item, str) or (match := _SECRET_OPTION.match(item)) is None:
            continue
        rest = item[match.end() :]
        if rest.startswith("="):
            items[at] = f"{match.group(0)}={MASK}"
        elif not rest and at + 1 < len(items):
            items[at + 1] = MASK
    return items
