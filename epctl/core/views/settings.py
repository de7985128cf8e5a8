"""Settings as NCCL and the EP libraries read them: environment first, then NCCL's configuration files."""

from __future__ import annotations

import re

from epctl.core.context import Context
from epctl.core.fact import Absent, Unreadable, value_or

_LEADING_INTEGER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)", re.ASCII)
_YES = ("true", "yes", "on")
MAX_DIGITS = 18
"""Longer numbers overflow the 64 bits that NCCL reads."""


def setting(context: Context, name: str) -> str | None:
    """The value of `name`; None when it is not set, or empty, which NCCL takes for the same. Raises Unreadable when neither
    the environment nor (for a name of NCCL's) its configuration files could be read."""
    found = context.env.get(name, "")
    if found:
        return found
    conf = context.node.env.nccl_conf
    if name.startswith("NCCL_") and isinstance(conf, Absent) and conf.absent != "not_found":
        raise Unreadable("NCCL's configuration files", conf)
    return None


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


def number(context: Context, name: str) -> int | None:
    """`setting` as a number; None when it is not set."""
    found = setting(context, name)
    return None if found is None else integer(found)


def is_off(context: Context, name: str) -> bool:
    """A switch that is on by default was turned off."""
    return number(context, name) == 0


def is_on(context: Context, name: str) -> bool:
    """A switch that is off by default was turned on."""
    return (number(context, name) or 0) != 0


def told(context: Context, name: str) -> str:
    """`NCCL_IB_DISABLE=1 (environment)`: a setting and where it comes from, for evidence."""
    in_process = {entry.name for entry in value_or(context.node.env.variables, ())}
    origin = "environment" if name in in_process else "NCCL configuration file"
    files = context.node.env.nccl_conf_files
    if origin != "environment" and files:
        origin = " or ".join(files)
    return f"{name}={context.env.get(name, '')} ({origin})"


def same(one: str, other: str) -> bool:
    """Do two values mean the same? Numbers as numbers, words without regard to case."""
    if _LEADING_INTEGER.fullmatch(one) and _LEADING_INTEGER.fullmatch(other):
        return integer(one) == integer(other)
    return one.strip().casefold() == other.strip().casefold()
