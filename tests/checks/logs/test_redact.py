"""What must not leave the program: escape sequences, secrets, prompts; and what must stay readable."""

from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.redact import clean, redact, suspects

# Terminal escapes.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1b[?25lhidden", "hidden"),
        ("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]8;;http://evil.example\x07link\x1b]8;;\x07", "link"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]52;c;Y2xpcGJvYXJk\x07text", "text"),
        ("\x1bPq#0\x1b\\text", "text"),
        ("\x1b_apc\x1b\\text", "text"),
        ("\x9b31mred\x9b0m", "red"),
        ("\x9d0;title\x9ctext", "text"),
        ("\x90q\x9ctext", "text"),
        ("\x1bctext", "text"),
        ("\x1b(0text", "text"),
        ("bell\x07", "bell"),
        ("back\x08\x08space", "backspace"),
        ("nul\x00l", "null"),
        ("del\x7fete", "delete"),
        ("c1\x85x", "c1x"),
        ("evil\u202egpj.exe", "evilgpj.exe"),
        ("a\u2066b\u2069c\u200ed\u061ce", "abcde"),
        ("line\u2028separator\u2029s", "lineseparators"),
        ("lone\ud800 surrogate", "lone surrogate"),
        ("\ufeffmark", "mark"),
        ("tab\tand\nnewline stay", "tab\tand\nnewline stay"),
        ("é█ 漢字 stay", "é█ 漢字 stay"),
        ("windows\r\nline", "windows\nline"),
        ("10%\r20%", "10%\n20%"),
    ],
)
def test_what_a_terminal_would_act_on_goes(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize(
    "text", ["\x1b]8;;http://x", "\x1b[31", "\x1bP", "\x9d0;title", "\x1b", "\x9b", "\x1b]\x1b]\x1b["]
)
def test_an_escape_that_never_ends_leaves_no_control_character(text: str) -> None:
    assert not [letter for letter in clean(text) if ord(letter) < 32 or 127 <= ord(letter) < 160]


def test_an_escape_that_never_ends_takes_no_other_line_with_it() -> None:
    assert clean("\x1b]0;title\nnext line").endswith("\nnext line")


def test_what_is_left_of_nested_escapes_is_no_escape() -> None:
    assert "\x1b" not in clean("\x1b\x1b[0m[31mred")


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet=st.one_of(st.sampled_from("\x1b\x9b\x9d\x90\x07\x9c\r\n[]0;mPq\\"), st.characters()), max_size=60)
)
def test_clean_text_has_no_control_characters_and_stays_as_it_is(text: str) -> None:
    once = clean(text)
    assert not [letter for letter in once if letter not in "\n\t" and (ord(letter) < 32 or 127 <= ord(letter) < 160)]
    assert clean(once) == once
    once.encode("utf-8")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("seed", ["\x1b[", "\x1b]", "\x9d", "\x90", "\x1bP", "\x1b[0;", "\x9b", "\x1b (", "\r"])
