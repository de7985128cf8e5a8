"""JSON as epctl writes it: indented, UTF-8, with a final newline, whatever strings a machine produced."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_STEERING = re.compile(r"[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
"""Control and direction characters that JSON allows unescaped, but that steer a terminal."""


def dump(thing: Any) -> bytes:  # noqa: ANN401
    """`thing` (structs, dicts, lists, scalars) as JSON. File names and variables of Linux may hold bytes that are no UTF-8
    (Python keeps them as lone surrogates); they become U+FFFD."""
    try:
        encoded = msgspec.json.encode(thing)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_valid(msgspec.to_builtins(thing, str_keys=True)))
    text = msgspec.json.format(encoded, indent=1).decode()
    return _STEERING.sub(lambda found: f"\\u{ord(found.group(0)):04x}", text).encode() + b"\n"


def _valid(thing: Any) -> Any:  # noqa: ANN401
    if isinstance(thing, str):
        return thing.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(thing, dict):
        return {_valid(key): _valid(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_valid(entry) for entry in thing]
    return thing
