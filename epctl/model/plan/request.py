"""What `epctl plan` is asked: one field a flag, read from text the same way for a flag and for a value of --sweep."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import product
from typing import Any

import msgspec
from msgspec import Struct

from epctl.model.refusal import RefusalError

MAX_ROWS = 1_000_000
"""Combinations of one sweep; past this the result is no table that anybody reads."""
_MAX_TEXT = 60


class Request(Struct, frozen=True, kw_only=True):
    """The flags. None: not given, so that a preset, a file, a profile or a default decides. Units: GB/s one way, bytes, counts."""

    experts: int | None = None
    topk: int | None = None
    hidden: int | None = None
    tokens: int | None = None
    dtype: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    mode: str | None = None
    overlap: bool | None = None
    multiple_reduction: bool | None = None
    preset: str | None = None
    gate: str | None = None
    seed: int | None = None
    rules: str | None = None
    calibration: str | None = None
    sm_read_gbs: float | None = None
    sm_write_gbs: float | None = None
    hardware: str | None = None
    from_: str | None = None
    sample: str | None = None
    nvlink_gbs: float | None = None
    rdma_gbs: float | None = None
    sms_on_device: int | None = None
    memory_bytes: int | None = None
    atomics: str | None = None
    max_qp: int | None = None
    contexts: int | None = None
    reserved_bytes: int | None = None
    counters: bool | None = None
    full_mesh: bool | None = None
    what: str | None = None
    op: str | None = None
    tensor_bytes: str | None = None
    inflight: int | None = None
    layers: int | None = None
    entries: str | None = None
    entries_per_token: int | None = None
    max_reads_per_qp: int | None = None
    cp: int | None = None
    redundant_experts: int | None = None
    steps_per_second: float | None = None
    requests: int | None = None
    draft_length: int | None = None
    acceptance: float | None = None


EXAMPLES: dict[str, str] = {
    "experts": "256",
    "topk": "8",
    "hidden": "7168",
    "tokens": "4096",
    "dtype": "fp8",
    "nodes": "2",
    "gpus_per_node": "8",
    "mode": "hybrid",
    "overlap": "true",
    "multiple_reduction": "true",
    "preset": "decode",
    "gate": "zipf:1.0",
    "seed": "1",
    "rules": "deepep-2.5",
    "calibration": "calibration.json",
    "sm_read_gbs": "180",
    "sm_write_gbs": "45",
    "hardware": "h200-ndr400",
    "from_": "node.tar.gz",
    "sample": "hgx-h100-ib",
    "nvlink_gbs": "405",
    "rdma_gbs": "50",
    "sms_on_device": "132",
    "memory_bytes": "141000000000",
    "atomics": "slow",
    "max_qp": "131072",
    "contexts": "17",
    "reserved_bytes": "100000000000",
    "counters": "false",
    "full_mesh": "false",
    "what": "ep",
    "op": "all_reduce",
    "tensor_bytes": "67108864",
    "inflight": "2",
    "layers": "2",
    "entries": "100000",
    "entries_per_token": "8",
    "max_reads_per_qp": "16",
    "cp": "1",
    "redundant_experts": "32",
    "steps_per_second": "50",
    "requests": "64",
    "draft_length": "5",
    "acceptance": "0.7",
}
"""Field → a value that would do."""

_KINDS: dict[str, type] = {}
for _field in msgspec.structs.fields(Request):
    _KINDS[_field.name] = next(kind for kind in (bool, int, float, str) if kind in getattr(_field.type, "__args__", ()))
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_RULES = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def integer_fields() -> tuple[str, ...]:
    """Fields that are whole numbers."""
    return tuple(field for field, kind in _KINDS.items() if kind is int)


def flag(field: str) -> str:
    """The flag of a field: gpus_per_node → --gpus-per-node."""
    return "--" + field.rstrip("_").replace("_", "-")


def parsed(field: str, text: str) -> bool | int | float | str:
    """`text` as the value of a field. Raises RefusalError value_invalid."""
    kind, told = _KINDS[field], text.strip()
    try:
        if kind is str and told:
            return told
        if kind is bool:
            return _WORDS[told.lower()]
        if kind is not str and len(told) <= _MAX_TEXT:
            return int(told) if kind is int else float(told)
    except (KeyError, ValueError):
        pass
    what = f"{flag(field)} is {short(repr(text))}"
    raise RefusalError("value_invalid", what, f"it takes {_RULES[kind]}", f"give {flag(field)} {EXAMPLES[field]}")


def short(text: str) -> str:
    """`text`, cut to what fits a line."""
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def request_of(given: dict[str, Any]) -> Request:
    """A request from what the command line has for each field: text, a boolean, or None. Raises RefusalError value_invalid."""
    read: dict[str, Any] = {name: parsed(name, text) if isinstance(text, str) else text for name, text in given.items()}
    return Request(**read)


def field_of(key: str) -> str:
    """The field that a KEY of --sweep names, with or without dashes. Raises RefusalError unknown_sweep_key."""
    name = key.strip().lstrip("-").replace("-", "_")
    for field in (name, f"{name}_"):
        if field in _KINDS:
            return field
    names = [flag(field)[2:] for field in _KINDS]
    near = get_close_matches(name.replace("_", "-"), names, n=3, cutoff=0.5)
    what, why = f"--sweep has the key {short(key)!r}", f"a key is a flag's name: {', '.join(names)}"
    best = near[0] if near else "tokens"
    field = next(field for field in _KINDS if flag(field)[2:] == best)
    raise RefusalError("unknown_sweep_key", what, why, f"give --sweep {best}={EXAMPLES[field]}")


class Sweep(Struct, frozen=True):
    """Fields to go through, and the values of each, in the order that they were given."""

    fields: tuple[str, ...]
    values: tuple[tuple[bool | int | float | str, ...], ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The flags' names without dashes in front."""
        return tuple(flag(field)[2:] for field in self.fields)

    @property
    def count(self) -> int:
        """Combinations."""
        total = 1
        for values in self.values:
            total *= len(values)
        return total

    def combinations(self) -> product[tuple[bool | int | float | str, ...]]:
        """Every combination, the last key fastest."""
        return product(*self.values)


def sweep_of(texts: list[str] | tuple[str, ...]) -> Sweep:
    """From KEY=a,b,c. Raises RefusalError sweep_invalid, unknown_sweep_key, value_invalid or absurd_argument."""
    fields: list[str] = []
    values: list[tuple[bool | int | float | str, ...]] = []
    for text in texts:
        key, sign, rest = text.partition("=")
        if not sign or not rest.strip(","):
            what, why = f"--sweep is {short(text)!r}", "it takes a key, an equals sign and values with commas between"
            raise RefusalError("sweep_invalid", what, why, "give --sweep tokens=128,4096")
        field = field_of(key)
        if field in fields:
            what, why = f"--sweep has {flag(field)[2:]} twice", "each key is gone through once"
            raise RefusalError(
                "sweep_invalid", what, why, f"give --sweep {flag(field)[2:]} once, with all of its values"
            )
        fields.append(field)
        values.append(tuple(parsed(field, part) for part in rest.split(",") if part.strip()))
    found = Sweep(tuple(fields), tuple(values))
    if found.count > MAX_ROWS:
        what, why = f"the sweep has {found.count} combinations", f"at most {MAX_ROWS} are gone through"
        raise RefusalError("absurd_argument", what, why, "give fewer values")
    return found
