"""From a collector's document to facts: total functions over JSON that may be damaged, hostile or of another version.

A collector writes plain values; one that it could not get is `{"error": reason or code, "detail": text}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

from epctl.core.fact import Absent, Fact, Reason

REASONS = frozenset(get_args(Reason))
ERRNO: dict[str, Reason] = {
    "EACCES": "permission",
    "EPERM": "permission",
    "ENOENT": "not_found",
    "ENOTDIR": "not_found",
}
"""Names of errno that are a reason of their own."""
MAX_TEXT_CHARS = 4096
MAX_ITEMS = 65_536
_INT64 = 1 << 63

T = TypeVar("T")


def text_of(value: Any) -> str:  # noqa: ANN401 - JSON
    """Text that any encoder takes: no lone surrogates, at most MAX_TEXT_CHARS. Nested values are told by their kind alone."""
    if isinstance(value, str):
        return value[:MAX_TEXT_CHARS].encode("utf-8", "replace").decode("utf-8")
    if value is None or isinstance(value, (bool, float)) or is_int(value):
        return str(value)
    return f"<{type(value).__name__}>"


def absent_of(value: Any) -> Absent | None:  # noqa: ANN401 - JSON
    """The reason that `value` holds instead of a fact; None when it holds something else."""
    if isinstance(value, Absent):
        return value
    if not isinstance(value, dict) or "error" not in value:
        return None
    error, detail = value["error"], value.get("detail", "")
    if isinstance(error, str) and error in REASONS:
        return Absent(error, text_of(detail) if detail else "")  # type: ignore[arg-type]
    if isinstance(error, str) and error in ERRNO:
        return Absent(ERRNO[error], error)
    words = f"{text_of(error)}: {text_of(detail)}" if detail else text_of(error)
    return Absent("failed", words)


def member(document: Any, key: str) -> Any:  # noqa: ANN401 - JSON
    """`document[key]`, or an Absent: that of the document itself, or because the key is missing or holds an error."""
    reason = absent_of(document)
    if reason is not None:
        return reason
    if not isinstance(document, dict):
        return Absent("unparsable", "the collector's document is not an object", text_of(document)[:80])
    if key not in document:
        return Absent("not_read", f"the collector told nothing about {key}")
    found = document[key]
    reason = absent_of(found)
    return found if reason is None else reason


def _odd(key: str, value: Any, wanted: str) -> Absent:  # noqa: ANN401 - JSON
    return Absent("unparsable", f"{key} is no {wanted}", text_of(value)[:80])


def text(document: Any, key: str) -> Fact[str]:  # noqa: ANN401 - JSON
    """A text."""
    found = member(document, key)
    if isinstance(found, Absent):
        return found
    return text_of(found) if isinstance(found, str) else _odd(key, found, "text")


def integer(document: Any, key: str) -> Fact[int]:  # noqa: ANN401 - JSON
    """An integer of 64 bits."""
    found = member(document, key)
    if isinstance(found, Absent):
        return found
    return found if is_int(found) else _odd(key, found, "integer")


def flag(document: Any, key: str) -> Fact[bool]:  # noqa: ANN401 - JSON
    """True or false."""
    found = member(document, key)
    if isinstance(found, Absent):
        return found
    return found if isinstance(found, bool) else _odd(key, found, "boolean")


def items(document: Any, key: str, make: Callable[[Any], T | None]) -> Fact[tuple[T, ...]]:  # noqa: ANN401 - JSON
    """A list, each entry through `make`; entries that it answers with None are dropped."""
    found = member(document, key)
    if isinstance(found, Absent):
        return found
    if not isinstance(found, list):
        return _odd(key, found, "list")
    made = (make(entry) for entry in found[:MAX_ITEMS])
    return tuple(entry for entry in made if entry is not None)


def texts(document: Any, key: str) -> Fact[tuple[str, ...]]:  # noqa: ANN401 - JSON
    """A list of texts."""
    return items(document, key, lambda entry: text_of(entry) if isinstance(entry, str) else None)


def name_of(entry: Any, key: str) -> str:  # noqa: ANN401 - JSON
    """The text `key` of an entry of a list, '' when there is none."""
    found = text(entry, key)
    return "" if isinstance(found, Absent) else found


def is_int(value: Any) -> bool:  # noqa: ANN401 - JSON
    """An integer (no boolean) that fits into 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64
