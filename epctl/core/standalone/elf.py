"""What the dynamic section of an ELF file says: names, needed libraries, symbol versions, dynamic symbols.

Standard library alone, so that a collector may load this file by its path under any Python from 3.8 on. Nothing here
raises on any content; the file is never run.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Union

Bytes = Union[bytes, mmap.mmap]

MAX_SYMBOLS = 2_000_000
MAX_RECORDS = 65_536
"""Records of a chain (version definitions, needed versions, section or program headers) that are followed."""
_MAX_NAME_BYTES = 4096
_GLIBC = re.compile(r"GLIBC_(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", re.ASCII)

_PT_LOAD, _PT_DYNAMIC = 1, 2
_SHT_DYNSYM = 11
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SONAME = 1, 4, 5, 6, 10, 14
_DT_RPATH, _DT_RUNPATH, _DT_GNU_HASH = 15, 29, 0x6FFFFEF5
_DT_VERDEF, _DT_VERNEED = 0x6FFFFFFC, 0x6FFFFFFE
_VER_FLG_BASE = 1


class Elf(NamedTuple):
    """One ELF file. `error` says why the rest is empty; '' where the file was read."""

    error: str = ""
    bits: int = 0
    machine: int = 0
    """e_machine: 62 x86-64, 183 AArch64."""
    soname: str = ""
    needed: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    """Folders of DT_RUNPATH, else of DT_RPATH, as written ($ORIGIN stays)."""
    versions: tuple[str, ...] = ()
    """Version definitions without the base one: IBVERBS_1.14."""
    versions_needed: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 - never changed
    """Library → versions that are asked of it."""
    glibc_needed: str = ""
    """Highest GLIBC_x.y among them, as x.y; '' without one."""
    exported: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    """Dynamic symbols (defined here, or asked of others) that the caller's filter let through."""


def nothing(_name: str) -> bool:
    """A filter for `parse` that lets no symbol through."""
    return False


def parse(raw: Bytes, wanted: Callable[[str], bool] = nothing) -> Elf:
    """The dynamic section of the file in `raw`, with the symbols whose name `wanted` accepts (default: none)."""
    try:
        return _parse(raw, wanted)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        return Elf(error=f"damaged ELF file: {error}")


