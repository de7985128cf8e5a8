"""ECMP as RoCEv2 fabrics do it: a static hash of each flow decides its path, so all bytes of a queue pair take one.

The hash, all of it:

1. 5-tuple: source address 10.0.0.0 + GPU, destination address 10.0.0.0 + GPU, UDP (17), source port, destination port 4791 (RoCEv2).
   The source port is that of Linux for a QP without flow label (rdma_calc_flow_label and rdma_flow_label_to_udp_sport in
   include/rdma/ib_verbs.h): the product of both QP numbers, folded to 14 bits, above 0xC000. QPs are numbered from 64 by peer.
2. CRC-32 (IEEE 802.3) of those 13 bytes, in network order; a leaf goes on with its own number (4 bytes), its salt.
3. Tabulation hashing of the CRC's low three bytes: the sum of one table entry for each byte, modulo the number of choices. Tables hold
   uniform numbers from the seed, so every choice is as likely for any number of links, and a redraw of the seed redraws all paths.
   Source: Carter and Wegman, Universal classes of hash functions, 1979; Patrascu and Thorup, The power of simple tabulation hashing, 2011.
4. A leaf chooses among its uplinks that reach the target (in a whole fabric with more than 85 uplinks a leaf: spine and lane one
   after the other); the spine chooses among its lanes to the target's leaf, with other tables and its own number as a fourth byte.
5. A NIC with several planes takes the CRC's top byte modulo the planes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from fractions import Fraction
from math import comb
from zlib import crc32

from epctl.fabric.topology import Fabric

ROCE_PORT = 4791
FIRST_PORT = 0xC000
NUM_PORTS = 1 << 14
FIRST_QP = 64
NETWORK = 0x0A000000
MAX_CHOICES = 85
"""Three table entries below it add up within a byte."""
LEAF, LANE, SPINE = range(3)
"""Which decision a table is for."""
_TUPLE = struct.Struct(">IIBHH")
_SALT = struct.Struct(">I")


def source_port(source: int, target: int, qp: int, num_qps: int, num_ports: int) -> int:
    """UDP source port of the QP number `qp` of a pair of GPUs; with fewer ports than NUM_PORTS, modulo their number."""
    product = (FIRST_QP + target * num_qps + qp) * (FIRST_QP + source * num_qps + qp)
    product ^= product >> 20
    label = (product ^ product >> 40) & 0xFFFFF
    return FIRST_PORT + ((label & 0x3FFF) ^ label >> 14) % num_ports


def flow_crc(source: int, target: int, port: int) -> int:
    """CRC-32 of a flow's 5-tuple."""
    return crc32(_TUPLE.pack(NETWORK + source, NETWORK + target, 17, port, ROCE_PORT))


def salted(crc: int, leaf: int) -> int:
    """The CRC as a leaf sees it."""
    return crc32(_SALT.pack(leaf), crc)


class Tables:
    """All tables of one seed, made when they are asked for."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._known: dict[tuple[int, int], tuple[Sequence[int], ...]] = {}

    def of(self, decision: int, choices: int) -> tuple[Sequence[int], ...]:
        """Four tables of 256 numbers below `choices`."""
        key = (decision, choices)
        if key not in self._known:
            # Mersenne Twister: the same numbers on every machine.
            draw = random.Random((self.seed << 34) | (choices << 2) | decision).random  # noqa: S311
            rows = [[int(draw() * choices) for _ in range(256)] for _ in range(4)]
            self._known[key] = tuple(map(bytes, rows)) if choices <= 256 else tuple(map(tuple, rows))
        return self._known[key]

    def choice(self, decision: int, choices: int, key: int, number: int | None = None) -> int:
        """The choice for a key; `number` is the fourth byte's, the spine's."""
        if choices == 1:
            return 0
        a, b, c, d = self.of(decision, choices)
        found = a[key & 255] + b[key >> 8 & 255] + c[key >> 16 & 255]
        return (found if number is None else found % choices + d[number & 255]) % choices


def path(fabric: Fabric, tables: Tables, crc: int, source: int, target: int) -> tuple[int, int]:
    """Numbers of the uplink and of the lane down that a flow from leaf `source` to another leaf takes. Raises IndexError for leaves
    that do not reach each other (flows are checked before)."""
    key, first = salted(crc, source), fabric.first_uplink[source]
    regular = fabric.regular
    if regular is not None and regular[0] * regular[1] > MAX_CHOICES:
        spines, lanes = regular
        position = tables.choice(LEAF, spines, key) * lanes + tables.choice(LANE, lanes, key)
    else:
        hops = range(len(fabric.uplinks[source])) if regular is not None else fabric.next_hops(source, target)
        position = hops[tables.choice(LEAF, len(hops), key)]
    spine = fabric.uplinks[source][position][0]
    lanes_down = fabric.lanes_down[target][spine]
    return first + position, lanes_down[tables.choice(SPINE, len(lanes_down), crc, spine)]


def max_law(num_flows: int, num_links: int) -> tuple[Fraction, ...]:
    """Chances that the fullest of `num_links` links carries 0, 1, … `num_flows` of as many equal flows, placed independently.

    Source: P(max <= t) = F! / m^F [x^F] (sum over j <= t of x^j / j!)^m, an exponential generating function.
    """
    below: list[int] = []
    for most in range(num_flows + 1):
        ways = [1] + [0] * num_flows
        for _ in range(num_links):
            ways = [
                sum(ways[total - j] * comb(total, j) for j in range(min(most, total) + 1))
                for total in range(num_flows + 1)
            ]
        below.append(ways[num_flows])
    return tuple(Fraction(count - (below[i - 1] if i else 0), num_links**num_flows) for i, count in enumerate(below))
