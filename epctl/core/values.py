"""Values of settings as NCCL reads them."""

from __future__ import annotations

import re

_LEADING_INTEGER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)", re.ASCII)
_YES = ("true", "yes", "on")
MAX_DIGITS = 18
"""Longer numbers overflow the 64 bits that NCCL reads."""


def integer(text: str) -> int:
    """The number that NCCL takes from a text: the leading digits in C notation, 0 where there are none (strtoll with base 0
    in src/misc/param.cc). Words for yes count as 1: releases differ on them, and the author meant it."""
    found = _LEADING_INTEGER.match(text)
    if found is None:
        return 1 if text.strip().lower() in _YES else 0
    sign, digits = found.groups()
    digits = digits[:MAX_DIGITS]
    if digits[:2].lower() == "0x":
        size = int(digits[2:], 16)
    elif digits.startswith("0"):
        size = int(re.split("[89]", digits, maxsplit=1)[0], 8)
    else:
        size = int(digits)
    return -size if sign == "-" else size


def same(one: str, other: str) -> bool:
    """Do two values mean the same? Numbers as numbers, words without regard to case."""
    if _LEADING_INTEGER.fullmatch(one) and _LEADING_INTEGER.fullmatch(other):
        return integer(one) == integer(other)
    return one.strip().casefold() == other.strip().casefold()
