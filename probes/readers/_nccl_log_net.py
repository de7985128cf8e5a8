"""Network and settings in a log of NCCL: interfaces, adapters, plug-ins, environment, transports between ranks."""

from __future__ import annotations

import re

from msgspec import Struct

from epctl.probes.readers._nccl_log_lines import Record

_USING = re.compile(r"NET/(\w{1,30}) ?: Using ", re.ASCII)
_IB_DEVICE = re.compile(r"\[(\d{1,4})\]([^\s:\[\]{}=]{1,64}):(\d{1,3})/(\w{1,16})(/SHARP)?", re.ASCII)
_MERGED = re.compile(r"\[(\d{1,4})\]=\{([^}]{1,400})\}", re.ASCII)
_MERGED_PART = re.compile(r"\[\d{1,4}\] ?([^\s:,]{1,64}):\d{1,3}/\w{1,16}", re.ASCII)
_SOCKET_DEVICE = re.compile(r"\[(\d{1,4})\]([^\s:\[\]]{1,64}):([^\s<]{1,100})<\d{1,6}>", re.ASCII)
_OOB = re.compile(r"\bOOB ([^\s<]{1,160})<", re.ASCII)
_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (?:\[\d{1,3}\])?([^\s<]{1,160})<", re.ASCII)
_VIRTUAL = re.compile(
    r"NET/\w{1,30} ?: Made virtual device \[(\d{1,4})\] name=(\S{1,200}) speed=(\d{1,9}) ndevs=(\d{1,4})", re.ASCII
)
_IB_SPEED = re.compile(
    r"NET/IB ?: \[\d{1,4}\] ([^\s:]{1,64}):\S{1,64}:(\d{1,3})/\S{1,40} [^\n]{0,120}?\bspeed=(\d{1,9})", re.ASCII
)
_LOADED = re.compile(r"NET/Plugin ?: Loaded net plugin (.{1,120}?)(?: \(v\d{1,3}\))?$", re.ASCII)
_GIN = re.compile(
    r"GIN/Plugin: (?:Assigned plugin|Loaded gin plugin) (\S{1,60})(?: type (\d{1,3}))?|(?:Assigned|Initialized) GIN plugin (\S{1,60})",
    re.ASCII,
)
_ENV = re.compile(r"(NCCL_[A-Z0-9_]{1,80}) set (by environment )?to (.{0,1000})", re.ASCII)
_FABRIC = re.compile(
    r"MNNVL busId (\S{1,20}) fabric UUID (\S{1,80}) cliqueId (\S{1,20}) state (-?\d{1,9})(?: healthMask (\S{1,20}))?",
    re.ASCII,
)
_CHANNELS = re.compile(
    r"(\d{1,5}) coll channels, (?:(\d{1,5}) collnet channels, )?(?:(\d{1,5}) nvls channels, )?(\d{1,5}) p2p channels"
    r"(?:, (\d{1,5}) p2p channels per peer)?",
    re.ASCII,
)
_PATH = re.compile(
    r"(?:Channel|Ring) (\d{1,5})(?:/\d{1,5})? : (\d{1,7})(?:\[[0-9a-fA-F]{1,12}\])? -> (\d{1,7})(?:\[[0-9a-fA-F]{1,12}\])?"
    r"(?: \[(send|receive)\])? via (.{1,200}?)(?: comm 0x[0-9a-f]{1,16}(?: nRanks \d{1,7})?)?$",
    re.ASCII,
)
_PROVIDER = re.compile(
    r"NET/OFI Selected [Pp]rovider is ([^\s,]{1,60})(?:, fabric is (\S{1,60}))? \(found (\d{1,5}) nics\)", re.ASCII
)
_NIC_GROUP = re.compile(r"NET/OFI NIC group (\d{1,5}) device #\d{1,5} (\S{1,40})", re.ASCII)
_GDR = re.compile(r"\bGDR ([01])\b", re.ASCII)
MAX_NETWORKS = 256
"""Names of networks that are kept; a job has one, or a few where its processes disagree."""


