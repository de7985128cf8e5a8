"""Counting flows by link, leaf by leaf, with the links of eight flows to a byte of every binary digit.

The link of a flow, by position within its leaf, is a byte. Eight blocks of such bytes are transposed as matrices of 8 x 8 bits, all at
once on integers as long as a block (Warren, Hacker's Delight, section 7-3): that gives one integer for every binary digit of the links,
a bit a flow. Splitting a leaf's flows by one digit after the other, an AND and a population count each, ends at the number of flows on
every link.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from msgspec import Struct


@lru_cache(maxsize=64)
def _modulo(num_links: int) -> bytes:
    return bytes(value % num_links for value in range(256))


class Matrix(Struct, frozen=True, eq=False):
    """Some leaves' flows of one weight: bytes `begin` to `end` of all columns, which are eight blocks. Each block has `length` bytes of
    every leaf, one leaf after another. Short leaves end in padding."""

    firsts: tuple[int, ...]
    """By leaf: number of its first uplink."""
    weight: int
    begin: int
    end: int
    length: int
    valid: tuple[int, ...]
    """By leaf: a bit for every flow, eight to a byte, one of each block."""

    def add(self, chosen: bytes, num_links: int, loads: list[int]) -> None:
        """Adds the weight to the load of every flow's link; `chosen` modulo `num_links` are the links of all flows, by position within
        the leaf."""
        mine = chosen[self.begin : self.end].translate(_modulo(num_links))
        size = len(mine) // 8
        blocks = [int.from_bytes(mine[i * size : (i + 1) * size], "little") for i in range(8)]
        _transpose(blocks, size)
        digits = [block.to_bytes(size, "little") for block in reversed(blocks[: (num_links - 1).bit_length()])]
        weight, length = self.weight, self.length
        for i, (first, valid) in enumerate(zip(self.firsts, self.valid, strict=True)):
            cut = slice(i * length, (i + 1) * length)
            counts = _split(valid, [int.from_bytes(digit[cut], "little") for digit in digits])
            for link, count in enumerate(counts[:num_links], first):
                loads[link] += weight * count


def _transpose(blocks: list[int], size: int) -> None:
    """Bit i of every byte of block k becomes bit k of that byte of block i; eight blocks of `size` bytes."""
    for step, pattern in ((4, 0x0F), (2, 0x33), (1, 0x55)):
        mask = int.from_bytes(bytes([pattern]) * size, "little")
        for i in range(8):
            if not i & step:
                swapped = (blocks[i] >> step ^ blocks[i + step]) & mask
                blocks[i + step] ^= swapped
                blocks[i] ^= swapped << step


def _split(valid: int, digits: Sequence[int]) -> list[int]:
    """By number: how many of the flows in `valid` have it, given its binary digits, highest first."""
    parts = [(valid, valid.bit_count())]
    for digit in digits[:-1]:
        halves = []
        for flows, count in parts:
            ones = flows & digit
            number = ones.bit_count()
            halves += [(flows ^ ones, count - number), (ones, number)]
        parts = halves
    if not digits:
        return [count for _, count in parts]
    counts = []
    for flows, count in parts:
        number = (flows & digits[-1]).bit_count()
        counts += [count - number, number]
    return counts


def arranged(flows: Iterable[tuple[int, int, int]], first_uplink: Sequence[int]) -> tuple[list[Matrix], list[int]]:
    """Flows, each as (leaf, units, number), in matrices; and the flow number at every place of all columns (-1: padding).

    A flow is there once for every binary digit of its units. Leaves whose number of flows differs by more than half are in different
    matrices, so that padding at most doubles a leaf's flows, besides rounding them up to eight blocks.
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
            length = -(-height // 8)
            padded = [by_leaf[leaf] + [-1] * (8 * length - len(by_leaf[leaf])) for leaf in leaves]
            places = [number for i in range(8) for column in padded for number in column[i * length : (i + 1) * length]]
            valid = tuple(_valid(len(by_leaf[leaf]), length) for leaf in leaves)
            firsts = tuple(first_uplink[leaf] for leaf in leaves)
            matrices.append(Matrix(firsts, 1 << digit, len(order), len(order) + len(places), length, valid))
            order += places
    return matrices, order


def _valid(num_flows: int, length: int) -> int:
    """A bit for every flow of a leaf: flow i in block i // `length`."""
    whole, rest = divmod(num_flows, length)
    there = bytes([(1 << whole + (i < rest)) - 1 for i in range(length)])
    return int.from_bytes(there, "little")
