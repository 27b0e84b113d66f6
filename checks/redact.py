"""What must not leave this program: terminal escapes, secrets, prompts.

`clean` makes text safe to print on a terminal, `redact` takes out credentials and what users wrote. Both are pure, run
in time linear in the text, and change nothing when run again. Text that was redacted keeps its shape: a Python or JSON
dict stays one. There is no weaker mode: whatever is stored, printed or sent on has gone through both.
"""

from __future__ import annotations

import re

MASK = "***"
_PASSES = 4

_ESCAPES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    "|(?:\x1b\\]|\x9d)[^\x07\x1b\x90-\x9f\n]*(?:\x07|\x1b\\\\|\x9c)"  # OSC: titles, links, clipboard
    "|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x90-\x9f\n]*(?:\x1b\\\\|\x9c)"  # DCS, SOS, PM, APC
    "|\x1b[ -/]*[0-~]"
)
_COLOURS = tuple(f"\x1b[{code}m" for code in ("0", "3", "1", "36", "32;20", "33;20", "31;20", "31;1"))
"""What LMCache and vLLM write; replacing them by themselves first is three times as quick on a coloured log."""
_ASCII_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_C1_INTRODUCERS = re.compile("[\x90\x98\x9b\x9d-\x9f]")
_OTHER_CONTROLS = re.compile("[\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` without escape sequences and control characters; newline and tab stay, a lone carriage return ends a line.

    Bidirectional overrides, line separators other than newline and lone surrogates go too. An escape sequence that does
    not end on its line loses its first character only, which makes the rest plain text.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b[0m" in text:
        for colour in _COLOURS:
            text = text.replace(colour, "")
    ascii_only = text.isascii()
    if "\x1b" in text or (not ascii_only and _C1_INTRODUCERS.search(text)):
        text = _ESCAPES.sub("", text)
    text = _ASCII_CONTROLS.sub("", text)
    return text if ascii_only else _OTHER_CONTROLS.sub("", text)


_QUOTED = r"""'[^'\\\n]*(?:\\.[^'\\\n]*)*'?|"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|\\{1,3}["'][^"'\\\n]*"""
"""A quoted text; one whose end was cut off goes to the end of the line."""
_ENDS = r"\\{0,3}['\"]? ?[:=] {0,4}"
"""Between a key and its value: the key's closing quote, escaped in JSON logs, and the separator."""
_KEY_NAMES = (
    r"(?:api[_-]?key|secret[_-]?key|access[_-]?key|access[_-]?key[_-]?id|private[_-]?key|secret|passw(?:or)?d|passphrase"
    r"|credentials?|(?<!eos_)(?<!bos_)(?<!pad_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)token)"
)
_SAFE = frozenset({"", "none", "null", "true", "false", MASK})
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

_CREDENTIALS = re.compile(r"://(?:[^\s/'\"@]*@|[^\s/@'\":]*:(?!\d{1,5}(?:/|[\s'\"]))[^\s'\"@]{1,512}@)+")
_KEYS = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:hf_|gh[pousr]_|glpat-|nvapi-)[A-Za-z0-9-]{8,}(?!\w|['\"]? ?[:=])|sk-[A-Za-z0-9_-]{8,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?!\w))"
)
_BEARER = re.compile(r"\b((?:Bearer|Basic) {1,4})[A-Za-z0-9._~+/=-]+", re.IGNORECASE)
_SIGNED = re.compile(r"([?&](?:sig|(?:x-(?:amz|goog)-)?signature)=)[^&\s'\"*]+", re.IGNORECASE)
"""What makes a signed URL good for whoever has it."""
_HEADER = re.compile(rf"((?:authorization|cookie){_ENDS})({_QUOTED}|[^\n'\"}}]+)", re.IGNORECASE)
_SETTING = re.compile(rf"({_KEY_NAMES}{_ENDS})({_QUOTED}|\[[^\]\n]*\]?|[^\s,;&)}}\]'\"\\]+)", re.IGNORECASE)
_OPTION = re.compile(
    rf"(--[\w-]{{0,40}}?{_KEY_NAMES}(?:['\"], {{0,4}}| {{1,4}}))({_QUOTED}|[^\s,;)}}\]'\"-][^\s,;)}}\]'\"]*)",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    rf"((?:(?<![\w-])(?:system_)?(?:prompts?|messages|prompt_token_ids)|['\"]content){_ENDS})"
    rf"((?:None|null|-?\d+)\b|{_QUOTED}|\[(?:[\d,\s]*|'\*\*\*')\]|[^\n]+)",
    re.IGNORECASE,
)

_ENDINGS = ("=", ":", " =", " :", "'", '"', "\\")
_STEMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "glpat-", "nvapi-", "sk-", "akia", "asia"), ()),
    **dict.fromkeys(
        ("bearer ", "basic ", "authorization", "cookie", "passw", "passphrase", "secret", "credential"), ()
    ),
    **{word: tuple(word + end for end in _ENDINGS) for word in ("prompt", "prompts", "messages", "content")},
    **{word: tuple(word + end for end in (*_ENDINGS, " ")) for word in ("key", "key_id", "key-id", "keyid", "token")},
    "prompt_token_ids": (),
    "sig=": (),
    "signature=": (),
    "@": (),
}
"""Every line that a rule changes holds one of them in lower case, where it has endings with one of them.

Looking for them is much cheaper than the rules.
"""