class NetDevice(Struct, omit_defaults=True):
    """`port`, `layer` and `sharp` of an adapter, or `address` of a socket interface."""

    index: int
    name: str
    port: int | None = None
    layer: str | None = None
    sharp: bool | None = None
    address: str | None = None
    gbps: float | None = None


class VirtualDevice(Struct, frozen=True):
    """Several ports that NCCL uses as one."""

    index: int
    name: str
    speed_mbps: int | None
    gbps: float | None
    ndevs: int


class Fabric(Struct, frozen=True):
    bus_id: str
    cluster_uuid: str
    clique_id: str
    state: int
    health_mask: str | None
    host: str


class Channels(Struct, frozen=True):
    coll: int
    collnet: int | None
    nvls: int | None
    p2p: int
    p2p_per_peer: int | None


class Path(Struct, frozen=True, rename={"from_": "from"}):
    channel: int
    from_: int
    to: int
    direction: str
    """`send` or `receive` over a network, blank within a node."""
    via: str


class Provider(Struct, frozen=True):
    name: str
    nics: int
    fabric: str | None


def _number(text: str | None) -> int | None:
    return int(text) if text else None


class NetReader:
    def __init__(self) -> None:
        self.networks: dict[str, None] = {}
        self.network_left_out = ""
        self.net_plugin: str | None = None
        self.gin_plugin: str | None = None
        self.gin_type: int | None = None
        self.relaxed_ordering: bool | None = None
        self.oob: dict[str, str] = {}
        self.bootstrap: dict[str, str] = {}
        self.gdr: bool | None = None
        self.gdr_adapters: bool | None = None
        self.nvls: bool | None = None
        self.fabric: dict[tuple[str, str], Fabric] = {}
        self.channels: Channels | None = None
        self.env: dict[str, str] = {}
        self.env_values: dict[str, set[str]] = {}
        self.paths: list[Path] = []
        self.virtual_devices: dict[str, VirtualDevice] = {}
        self.provider: Provider | None = None
        self.nic_groups: dict[int, list[str]] = {}
        self._groups_of: tuple[str, int] | None = None
        self._adapters: list[NetDevice] = []
        self._sockets: list[NetDevice] = []
        self._speeds: dict[tuple[str, int], int] = {}

    def take(self, record: Record) -> None:
        text = record.text
        if text.startswith("NET/"):
            self._take_net(record, text)
        elif text.startswith("NCCL_"):
            self._take_env(text)
        elif text.startswith(("Channel ", "Ring ")):
            self._take_path(text)
        elif text.startswith("Using network "):
            self._take_network(text.removeprefix("Using network ").strip()[:200])
        elif text.startswith("Bootstrap") and (found := _BOOTSTRAP.match(text)):
            self.bootstrap.setdefault(record.host, found.group(1))
        elif text.startswith("MNNVL") and (found := _FABRIC.match(text)):
            bus_id, uuid, clique, state, health = found.groups()
            self.fabric.setdefault((record.host, bus_id), Fabric(bus_id, uuid, clique, int(state), health, record.host))
        else:
            self._take_other(text)

    def _take_network(self, name: str) -> None:
        if name and name not in self.networks:
            if len(self.networks) < MAX_NETWORKS:
                self.networks[name] = None
            else:
                self.network_left_out = self.network_left_out or name

    def _take_other(self, text: str) -> None:
        if self.channels is None and (found := _CHANNELS.match(text)):
            coll, collnet, nvls, p2p, per_peer = found.groups()
            self.channels = Channels(int(coll), _number(collnet), _number(nvls), int(p2p), _number(per_peer))
        elif text.startswith("Connected all") and (found := _GDR.search(text[:400])):
            self.gdr = found.group(1) == "1" and self.gdr is not False
        elif text.startswith("NVLS multicast support is "):
            self.nvls = " not available" not in text and self.nvls is not False
        elif "GIN" in text[:40] and (found := _GIN.search(text[:400])):
            self.gin_plugin = found.group(1) or found.group(3)
            self.gin_type = _number(found.group(2)) if found.group(2) else self.gin_type
        self._take_adapter_gdr(text)

    def _take_adapter_gdr(self, text: str) -> None:
        head = text[:400]
        if "GPU Direct RDMA" in head and " for " in head:
            low = head.lower()
            if "disabled" in low or "enabled" in low:
                self.gdr_adapters = "disabled" not in low and self.gdr_adapters is not False

    def _take_net(self, record: Record, text: str) -> None:
        if using := _USING.match(text):
            self._take_devices(record, using.group(1), text[using.end() :])
        elif found := _LOADED.match(text):
            self.net_plugin = self.net_plugin or found.group(1)
        elif found := _NIC_GROUP.match(text):
            self._groups_of = self._groups_of or (record.host, record.pid)
            group = self.nic_groups.setdefault(int(found.group(1)), [])
            if self._groups_of == (record.host, record.pid) and len(group) < 64 and found.group(2) not in group:
                group.append(found.group(2))
        elif self.provider is None and (found := _PROVIDER.match(text)):
            self.provider = Provider(found.group(1), int(found.group(3)), found.group(2))
        elif found := _VIRTUAL.match(text):
            speed, ndevs = int(found.group(3)), int(found.group(4))
            if ndevs > 1:
                device = VirtualDevice(int(found.group(1)), found.group(2), speed, speed / 1000, ndevs)
                self.virtual_devices.setdefault(device.name, device)
        elif found := _IB_SPEED.match(text):
            self._speeds[found.group(1), int(found.group(2))] = int(found.group(3))
        else:
            self._take_adapter_gdr(text)

    def _take_devices(self, record: Record, transport: str, rest: str) -> None:
        if oob := _OOB.search(rest):
            self.oob.setdefault(record.host, oob.group(1))
        if transport == "Socket":
            self._sockets = self._sockets or [
                NetDevice(int(index), name, address=address) for index, name, address in _SOCKET_DEVICE.findall(rest)
            ]
            return
        if self.relaxed_ordering is None and (_IB_DEVICE.search(rest) or "[RO]" in rest):
            self.relaxed_ordering = "[RO]" in rest
        for index, parts in _MERGED.findall(rest):
            names = _MERGED_PART.findall(parts)
            device = VirtualDevice(int(index), "+".join(names), None, None, len(names))
            if len(names) > 1:
                self.virtual_devices.setdefault(device.name, device)
        self._adapters = self._adapters or [
            NetDevice(int(index), name, int(port), layer, bool(sharp))
            for index, name, port, layer, sharp in _IB_DEVICE.findall(rest)
        ]

    def _take_env(self, text: str) -> None:
        if found := _ENV.match(text):
            name, by_environment, value = found.groups()
            value = value.strip()
            if by_environment:
                value = value.removesuffix(".")
            self.env.setdefault(name, value)
            self.env_values.setdefault(name, set()).add(value)

    def _take_path(self, text: str) -> None:
        if found := _PATH.match(text):
            channel, source, target, direction, via = found.groups()
            self.paths.append(Path(int(channel), int(source), int(target), direction or "", via))

    def net_devices(self) -> list[NetDevice]:
        """Devices of the network in use, as the first process lists them."""
        network = next(iter(self.networks), "")
        if network.startswith("Socket"):
            return self._sockets
        if network and not network.startswith(("IB", "UCX", "SHARP", "gIB")):
            return []
        for device in self._adapters:
            speed = self._speeds.get((device.name, device.port or 0))
            device.gbps = None if speed is None else speed / 1000
        return self._adapters or ([] if network else self._sockets)