def load(path: str, wanted: Callable[[str], bool] = nothing) -> Elf:
    """`parse` of the file at `path`, which is mapped and not read as a whole."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - pathlib adds nothing here
            if os.fstat(stream.fileno()).st_size == 0:
                return Elf(error="the file is empty")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as raw:
                return parse(raw, wanted)
    except (OSError, ValueError) as error:
        return Elf(error=getattr(error, "strerror", None) or str(error))


def any_of(names: tuple[str, ...] = (), prefixes: tuple[str, ...] = ()) -> Callable[[str], bool]:
    """A filter for `parse`: symbols with one of these names, or that begin with one of these prefixes."""
    exact = frozenset(names)
    return lambda name: name in exact or name.startswith(prefixes)


class _Image:
    """The file with its byte order, word size and the map from addresses to places in the file."""

    def __init__(self, raw: Bytes) -> None:
        self.raw = raw
        self.is_64 = raw[4] == 2
        self.order = ">" if raw[5] == 2 else "<"
        self.machine = self.unpack("H", 18)[0]
        head = "QQ" if self.is_64 else "II"
        self.program_offset, self.section_offset = self.unpack(head, 32 if self.is_64 else 28)
        at = 54 if self.is_64 else 42
        self.program_size, self.num_program, self.section_size, self.num_sections = self.unpack("HHHH", at)
        self.loads: list[tuple[int, int, int]] = []
        """(address, offset, size in the file)"""
        self.dynamic: tuple[int, int] | None = None
        self._read_program_headers()

    def unpack(self, form: str, offset: int) -> tuple[Any, ...]:
        if offset < 0:
            raise ValueError("an offset is negative")
        return struct.unpack_from(self.order + form, self.raw, offset)

    def _read_program_headers(self) -> None:
        for i in range(self.num_program):
            at = self.program_offset + i * self.program_size
            if self.is_64:
                kind, _, offset, address, _, size = self.unpack("IIQQQQ", at)
            else:
                kind, offset, address, _, size = self.unpack("IIIII", at)
            if kind == _PT_LOAD:
                self.loads.append((address, offset, size))
            elif kind == _PT_DYNAMIC:
                self.dynamic = (offset, size)

    def place(self, address: int) -> int:
        """Place in the file of what is loaded at `address`."""
        for begin, offset, size in self.loads:
            if begin <= address < begin + size:
                return offset + address - begin
        raise ValueError("an address lies outside of the file")

    def tags(self) -> Iterator[tuple[int, int]]:
        """(tag, value) of the dynamic section."""
        if self.dynamic is None:
            return
        offset, size = self.dynamic
        form, step = ("qQ", 16) if self.is_64 else ("iI", 8)
        for i in range(min(size // step, MAX_RECORDS)):
            tag, value = self.unpack(form, offset + i * step)
            if tag == 0:
                return
            yield tag & 0xFFFFFFFF, value


class _Strings:
    """The dynamic string table."""

    def __init__(self, raw: Bytes, begin: int, size: int) -> None:
        self.raw, self.begin, self.end = raw, begin, min(begin + size, len(raw))

    def at(self, offset: int) -> str:
        start = self.begin + offset
        if not self.begin <= start < self.end:
            raise ValueError("a name lies outside of the string table")
        stop = self.raw.find(b"\0", start, min(self.end, start + _MAX_NAME_BYTES))
        return self.raw[start : stop if stop >= 0 else min(self.end, start + _MAX_NAME_BYTES)].decode(
            "utf-8", "replace"
        )


def _parse(raw: Bytes, wanted: Callable[[str], bool]) -> Elf:
    if len(raw) < 64 or raw[:4] != b"\x7fELF":
        return Elf(error="not an ELF file")
    image = _Image(raw)
    bits = 64 if image.is_64 else 32
    tags: dict[int, int] = {}
    needed_at: list[int] = []
    for tag, value in image.tags():
        if tag == _DT_NEEDED:
            needed_at.append(value)
        else:
            tags.setdefault(tag, value)
    if _DT_STRTAB not in tags:
        return Elf(bits=bits, machine=image.machine)
    strings = _Strings(raw, image.place(tags[_DT_STRTAB]), tags.get(_DT_STRSZ, 0))
    versions_needed = _versions_needed(image, tags, strings)
    exported, undefined = _symbols(image, tags, strings, wanted)
    path = tags.get(_DT_RUNPATH, tags.get(_DT_RPATH))
    return Elf(
        bits=bits,
        machine=image.machine,
        soname=strings.at(tags[_DT_SONAME]) if _DT_SONAME in tags else "",
        needed=tuple(strings.at(offset) for offset in needed_at),
        runpath=tuple(filter(None, strings.at(path).split(":"))) if path is not None else (),
        versions=_versions(image, tags, strings),
        versions_needed=versions_needed,
        glibc_needed=highest_glibc(name for names in versions_needed.values() for name in names),
        exported=exported,
        undefined=undefined,
    )


def highest_glibc(versions: Any) -> str:  # noqa: ANN401 - an iterable of text
    """Highest x.y among names GLIBC_x.y; '' when there is none."""
    found = [match for match in map(_GLIBC.fullmatch, versions) if match]
    best = max((tuple(int(part or 0) for part in match.groups()) for match in found), default=None)
    if best is None:
        return ""
    return ".".join(str(part) for part in (best if best[2] else best[:2]))


def _versions(image: _Image, tags: dict[int, int], strings: _Strings) -> tuple[str, ...]:
    if _DT_VERDEF not in tags:
        return ()
    found: list[str] = []
    at = image.place(tags[_DT_VERDEF])
    for _ in range(MAX_RECORDS):
        _, flags, _, count, _, first, following = image.unpack("HHHHIII", at)
        if count and not flags & _VER_FLG_BASE:
            found.append(strings.at(image.unpack("I", at + first)[0]))
        if not following:
            break
        at += following
    return tuple(found)


def _versions_needed(image: _Image, tags: dict[int, int], strings: _Strings) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    if _DT_VERNEED not in tags:
        return found
    at, left = image.place(tags[_DT_VERNEED]), MAX_RECORDS
    while left > 0:
        _, count, file, first, following = image.unpack("HHIII", at)
        names: list[str] = []
        entry = at + first
        for _ in range(min(count, left)):
            left -= 1
            _, _, _, name, step = image.unpack("IHHII", entry)
            names.append(strings.at(name))
            if not step:
                break
            entry += step
        library = strings.at(file)
        found[library] = found.get(library, ()) + tuple(names)
        left -= 1
        if not following:
            break
        at += following
    return found


def _symbols(
    image: _Image, tags: dict[int, int], strings: _Strings, wanted: Callable[[str], bool]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if _DT_SYMTAB not in tags:
        return (), ()
    begin = image.place(tags[_DT_SYMTAB])
    size = 24 if image.is_64 else 16
    count = min(_num_symbols(image, tags), MAX_SYMBOLS, (len(image.raw) - begin) // size)
    table = image.raw[begin : begin + count * size]
    exported: dict[str, None] = {}
    undefined: dict[str, None] = {}
    # (name, binding and type, section index) of a 64-bit and of a 32-bit symbol
    form, section = ("IBxH16x", 2) if image.is_64 else ("I8xBxH", 2)
    for entry in struct.iter_unpack(image.order + form, table):
        name = strings.at(entry[0]) if entry[0] else ""
        if name and entry[1] >> 4 and wanted(name):  # binding 0 is local
            (exported if entry[section] else undefined)[name] = None
    return tuple(exported), tuple(undefined)


def _num_symbols(image: _Image, tags: dict[int, int]) -> int:
    """Length of the dynamic symbol table, which only section headers and hash tables tell."""
    sections = min(image.num_sections, MAX_RECORDS) if image.section_offset else 0
    for i in range(sections):
        at = image.section_offset + i * image.section_size
        if image.unpack("I", at + 4)[0] == _SHT_DYNSYM:
            size = image.unpack("Q", at + 32)[0] if image.is_64 else image.unpack("I", at + 20)[0]
            return int(size // (24 if image.is_64 else 16))
    if _DT_HASH in tags:
        return int(image.unpack("II", image.place(tags[_DT_HASH]))[1])
    return _gnu_hash_symbols(image, tags[_DT_GNU_HASH]) if _DT_GNU_HASH in tags else 0


def _gnu_hash_symbols(image: _Image, address: int) -> int:
    """Index behind the last symbol of the last chain."""
    at = image.place(address)
    num_buckets, first, bloom, _ = image.unpack("IIII", at)
    buckets = at + 16 + bloom * (8 if image.is_64 else 4)
    if num_buckets > MAX_SYMBOLS:
        raise ValueError("too many hash buckets")
    last = max(image.unpack(f"{num_buckets}I", buckets), default=0)
    if last < first:
        return int(first)
    chain = buckets + num_buckets * 4
    for index in range(last, last + MAX_SYMBOLS):
        if image.unpack("I", chain + (index - first) * 4)[0] & 1:
            return index + 1
    return 0
