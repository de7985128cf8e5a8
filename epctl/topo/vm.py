"""A topology file for a guest, out of the host's: what a hypervisor hides from NCCL.

NCCL finds GPUs and NICs inside the guest by itself; what it needs is a PCIe tree that works like the host's, with the guest's addresses
at its ends (https://github.com/NVIDIA/nccl/issues/1843, https://github.com/NVIDIA/nccl-tests/issues/86). So:

* functions that the guest has keep class, ids and link, and get their guest address; functions that it has not are left out;
* switches above them get addresses that no guest has (bus ffff:ff), as the static files of clouds have them;
* <gpu>, <nic> and what is in them go: their numbers, ranks and NVLinks are the host's;
* host_hash goes (NCCL writes its own), and so does the host's CPU affinity, unless the guest's CPUs are the host's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from epctl.core.errors import EpctlError
from epctl.topo.addresses import pci_address
from epctl.topo.from_nccl_xml import hosts_of, is_gpu, is_nic
from epctl.topo.xml_tree import NCCL_MOST_ELEMENTS, Element, parse, text

_NUMA = re.compile(r"numa:?([0-9]{1,4})", re.ASCII | re.IGNORECASE)
_KEPT_CPU = ("numaid", "arch", "vendor", "familyid", "modelid")
MOST_BRIDGES = 248
"""Addresses ffff:ff:01.0 to ffff:ff:1f.7."""
_TODO = "give --map HOST=GUEST with PCI addresses as lspci -D prints them, e.g. --map 0000:18:00.0=0000:05:00.0"


class BusMap(Struct, frozen=True):
    """`functions`: host address → guest address; `numa`: host NUMA node → guest NUMA node."""

    functions: Mapping[str, str] = field(default_factory=dict)
    numa: Mapping[int, int] = field(default_factory=dict)


class GuestFile(Struct, frozen=True):
    """The file, and what to know about it."""

    text: str
    notes: tuple[str, ...]


def mapping_of(words: Sequence[str]) -> BusMap:
    """Out of HOST=GUEST words, several in one word with commas. Raises EpctlError for what is no pair of addresses and for addresses
    that are there twice."""
    functions: dict[str, str] = {}
    numa: dict[int, int] = {}
    for word in (part.strip() for entry in words for part in entry.replace("\n", ",").split(",")):
        if not word or word.startswith("#"):
            continue
        left, sign, right = word.partition("=")
        nodes = _NUMA.fullmatch(left.strip()), _NUMA.fullmatch(right.strip())
        if nodes[0] is not None and nodes[1] is not None:
            numa[int(nodes[0][1])] = int(nodes[1][1])
            continue
        host, guest = pci_address(left), pci_address(right)
        if not sign or not host or not guest:
            raise EpctlError(f"{word[:60]!r} maps nothing", "both sides are PCI addresses, or numa0=numa1", _TODO)
        if functions.get(host, guest) != guest:
            raise EpctlError(f"{host} is mapped twice", f"to {functions[host]} and to {guest}", _TODO)
        functions[host] = guest
    double = next((guest for guest, times in Counter(functions.values()).items() if times > 1), "")
    if double:
        raise EpctlError(
            f"the guest address {double} is given to two functions", "each function has its own in the guest", _TODO
        )
    if not functions:
        raise EpctlError("there is nothing to map", "no HOST=GUEST is given", _TODO)
    return BusMap(functions, numa)


def guest_file(root: Element, mapping: BusMap, *, keep_affinity: bool = False) -> GuestFile:
    """The guest's file. Raises EpctlError where the host's file does not have a function that is mapped, or more than NCCL reads would
    come out."""
    cpus = _machine(root, mapping)
    build = _Guest(mapping, keep_affinity=keep_affinity)
    made = [cpu for cpu in (build.cpu(cpu) for cpu in cpus) if cpu is not None]
    merged = _merge(made)
    result = Element("system", {"version": root.attrs.get("version", "1")}, merged)
    count = sum(1 for _ in result.walk())
    if count > NCCL_MOST_ELEMENTS:
        raise EpctlError(
            "the guest's file would be refused by NCCL",
            f"{count} elements; it reads {NCCL_MOST_ELEMENTS}",
            "map fewer functions",
        )
    written = text(result)
    parse(written.encode(), "the guest's file")
    return GuestFile(written, tuple(build.notes(cpus)))


def _machine(root: Element, mapping: BusMap) -> list[Element]:
    """CPUs of the machine that has the mapped functions; the file of a rack-scale domain holds several machines."""
    best: list[Element] = []
    most = -1
    for cpus in hosts_of(root).values():
        count = len(_addresses(cpus) & mapping.functions.keys())
        if count > most:
            best, most = cpus, count
    missing = sorted(mapping.functions.keys() - _addresses(best))
    if missing:
        devices = sorted(_devices(best))
        shown = ", ".join(devices[:12]) + (" …" if len(devices) > 12 else "")
        raise EpctlError(
            f"the host's file has no function {', '.join(missing[:4])}",
            f"its GPUs and NICs are {shown or 'none'}",
            _TODO,
        )
    return best


def _addresses(cpus: list[Element]) -> set[str]:
    return {
        pci_address(e.attrs.get("busid", "")) for cpu in cpus for e in cpu.walk() if e.tag == "pci" and not e.of("pci")
    }


def _devices(cpus: list[Element]) -> set[str]:
    functions = (e for cpu in cpus for e in cpu.walk() if e.tag == "pci" and (is_gpu(e) or is_nic(e)))
    return {pci for function in functions if (pci := pci_address(function.attrs.get("busid", "")))}


class _Guest:
    def __init__(self, mapping: BusMap, *, keep_affinity: bool) -> None:
        self.mapping = mapping
        self.keep_affinity = keep_affinity
        self.num_bridges = 0
        self.flat: list[str] = []

    def cpu(self, cpu: Element) -> Element | None:
        """None for a CPU below which the guest has nothing."""
        below = [child for entry in cpu.of("pci") if (child := self.function(entry)) is not None]
        if not below:
            return None
        attrs = {key: cpu.attrs[key] for key in _KEPT_CPU if key in cpu.attrs}
        if self.keep_affinity and "affinity" in cpu.attrs:
            attrs["affinity"] = cpu.attrs["affinity"]
        number = attrs.get("numaid", "")
        if number.isascii() and number.isdigit():
            attrs["numaid"] = str(self.mapping.numa.get(int(number), int(number)))
        return Element("cpu", attrs, below)

    def function(self, pci: Element) -> Element | None:
        """A mapped function, or a switch with mapped functions below."""
        address = pci_address(pci.attrs.get("busid", ""))
        below = [child for entry in pci.of("pci") if (child := self.function(entry)) is not None]
        if below:
            return Element("pci", {**pci.attrs, "busid": self.bridge()}, below)
        guest = self.mapping.functions.get(address) if not pci.of("pci") else None
        return None if guest is None else Element("pci", {**pci.attrs, "busid": guest})

    def bridge(self) -> str:
        """The next address that no guest has."""
        self.num_bridges += 1
        if self.num_bridges > MOST_BRIDGES:
            raise EpctlError(
                "the host's tree is too large",
                f"more than {MOST_BRIDGES} switches lead to what is mapped",
                "map fewer functions",
            )
        function, slot = divmod(self.num_bridges - 1, 31)
        return f"ffff:ff:{slot + 1:02x}.{function}"

    def notes(self, cpus: list[Element]) -> list[str]:
        """What was left out, and what to check in the guest."""
        left_out = sorted(_devices(cpus) - self.mapping.functions.keys())
        found = []
        if left_out:
            found.append(f"left out, for they are not mapped: {', '.join(left_out)}")
        if not self.keep_affinity:
            found.append("CPU affinity is left out: NCCL reads the guest's own of each NUMA node in the file")
        found.append("in the guest: export NCCL_TOPO_FILE=FILE, and compare with what NCCL_TOPO_DUMP_FILE writes there")
        return found


def _merge(cpus: list[Element]) -> list[Element]:
    """Host NUMA nodes that are one in the guest share one element."""
    found: dict[str, Element] = {}
    for cpu in cpus:
        key = cpu.attrs.get("numaid", "")
        if key in found:
            found[key].children.extend(cpu.children)
        else:
            found[key] = cpu
    return list(found.values())