def test_hostile_escapes_are_cleaned_in_time(seed: str) -> None:
    """Bounded by the timeout: a quadratic expression would take minutes."""
    assert not set(clean(seed * (300_000 // len(seed)))) & set("\x1b\x9b\x9d\x90\r")


# Secrets.

SECRET = "hunter2Secret"


@pytest.mark.parametrize(
    "text",
    [
        f"redis://:{SECRET}@redis:6379",
        f"rediss://user:{SECRET}@redis:6379/0",
        f"redis-sentinel://user:{SECRET}@a:1,b:2",
        f"postgresql://user:p{SECRET}/x@db/name",
        f"https://{SECRET}@host/path",
        f"s3://key:{SECRET}@bucket",
        f"REDIS://:{SECRET}@redis:6379",
        f"hf_{SECRET}",
        f"token is hf_{SECRET}.",
        f"sk-{SECRET}",
        f"sk-proj-abc_{SECRET}",
        f"ghp_{SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"Authorization: Basic {SECRET}==",
        f"authorization={SECRET}",
        f"got bearer {SECRET} from header",
        f"Request headers: {{'authorization': 'Bearer {SECRET}', 'host': 'x'}}",
        f"Request headers: {{'cookie': 'session={SECRET}; b=c'}}",
        f"Request headers: {{'x-api-key': '{SECRET}'}}",
        f'{{"api_key": "{SECRET}"}}',
        f"'api_key': ['{SECRET}', 'other']",
        f"api_key=['{SECRET}']",
        f"vllm serve m --api-key {SECRET} --port 8000",
        f"vllm serve m --api-key={SECRET}",
        f"['serve', '--api-key', '{SECRET}', '--port']",
        f'["serve", "--hf-token", "{SECRET}"]',
        f"VLLM_API_KEY={SECRET}",
        f"HF_TOKEN={SECRET} HOME=/root",
        f"export HF_TOKEN='{SECRET}'",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"'aws_secret_access_key': '{SECRET}'",
        f"REDIS_PASSWORD: {SECRET}",
        f"password = {SECRET}",
        f"passphrase: {SECRET}",
        f"LMCache Configuration: {{'extra_config': {{'redis_password': '{SECRET}'}}}}",
        f"client_secret={SECRET}",
        f"'token': '{SECRET}",
        f'{{"message": "headers {{\\"x-api-key\\": \\"{SECRET}\\"}}"}}',
        "AKIAABCDEFGHIJKLMNOP",
        f"GET /x?token={SECRET}&a=b",
        f"İ token={SECRET}",
    ],
)
def test_a_secret_goes(text: str) -> None:
    shown = redact(text)
    assert SECRET not in shown
    assert "AKIAABCD" not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "text",
    [
        "Routing request 8f0c-1 with session id None to http://10.244.1.17:8000 at 1785578460.0, process time = 0.0021",
        "Connected to remote storage at redis://redis.prod.svc:6379",
        "Reqid: cmpl-1, Total tokens 713, Inference Engine computed tokens: 704, LMCache hit tokens: 512",
        "Avg prompt throughput: 71.3 tokens/s",
        "non-default args: {'hf_overrides': {}, 'hf_config_path': None, 'api_key': None, 'max_num_batched_tokens': 8}",
        "eos_token='</s>', pad_token_id=0",
        "risk-adjusted disk-backed task-based",
        "Put task failed for key vllm@m@1@0@ab: [Errno 32] Broken pipe",
        "KeyError: 'lmcacheengineconfig_ab12'",
        "HF_TOKEN=<from:secret/hf>",
        "'password': None, 'secret': '', 'token': False",
        "http://10.0.0.1:8000/a@b",
        "see https://docs.lmcache.ai/recipes and mail@example.com",
        "prompt: None, prompt_token_ids: None, lora_request: None",
        "prompts=7",
        "Failed to get tokenizer: key not found",
        "compute token by token",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_the_host_of_a_url_stays() -> None:
    assert redact("redis://u:pw@redis.prod.svc:6379/0 up") == "redis://***@redis.prod.svc:6379/0 up"


def test_what_stands_beside_a_secret_stays() -> None:
    assert redact("'api_key': 'abc', 'model': 'm'") == "'api_key': '***', 'model': 'm'"
    assert redact("serve --api-key abc --port 8000") == "serve --api-key *** --port 8000"


def test_a_python_dict_stays_one() -> None:
    text = "{'remote_url': 'redis://:pw@r:1', 'api_key': ['a', 'b'], 'password': 12345, 'n': {'auth_token': 'x'}}"
    assert ast.literal_eval(redact(text)) == {
        "remote_url": "redis://***@r:1",
        "api_key": ["***"],
        "password": "***",
        "n": {"auth_token": "***"},
    }


def test_a_json_object_stays_one() -> None:
    text = json.dumps({"api_key": "x", "prompt": 'say "hi"', "headers": {"authorization": "Bearer x"}, "n": 1})
    assert json.loads(redact(text)) == {
        "api_key": "***",
        "prompt": "***",
        "headers": {"authorization": "***"},
        "n": 1,
    }


# Prompts.


@pytest.mark.parametrize(
    "text",
    [
        "Received request cmpl-1: prompt: 'my private words', params: SamplingParams(n=1)",
        "{'prompt': 'my private words', 'n': 1}",
        "{'prompt': \"it's my private words\", 'n': 1}",
        "{'prompt': 'it\\'s my private words', 'n': 1}",
        "prompt=my private words",
        "prompt='my private words",
        "{'messages': [{'role': 'user', 'content': 'my private words'}]}",
        '{"messages":[{"role":"user","content":"my private words"}]}',
        '[{"role": "user", "content": "my private words"}]',
        "system_prompt: my private words",
        "'prompts': ['a', 'my private words']",
        '{"message": "body {\\"prompt\\": \\"my private words\\"}"}',
    ],
)
def test_a_prompt_goes(text: str) -> None:
    assert "private" not in redact(text)


def test_a_prompts_token_ids_go() -> None:
    assert redact("prompt_token_ids: [1, 2, 3], lora: None") == "prompt_token_ids: ['***'], lora: None"


def test_what_stands_after_a_quoted_prompt_stays() -> None:
    assert redact("prompt: 'words', params: x") == "prompt: '***', params: x"


def test_only_the_line_of_a_prompt_is_touched() -> None:
    assert redact("before\nprompt=words\nafter") == "before\nprompt=***\nafter"


# As a whole.

PIECES = st.sampled_from(
    [
        *(
            "api_key",
            "'token'",
            '"password"',
            "prompt",
            "'messages'",
            "authorization",
            "cookie",
            "--api-key",
            "hf_",
            "sk-",
        ),
        *(
            "=",
            ": ",
            ":",
            " ",
            "'",
            '"',
            "\\",
            "\n",
            "[",
            "]",
            "{",
            "}",
            ",",
            "None",
            "***",
            "://",
            "@",
            "/",
            "abcdefgh12",
        ),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=14).map("".join))
def test_redacting_again_changes_nothing(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=14).map("".join))
def test_every_line_that_changes_is_suspected(text: str) -> None:
    """The rules, run on lines without a stem, change none: looking for stems first loses nothing."""
    from checks.redact import _redact_line

    found = suspects(text)
    done = 0
    for start, end in [*found, (len(text), len(text))]:
        for line in text[done:start].split("\n"):
            assert _redact_line(line) == line
        done = end


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["redis", "postgresql", "x-y+z.1", "HTTPS"]),
    st.text(alphabet="abcXYZ019._~-!$&()*+,;=", max_size=10),
    st.text(alphabet="abcXYZ019._~-!$&()*+,;=:/", min_size=4, max_size=10).map(lambda text: "Q" + text),
)
def test_no_password_of_a_url_is_left(scheme: str, user: str, password: str) -> None:
    assert f":{password}@" not in redact(f"at {scheme}://{user}:{password}@host:6379/0 now")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "seed",
    [
        *("token=[", "--", "--api-key ", "://", "://a:", "://a:b@", "prompt: '", "prompt: [1,", "glpat-", "sk-", "hf_"),
        *("'api_key': '\\", "authorization: ", 'content": ', "Bearer ", '\\\\\\"', "key key_id token ", "@"),
    ],
)
def test_hostile_text_is_redacted_in_time(seed: str) -> None:
    """Bounded by the timeout: a quadratic expression would take minutes on such a line."""
    assert len(redact(seed * (300_000 // len(seed)))) > 0


@pytest.mark.parametrize("name", ["sig", "X-Amz-Signature", "X-Goog-Signature", "signature"])
def test_the_signature_of_a_url_goes(name: str) -> None:
    assert redact(f"GET https://h/k?a=1&{name}=planted%3D&b=2") == f"GET https://h/k?a=1&{name}=***&b=2"
