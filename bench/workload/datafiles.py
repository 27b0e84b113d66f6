"""Reads data sets of text: ShareGPT-style JSON or JSONL, and OpenAI batch JSONL. Errors name file, line and field.

Touches only the file it is given. A JSON array is decoded whole and so limited to `WHOLE_LIMIT` bytes; JSONL is read a
line at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.workload.conversations import DataSet, Said, Wanted, turns
from bench.workload.model import Role, WorkloadError

WHOLE_LIMIT = 1 << 30
LINE_LIMIT = 64 << 20
DEFAULT_OUTPUT = 128
MOST_OUTPUT = 1_000_000
ROLES = {
    "system": Role.SYSTEM, "developer": Role.SYSTEM,
    "user": Role.USER, "human": Role.USER,
    "assistant": Role.ASSISTANT, "gpt": Role.ASSISTANT, "chatgpt": Role.ASSISTANT, "bing": Role.ASSISTANT,
    "bard": Role.ASSISTANT, "model": Role.ASSISTANT,
}  # fmt: skip
URLS = {"/v1/chat/completions": "chat", "/v1/completions": "completions", "/v1/responses": "responses"}
_PROMPTS = ("messages", "prompt", "input", "instructions")
_OURS = ("model", "stream", "stream_options", "max_tokens", "min_tokens", "max_completion_tokens", "max_output_tokens")


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and content of each line that is not blank.

    Raises:
        WorkloadError: the file cannot be read, or a line is too long.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(LINE_LIMIT + 1):
                number += 1
                if len(raw) > LINE_LIMIT:
                    raise WorkloadError(f"{path}:{number}: the line is longer than {LINE_LIMIT >> 20} MiB")
                if raw.strip():
                    yield number, raw
    except OSError as error:
        raise WorkloadError(f"cannot read trace {path}: {error.strerror or error}") from error


def decoded(raw: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WorkloadError(f"{where}: not JSON: {error}") from error


def sharegpt(path: Path, *, array: bool) -> DataSet:
    """Conversations: `conversations` with `from` and `value`, or `messages` with `role` and `content`."""
    found: list[Wanted] = []
    leading = empty = 0
    for number, (where, entry) in enumerate(_entries(path, array)):
        if not isinstance(entry, dict):
            raise WorkloadError(f"{where}: an object wanted, this is {type(entry).__name__}")
        field = next((name for name in ("conversations", "conversation", "messages") if name in entry), None)
        if field is None or not isinstance(entry[field], list):
            raise WorkloadError(f"{where}: conversations or messages: a list of messages wanted")
        messages = [_message(one, f"{where}: {field}[{i}]") for i, one in enumerate(entry[field])]
        start = next((i for i, one in enumerate(messages) if one.role is not Role.ASSISTANT), len(messages))
        leading += bool(start)
        made = turns(f"c{number}", messages[start:], DEFAULT_OUTPUT)
        empty += not made
        found += made
    notes = []
    if leading:
        notes.append(f"{leading} conversations began with an answer, which is left out")
    if empty:
        notes.append(f"{empty} conversations ask nothing and are left out")
    return DataSet("sharegpt", found, None, True, notes)


def _entries(path: Path, array: bool) -> Iterator[tuple[str, Any]]:
    if not array:
        for number, raw in lines(path):
            yield f"{path}:{number}", decoded(raw, f"{path}:{number}")
        return
    try:
        size = path.stat().st_size
        if size > WHOLE_LIMIT:
            raise WorkloadError(f"{path}: a JSON array of {size >> 20} MiB; write it as JSONL, an entry a line")
        content = decoded(path.read_bytes(), str(path))
    except OSError as error:
        raise WorkloadError(f"cannot read trace {path}: {error.strerror or error}") from error
    for index, entry in enumerate(content):
        yield f"{path}: [{index}]", entry


def _message(one: Any, where: str) -> Said:
    if not isinstance(one, dict):
        raise WorkloadError(f"{where}: an object with from and value, or role and content wanted")
    named, content = ("from", "value") if "from" in one else ("role", "content")
    role = one.get(named)
    if not isinstance(role, str) or role.lower() not in ROLES:
        known = ", ".join(ROLES)
        raise WorkloadError(f"{where}: {named}: one of {known} wanted, got {str(role)[:40]!r}; leave the entry out")
    return Said(ROLES[role.lower()], _text(one.get(content), f"{where}: {content}"))


def _text(content: Any, where: str) -> str:
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if all(isinstance(part, str) for part in parts):
            return "\n".join(part for part in parts if part is not None)
        raise WorkloadError(f"{where}: only text parts can be sent; leave entries with images or files out")
    if not isinstance(content, str):
        raise WorkloadError(f"{where}: a text wanted, got {type(content).__name__}; leave tool calls out")
    return content


def batch(path: Path) -> DataSet:
    """OpenAI batch lines: `custom_id`, `method`, `url`, `body`, all for one endpoint."""
    found: list[Wanted] = []
    seen: dict[str, int] = {}
    url: str | None = None
    models: set[str] = set()
    for number, raw in lines(path):
        where = f"{path}:{number}"
        entry = decoded(raw, where)
        if not isinstance(entry, dict):
            raise WorkloadError(f"{where}: an object wanted, this is {type(entry).__name__}")
        name = entry.get("custom_id")
        if not isinstance(name, str) or not name:
            raise WorkloadError(f"{where}: custom_id: a text wanted, got {name!r}")
        if name in seen:
            raise WorkloadError(f"{where}: custom_id: {name[:60]!r} is also on line {seen[name]}; ids must differ")
        seen[name] = number
        if entry.get("method") != "POST":
            raise WorkloadError(f"{where}: method: POST wanted, got {str(entry.get('method'))[:40]!r}")
        if entry.get("url") not in URLS:
            raise WorkloadError(f"{where}: url: one of {', '.join(URLS)} wanted, got {str(entry.get('url'))[:60]!r}")
        if url is not None and entry["url"] != url:
            raise WorkloadError(f"{where}: url: {entry['url']} here and {url} before; one endpoint a file: split it")
        url = entry["url"]
        body = entry.get("body")
        if not isinstance(body, dict):
            raise WorkloadError(f"{where}: body: an object wanted")
        if isinstance(body.get("model"), str):
            models.add(body["model"])
        found.append(_batch_request(body, url, f"b{number}", f"{where}: body"))
    notes = [f"the models that the file names ({', '.join(sorted(models)[:3])}) are replaced by the run's"]
    return DataSet("openai-batch", found, URLS[url] if url else None, url != "/v1/completions", notes if models else [])


def _batch_request(body: dict[str, Any], url: str, session: str, where: str) -> Wanted:
    length = next((body[name] for name in _OURS[3:] if body.get(name) is not None and "min" not in name), None)
    if length is None:
        length = DEFAULT_OUTPUT
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= MOST_OUTPUT:
        raise WorkloadError(f"{where}: max_tokens: an integer from 1 to {MOST_OUTPUT} wanted, got {str(length)[:40]}")
    rest = {key: value for key, value in body.items() if key not in _PROMPTS and key not in _OURS}
    messages = _prompt(body, url, where)
    return Wanted(session, 0, tuple(messages), length, msgspec.json.encode(rest) if rest else None)


def _prompt(body: dict[str, Any], url: str, where: str) -> list[Said]:
    if url == "/v1/completions":
        return [Said(Role.USER, _text(body.get("prompt"), f"{where}.prompt"))]
    field = "messages" if url == "/v1/chat/completions" else "input"
    content = body.get(field)
    said = [Said(Role.SYSTEM, _text(body["instructions"], f"{where}.instructions"))] if "instructions" in body else []
    if field == "input" and isinstance(content, str):
        return [*said, Said(Role.USER, content)]
    if not isinstance(content, list) or not content:
        raise WorkloadError(f"{where}.{field}: a list of messages wanted")
    return [*said, *(_message(one, f"{where}.{field}[{i}]") for i, one in enumerate(content))]
