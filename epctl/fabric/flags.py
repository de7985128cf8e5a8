"""A request from text: flags of the command line, the words of `compare`, and a TOML file. One table says what each field takes."""

from __future__ import annotations

import re
import sys

import msgspec
from msgspec import Struct

from epctl.fabric.lost import without
from epctl.fabric.models import DEFAULT_MODEL
from epctl.fabric.placement import LAYOUTS, PHASES, TRAFFICS
from epctl.fabric.request import REDRAWS, TOGETHERS, Request, changed
from epctl.fabric.routing import TRANSFERS
from epctl.fabric.topology import WIRINGS, Fabric, Shape, from_graph
from epctl.model.refusal import MAX_SEED, RefusalError

MAX_FILE_BYTES = 4 << 20
"""Of a TOML file; 65,536 GPUs link by link take about two million bytes."""
_INTEGERS = (
    *("nodes", "gpus_per_node", "spines", "nodes_per_leaf", "planes", "batch", "experts", "topk", "hidden"),
    *("send_bytes", "return_bytes", "kv_bytes", "seed", "seeds", "qps", "ports"),
)
_LISTS = ("traffic", "phases", "together", "lost")
_WORDS = ("wiring", "oversubscription", "layout", "transfer", "lengths", "model", "gate", "redraw")
FIELDS = (*_INTEGERS, *_LISTS, *_WORDS)
ALLOWED: dict[str, tuple[str, ...]] = {
    "wiring": WIRINGS,
    "layout": LAYOUTS,
    "transfer": TRANSFERS,
    "traffic": TRAFFICS,
    "phases": PHASES,
    "redraw": REDRAWS,
    "together": TOGETHERS,
}
_FLAG = {"phases": "--phase"}
_EXAMPLES = {
    "lost": "leaf0-spine1",
    "oversubscription": "2",
    "lengths": "82",
    "model": DEFAULT_MODEL,
    "gate": "balanced",
}
MAX_INTEGER = MAX_SEED


def flag(field: str) -> str:
    """The flag of a field."""
    return _FLAG.get(field, "--" + field.replace("_", "-"))


def parsed(field: str, text: str) -> int | str | tuple[str, ...]:
    """`text` as the value of a field. Raises RefusalError value_invalid."""
    told = text.strip()
    if field in _INTEGERS:
        if re.fullmatch(r"[0-9]{1,19}", told) and int(told) <= MAX_INTEGER:
            return int(told)
        whole = re.fullmatch(r"[0-9]+", told)
        why = "no count is as large" if whole else "it takes a whole number, not negative"
        raise RefusalError("value_invalid", f"{flag(field)} is {told[:40]!r}", why, f"give {flag(field)} 4")
    words = tuple(dict.fromkeys(part.strip() for part in told.split(",") if part.strip()))
    if not told or (field in _LISTS and not words):
        example = ALLOWED[field][0] if field in ALLOWED else _EXAMPLES[field]
        raise RefusalError(
            "value_invalid", f"{flag(field)} is empty", "it takes a word", f"give {flag(field)} {example}"
        )
    return words if field in _LISTS else told


def with_flags(request: Request, given: dict[str, str | None]) -> Request:
    """`request` with what the command line gives; None where a flag is not given. Raises RefusalError value_invalid."""
    return changed(request, **{field: parsed(field, text) for field, text in given.items() if text is not None})


def variant(request: Request, word: str) -> Request:
    """`request` as a word of `compare` wants it: a wiring, a transfer, a layout, or FLAG=VALUE with commas between. Raises RefusalError
    value_invalid."""
    for field in ("wiring", "transfer", "layout"):
        if word in ALLOWED[field]:
            return changed(request, **{field: word})
    given: dict[str, str | None] = {}
    for part in word.split(","):
        key, sign, value = part.partition("=")
        field = key.strip().lstrip("-").replace("-", "_")
        field = "phases" if field == "phase" else field
        if not sign or field not in FIELDS:
            known = ", ".join((*WIRINGS, *TRANSFERS, *LAYOUTS))
            why = f"it may be {known}, a TOML or JSON file, or FLAG=VALUE with commas between"
            raise RefusalError("value_invalid", f"compare is given {word[:60]!r}", why, "give compare rail tor")
        # Commas part flags here, so lists have a plus.
        given[field] = (
            value.replace("+", ",") if field in _LISTS or (field == "lengths" and "%" not in value) else value
        )
    return with_flags(request, given)


