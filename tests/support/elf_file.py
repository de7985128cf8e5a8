"""Small ELF files to read: a dynamic section with names, versions and symbols, in any word size and byte order."""

from __future__ import annotations

import struct
from collections.abc import Sequence

ADDRESS = 0x10000
"""Where the file is loaded, so that addresses and places in it differ."""


class ElfFile:
    """Builds one shared library. `table`: how the length of the symbol table is told (sections, hash, gnu_hash)."""

    def __init__(self, *, is_64: bool = True, order: str = "<", table: str = "sections") -> None:
        self.is_64, self.order, self.table = is_64, order, table
        self.strings = bytearray(b"\0")
        self.body = bytearray()
        self.head = 64 + 2 * 56 if is_64 else 52 + 2 * 32
        self.tags: list[tuple[int, int]] = []

    def pack(self, form: str, *values: int) -> bytes:
        return struct.pack(self.order + form, *values)

    def name(self, text: str) -> int:
        at = len(self.strings)
        self.strings += text.encode() + b"\0"
        return at

    def place(self, data: bytes) -> int:
        """Address of `data` once it is added, aligned to 8."""
        self.body += bytes(-len(self.body) % 8)
        at = self.head + len(self.body)
        self.body += data
        return ADDRESS + at

    def build(
        self,
        soname: str = "libx.so.1",
        needed: Sequence[str] = (),
        versions: Sequence[str] = (),
        wants: Sequence[tuple[str, Sequence[str]]] = (),
        exported: Sequence[str] = (),
        undefined: Sequence[str] = (),
    ) -> bytes:
        self.tags = [
            (14, self.name(soname)),
            *((1, self.name(entry)) for entry in needed),
            (29, self.name("$ORIGIN:/opt/lib")),
        ]
        if versions:
            self.tags.append((0x6FFFFFFC, self.place(self._verdef((soname, *versions)))))
        if wants:
            self.tags.append((0x6FFFFFFE, self.place(self._verneed(wants))))
        symbols = self._symbols(exported, undefined)
        at_symbols = self.place(symbols)
        self.tags.append((6, at_symbols))
        count = 1 + len(exported) + len(undefined)
        if self.table == "hash":
            self.tags.append(
                (4, self.place(self.pack("II", 1, count) + self.pack(f"{1 + count}I", *([0] * (1 + count)))))
            )
        elif self.table == "gnu_hash":
            self.tags.append((0x6FFFFEF5, self.place(self._gnu_hash(len(undefined), len(exported)))))
        at_strings = self.place(bytes(self.strings))
        self.tags += [(5, at_strings), (10, len(self.strings)), (0, 0)]
        form = "qQ" if self.is_64 else "iI"
        tags = [(tag - (1 << 32) if not self.is_64 and tag >= 1 << 31 else tag, value) for tag, value in self.tags]
        dynamic = b"".join(self.pack(form, *entry) for entry in tags)
        return self._whole(self.place(dynamic) - ADDRESS, len(dynamic), at_symbols - ADDRESS, len(symbols))

    def _verdef(self, names: Sequence[str]) -> bytes:
        out = b""
        for i, name in enumerate(names):
            following = 28 if i < len(names) - 1 else 0
            out += self.pack("HHHHIII", 1, 1 if i == 0 else 0, i + 1, 1, 0, 20, following) + self.pack(
                "II", self.name(name), 0
            )
        return out

    def _verneed(self, wants: Sequence[tuple[str, Sequence[str]]]) -> bytes:
        out = b""
        for i, (library, names) in enumerate(wants):
            following = 16 + 16 * len(names) if i < len(wants) - 1 else 0
            out += self.pack("HHIII", 1, len(names), self.name(library), 16, following)
            for k, name in enumerate(names):
                out += self.pack("IHHII", 0, 0, 2, self.name(name), 16 if k < len(names) - 1 else 0)
        return out

    def _symbols(self, exported: Sequence[str], undefined: Sequence[str]) -> bytes:
        out = bytes(24 if self.is_64 else 16)
        for section, names in ((0, undefined), (7, exported)):
            for name in names:
                at = self.name(name)
                out += (
                    self.pack("IBBHQQ", at, 0x12, 0, section, 0, 0)
                    if self.is_64
                    else self.pack("IIIBBH", at, 0, 0, 0x12, 0, section)
                )
        return out

    def _gnu_hash(self, num_undefined: int, num_exported: int) -> bytes:
        first = 1 + num_undefined
        bloom = bytes(8 if self.is_64 else 4)
        chain = [0] * max(0, num_exported - 1) + [1] * min(1, num_exported)
        bucket = first if num_exported else 0
        return self.pack("IIII", 1, first, 1, 0) + bloom + self.pack(f"I{len(chain)}I", bucket, *chain)

    def _whole(self, dynamic: int, dynamic_size: int, symbols: int, symbols_size: int) -> bytes:
        size = self.head + len(self.body)
        sections = b""
        if self.table == "sections":
            if self.is_64:
                sections = bytes(64) + self.pack("IIQQQQIIQQ", 0, 11, 0, 0, symbols, symbols_size, 0, 0, 8, 24)
            else:
                sections = bytes(40) + self.pack("10I", 0, 11, 0, 0, symbols, symbols_size, 0, 0, 4, 16)
        ident = b"\x7fELF" + bytes((2 if self.is_64 else 1, 2 if self.order == ">" else 1, 1)) + bytes(9)
        num, at = (2, size) if sections else (0, 0)
        if self.is_64:
            head = ident + self.pack("HHIQQQIHHHHHH", 3, 62, 1, 0, 64, at, 0, 64, 56, 2, 64, num, 0)
            head += self.pack("IIQQQQQQ", 1, 5, 0, ADDRESS, ADDRESS, size, size, 4096)
            head += self.pack("IIQQQQQQ", 2, 6, dynamic, ADDRESS + dynamic, 0, dynamic_size, dynamic_size, 8)
        else:
            head = ident + self.pack("HHIIIIIHHHHHH", 3, 20, 1, 0, 52, at, 0, 52, 32, 2, 40, num, 0)
            head += self.pack("8I", 1, 0, ADDRESS, ADDRESS, size, size, 5, 4096)
            head += self.pack("8I", 2, dynamic, ADDRESS + dynamic, 0, dynamic_size, dynamic_size, 6, 4)
        return head + bytes(self.body) + sections
