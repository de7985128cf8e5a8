"""Answers of NVML as the collector `nvml` wrote them down: total functions from one entry to one fact.

An entry is {"v": value} or {"e": NVML return code, "s": words}.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from epctl.core.fact import Absent, Fact, Reason
from epctl.probes.documents import is_int, text_of

T = TypeVar("T")

REASONS: dict[int, Reason] = {
    -2: "tool_missing",
    3: "unsupported",
    4: "permission",
    6: "not_found",
    10: "timed_out",
    12: "not_found",
    13: "unsupported",
    21: "unsupported",
    22: "unsupported",
    25: "unsupported",
    26: "unsupported",
    28: "not_found",
}
"""NVML return code → reason; every other one is `failed`. -2: the collector has no nvidia-ml-py."""
LOST = frozenset({15, 16})
"""NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED."""
NOT_SUPPORTED = 3

_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])\Z", re.ASCII)


def code_of(entry: Any) -> int | None:  # noqa: ANN401 - JSON
    """NVML's return code in an entry; None when it holds a value, or nothing that can be read."""
    code = entry.get("e") if isinstance(entry, dict) and "v" not in entry else None
    return code if is_int(code) else None


def value_of(entry: Any, what: str, missing: Absent) -> Any:  # noqa: ANN401 - JSON
    """The value in an entry, or why there is none. `missing`: the reason when there is no entry."""
    if entry is None:
        return missing
    if isinstance(entry, dict) and "v" in entry:
        return entry["v"]
    code = code_of(entry)
    if code is None:
        return Absent("unparsable", f"NVML's answer for {what} cannot be read", text_of(entry)[:80])
    words = text_of(entry.get("s", "")) if isinstance(entry.get("s"), str) else ""
    return Absent(REASONS.get(code, "failed"), f"NVML: {words or f'return code {code}'}"[:300])


class Answers:
    """The entries of one object of the document. Entries that are not there are `missing`."""

    def __init__(self, entries: Any, missing: Absent) -> None:  # noqa: ANN401 - JSON
        self.entries: dict[str, Any] = entries if isinstance(entries, dict) else {}
        self.missing = missing

    def code(self, key: str) -> int | None:
        """NVML's return code of a call that failed."""
        return code_of(self.entries.get(key))

    def raw(self, key: str, *path: str | int) -> Any:  # noqa: ANN401 - JSON
        """The value of a call, or the part of it that `path` (members, positions) names."""
        found = value_of(self.entries.get(key), key, self.missing)
        for step in path:
            if isinstance(found, Absent):
                return found
            inside = step in found if isinstance(found, dict) else isinstance(found, list) and step in range(len(found))
            if not inside:
                return Absent("unparsable", f"NVML's {key} has no {step}", text_of(found)[:80])
            found = found[step]
        return found

    def integer(self, key: str, *path: str | int) -> Fact[int]:
        """A whole number of at most 63 bits, not negative: NVML's mark for `not available` is all ones."""
        found = self.raw(key, *path)
        if isinstance(found, Absent):
            return found
        if is_int(found) and found >= 0:
            return int(found)
        if isinstance(found, int) and not isinstance(found, bool) and found >= 1 << 63:
            return Absent("unsupported", f"NVML has no value for {key}")
        return _odd(key, found, "a number")

    def text(self, key: str) -> Fact[str]:
        """A text that is not empty."""
        found = self.raw(key)
        if isinstance(found, Absent):
            return found
        if not isinstance(found, str):
            return _odd(key, found, "a text")
        return text_of(found).strip() or Absent("unsupported", f"NVML has no {key}")

    def flag(self, key: str, *path: str | int) -> Fact[bool]:
        """An NVML switch: 0 or 1."""
        found = self.integer(key, *path)
        if isinstance(found, Absent):
            return found
        return found == 1 if found in (0, 1) else _odd(key, found, "a switch")

    def word(self, key: str, words: Mapping[int, T], *path: str | int) -> Fact[T]:
        """The word for one of NVML's enumerated values."""
        found = self.integer(key, *path)
        if isinstance(found, Absent):
            return found
        return words[found] if found in words else _odd(key, found, "a known value")


def sysfs_address(raw: Fact[str]) -> Fact[str]:
    """NVML's bus id (00000000:18:00.0) as sysfs writes it. A virtual machine is told all ones for what it cannot see."""
    if isinstance(raw, Absent):
        return raw
    found = _PCI.match(raw.lower())
    if found is None:
        return Absent("unparsable", "NVML's bus id cannot be read", raw[:80])
    domain, bus, device, function = found.groups()
    if domain.strip("f") == "" or (int(domain, 16), bus, device) == (0, "00", "00"):
        return Absent("unsupported", "NVML does not tell the address")
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


def _odd(key: str, found: Any, wanted: str) -> Absent:  # noqa: ANN401 - JSON
    return Absent("unparsable", f"NVML's {key} is not {wanted}", text_of(found)[:80])