def redact(text: str) -> str:
    """`text` with credentials and prompts replaced by `***`.

    Credentials: in URLs of any scheme, in headers, after keys and options that name a secret, and tokens that are known
    by their shape. Prompts: values of prompt, prompts, messages, content and prompt_token_ids, to the end of the line
    where they are not one quoted string. `None`, booleans and numbers of prompts stay.
    """
    kept: list[str] = []
    done = 0
    for start, end in suspects(text):
        kept += (text[done:start], _redact_line(text[start:end]))
        done = end
    return "".join((*kept, text[done:])) if kept else text


def suspects(text: str) -> list[tuple[int, int]]:
    """Spans of the lines that `redact` looks at, in order; it leaves all others as they are."""
    lowered = text.lower()
    if len(lowered) != len(text):  # a letter whose lower case is longer: positions are not comparable
        return [(0, len(text))]
    found = set()
    for word, stems in _STEMS.items():
        if word not in lowered:
            continue
        for stem in stems or (word,):
            at = lowered.find(stem)
            while at >= 0:
                end = lowered.find("\n", at)
                end = end if end >= 0 else len(text)
                found.add((lowered.rfind("\n", 0, at) + 1, end))
                at = lowered.find(stem, end)
    return sorted(found)


def _redact_line(line: str) -> str:
    """All rules, until they change nothing more: a mask may join what stood apart."""
    for _ in range(_PASSES):
        before = line
        line = _CREDENTIALS.sub(f"://{MASK}@", line)
        line = _KEYS.sub(MASK, line)
        line = _BEARER.sub(rf"\g<1>{MASK}", line)
        line = _SIGNED.sub(rf"\g<1>{MASK}", line)
        line = _HEADER.sub(_masked, line)
        line = _SETTING.sub(_masked, line)
        line = _OPTION.sub(_masked, line)
        line = _PROMPT.sub(_masked, line)
        if line == before:
            break
    return line


def _masked(match: re.Match[str]) -> str:
    """The key with its value replaced inside the value's own quotes or brackets; a value that tells nothing stays."""
    key, value = match.groups()
    bare = value.strip("'\"\\[] ")
    if bare.lower() in _SAFE or bare.startswith("<from:") or (match.re is _PROMPT and _NUMBER.fullmatch(value)):
        return match.group()
    if value[0] == "\\":
        return key + value[: len(value) - len(value.lstrip("\\")) + 1] + MASK
    if value[0] in "'\"":
        return key + value[0] + MASK + (value[0] if len(value) > 1 and value[-1] == value[0] else "")
    if value[0] == "[" and value[-1] == "]":
        return f"{key}['{MASK}']"
    return key + (f"'{MASK}'" if key.rstrip(" :=").endswith(("'", '"')) else MASK)
