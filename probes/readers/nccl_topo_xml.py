"""Topology file of NCCL (written with NCCL_TOPO_DUMP_FILE, or a cloud's static NCCL_TOPO_FILE): nested
system / cpu / pci / gpu / nvlink / nic / net elements.

The file may come from anywhere, so nothing in it is expanded: a document type or an entity declaration is refused.
"""

from __future__ import annotations

import re
from xml.parsers import expat

from epctl.probes.readers._nccl_topo_facts import C2c, Cpu, Facts, Gpu, Net
from epctl.probes.reading import Problem, Reading, clean, error_of, first_line, was_cut

MAX_DEPTH = 256
_NVSWITCH_CLASS = "0x0680"
_GPU_CLASSES = ("0x0300", "0x0302")
_NIC_CLASSES = ("0x0200", "0x0207", "0x0280")
_NO_BRIDGE_BUSID = "ffff:ff:"
"""Bus numbers of the switches that static files invent."""


class _Refused(Exception):  # noqa: N818
    """The document holds what no topology file holds."""


class _Element:
    __slots__ = ("attributes", "filled", "tag")

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag = tag
        self.attributes = attributes
        self.filled = False


class _OpenGpu:
    __slots__ = ("attributes", "c2c", "nvswitch", "targets")

    def __init__(self, attributes: dict[str, str]) -> None:
        self.attributes = attributes
        self.targets: dict[str, int] = {}
        self.nvswitch = False
        self.c2c: C2c | None = None


def _int(text: str | None) -> int | None:
    found = re.match(r"\s*([+-]?\d{1,18})(?:\.0*)?\s*$", text, re.ASCII) if text else None
    return int(found.group(1)) if found else None


def _gt_s(text: str | None) -> float | None:
    found = re.match(r"\s*(\d{1,4}(?:\.\d{1,4})?)\s*GT/s", text, re.ASCII) if text else None
    return float(found.group(1)) if found else None


def _flag(text: str | None) -> bool | None:
    value = _int(text)
    return None if value is None else value != 0


def _bits(affinity: str | None) -> int | None:
    words = affinity.split(",") if affinity else []
    if not words or not all(re.fullmatch(r"[0-9a-fA-F]{1,8}", word) for word in words):
        return None
    return sum(bin(int(word, 16)).count("1") for word in words)


def _text(attributes: dict[str, str], key: str) -> str | None:
    return attributes.get(key) or None


