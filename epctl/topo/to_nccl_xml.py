"""One machine of the graph as a topology file of NCCL (NCCL_TOPO_FILE)."""

from __future__ import annotations

from epctl.core.errors import EpctlError
from epctl.topo.graph import Edge, Node
from epctl.topo.tree import Tree
from epctl.topo.xml_tree import NCCL_MOST_ELEMENTS, Element, text

_CLASS = {"gpu": "030200", "nic": "020700", "pcie_switch": "060400"}
"""Class where no source tells one: 3D controller, InfiniBand, PCI bridge."""
_HIDDEN_SWITCH = "fffffff:ff:ff.0"
"""NCCL's name for NVSwitches that a machine does not see."""
_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm64", "arm64": "arm64", "ppc64": "ppc64"}


def nccl_xml(tree: Tree, host: str = "") -> tuple[str, list[str]]:
    """(text, notes) for the machine `host`, or the only one. Raises EpctlError where there are several, or where no source tells PCI
    addresses."""
    hosts = [node.id for node in tree.hosts() if tree.of_kind("gpu", node.id)]
    if not host and len(hosts) != 1:
        why = f"the sources show {len(hosts)} machines with GPUs{': ' + ', '.join(hosts[:6]) if hosts else ''}"
        raise EpctlError(
            "a topology file of NCCL is of one machine", why, "give the source of one machine, or --host NAME"
        )
    host = host or hosts[0]
    if host not in tree.nodes or tree.nodes[host].kind != "host":
        raise EpctlError(
            f"there is no machine {host!r}",
            f"the sources show {', '.join(hosts) or 'none'}",
            "give one of these to --host",
        )
    devices = [*tree.of_kind("gpu", host), *tree.of_kind("nic", host)]
    lost = [node.label for node in devices if not node.attrs.get("pci")]
    if lost:
        why = f"no source tells the PCI address of {', '.join(lost[:4])}; `nvidia-smi topo -m` alone has none"
        raise EpctlError(
            "a topology file of NCCL cannot be written", why, "give a snapshot or a file of NCCL_TOPO_DUMP_FILE"
        )
    write = _Writer(tree, host)
    root = write.system()
    notes = []
    count = sum(1 for _ in root.walk())
    if count > NCCL_MOST_ELEMENTS:
        notes.append(
            f"the file has {count} elements, NCCL reads {NCCL_MOST_ELEMENTS} (NCCL_TOPO_XML_MAX_NODES of its source)"
        )
    return text(root), notes


class _Writer:
    def __init__(self, tree: Tree, host: str) -> None:
        self.tree = tree
        self.host = host
        self.nets = 0
        self.cpus: dict[str, Element] = {}
        self.switches: dict[str, Element] = {}
        self.functions: dict[tuple[str, str], Element] = {}

    def system(self) -> Element:
        for node in self.tree.of_kind("gpu", self.host):
            self._function(node).children.append(self._gpu(node))
        for node in self.tree.of_kind("nic", self.host):
            nic = self._function(node)
            holder = next(iter(nic.of("nic")), None)
            if holder is None:
                holder = Element("nic")
                nic.children.append(holder)
            holder.children.append(self._net(node))
        return Element("system", {"version": "1"}, list(self.cpus.values()))

    def _cpu(self, node: Node | None) -> Element:
        key = node.id if node is not None else ""
        if key not in self.cpus:
            attrs = {"numaid": str(node.attrs.get("numa", -1)) if node is not None else "-1"}
            told = node.attrs if node is not None else {}
            architecture = str(told.get("arch", self.tree.nodes[self.host].attrs.get("arch", "")))
            for name, value in (
                ("affinity", told.get("affinity")),
                ("arch", _ARCHITECTURES.get(architecture)),
                ("vendor", told.get("vendor")),
            ):
                if value:
                    attrs[name] = str(value)
            self.cpus[key] = Element("cpu", attrs)
        return self.cpus[key]

    def _above(self, node: Node) -> Element:
        """The element that a node's element belongs in. NCCL keeps the upstream port of each switch; root ports, host bridges and
        downstream ports have none."""
        for above in self.tree.above(node.id)[1:]:
            if above.kind == "pcie_switch":
                if above.id not in self.switches:
                    element = Element("pci", self._pci(above))
                    self.switches[above.id] = element
                    self._above(above).children.append(element)
                return self.switches[above.id]
            if above.kind == "numa":
                return self._cpu(above)
        return self._cpu(None)

    def _function(self, node: Node) -> Element:
        """The <pci> element of a device; devices of one function share it."""
        key = (str(node.attrs["pci"]), node.kind)
        if key not in self.functions:
            element = Element("pci", self._pci(node))
            self.functions[key] = element
            self._above(node).children.append(element)
        return self.functions[key]

    def _pci(self, node: Node) -> dict[str, str]:
        attrs = {
            "busid": str(node.attrs.get("pci", node.label)),
            "class": f"0x{_hex(node, 'class') or _CLASS[node.kind]}",
        }
        for key in ("vendor", "device"):
            if value := _hex(node, key):
                attrs[key] = f"0x{value}"
        edge = self.tree.uplink.get(node.id)
        speed, width = _trained(edge)
        if speed:
            attrs["link_speed"] = f"{speed} GT/s PCIe"
            attrs["link_width"] = width
        return attrs

    def _gpu(self, node: Node) -> Element:
        attrs = {"dev": str(node.attrs.get("index", 0))}
        sm = str(node.attrs.get("sm", "")).replace(".", "")
        if sm:
            attrs["sm"] = sm
        links = [edge for edge in self.tree.at.get(node.id, ()) if edge.kind == "nvlink"]
        return Element("gpu", attrs, [self._nvlink(node, edge) for edge in links])

    def _nvlink(self, gpu: Node, edge: Edge) -> Element:
        other = self.tree.nodes[edge.b if edge.a == gpu.id else edge.a]
        target = str(other.attrs.get("pci", "")) or _HIDDEN_SWITCH
        kind = "0x030200" if other.kind == "gpu" else "0x068000"
        return Element("nvlink", {"target": target, "count": str(edge.num_links), "tclass": kind})

    def _net(self, node: Node) -> Element:
        attrs = {"name": node.label, "dev": str(self.nets)}
        self.nets += 1
        gbps = node.attrs.get("gbps")
        if isinstance(gbps, int | float):
            attrs["speed"] = str(round(gbps * 1000))
        ports = [child for child in self.tree.children.get(node.id, []) if child.kind == "port"]
        attrs["port"] = str(ports[0].attrs.get("port", 1) if ports else node.attrs.get("port", 1))
        if "gdr" in node.attrs:
            attrs["gdr"] = str(node.attrs["gdr"])
        return Element("net", attrs)


def _hex(node: Node, key: str) -> str:
    return str(node.attrs.get(key, "")).lower().removeprefix("0x")


def _trained(edge: Edge | None) -> tuple[str, str]:
    """Speed and width out of `x16 at 32 GT/s`."""
    words = edge.detail.split() if edge is not None else []
    if len(words) < 4 or not words[0].startswith("x") or words[3] != "GT/s":
        return "", ""
    return f"{float(words[2]):.1f}", words[0][1:]
