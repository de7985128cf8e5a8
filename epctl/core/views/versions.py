"""Comparing versions as people write them."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

MAX_CHARACTERS = 200
"""No version is longer; Python refuses integers of more than 4300 digits."""


def parse(text: str) -> Version | None:
    """`2.32.3`, `2.32.3+cuda13.0`, `v13.0`, `2.28.9-1`, `580.159.04` → Version; None when it is none."""
    text = text[:MAX_CHARACTERS]
    try:
        return Version(text.strip())
    except InvalidVersion:
        found = re.match(r"\s*v?(\d{1,9}(?:\.\d{1,9}){0,4})(?!\d)", text, re.ASCII)
        return Version(found.group(1)) if found else None


def below(text: str, floor: str) -> bool | None:
    """True when `text` is older than `floor`; local parts (`+cu130`) do not count; None when either cannot be compared."""
    one, other = parse(text), parse(floor)
    if one is None or other is None:
        return None
    return Version(one.public) < Version(other.public)


def major(text: str) -> int | None:
    """First number of a version."""
    found = parse(text)
    return found.major if found else None


def nccl_version(code: int) -> str:
    """`23203` → `2.32.3` (NCCL_VERSION: major × 10000 + minor × 100 + patch, from NCCL 2.9 on; nccl.h)."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"
