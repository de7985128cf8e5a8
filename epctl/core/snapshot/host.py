"""Facts of the machine: PCIe tree, kernel, limits, container."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.core.fact import NOT_READ, Fact
from epctl.core.snapshot.rdma import DeviceNode


class PciFunction(Struct, frozen=True):
    """One PCI function (GPU, NIC, NVSwitch) or bridge on the way to one."""

    pci: str
    vendor: str
    """Four hex digits: 10de NVIDIA, 15b3 Mellanox, 1d0f Amazon, 14e4 Broadcom, 8086 Intel."""
    device: str
    pci_class: str
    """Six hex digits of sysfs `class`: 030200 3D controller, 020700 InfiniBand, 068000 bridge (NVSwitch), 060400 PCI bridge."""
    upstream: tuple[str, ...] = ()
    """Addresses of the bridges above it, root port first."""
    root: str = ""
    """Host bridge: pci0000:15."""
    numa_node: Fact[int] = NOT_READ
    speed_gts: Fact[float] = NOT_READ
    speed_max_gts: Fact[float] = NOT_READ
    width: Fact[int] = NOT_READ
    width_max: Fact[int] = NOT_READ
    iommu_group: Fact[int] = NOT_READ
    iommu_type: Fact[str] = NOT_READ
    """DMA, DMA-FQ, identity"""
    acs_source_validation: Fact[bool] = NOT_READ
    """ACSCtl SrcValid of a bridge; unsupported when it has no ACS capability; permission when not root."""
    acs_request_redirect: Fact[bool] = NOT_READ
    driver: Fact[str] = NOT_READ
    """Kernel driver it is bound to (nvidia, mlx5_core, vfio-pci); not_found when none is."""


class PcieArea(Struct, frozen=True):
    """The PCIe tree as far as GPUs and NICs hang on it."""

    functions: Fact[tuple[PciFunction, ...]] = NOT_READ
    iommu_groups: Fact[int] = NOT_READ
    """Number of groups; 0: IOMMU is off."""
    notes: tuple[str, ...] = ()
    default_topology_file: Fact[bool] = NOT_READ
    """/var/run/nvidia-topologyd/virtualTopology.xml is there: NCCL reads it where NCCL_TOPO_FILE is not set."""


class KernelModule(Struct, frozen=True):
    """One line of /proc/modules. `users` and `used_by` are unsupported on a kernel that cannot unload modules."""

    name: str
    users: Fact[int]
    used_by: Fact[tuple[str, ...]] = ()


class ShmFile(Struct, frozen=True):
    """A file of a communication library in /dev/shm. `owner_alive` false: no process has it open or mapped."""

    name: str
    size_bytes: int
    owner_alive: Fact[bool] = NOT_READ


class HostArea(Struct, frozen=True):
    """Operating system, limits and container of the process that runs epctl."""

    hostname: Fact[str] = NOT_READ
    os: Fact[str] = NOT_READ
    """PRETTY_NAME of os-release."""
    kernel: Fact[str] = NOT_READ
    architecture: Fact[str] = NOT_READ
    """x86_64, aarch64"""
    cmdline: Fact[str] = NOT_READ
    cpu_model: Fact[str] = NOT_READ
    num_cpus: Fact[int] = NOT_READ
    num_numa_nodes: Fact[int] = NOT_READ
    memory_total_bytes: Fact[int] = NOT_READ
    virtualization: Fact[str] = NOT_READ
    """none, kvm, amazon, microsoft, firecracker, …"""
    container: Fact[str] = NOT_READ
    """none, docker, podman, kubernetes, …"""
    vendor: Fact[str] = NOT_READ
    """DMI system vendor."""
    product: Fact[str] = NOT_READ
    """DMI product name; the instance type on AWS."""
    bios_date: Fact[str] = NOT_READ
    modules: Fact[tuple[KernelModule, ...]] = NOT_READ
    nvidia_nodes: Fact[tuple[DeviceNode, ...]] = NOT_READ
    """/dev/nvidia*, /dev/nvidia-caps-imex-channels/*, /dev/gdrdrv."""
    imex_in_proc_devices: Fact[bool] = NOT_READ
    """nvidia-caps-imex-channels stands in /proc/devices."""
    dev_char_nvidia: Fact[bool] = NOT_READ
    """/dev/char has links for NVIDIA device numbers."""
    memlock_bytes: Fact[int] = NOT_READ
    """Soft RLIMIT_MEMLOCK; -1: unlimited."""
    nofile: Fact[int] = NOT_READ
    """Soft RLIMIT_NOFILE; -1: unlimited."""
    file_max: Fact[int] = NOT_READ
    shm_total_bytes: Fact[int] = NOT_READ
    shm_free_bytes: Fact[int] = NOT_READ
    shm_files: Fact[tuple[ShmFile, ...]] = NOT_READ
    hugepages_2m_total: Fact[int] = NOT_READ
    hugepages_2m_free: Fact[int] = NOT_READ
    numa_balancing: Fact[int] = NOT_READ
    ptrace_scope: Fact[int] = NOT_READ
    cap_effective: Fact[int] = NOT_READ
    """CapEff bit mask: bit 14 IPC_LOCK, 17 SYS_RAWIO, 19 SYS_PTRACE, 21 SYS_ADMIN."""
    affinity: Fact[str] = NOT_READ
    """CPU list this process may run on (Cpus_allowed_list)."""
    port_range: Fact[tuple[int, int]] = NOT_READ
    firewall: Fact[Literal["none", "accept", "drop"]] = NOT_READ
    """Policy of the nftables input hook: `none` without one."""
    notes: tuple[str, ...] = ()
    uptime_s: Fact[int] = NOT_READ
    """Seconds since boot (/proc/uptime)."""
    private_namespaces: Fact[tuple[str, ...]] = NOT_READ
    """Of `ipc` and `pid`, those namespaces of this process that are not the first ones of the kernel (inodes of /proc/self/ns)."""
