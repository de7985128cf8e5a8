"""The topology that NCCL prints with NCCL_DEBUG_SUBSYS=GRAPH: a tree per CPU, then one line of paths per GPU.

Every rank prints the same tree, interleaved with others; the first thread that prints one is followed.
"""

from __future__ import annotations

import re

from msgspec import Struct

from epctl.probes.readers._nccl_log_lines import Record

_SYSTEM = re.compile(
    r"=== System : max(?:Bw|Width) (\d{1,9}(?:\.\d{1,9})?) total(?:Bw|Width) (\d{1,9}(?:\.\d{1,9})?)", re.ASCII
)
_CPU = re.compile(r"CPU/([0-9A-Fa-f\-]{1,24})(?: |$)", re.ASCII)
_NODE = re.compile(
    r"( *)\+ (\w{1,8})\[(\d{1,9}(?:\.\d{1,9})?)\] - (\w{1,8})/([0-9A-Fa-f\-]{1,40})(?: \(([^)]{0,120})\))?", re.ASCII
)
_PATHS = re.compile(r"GPU/([0-9A-Fa-f\-]{1,40}) :", re.ASCII)
_TO_NET = re.compile(r"NET/([0-9A-Fa-f\-]{1,40}) \(\d{1,6}/[\d.]{1,20}/(\w{1,8})\)", re.ASCII)
_NEARNESS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Types of paths, nearest first."""


class TopologyGpu(Struct):
    gpu: str
    """Bus ID as in the ranks, in lower case."""
    rank: int | None
    cpu: str | None
    switch: str | None
    """Bus ID of the PCIe switch right above."""
    nvlink_gbytes_per_s: float | None = None


class TopologyNet(Struct):
    net: int | None
    id: str
    nic: str | None
    asic: str | None
    port: int | None
    gbytes_per_s: float | None
    switch: str | None
    cpu: str | None


class Topology(Struct):
    """Bandwidths in GB/s as NCCL assumes them."""

    max_bw: float
    total_bw: float
    cpus: list[str]
    cpu_link_bw: float | None
    gpus: list[TopologyGpu]
    nets: list[TopologyNet]
    nvlink: dict[str, dict[str, float]]
    """GPU → GPU → bandwidth of direct NVLinks."""
    nearest_net: dict[str, list[str]]
    """GPU → ids of the network devices with the shortest type of path."""
    upstream_pci_bw: float | None
    """Slowest link from a CPU to a PCIe switch; far below the links behind it where a virtual machine hides speeds."""


def _short(identifier: str) -> str:
    return identifier.lower().removeprefix("0-")


def _net(identifier: str, found: re.Match[str]) -> tuple[int | None, str | None, int | None, float | None]:
    """Number, adapter, port and bandwidth: `(host/asic/port/bw)`, without the host in older versions."""
    last = identifier.rsplit("-", 1)[-1]
    number = int(last, 16) if last else None
    parts = (found.group(6) or "").split("/")
    if len(parts) < 3:
        return number, None, None, float(found.group(3))
    port = int(parts[-2]) if re.fullmatch(r"\d{1,6}", parts[-2], re.ASCII) else None
    bw = float(parts[-1]) if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", parts[-1], re.ASCII) else float(found.group(3))
    return number, parts[-3] or None, port, bw


class TopologyReader:
    def __init__(self) -> None:
        self.topology: Topology | None = None
        self._thread: tuple[str, int, int] | None = None
        self._in_tree = False
        self._cpu: str | None = None
        self._above: list[tuple[int, str, str]] = []
        """Column, type and id of the nodes above."""
        self._gpus: dict[str, TopologyGpu] = {}

    def take(self, record: Record) -> None:
        thread = record.host, record.pid, record.tid
        if self.topology is None and (found := _SYSTEM.match(record.text)):
            self._thread, self._in_tree = thread, True
            self.topology = Topology(float(found.group(1)), float(found.group(2)), [], None, [], [], {}, {}, None)
        elif self.topology is not None and thread == self._thread:
            self._take_line(self.topology, record.text)

    def _take_line(self, topology: Topology, text: str) -> None:
        if self._in_tree and text.startswith("==="):
            self._in_tree = False
        elif self._in_tree and (cpu := _CPU.match(text)):
            self._cpu, self._above = cpu.group(1), []
            topology.cpus.append(self._cpu)
        elif self._in_tree and (node := _NODE.match(text)):
            self._take_node(topology, node)
        elif text.startswith("GPU/") and (start := _PATHS.match(text)):
            self._take_paths(topology, _short(start.group(1)), text)

    def _take_node(self, topology: Topology, node: re.Match[str]) -> None:
        column, bw, kind = len(node.group(1)), float(node.group(3)), node.group(4)
        identifier = _short(node.group(5))
        while self._above and self._above[-1][0] >= column:
            self._above.pop()
        if kind == "GPU" and node.group(2) != "NVL":
            rank = int(node.group(6)) if re.fullmatch(r"\d{1,7}", node.group(6) or "", re.ASCII) else None
            gpu = TopologyGpu(identifier, rank, self._cpu, self._nearest("PCI"))
            if identifier not in self._gpus:
                topology.gpus.append(gpu)
                self._gpus[identifier] = gpu
        elif node.group(2) == "NVL":
            self._take_nvlink(topology, kind, identifier, bw)
        elif kind == "NET":
            name = node.group(5).lower()
            number, asic, port, speed = _net(name, node)
            nic, switch = self._nearest("NIC"), self._nearest("PCI")
            topology.nets.append(TopologyNet(number, name, nic, asic, port, speed, switch, self._cpu))
        elif kind == "CPU" and node.group(2) != "C2C":
            topology.cpu_link_bw = bw if topology.cpu_link_bw is None else min(topology.cpu_link_bw, bw)
        elif kind == "PCI" and not self._above:
            topology.upstream_pci_bw = bw if topology.upstream_pci_bw is None else min(topology.upstream_pci_bw, bw)
        if len(self._above) < 64:
            self._above.append((column, kind, identifier))

    def _take_nvlink(self, topology: Topology, kind: str, identifier: str, bw: float) -> None:
        gpu = self._gpus.get(self._nearest("GPU") or "")
        if gpu is None:
            return
        gpu.nvlink_gbytes_per_s = round((gpu.nvlink_gbytes_per_s or 0.0) + bw, 6)
        if kind == "GPU":
            topology.nvlink.setdefault(gpu.gpu, {})[identifier] = bw

    def facts(self) -> Topology | None:
        if self.topology is not None:
            self.topology.nets.sort(key=lambda net: (net.net is None, net.net or 0))
        return self.topology

    def _nearest(self, kind: str) -> str | None:
        return next((identifier for _, k, identifier in reversed(self._above) if k == kind), None)

    def _take_paths(self, topology: Topology, gpu: str, text: str) -> None:
        ranked = [(_NEARNESS.index(kind), net.lower()) for net, kind in _TO_NET.findall(text) if kind in _NEARNESS]
        if ranked and gpu not in topology.nearest_net:
            best = min(rank for rank, _ in ranked)
            topology.nearest_net[gpu] = [net for rank, net in ranked if rank == best]
