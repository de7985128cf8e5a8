"""A topology file of NCCL as a part of the graph.

Its tree is coarser than that of sysfs: NCCL keeps the upstream port of each PCIe switch and leaves out root ports, host bridges and
downstream ports. Link speeds are the best that both ends can do. Static files of clouds have neither <gpu> nor <net> elements: then the
class of a function tells what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from epctl.topo.addresses import pci_address
from epctl.topo.build import check_devices
from epctl.topo.graph import Claim, Edge, Finding, Graph, Node, Part, Scalar, Source
from epctl.topo.nvlinks import rate
from epctl.topo.rates import NVLINK_GBS, pcie_gbs
from epctl.topo.tree import Tree
from epctl.topo.xml_tree import Element, doubles

SOURCE = "NCCL XML"
_GPU_CLASSES = ("0x0300", "0x0302")
_NIC_CLASSES = ("0x0200", "0x0207", "0x0280")
_NVSWITCH_CLASS = "0x0680"
_INVENTED = re.compile(r"f{4,8}:ff:", re.ASCII | re.IGNORECASE)
"""Addresses of switches that static files make up, and of the one NVSwitch that stands for all that a guest does not see."""
MOST_NVLINKS = 72
"""From one GPU to one end; GPUs of 2025 have 18 in all."""
FRONT_END_SHARE = 0.5
"""A port slower than this share of the fastest one carries no EP traffic: it is a front-end or storage port."""


class KnownHost(Struct, frozen=True):
    """What other sources told of the machine before: its devices keep their names, and only what this source claims is added."""

    gpu_index: Mapping[str, int] = field(default_factory=dict)
    """PCI address → index."""


def hosts_of(root: Element) -> dict[str, list[Element]]:
    """host_hash ('' where there is none) → the CPUs of that machine. NCCL fuses the files of a rack-scale domain into one."""
    found: dict[str, list[Element]] = {}
    for cpu in root.of("cpu"):
        found.setdefault(cpu.attrs.get("host_hash", ""), []).append(cpu)
    return found


def gpu_addresses(cpus: list[Element]) -> list[str]:
    """PCI addresses of the GPUs of a machine, in the order of the file."""
    functions = [element for cpu in cpus for element in cpu.walk() if element.tag == "pci" and is_gpu(element)]
    return [pci for entry in functions if (pci := pci_address(entry.attrs.get("busid", "")))]


def is_gpu(function: Element) -> bool:
    """By its <gpu> element, else by its class."""
    return bool(function.of("gpu")) or function.attrs.get("class", "").lower().startswith(_GPU_CLASSES)


def is_nic(function: Element) -> bool:
    """By its <nic> element, else by its class."""
    return bool(function.of("nic")) or function.attrs.get("class", "").lower().startswith(_NIC_CLASSES)


def part_of(cpus: list[Element], host: str, name: str, known: KnownHost | None = None) -> Part:
    """One machine of a topology file. `host`: its id; `name`: the file's; `known`: when other sources described the machine."""
    walk = _Walk(host, known, cpus)
    for cpu in cpus:
        walk.cpu(cpu)
    walk.end()
    check_devices(walk.nodes)
    nodes, edges = tuple(walk.with_fabric()), tuple(walk.edges.values())
    source = Source(name, "nccl_xml")
    claims = (*walk.claims, *_paths(Graph((), nodes, edges), host))
    if known is not None:
        return Part(source, (), (), claims, tuple(walk.findings))
    return Part(source, nodes, edges, claims, tuple(walk.findings))


def _paths(graph: Graph, host: str) -> Iterator[Claim]:
    """How far GPUs and NICs are apart in the tree of the file."""
    tree = Tree(graph)
    for gpu in tree.of_kind("gpu"):
        for nic in tree.of_kind("nic"):
            level = tree.level(gpu.id, nic.id)
            if level is not None:
                yield Claim(host, f"{gpu.label} - {nic.label}", "path", level, SOURCE)


