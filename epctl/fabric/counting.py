"""Counting flows by link, for all leaves at once: flows lie in matrices with a column of bytes a leaf, and bits are added up sideways.

A flow's byte has one bit set, that of its link among eight. Three rows at a time become their sum and their carry (a full adder on
integers as long as a row of the matrix), until one row is left for every binary digit: the usual carry-save tree of population counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from msgspec import Struct


@lru_cache(maxsize=256)
def _one_hot(base: int, num_links: int) -> bytes:
    """Table of the bit that stands for a link among the eight from `base` on."""
    links = (value % num_links - base for value in range(256))
    return bytes(1 << link if 0 <= link < 8 else 0 for link in links)


class Matrix(Struct, frozen=True, eq=False):
    """Some leaves' flows of one weight: bytes `begin` to `end` of all columns, a row at a time, every column a leaf's. Short columns end
    in padding; `valid` has all bits set where there is a flow."""

    firsts: tuple[int, ...]
    """By column: number of the leaf's first uplink."""
    weight: int
    begin: int
    end: int
    valid: tuple[int, int, int]
    """For each third of the rows."""

    def add(self, chosen: bytes, num_links: int, loads: list[int]) -> None:
        """Adds the weight to the load of every flow's link; `chosen` modulo `num_links` are the links of all flows, by position within
        the leaf."""
        mine, width = chosen[self.begin : self.end], len(self.firsts)
        rows = (self.end - self.begin) // width
        cut = -(-rows // 3) * width
        for base in range(0, num_links, 8):
            bits = mine.translate(_one_hot(base, num_links))
            # Cutting bytes is cheaper than shifting integers, and the first adder sees most of the bits.
            thirds = [int.from_bytes(bits[i * cut : (i + 1) * cut], "little") & self.valid[i] for i in range(3)]
            digits = _added_up(thirds, cut // width, width)
            for bit in range(min(8, num_links - base)):
                self._put(base + bit, _counts(digits, bit, width), loads)

    def _put(self, link: int, counts: Sequence[int], loads: list[int]) -> None:
        weight = self.weight
        for first, count in zip(self.firsts, counts, strict=True):
            loads[first + link] += weight * count


def _added_up(thirds: list[int], rows: int, width: int) -> list[int]:
    """Column sums of bits, which come in three parts of as many rows, as one row for every binary digit."""
    digits = []
    a, b, c = thirds
    while True:
        either = a ^ b
        bits, carries, num_carries = either ^ c, [a & b | c & either], [rows]
        while rows > 1:
            a, b, c, rows = _cut(bits, rows, width)
            either = a ^ b
            bits = either ^ c
            carries.append(a & b | c & either)
            num_carries.append(rows)
        digits.append(bits)
        bits, rows = 0, sum(num_carries)
        # Smallest first: every step copies all that is there.
        for carry, count in zip(reversed(carries), reversed(num_carries), strict=True):
            bits = bits << 8 * width * count | carry
        if not bits:
            return digits
        a, b, c, rows = _cut(bits, rows, width)


def _cut(bits: int, rows: int, width: int) -> tuple[int, int, int, int]:
    """The thirds of some rows, and how many rows each has."""
    third = -(-rows // 3)
    size = 8 * width * third
    full = (1 << size) - 1
    return bits & full, bits >> size & full, bits >> 2 * size, third


def _counts(digits: list[int], bit: int, width: int) -> Sequence[int]:
    """By column, the number that one bit of it has in `digits`."""
    ones = int.from_bytes(bytes([1 << bit]) * width, "little")
    parts = []
    for begin in range(0, len(digits), 8):
        part = 0
        for place, digit in enumerate(digits[begin : begin + 8]):
            part |= (digit & ones) >> bit << place
        parts.append(part.to_bytes(width, "little"))
    if len(parts) == 1:
        return parts[0]
    low, high = parts[:2]
    counts = [a | b << 8 for a, b in zip(low, high, strict=True)]
    for i, higher in enumerate(parts[2:], 2):
        counts = [count | byte << 8 * i for count, byte in zip(counts, higher, strict=True)]
    return counts


def arranged(flows: Iterable[tuple[int, int, int]], first_uplink: Sequence[int]) -> tuple[list[Matrix], list[int]]:
    """Flows, each as (leaf, units, number), in matrices; and the flow number at every place of all columns (-1: padding).

    A flow is there once for every binary digit of its units. Leaves whose number of flows differs by more than half are in different
    matrices, so that padding at most doubles the columns.
    """
    by_digit: dict[int, dict[int, list[int]]] = {0: {}}
    ones = by_digit[0]
    for leaf, units, number in flows:
        digit = 0
        while units > 1:
            if units & 1:
                by_digit.setdefault(digit, {}).setdefault(leaf, []).append(number)
            units >>= 1
            digit += 1
        mine = by_digit.setdefault(digit, {}) if digit else ones
        if leaf in mine:
            mine[leaf].append(number)
        else:
            mine[leaf] = [number]
    matrices: list[Matrix] = []
    order: list[int] = []
    for digit, by_leaf in sorted(by_digit.items()):
        left = sorted(by_leaf, key=lambda leaf: (-len(by_leaf[leaf]), leaf))
        while left:
            height = len(by_leaf[left[0]])
            leaves = [leaf for leaf in left if 2 * len(by_leaf[leaf]) >= height]
            left = left[len(leaves) :]
            padded = [by_leaf[leaf] + [-1] * (height - len(by_leaf[leaf])) for leaf in leaves]
            places = [number for row in zip(*padded, strict=True) for number in row]
            there = bytes([255 if number >= 0 else 0 for number in places])
            cut = -(-height // 3) * len(leaves)
            a, b, c = (int.from_bytes(there[i * cut : (i + 1) * cut], "little") for i in range(3))
            firsts = tuple(first_uplink[leaf] for leaf in leaves)
            matrices.append(Matrix(firsts, 1 << digit, len(order), len(order) + len(places), (a, b, c)))
            order += places
    return matrices, order
