"""The elements of a topology file of NCCL, read safely and written in the subset of XML that NCCL's own parser takes.

A file may come from anywhere: document types and entities are refused before anything is expanded, depth and number of elements are
bounded. What NCCL takes at most comes from its headers (src/graph/xml.h, src/graph/topo.h of NVIDIA/nccl): values and names of 255
characters, 16 attributes and 640 children an element, 256 elements a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.parsers import expat

from msgspec import Struct, field

from epctl.core.errors import EpctlError

MOST_BYTES = 8 * 1024 * 1024
MOST_ELEMENTS = 65_536
MOST_DEPTH = 128
NCCL_MOST_ELEMENTS = 256
NCCL_MOST_CHARS = 255
NCCL_MOST_ATTRIBUTES = 16
NCCL_MOST_CHILDREN = 640
_TODO = "give a file that NCCL_TOPO_DUMP_FILE wrote, or a cloud's NCCL_TOPO_FILE"


class Element(Struct):
    """One element: its tag, attributes in the order of the file, children."""

    tag: str
    attrs: dict[str, str] = field(default_factory=dict)
    children: list[Element] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        """The element and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def of(self, tag: str) -> list[Element]:
        """Children with a tag."""
        return [child for child in self.children if child.tag == tag]


class _Stopped(Exception):  # noqa: N818
    """The document holds what no topology file holds."""


class _Reader:
    def __init__(self) -> None:
        self.root: Element | None = None
        self.stack: list[Element] = []
        self.count = 0

    def start(self, tag: str, attrs: dict[str, str]) -> None:
        self.count += 1
        if self.count > MOST_ELEMENTS:
            raise _Stopped(f"it has more than {MOST_ELEMENTS} elements")
        if len(self.stack) >= MOST_DEPTH:
            raise _Stopped(f"its elements are nested more than {MOST_DEPTH} deep")
        element = Element(tag, attrs)
        if not self.stack:
            if tag != "system":
                raise _Stopped(f"its outermost element is <{tag[:40]}>, not <system>")
            self.root = element
        else:
            self.stack[-1].children.append(element)
        self.stack.append(element)

    def end(self, _: str) -> None:
        self.stack.pop()


def _no_entities(*_: object) -> None:
    raise _Stopped("it has a document type or entities, which no topology file has and which can grow without bounds")


def parse(raw: bytes, name: str) -> Element:
    """The <system> element of `raw`. Raises EpctlError, naming `name`, for everything that is no sound topology file."""
    if len(raw) > MOST_BYTES:
        why = f"it has {len(raw):,} bytes; up to {MOST_BYTES:,} are read, and a node's file has a few thousand"
        raise EpctlError(f"{name} is refused", why, _TODO)
    reader = _Reader()
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = _no_entities
    parser.EntityDeclHandler = _no_entities
    try:
        parser.Parse(raw.lstrip(), True)
    except (expat.ExpatError, _Stopped) as stopped:
        raise EpctlError(f"{name} is no topology file of NCCL", str(stopped), _TODO) from None
    if reader.root is None:
        raise EpctlError(f"{name} is no topology file of NCCL", "it has no element", _TODO)
    _check_bus_ids(reader.root, name)
    return reader.root


def _check_bus_ids(root: Element, name: str) -> None:
    """NCCL finds functions by their address: two of the same class cannot have one."""
    for busid, functions in doubles(root).items():
        classes = [function.attrs.get("class", "") for function in functions]
        if len(set(classes)) < len(classes):
            why = f"the PCI address {busid} is there twice in one machine"
            raise EpctlError(f"{name} is refused", why, "remove one of the two elements")


def doubles(root: Element) -> dict[str, list[Element]]:
    """PCI addresses that several functions of one machine have, and these functions."""
    found: dict[tuple[str, str], list[Element]] = {}
    for cpu in root.of("cpu"):
        for element in cpu.walk():
            busid = element.attrs.get("busid", "").lower()
            if element.tag == "pci" and busid:
                found.setdefault((cpu.attrs.get("host_hash", ""), busid), []).append(element)
    return {busid: functions for (_, busid), functions in found.items() if len(functions) > 1}


def text(root: Element) -> str:
    """`root` as NCCL writes it: two blanks a level, double quotes, no declaration in front. Raises EpctlError for what NCCL's parser
    would not take."""
    lines: list[str] = []
    _write(root, 0, lines)
    return "\n".join(lines) + "\n"


def _write(element: Element, depth: int, lines: list[str]) -> None:
    for key, value in element.attrs.items():
        if len(value) > NCCL_MOST_CHARS or any(char in value for char in '"<>&\n\r\t'):
            why = f"{key}={value[:60]!r}: NCCL reads up to {NCCL_MOST_CHARS} characters without quotes, angle brackets and ampersands"
            raise EpctlError(f"<{element.tag}> cannot be written for NCCL", why, "correct the value in the input")
    if len(element.attrs) > NCCL_MOST_ATTRIBUTES or len(element.children) > NCCL_MOST_CHILDREN:
        most = f"NCCL takes {NCCL_MOST_ATTRIBUTES} and {NCCL_MOST_CHILDREN}"
        why = f"{len(element.attrs)} attributes, {len(element.children)} children; {most}"
        raise EpctlError(f"<{element.tag}> cannot be written for NCCL", why, "give a smaller input")
    attrs = "".join(f' {key}="{value}"' for key, value in element.attrs.items())
    pad = "  " * depth
    if not element.children:
        lines.append(f"{pad}<{element.tag}{attrs}/>")
        return
    lines.append(f"{pad}<{element.tag}{attrs}>")
    for child in element.children:
        _write(child, depth + 1, lines)
    lines.append(f"{pad}</{element.tag}>")
