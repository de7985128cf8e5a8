"""A node's snapshot as a part of the graph."""

from __future__ import annotations

from msgspec import UNSET

from epctl.core.context import Context
from epctl.core.fact import Absent, Unreadable, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Gpu
from epctl.core.snapshot.host import PciFunction
from epctl.core.snapshot.rdma import RdmaDevice
from epctl.core.views import fabric as nvlink_fabric
from epctl.core.views import nics, pcie
from epctl.topo.graph import Claim, Edge, Finding, Node, NodeKind, Part, Scalar, Source
from epctl.topo.rates import GENERATION_GTS, pcie_gbs
from epctl.topo.snapshot_cells import distances_of, nics_of
from epctl.topo.snapshot_links import claims_of_links, links_of

_NVSWITCH_CLASS = "068000"
_NVIDIA = "10de"


def host_name(node: Snapshot) -> str:
    """Name of the machine: its host name, else the file's."""
    return (value_or(node.host.hostname, "") or node.origin.name or "this machine").replace("/", "_")


def part_of(node: Snapshot, name: str = "") -> Part:
    """All that a snapshot tells of the wiring. `name` stands for the host name where two machines have the same."""
    host = name or host_name(node)
    build = _Builder(node, host)
    build.run()
    kind: Source = Source(
        node.origin.name or host,
        "live" if node.origin.kind == "live" else "snapshot",
        node.origin.kind == "sample",
        node.origin.hand_made,
    )
    nodes, distances = tuple(build.nodes.values()), tuple(distances_of(node, host))
    return Part(kind, nodes, tuple(build.edges), tuple(build.claims), tuple(build.findings), distances)


