"""Puts a page together out of its parts in the package's data: template, style, scripts, and the data as JSON.

A policy in the page's head (Content-Security-Policy: https://www.w3.org/TR/CSP3/) lets the browser run only this very script and style,
named by their hashes, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from epctl.core.render.safe import plain

_PLACE = re.compile(r"\{\{(\w+)\}\}")
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Characters that could end a script element or a line of script; in JSON they stand in strings only."""


def part(name: str) -> str:
    """A file of the page's parts."""
    from importlib import resources

    return resources.files("epctl").joinpath("data", "page", name).read_text("utf-8")


def embedded(data: Any) -> str:  # noqa: ANN401 - whatever JSON can hold
    """JSON that may stand in a script element, whatever its strings hold. Bytes of names that are no UTF-8 become U+FFFD."""
    try:
        text = msgspec.json.encode(data).decode()
    except UnicodeEncodeError:
        text = msgspec.json.encode(_valid(msgspec.to_builtins(data, str_keys=True))).decode()
    return re.sub("[<>&\u2028\u2029]", lambda found: _ESCAPES[found.group(0)], text)


def page(*, title: str, body: str, scripts: Sequence[str], data: Mapping[str, Any]) -> str:
    """The whole page. `body`, `scripts`: names of parts; the data stands in the element with the id `data`."""
    style, script = part("page.css"), "\n".join(['"use strict";', *map(part, scripts)])
    policy = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"
    values = {
        "title": html.escape(plain(title)),
        "policy": f"{policy}; style-src {_hash(style)}; script-src {_hash(script)}",
        "style": style,
        "body": part(body),
        "script": script,
        "data": embedded(data),
    }
    return _PLACE.sub(lambda found: values[found.group(1)], part("page.html"))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _valid(thing: Any) -> Any:  # noqa: ANN401
    if isinstance(thing, str):
        return thing.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(thing, dict):
        return {_valid(key): _valid(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_valid(entry) for entry in thing]
    return thing