class _Walk:
    def __init__(self, host: str, known: KnownHost | None, cpus: list[Element]) -> None:
        self.host = host
        self.known = known
        self.cpus = cpus
        self.nodes: dict[str, Node] = {host: Node(host, "host", host, "", SOURCE)}
        self.edges: dict[tuple[str, str, str], Edge] = {}
        self.claims: list[Claim] = []
        self.findings: list[Finding] = []
        self.without_class: list[str] = []
        self.indices = self._indices(cpus)

    def _indices(self, cpus: list[Element]) -> dict[str, int]:
        """PCI address → index: as told before, as the file says, else by the order of the file."""
        found = {pci: order for order, pci in enumerate(gpu_addresses(cpus))}
        for cpu in cpus:
            for element in cpu.walk():
                for gpu in element.of("gpu") if element.tag == "pci" else ():
                    dev, pci = gpu.attrs.get("dev", ""), pci_address(element.attrs.get("busid", ""))
                    if dev.isascii() and dev.isdigit() and pci:
                        found[pci] = int(dev[:6])
        if len(set(found.values())) < len(found):  # `dev` counts per process
            found = {pci: order for order, pci in enumerate(found)}
        return {**found, **(self.known.gpu_index if self.known is not None else {})}

    def add(self, node: Node) -> None:
        self.nodes.setdefault(node.id, node)

    def link(self, edge: Edge) -> None:
        if (edge.b, edge.a, edge.kind) not in self.edges:
            self.edges.setdefault((edge.a, edge.b, edge.kind), edge)

    def claim(self, subject: str, what: str, value: str) -> None:
        self.claims.append(Claim(self.host, subject, what, value, SOURCE))

    def cpu(self, cpu: Element) -> None:
        number = cpu.attrs.get("numaid", "")
        attrs: dict[str, Scalar] = {key: cpu.attrs[key] for key in ("arch", "vendor", "affinity") if cpu.attrs.get(key)}
        parent, label = f"{self.host}/cpu", "CPU"  # a machine without NUMA nodes: numaid is -1
        if number.isascii() and number.isdigit():
            parent, label = f"{self.host}/numa{int(number)}", f"NUMA node {int(number)}"
            attrs["numa"] = int(number)
        self.add(Node(parent, "numa", label, self.host, SOURCE, attrs))
        for child in cpu.children:
            if child.tag == "pci":
                self.pci(child, parent, number)
            elif child.tag == "nic":
                for net in child.of("net"):
                    self.net(net, None, parent)

    def pci(self, function: Element, parent: str, numa: str) -> None:
        pci = pci_address(function.attrs.get("busid", ""))
        label = pci or function.attrs.get("busid", "")[:32]
        if is_gpu(function):
            self.gpu(function, pci, parent, numa)
        elif is_nic(function):
            self.nic(function, pci or label, parent)
        elif function.attrs.get("class", "").lower().startswith(_NVSWITCH_CLASS):
            self.switch(label)
        elif function.of("pci") or function.attrs.get("class", "").lower().startswith("0x0604"):
            id_ = f"{self.host}/{label}"
            self.add(Node(id_, "pcie_switch", label, parent, SOURCE, self.attrs(function, pci)))
            self.uplink(id_, parent, function)
            for child in function.of("pci"):
                self.pci(child, id_, numa)
        else:
            self.without_class.append(label)

    def attrs(self, function: Element, pci: str) -> dict[str, Scalar]:
        found: dict[str, Scalar] = {"pci": pci} if pci else {}
        if _INVENTED.match(function.attrs.get("busid", "")):
            found["invented"] = True
        # Without 0x, as lspci and the snapshot have them: the same function reads alike from every source.
        codes = {key: function.attrs.get(key, "").lower().removeprefix("0x") for key in ("class", "vendor", "device")}
        found.update({key: code for key, code in codes.items() if code})
        return found

    def uplink(self, id_: str, parent: str, function: Element) -> None:
        speed, width = _gts(function.attrs.get("link_speed", "")), _number(function.attrs.get("link_width", ""))
        gbs = pcie_gbs(speed, width) if speed and width else None
        detail = f"x{width} at {speed:g} GT/s" if speed and width else ""
        self.link(Edge(id_, parent, "pcie", SOURCE, rate(gbs), 1, detail))

    def gpu(self, function: Element, pci: str, parent: str, numa: str) -> None:
        index = self.indices.get(pci, len(self.indices))
        id_, subject = f"{self.host}/gpu{index}", f"GPU {index}"
        attrs = {"index": index, **self.attrs(function, pci)}
        element = next(iter(function.of("gpu")), None)
        sm = _number(element.attrs.get("sm", "")) if element is not None else 0
        if sm:
            attrs["sm"] = f"{sm // 10}.{sm % 10}"
        if element is None:
            attrs["nvlinks_not_told"] = True
        self.add(Node(id_, "gpu", subject, parent, SOURCE, attrs))
        self.uplink(id_, parent, function)
        if numa.isascii() and numa.isdigit():
            self.claim(subject, "NUMA node", str(int(numa)))
        speed = _gts(function.attrs.get("link_speed", ""))
        if speed:
            self.claim(subject, "best PCIe speed (GT/s)", f"{speed:g}")
        if element is not None:
            self.nvlinks(element, id_, subject, sm)
            self.c2c(element, id_, parent)

    def nvlinks(self, gpu: Element, id_: str, subject: str, sm: int) -> None:
        total = 0
        each = NVLINK_GBS.get(sm)
        for link in gpu.of("nvlink"):
            links = _number(link.attrs.get("count", "1"))
            target = pci_address(link.attrs.get("target", ""))
            if links < 1:
                continue
            if links > MOST_NVLINKS:
                text = f"{self.host}: the file gives {subject} {links} NVLinks to {target or 'nowhere'}, more than any GPU has; left out"
                self.findings.append(Finding("warn", text, (SOURCE,)))
                continue
            total += links
            if link.attrs.get("tclass", "").startswith(_NVSWITCH_CLASS):
                other = self.switch(target if target and not _INVENTED.match(target) else "")
            elif target in self.indices:
                other = f"{self.host}/gpu{self.indices[target]}"
            else:
                continue
            gbs = None if each is None else each * links
            self.link(Edge(id_, other, "nvlink", SOURCE, rate(gbs), links, "nominal rate" if gbs else ""))
        self.claim(subject, "active NVLinks", str(total))

    def switch(self, pci: str) -> str:
        """Id of an NVSwitch, or of the domain when no switch is named."""
        home = f"{self.host}/nvlink"
        self.add(Node(home, "nvlink_domain", "NVLink domain", self.host, SOURCE))
        if not pci:
            return home
        self.add(Node(f"{self.host}/{pci}", "nvswitch", f"NVSwitch {pci}", home, SOURCE, {"pci": pci}))
        return f"{self.host}/{pci}"

    def c2c(self, gpu: Element, id_: str, parent: str) -> None:
        numa = next((node for node in self.nodes.values() if node.id == parent and node.kind in ("numa", "host")), None)
        for link in gpu.of("c2c"):
            links, each = _number(link.attrs.get("count", "")), _number(link.attrs.get("bw", ""))
            if numa is not None and links and each:
                self.link(Edge(id_, numa.id, "c2c", SOURCE, rate(links * each / 1000), links, "bw in MB/s x count"))

    def nic(self, function: Element, pci: str, parent: str) -> None:
        nets = [net for nic in function.of("nic") for net in nic.of("net")]
        for net in nets:
            self.net(net, function, parent)
        if not nets:
            id_ = f"{self.host}/{pci}"
            self.add(Node(id_, "nic", pci, parent, SOURCE, self.attrs(function, pci)))
            self.uplink(id_, parent, function)

    def net(self, net: Element, function: Element | None, parent: str) -> None:
        name = (net.attrs.get("name") or f"net{net.attrs.get('dev', '')}").replace("/", "_")[:64]
        id_ = f"{self.host}/{name}"
        attrs: dict[str, Scalar] = {}
        if function is not None:
            attrs = self.attrs(function, pci_address(function.attrs.get("busid", "")))
        speed = _number(net.attrs.get("speed", ""))
        if speed:
            attrs["gbps"] = speed / 1000
            self.claim(name, "rate (Gb/s)", f"{speed / 1000:g}")
        for key in ("gdr", "port", "dev"):
            if net.attrs.get(key):
                attrs[key] = _number(net.attrs[key])
        self.add(Node(id_, "nic", name, parent, SOURCE, attrs))
        if function is not None:
            self.uplink(id_, parent, function)

    def end(self) -> None:
        if self.without_class:
            shown = ", ".join(self.without_class[:4]) + (" …" if len(self.without_class) > 4 else "")
            text = f"{self.host}: {len(self.without_class)} PCI functions have no class in the file ({shown}): NCCL finds out what they are"
            self.findings.append(Finding("note", f"{text} when it runs, they are not drawn", (SOURCE,)))
        for busid in doubles(Element("system", {}, self.cpus)):
            text = f"{self.host}: two functions have the PCI address {busid}; NCCL takes the first one for both"
            self.findings.append(Finding("warn", text, (SOURCE,)))

    def with_fabric(self) -> list[Node]:
        """NICs marked by whether they carry EP traffic: those at least half as fast as the fastest one; and where some share a PCIe
        switch with a GPU, only those that do. The others are front-end or storage cards."""
        tree = Tree(Graph((), tuple(self.nodes.values()), tuple(self.edges.values())))
        nics = tree.of_kind("nic")
        best = max((float(node.attrs.get("gbps", 0)) for node in nics), default=0.0)
        fast = [node for node in nics if float(node.attrs.get("gbps", 0)) >= best * FRONT_END_SHARE]
        gpus = tree.of_kind("gpu")
        near = [node for node in fast if any(tree.level(node.id, gpu.id) in ("PIX", "PXB") for gpu in gpus)]
        for node in nics:
            self.nodes[node.id] = replace(node, attrs={**node.attrs, "fabric": node in (near or fast)})
        return list(self.nodes.values())


def _gts(text: str) -> float:
    """GT/s out of `16.0 GT/s PCIe`; 0 where it is not told."""
    found = re.match(r"\s*(\d{1,3}(?:\.\d{1,3})?)\s*GT/s", text, re.ASCII)
    return float(found[1]) if found else 0.0


def _number(text: str) -> int:
    found = re.match(r"\s*(\d{1,12})", text, re.ASCII)
    return int(found[1]) if found else 0