class _Builder:
    def __init__(self, node: Snapshot, host: str) -> None:
        self.node = node
        self.host = host
        self.nodes: dict[str, Node] = {}
        self.edges: list[Edge] = []
        self.claims: list[Claim] = []
        self.findings: list[Finding] = []
        self.functions = {entry.pci: entry for entry in value_or(node.pcie.functions, ())}
        self.guest = value_or(node.host.virtualization, "none") != "none"

    def run(self) -> None:
        self.add(Node(self.host, "host", self.host, "", "system", self._host_attrs()))
        for gpu in value_or(self.node.gpu.gpus, ()):
            self._gpu(gpu)
        self._switch_functions()
        carrying = self._fabric()
        for device in value_or(self.node.rdma.devices, ()):
            if device.manages_nvswitch is not True:
                self._nic(device, carrying)
        for entry in nics_of(self.node, self.host):
            self.add(entry)
        nodes, edges = links_of(self.node, self.host, set(self.nodes))
        for entry in nodes:
            self.add(entry)
        self.edges += edges
        self.claims += claims_of_links(self.node, self.host)
        self._path_claims()
        self._absences()

    def add(self, node: Node) -> None:
        self.nodes.setdefault(node.id, node)

    def claim(self, subject: str, what: str, value: object, source: str) -> None:
        if not isinstance(value, Absent):
            told = f"{value:g}" if isinstance(value, float) else str(value)
            self.claims.append(Claim(self.host, subject, what, told, source))

    def _host_attrs(self) -> dict[str, Scalar]:
        area = self.node.host
        told = {"vendor": area.vendor, "product": area.product, "cpu": area.cpu_model, "arch": area.architecture}
        found: dict[str, Scalar] = {key: value for key, value in told.items() if isinstance(value, str)}
        if isinstance(area.num_numa_nodes, int):
            found["num_numa_nodes"] = area.num_numa_nodes
        if self.guest:
            found["virtualization"] = value_or(area.virtualization, "")
        return found

    # -- PCI tree

    def numa(self, number: object) -> str:
        """Id of a NUMA node; the machine's where it is not known which one, and there are several."""
        if not isinstance(number, int) and self.node.host.num_numa_nodes == 1:
            number = 0
        if not isinstance(number, int) or number < 0:
            return self.host
        id_ = f"{self.host}/numa{number}"
        self.add(Node(id_, "numa", f"NUMA node {number}", self.host, "sysfs", {"numa": number}))
        return id_

    def place(self, entry: PciFunction | None, numa_node: object) -> str:
        """Id of what a device hangs on; what lies above is added."""
        if entry is None or not entry.root:
            return self.numa(numa_node)
        known = entry.numa_node if isinstance(entry.numa_node, int) else numa_node
        parent = f"{self.host}/{entry.root}"
        self.add(Node(parent, "host_bridge", entry.root, self.numa(known), "sysfs"))
        for depth, pci in enumerate(entry.upstream):
            kind: NodeKind = "root_port" if depth == 0 else "pcie_switch" if depth % 2 else "pcie_port"
            bridge = f"{self.host}/{pci}"
            if bridge not in self.nodes:
                self.add(Node(bridge, kind, pci, parent, "sysfs", self._function_attrs(self.functions.get(pci))))
                if kind == "pcie_switch":
                    self._link(bridge, parent, self.functions.get(pci))
            parent = bridge
        return parent

    def _function_attrs(self, entry: PciFunction | None) -> dict[str, Scalar]:
        if entry is None:
            return {}
        found: dict[str, Scalar] = {
            "pci": entry.pci, "class": entry.pci_class, "vendor": entry.vendor, "device": entry.device,
        }  # fmt: skip
        for key in ("speed_gts", "speed_max_gts", "width", "width_max"):
            value = getattr(entry, key)
            if not isinstance(value, Absent):
                found[key] = value
        return found

    def _link(self, id_: str, parent: str, entry: PciFunction | None, *, idles: bool = False) -> None:
        """The PCIe link above a device. `idles`: it slows down while idle, so that its best speed counts, as far as the port above
        goes along."""
        gbs, detail = None, ""
        if entry is not None and isinstance(entry.width, int):
            speed = self._speed(entry, idles=idles)
            if speed is not None:
                detail = f"x{entry.width} at {speed:g} GT/s" + (" as the guest sees it" if self.guest else "")
                gbs = None if self.guest else pcie_gbs(speed, entry.width)
        self.edges.append(Edge(id_, parent, "pcie", "sysfs", UNSET if gbs is None else gbs, 1, detail))

    def _speed(self, entry: PciFunction, *, idles: bool) -> float | None:
        if not idles:
            return entry.speed_gts if isinstance(entry.speed_gts, float) else None
        above = self.functions.get(entry.upstream[-1]) if entry.upstream else None
        best = [value_or(each.speed_max_gts, 0.0) for each in (entry, above) if each is not None]
        known = [speed for speed in best if speed > 0]
        return min(known) if known else None

    def _switch_functions(self) -> None:
        """NVSwitches are PCI functions of their own on HGX boards."""
        for entry in self.functions.values():
            if entry.vendor == _NVIDIA and entry.pci_class == _NVSWITCH_CLASS:
                self.place(entry, entry.numa_node)
                label = f"NVSwitch {entry.pci}"
                parent = f"{self.host}/nvlink"
                self.add(Node(parent, "nvlink_domain", "NVLink domain", self.host, "NVML"))
                id_ = f"{self.host}/{entry.pci}"
                self.add(Node(id_, "nvswitch", label, parent, "sysfs", self._function_attrs(entry)))

    # -- devices

    def _gpu(self, gpu: Gpu) -> None:
        id_ = f"{self.host}/gpu{gpu.index}"
        entry = pcie.function(self.node, gpu.pci)
        parent = self.place(entry, gpu.numa_node)
        attrs: dict[str, Scalar] = {"index": gpu.index, **self._function_attrs(entry)}
        told = {"name": gpu.name, "pci": gpu.pci, "uuid": gpu.uuid, "sm": gpu.compute_capability}
        attrs.update({key: value for key, value in told.items() if isinstance(value, str)})
        broken = [
            str(pair.b)
            for pair in value_or(self.node.gpu.p2p, ())
            if pair.a == gpu.index and isinstance(pair.nvlink, str) and pair.nvlink != "ok"
        ]
        if isinstance(gpu.links, Absent) and isinstance(self.node.gpu.topology, Absent):
            attrs["nvlinks_not_told"] = True
        if broken:
            attrs["no_nvlink_p2p_to"] = ",".join(broken)
        self.add(Node(id_, "gpu", f"GPU {gpu.index}", parent, "NVML", attrs))
        if entry is not None and entry.root:
            self._link(id_, parent, entry, idles=True)
        subject = f"GPU {gpu.index}"
        self.claim(subject, "NUMA node", gpu.numa_node, "sysfs (GPU)")
        if entry is not None:
            self.claim(subject, "NUMA node", entry.numa_node, "sysfs (PCI tree)")
            self.claim(subject, "PCIe width now", gpu.pcie_width, "NVML")
            self.claim(subject, "PCIe width now", entry.width, "sysfs")
            if isinstance(gpu.pcie_generation_max, int) and not self.guest:
                self.claim(subject, "best PCIe speed (GT/s)", GENERATION_GTS.get(gpu.pcie_generation_max, 0.0), "NVML")
                speed = self._speed(entry, idles=True)
                if speed is not None:
                    self.claim(subject, "best PCIe speed (GT/s)", speed, "sysfs")

    def _fabric(self) -> set[str]:
        """Ports that carry EP traffic."""
        try:
            return {nic.label for nic in nics.fabric(Context(self.node))}
        except Unreadable:
            return set()

    def _nic(self, device: RdmaDevice, carrying: set[str]) -> None:
        id_ = f"{self.host}/{device.name}"
        entry = pcie.function(self.node, device.pci)
        parent = self.place(entry, device.numa_node)
        ports = [nics.Nic(device, port) for port in value_or(device.ports, ())]
        attrs: dict[str, Scalar] = dict(self._function_attrs(entry))
        if isinstance(device.pci, str):
            attrs["pci"] = device.pci
        for key in ("driver", "ca_type", "node_guid"):
            value = getattr(device, key)
            if isinstance(value, str):
                attrs[key] = value
        attrs["fabric"] = any(nic.label in carrying for nic in ports)
        rates = [value_or(nics.nominal_gbps(nic, self.node), 0.0) for nic in ports if nic.active]
        if any(rates):
            attrs["gbps"] = sum(rates)
        for key in ("state", "link_layer"):
            words = {value for nic in ports if isinstance(value := getattr(nic.port, key), str)}
            if len(words) == 1:
                attrs[key] = words.pop()
        self.add(Node(id_, "nic", device.name, parent, "sysfs", attrs))
        if entry is not None and entry.root:
            self._link(id_, parent, entry)
        for nic in ports:
            self._port(id_, nic)

    def _port(self, parent: str, nic: nics.Nic) -> None:
        port = nic.port
        attrs: dict[str, Scalar] = {"port": port.port, "active": nic.active}
        for key in ("state", "link_layer", "lid"):
            value = getattr(port, key)
            if not isinstance(value, Absent):
                attrs[key] = value
        gbps = nics.nominal_gbps(nic, self.node)
        if isinstance(gbps, float | int):
            attrs["gbps"] = float(gbps)
            if nic.active:
                self.claim(nic.label, "rate (Gb/s)", float(gbps), "sysfs")
        self.add(Node(f"{parent}/{port.port}", "port", f"{nic.device.name}:{port.port}", parent, "sysfs", attrs))

    def _path_claims(self) -> None:
        for gpu in value_or(self.node.gpu.gpus, ()):
            own = pcie.function(self.node, gpu.pci)
            for device in value_or(self.node.rdma.devices, ()):
                other = pcie.function(self.node, device.pci)
                if own is not None and other is not None and own.root and other.root:
                    self.claim(f"GPU {gpu.index} - {device.name}", "path", pcie.distance(own, other), "sysfs")
        for cell in value_or(self.node.gpu.topology, ()):
            if cell.path in pcie.ORDER and not cell.other.startswith("GPU"):
                self.claim(f"GPU {cell.gpu} - {cell.other}", "path", cell.path, "nvidia-smi topo -m")

    def _absences(self) -> None:
        """What could not be read is told: a graph without NICs may mean that nobody looked."""
        areas = (
            ("GPUs", self.node.gpu.gpus),
            ("RDMA devices", self.node.rdma.devices),
            ("PCI functions", self.node.pcie.functions),
        )
        for what, fact in areas:
            if isinstance(fact, Absent):
                self.findings.append(Finding("note", f"{self.host}: {fact.of(what)}"))
        if nvlink_fabric.is_mnnvl(self.node):
            text = f"{self.host}: its NVLink domain reaches into other trays of the rack; give their snapshots, too"
            self.findings.append(Finding("note", text, ("NVML",)))
