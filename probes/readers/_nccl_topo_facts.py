"""Facts of a topology file of NCCL; None where the file does not say."""

from __future__ import annotations

from msgspec import Struct, field


class Cpu(Struct, frozen=True):
    numaid: int | None
    arch: str | None
    vendor: str | None
    affinity: str | None
    n_cpus: int | None
    """Bits set in `affinity`."""
    host_hash: str | None


class C2c(Struct, frozen=True):
    bw: int | None
    """Mb/s as printed."""
    count: int | None


class Gpu(Struct, frozen=True):
    busid: str | None
    dev: int | None
    rank: int | None
    sm: int | None
    gdr: bool | None
    numaid: int | None
    nvlinks: int
    nvlink_targets: dict[str, int]
    """Bus ID of the other end → number of links."""
    nvswitch: bool
    c2c: C2c | None
    pcie_gt_s: float | None
    pcie_width: int | None
    host_hash: str | None


class Net(Struct, frozen=True):
    name: str | None
    dev: int | None
    port: int | None
    speed_mbps: int | None
    gbps: float | None
    guid: str | None
    gdr: bool | None
    busid: str | None
    numaid: int | None
    pcie_gt_s: float | None
    pcie_width: int | None
    host_hash: str | None
    net: str | None = None
    gin: str | None = None
    coll: str | None = None


class Facts(Struct, frozen=True):
    system_version: int | None = None
    n_hosts: int | None = None
    """Different host hashes; 1 for a file of version 1 without any."""
    cpus: list[Cpu] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    nets: list[Net] = field(default_factory=list)
    gpu_functions_without_gpu_element: list[str] = field(default_factory=list)
    nic_functions_without_net_element: list[str] = field(default_factory=list)
    n_functions_of_unknown_class: int = 0
