"""Other names for models: a request that asks for an alias goes out under the model's own name.

Pure. Only requests that use an alias pay: their body is read once more, every other field kept byte for byte, about
1 ms a megabyte.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def parse_aliases(texts: Iterable[str]) -> dict[str, str]:
    """`NAME=MODEL` each -> {name: model}.

    Raises:
        ValueError: says which text is wrong.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, model = (part.strip() for part in text.partition("="))
        if not equals or not name or not model:
            raise ValueError(f"alias '{text}': expected NAME=MODEL")
        if name in found and found[name] != model:
            raise ValueError(f"alias '{name}' is given for '{found[name]}' and for '{model}'")
        found[name] = model
    for name, model in found.items():
        if model in found:
            raise ValueError(f"alias '{name}' names '{model}', which is an alias itself; give the model's own name")
    return found


def with_model(body: bytes, model: str) -> bytes:
    """A JSON object with another `model`. Raises msgspec's errors for what is none."""
    fields = _fields.decode(body)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)