class _Leaf(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    gpus: tuple[int, ...]
    plane: int = 0


class _Link(Struct, frozen=True, forbid_unknown_fields=True):
    leaf: str
    spine: str
    lanes: int = 1


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    nodes: int = 4
    gpus_per_node: int = 8
    spines: int = 4
    wiring: str = "rail"
    nodes_per_leaf: int | None = None
    oversubscription: str | int | float = "1"
    planes: int = 1
    lost: tuple[str, ...] = ()
    leaf: tuple[_Leaf, ...] = ()
    link: tuple[_Link, ...] = ()


def with_file(request: Request, text: str, name: str) -> Request:
    """`request` with the fabric of a TOML file: the numbers of a regular one, or tables [[leaf]] (name, gpus, plane) and [[link]] (leaf,
    spine, lanes). Raises RefusalError file_invalid or topology_invalid."""
    if len(text) > MAX_FILE_BYTES:
        raise too_large(name)
    found = _parsed_file(text, name)
    if found.leaf or found.link:
        _no_numbers(found, name)
        return msgspec.structs.replace(request, graph=_graph(found), shape=Shape(), origin=())
    shape = Shape(
        nodes=found.nodes,
        gpus_per_node=found.gpus_per_node,
        spines=found.spines,
        wiring=found.wiring,
        nodes_per_leaf=found.nodes_per_leaf,
        oversubscription=str(found.oversubscription),
        planes=found.planes,
        lost=found.lost,
    )
    return msgspec.structs.replace(request, graph=None, shape=shape, origin=())


def _no_numbers(found: _File, name: str) -> None:
    """Raises RefusalError file_invalid where a file has links one by one and, beside them, what decides the links of a regular fabric."""
    usual = _File()
    fields = ("spines", "wiring", "nodes_per_leaf", "oversubscription", "planes")
    both = [field for field in fields if getattr(found, field) != getattr(usual, field)]
    if both:
        what = f"{name} has {', '.join(both)} beside [[leaf]] and [[link]]"
        why = "links that are given one by one say it themselves"
        raise RefusalError("file_invalid", what, why, "leave out either")


def too_large(name: str) -> RefusalError:
    """For a file past MAX_FILE_BYTES."""
    why = f"a fabric's description has at most {MAX_FILE_BYTES >> 20} MiB"
    return RefusalError("file_invalid", f"{name} is too large", why, "give a TOML file such as: nodes = 8")


def _parsed_file(text: str, name: str) -> _File:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    todo = "write nodes, gpus_per_node, spines, wiring, nodes_per_leaf, oversubscription, planes, lost; or [[leaf]] and [[link]]"
    try:
        whole = tomllib.loads(text)
        if not whole:
            raise RefusalError("file_invalid", f"{name} describes no fabric", "there is nothing in it", todo)
        return msgspec.convert(whole, _File)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        why = str(error) or "it is nested too deeply"
        raise RefusalError("file_invalid", f"{name} is no description of a fabric", why, todo) from None


def _graph(found: _File) -> Fabric:
    names = [leaf.name for leaf in found.leaf]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        why = "a leaf belongs to one plane and has one list of GPUs"
        raise RefusalError("topology_invalid", f"the leaf {twice!r} is there twice", why, "join both tables")
    nics = [(gpu, leaf.plane, leaf.name) for leaf in found.leaf for gpu in leaf.gpus]
    cables = [(link.leaf, link.spine, link.lanes) for link in found.link]
    return without(from_graph(found.nodes, found.gpus_per_node, nics, cables), found.lost)
