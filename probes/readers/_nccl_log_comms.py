"""Communicators in a log of NCCL: which ranks started to build one, on which GPU, and which came to the end."""

from __future__ import annotations

import re

from msgspec import Struct

from epctl.probes.readers._nccl_log_lines import Record

_COMM = re.compile(
    r"(?:nccl\w{1,60} )?comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) n[rR]anks (\d{1,7}) cudaDev (-?\d{1,5})(?: nvmlDev (-?\d{1,5}))?"
    r" busId ([0-9a-fA-F]{1,12})(?: [^\n]{0,200}?commId (0x[0-9a-f]{1,16}))?[^\n]{0,200}? - (\w{1,12} \w{1,12})",
    re.ASCII,
)
_LAYOUT = re.compile(
    r"comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) n[rR]anks (\d{1,7}) nNodes (\d{1,7}) localRanks (\d{1,7}) localRank (\d{1,7})"
    r"(?: MNNVL (\d))?",
    re.ASCII,
)


class Rank(Struct):
    rank: int
    host: str
    pid: int
    cuda_dev: int
    nvml_dev: int | None
    bus_id: str
    """As printed: hexadecimal, domain, bus, device and function run together, leading zeros dropped."""
    pci: str
    comm_id: str | None
    local_rank: int | None
    init_complete: bool


class Layout(Struct, frozen=True):
    n_nodes: int | None
    local_ranks: int | None
    mnnvl: bool | None


def pci_of(bus_id: str) -> str:
    """PCI address in `bus_id`: the lowest digit is the function, then device, two of the bus, and the domain."""
    value = int(bus_id, 16)
    return f"{value >> 20:04x}:{value >> 12 & 0xFF:02x}:{value >> 4 & 0xFF:02x}.{value & 0xF:x}"


class CommReader:
    def __init__(self) -> None:
        self._groups: dict[str, dict[int, Rank]] = {}
        self._sizes: dict[str, int] = {}
        self._layouts: dict[int, Layout] = {}
        """By number of ranks, the first that is printed."""
        self._local: dict[tuple[str, int, str, int], int] = {}
        self._pointers: dict[tuple[str, str, int], str] = {}
        """Group, host and rank → pointer of the communicator."""
        self.aborted = 0

    def take(self, record: Record) -> bool:
        """Whether the record is one of a communicator."""
        if found := _COMM.match(record.text):
            self._take_state(record, found)
        elif found := _LAYOUT.match(record.text):
            self._take_layout(record, found)
        return found is not None

    def _take_state(self, record: Record, found: re.Match[str]) -> None:
        state, n_ranks, rank = found.group(8), int(found.group(3)), int(found.group(2))
        if not state.startswith("Init"):
            self.aborted += state.startswith("Abort")
            return
        group = found.group(7) or f"{n_ranks} ranks"
        self._sizes.setdefault(group, n_ranks)
        ranks = self._groups.setdefault(group, {})
        self._pointers[group, record.host, rank] = found.group(1)
        if rank not in ranks:
            nvml, bus_id = found.group(5), found.group(6).lower()
            ranks[rank] = Rank(
                rank, record.host, record.pid, int(found.group(4)), int(nvml) if nvml else None, bus_id, pci_of(bus_id),
                found.group(7), None, init_complete=False,
            )  # fmt: skip
        if state == "Init COMPLETE":
            ranks[rank].init_complete = True

    def _take_layout(self, record: Record, found: re.Match[str]) -> None:
        n_ranks, mnnvl = int(found.group(3)), found.group(7)
        self._local[record.host, record.pid, found.group(1), int(found.group(2))] = int(found.group(6))
        layout = Layout(int(found.group(4)), int(found.group(5)), None if mnnvl is None else mnnvl != "0")
        self._layouts.setdefault(n_ranks, layout)

    @property
    def n_communicators(self) -> int:
        return len(self._groups)

    def n_ranks(self) -> int | None:
        """Size of the largest communicator."""
        return max([*self._sizes.values(), *self._layouts], default=None)

    def ranks(self) -> list[Rank]:
        """Ranks of the largest communicator, the first one of that size."""
        size = self.n_ranks()
        group = next((g for g, n in self._sizes.items() if n == size), None)
        if group is None:
            return []
        ranks = [rank for _, rank in sorted(self._groups[group].items())]
        seen: dict[str, int] = {}
        for rank in ranks:
            pointer = self._pointers.get((group, rank.host, rank.rank), "")
            printed = self._local.get((rank.host, rank.pid, pointer, rank.rank))
            rank.local_rank = seen.get(rank.host, 0) if printed is None else printed
            seen[rank.host] = seen.get(rank.host, 0) + 1
        return ranks

    def layout(self, ranks: list[Rank]) -> Layout:
        """As printed; else counted over the hosts, where every rank is in the log and they are on more than one."""
        size = self.n_ranks()
        if size is not None and size in self._layouts:
            return self._layouts[size]
        hosts: dict[str, int] = {}
        for rank in ranks:
            hosts[rank.host] = hosts.get(rank.host, 0) + 1
        if len(hosts) < 2 or len(ranks) != size:
            return Layout(None, None, None)
        sizes = set(hosts.values())
        return Layout(len(hosts), sizes.pop() if len(sizes) == 1 else None, None)


def looks_cut(text: str) -> bool:
    """Whether a record about a communicator breaks off."""
    if not text.startswith(("comm 0x", "ncclCommInit", "ncclCommSplit")):
        return False
    return _COMM.match(text) is None and _LAYOUT.match(text) is None