class _Walk:
    """Takes the elements one by one as the parser meets them."""

    def __init__(self) -> None:
        self.stack: list[_Element] = []
        self.gpu: _OpenGpu | None = None
        self.version: int | None = None
        self.closed = False
        self.cpus: list[Cpu] = []
        self.gpus: list[Gpu] = []
        self.nets: list[Net] = []
        self.gpu_functions: list[str] = []
        self.nic_functions: list[str] = []
        self.unknown_class = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if len(self.stack) >= MAX_DEPTH:
            raise _Refused("elements are nested too deep")
        if not self.stack:
            if tag != "system":
                raise _Refused(f"root element {tag[:40]}")
            self.version = _int(attributes.get("version"))
        self.stack.append(_Element(tag, attributes))
        if tag == "cpu":
            self.cpus.append(self._cpu(attributes))
        elif tag == "gpu":
            self.gpu = _OpenGpu(attributes)
            self._mark("pci")
        elif tag == "net":
            self.nets.append(self._net(attributes))
            self._mark("pci")
        elif self.gpu is not None:
            self._link(tag, attributes)

    def end(self, tag: str) -> None:
        element = self.stack.pop()
        self.closed = not self.stack
        if tag == "gpu" and self.gpu is not None:
            self.gpus.append(self._gpu(self.gpu))
            self.gpu = None
        elif tag == "pci" and not element.filled:
            self._bare_function(element.attributes)

    def _near(self, tag: str) -> dict[str, str]:
        return next((e.attributes for e in reversed(self.stack) if e.tag == tag), {})

    def _mark(self, tag: str) -> None:
        for element in reversed(self.stack):
            if element.tag == tag:
                element.filled = True
                return

    def _link(self, tag: str, attributes: dict[str, str]) -> None:
        gpu = self.gpu
        if gpu is None:
            return
        if tag == "nvlink" and (target := attributes.get("target")):
            count = _int(attributes.get("count"))
            gpu.targets[target] = gpu.targets.get(target, 0) + (1 if count is None else count)
            gpu.nvswitch = gpu.nvswitch or attributes.get("tclass", "").startswith(_NVSWITCH_CLASS)
        elif tag == "c2c":
            gpu.c2c = C2c(_int(attributes.get("bw")), _int(attributes.get("count")))

    def _bare_function(self, attributes: dict[str, str]) -> None:
        kind, busid = attributes.get("class", "").lower(), attributes.get("busid", "")
        if kind.startswith(_GPU_CLASSES):
            self.gpu_functions.append(busid)
        elif kind.startswith(_NIC_CLASSES):
            self.nic_functions.append(busid)
        elif not kind and busid and not busid.startswith(_NO_BRIDGE_BUSID):
            self.unknown_class += 1

    def _cpu(self, attributes: dict[str, str]) -> Cpu:
        affinity = _text(attributes, "affinity")
        return Cpu(
            numaid=_int(attributes.get("numaid")),
            arch=_text(attributes, "arch"),
            vendor=_text(attributes, "vendor"),
            affinity=affinity,
            n_cpus=_bits(affinity),
            host_hash=_text(attributes, "host_hash"),
        )

    def _gpu(self, gpu: _OpenGpu) -> Gpu:
        pci, cpu = self._near("pci"), self._near("cpu")
        return Gpu(
            busid=_text(pci, "busid"),
            dev=_int(gpu.attributes.get("dev")),
            rank=_int(gpu.attributes.get("rank")),
            sm=_int(gpu.attributes.get("sm")),
            gdr=_flag(gpu.attributes.get("gdr")),
            numaid=_int(cpu.get("numaid")),
            nvlinks=sum(gpu.targets.values()),
            nvlink_targets=gpu.targets,
            nvswitch=gpu.nvswitch,
            c2c=gpu.c2c,
            pcie_gt_s=_gt_s(pci.get("link_speed")),
            pcie_width=_int(pci.get("link_width")),
            host_hash=_text(cpu, "host_hash"),
        )

    def _net(self, attributes: dict[str, str]) -> Net:
        pci, cpu, speed = self._near("pci"), self._near("cpu"), _int(attributes.get("speed"))
        return Net(
            name=_text(attributes, "name"),
            dev=_int(attributes.get("dev")),
            port=_int(attributes.get("port")),
            speed_mbps=speed,
            gbps=None if speed is None else speed / 1000,
            guid=_text(attributes, "guid"),
            gdr=_flag(attributes.get("gdr")),
            busid=_text(pci, "busid"),
            numaid=_int(cpu.get("numaid")),
            pcie_gt_s=_gt_s(pci.get("link_speed")),
            pcie_width=_int(pci.get("link_width")),
            host_hash=_text(cpu, "host_hash"),
            net=_text(attributes, "net"),
            gin=_text(attributes, "gin"),
            coll=_text(attributes, "coll"),
        )

    def facts(self) -> Facts:
        hashes = {cpu.host_hash for cpu in self.cpus if cpu.host_hash}
        return Facts(
            system_version=self.version,
            n_hosts=max(1, len(hashes)) if self.cpus else None,
            cpus=self.cpus,
            gpus=self.gpus,
            nets=self.nets,
            gpu_functions_without_gpu_element=self.gpu_functions,
            nic_functions_without_net_element=self.nic_functions,
            n_functions_of_unknown_class=self.unknown_class,
        )


def _refuse(*_: object) -> None:
    raise _Refused("document type or entity declaration")


def _parse(text: str) -> tuple[_Walk, str]:
    """What was met, and what stopped the parser ("" at a whole document)."""
    walk = _Walk()
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = walk.start
    parser.EndElementHandler = walk.end
    parser.StartDoctypeDeclHandler = _refuse
    parser.EntityDeclHandler = _refuse
    try:
        parser.Parse(text.encode("utf-8", "replace"), True)
    except (expat.ExpatError, _Refused) as stopped:
        return walk, str(stopped) or "unreadable"
    return walk, ""


def _malformed(message: str) -> Reading[Facts]:
    return Reading("error", Facts(), error={"kind": "malformed_xml", "message": message[:200]})


def read(raw: bytes) -> Reading[Facts]:
    """Whole documents only: a cut one is an error, for the elements that miss would read as hardware that misses.
    Text in front of or behind a whole document is reported as a problem."""
    text = clean(raw)
    if not text.strip():
        return Reading("empty", Facts())
    if was_cut(raw):
        return _malformed("longer than any topology file")
    start = text.find("<")
    if start < 0 or not text.startswith(("<?xml", "<!", "<system"), start):
        return Reading("error", Facts(), error=error_of(text) or {"kind": "unparsable", "message": first_line(text)})
    walk, stopped = _parse(text[start:])
    if stopped and not walk.closed:
        return _malformed(stopped)
    problems = []
    if text[:start].strip():
        problems.append(Problem("unparsable", "in front of the document", first_line(text)))
    if stopped:
        problems.append(Problem("unparsable", "behind </system>", stopped))
    if not walk.cpus:
        problems.append(Problem("no_devices", "system"))
    return Reading("partial" if problems else "ok", walk.facts(), problems=tuple(problems))
