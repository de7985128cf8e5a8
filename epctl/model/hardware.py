"""Hardware profiles: named nodes, put together from a GPU table and a NIC table (epctl/data/hardware; its README tells the form)."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import resources
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from epctl.model.refusal import RefusalError

DEFAULT_HARDWARE = "h200-ndr400"
"""Stands where neither a profile nor a snapshot is given."""


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """One number with where it comes from. measured: by us; nominal: a document or the driver says so; assumed: derived."""

    value: bool | int | float
    mark: Literal["measured", "nominal", "assumed"]
    source: str

    def told(self) -> str:
        """The source, led by the mark."""
        return f"{self.mark}: {self.source}"


class GpuTable(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of GPU. Rates in GB/s and one way; memory in bytes."""

    title: str
    device_names: tuple[str, ...]
    """Parts of the name that NVML gives the GPU; the longest that fits decides."""
    compute_capability: Figure
    device_sms: Figure
    memory_bytes: Figure
    smem_bytes: Figure
    """Shared memory that one block can have."""
    nvlinks: Figure
    link_gbs: Figure
    """Of one NVLink, as the driver prints it."""
    host_gbs: Figure
    """What a NIC can move to and from this GPU: its own PCIe link, or the NIC's slot where a CPU lies between."""
    hbm_peak_gbs: Figure


class NicTable(Struct, frozen=True, forbid_unknown_fields=True):
    """One RDMA device with one port."""

    title: str
    port_gbps: Figure
    max_qp: Figure
    fast_atomics: Figure
    gdaki: Figure
    """Whether NCCL's GDAKI, GPU-initiated networking over mlx5 devices, runs on it."""
    rdma_hop_us: Figure
    """From the GPU that sends to the GPU that sees the signal, in µs."""


class MeasuredTable(Struct, frozen=True, forbid_unknown_fields=True):
    """What kernels reach on one machine; other GPUs are taken to reach the same share of their own links and memory."""

    machine: str
    link_gbs: float
    """All NVLinks of one GPU of that machine, nominal."""
    hbm_peak_gbs: float
    sm_write_limit_gbs: Figure
    sm_read_limit_gbs: Figure
    pull_add_limit_gbs: Figure
    copy_limit_gbs: Figure
    hbm_gbs: Figure
    launch_us: Figure
    nvlink_hop_us: Figure


class Hardware(Struct, frozen=True):
    """One profile. Without `nic` there is no RDMA."""

    name: str
    gpu: GpuTable
    nic: NicTable | None
    gpus_per_node: int
    """GPUs that share one NVLink domain."""
    nics_per_gpu: float
    source: str
    """Of the two counts."""
    measured_here: bool
    """It is the machine that the measured table comes from."""

    @property
    def nvlink_gbs(self) -> float:
        """All NVLinks of one GPU, nominal, GB/s one way."""
        return round(self.gpu.nvlinks.value * self.gpu.link_gbs.value, 6)

    @property
    def port_gbs(self) -> float:
        """Line rate of a GPU's share of ports, GB/s one way; 0 without NIC."""
        return 0.0 if self.nic is None else self.nic.port_gbps.value * self.nics_per_gpu / 8

    @property
    def rdma_gbs(self) -> float:
        """The same, held to what the GPU's way to the NIC carries."""
        return min(self.port_gbs, float(self.gpu.host_gbs.value))


class _NodeEntry(Struct, frozen=True, forbid_unknown_fields=True):
    gpu: str
    nic: str
    gpus_per_node: int
    nics_per_gpu: float
    source: str
    measured_here: bool = False


T = TypeVar("T")


def _read(kind: type[T], *path: str) -> T:
    file = resources.files("epctl").joinpath("data", "hardware", *path)
    return msgspec.toml.decode(file.read_bytes(), type=kind)


@lru_cache(maxsize=1)
def _nodes() -> dict[str, _NodeEntry]:
    return _read(dict[str, _NodeEntry], "nodes.toml")


@lru_cache(maxsize=1)
def measured() -> MeasuredTable:
    """What kernels reached on the machine that was measured."""
    return _read(MeasuredTable, "measured.toml")


def hardware_names() -> tuple[str, ...]:
    """Names of all profiles."""
    return tuple(_nodes())


def measured_node() -> str:
    """Name of the profile of the machine that was measured."""
    return next(name for name, entry in _nodes().items() if entry.measured_here)


@cache
def hardware(name: str) -> Hardware:
    """The profile `name`. Raises RefusalError unknown_hardware, with the names that come nearest."""
    entry = _nodes().get(name)
    if entry is None:
        near = get_close_matches(name.lower(), _nodes(), n=3, cutoff=0.5)
        why = f"there are {', '.join(_nodes())}"
        todo = f"give --hardware {' or '.join(near) or DEFAULT_HARDWARE}"
        raise RefusalError("unknown_hardware", f"there is no hardware profile {name!r}", why, todo)
    nic = _read(NicTable, "nic", f"{entry.nic}.toml") if entry.nic else None
    gpu = _read(GpuTable, "gpu", f"{entry.gpu}.toml")
    return Hardware(name, gpu, nic, entry.gpus_per_node, entry.nics_per_gpu, entry.source, entry.measured_here)


@cache
def hardware_of_gpu(device_name: str) -> Hardware | None:
    """A profile that knows the GPU alone (gpus_per_node is 0), by the name that NVML gives it ("NVIDIA H200"); None without a table."""
    found: dict[str, str] = {}
    for key in dict.fromkeys(entry.gpu for entry in _nodes().values()):
        for part in _read(GpuTable, "gpu", f"{key}.toml").device_names:
            if part.lower() in device_name.lower():
                found[part] = key
    if not found:
        return None
    key = found[max(found, key=len)]
    return Hardware(key, _read(GpuTable, "gpu", f"{key}.toml"), None, 0, 0.0, "", measured_here=False)
