"""Facts of RDMA devices and ports, network interfaces, and the user-space libraries that drive them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.core.fact import NOT_READ, Fact


class Gid(Struct, frozen=True):
    """One entry of a port's GID table that is not empty."""

    index: int
    gid: str
    """Eight groups of four hex digits."""
    type: Fact[str] = NOT_READ
    """`IB/RoCE v1` or `RoCE v2`, as sysfs prints it."""
    netdev: Fact[str] = NOT_READ


class Port(Struct, frozen=True):
    """One port of an RDMA device. Counts and states come from sysfs; `ibstat`, `ibv_devinfo` where sysfs is silent."""

    port: int
    state: Fact[str] = NOT_READ
    """ACTIVE, DOWN, INIT, ARMED (upper case, without the number)."""
    phys_state: Fact[str] = NOT_READ
    """LinkUp, Polling, Disabled, …"""
    rate_gbps: Fact[float] = NOT_READ
    """Rate of the port as the verbs layer tells it; of one member when the device is a bond."""
    width_lanes: Fact[int] = NOT_READ
    link_layer: Fact[str] = NOT_READ
    """InfiniBand, Ethernet or Unspecified (EFA)."""
    lid: Fact[int] = NOT_READ
    sm_lid: Fact[int] = NOT_READ
    active_mtu: Fact[int] = NOT_READ
    """Bytes (`ibv_devinfo`)."""
    max_mtu: Fact[int] = NOT_READ
    gids: Fact[tuple[Gid, ...]] = NOT_READ
    counters: Fact[tuple[tuple[str, int], ...]] = NOT_READ
    hw_counters: Fact[tuple[tuple[str, int], ...]] = NOT_READ


class RdmaDevice(Struct, frozen=True):
    """One RDMA device of /sys/class/infiniband, whatever its vendor and name."""

    name: str
    driver: Fact[str] = NOT_READ
    """Kernel driver: mlx5_core, efa, bnxt_re, irdma, erdma, …"""
    pci: Fact[str] = NOT_READ
    numa_node: Fact[int] = NOT_READ
    ca_type: Fact[str] = NOT_READ
    """As ibstat prints it: MT4129 (ConnectX-7), MT4131 (ConnectX-8)."""
    board_id: Fact[str] = NOT_READ
    firmware: Fact[str] = NOT_READ
    node_guid: Fact[str] = NOT_READ
    sys_image_guid: Fact[str] = NOT_READ
    physfn: Fact[str] = NOT_READ
    """PCI address of the physical function when this is a virtual one; not_found otherwise."""
    num_lag_ports: Fact[int] = NOT_READ
    atomic_cap: Fact[str] = NOT_READ
    """ATOMIC_NONE, ATOMIC_HCA, ATOMIC_GLOB (`ibv_devinfo -v`)."""
    max_qp: Fact[int] = NOT_READ
    max_qp_rd_atom: Fact[int] = NOT_READ
    pci_atomic_mode: Fact[int] = NOT_READ
    """mlxconfig PCI_ATOMIC_MODE, current value."""
    advanced_pci_settings: Fact[int] = NOT_READ
    global_tclass: Fact[int] = NOT_READ
    """/sys/class/infiniband/<d>/tc/1/traffic_class, 0 when none is set."""
    netdevs: Fact[tuple[str, ...]] = NOT_READ
    """Interfaces below the device's PCI function in this network namespace."""
    ports: Fact[tuple[Port, ...]] = NOT_READ
    manages_nvswitch: Fact[bool] = NOT_READ
    """A function of the ConnectX-7 bridge of HGX B200 and B300 boards, the fabric manager's way to the NVSwitches and no network
    adapter: its vital product data hold SMDL=SW_MNG. Only root may read them, and they are read of such a chip alone."""


class NetDev(Struct, frozen=True):
    """One network interface of this namespace."""

    name: str
    up: Fact[bool] = NOT_READ
    mtu: Fact[int] = NOT_READ
    speed_mbps: Fact[int] = NOT_READ
    kind: Fact[str] = NOT_READ
    """physical, bond, virtual"""
    pci: Fact[str] = NOT_READ
    addresses: Fact[tuple[str, ...]] = NOT_READ
    """IPv4 and IPv6 with prefix length: 10.0.0.4/24."""
    default_route: Fact[bool] = NOT_READ
    bond_members: Fact[tuple[str, ...]] = NOT_READ
    pfc_priorities: Fact[tuple[int, ...]] = NOT_READ
    """Priorities (0 to 7) with priority flow control (`dcb -j pfc show dev X`, `mlnx_qos -i X`); unsupported where it has none."""


class DeviceNode(Struct, frozen=True):
    """One device file and whether this user may read and write it."""

    path: str
    read_write: Fact[bool] = NOT_READ


class VerbsLibrary(Struct, frozen=True):
    """One user-space RDMA library that the loader finds, with the symbol versions it defines."""

    name: str
    """libibverbs, libmlx5, libefa, libfabric"""
    path: Fact[str] = NOT_READ
    versions: Fact[tuple[str, ...]] = NOT_READ
    """IBVERBS_1.14, MLX5_1.25, …"""
    symbols: Fact[tuple[str, ...]] = NOT_READ
    """Of the few symbols that checks ask for, those that are exported."""


class RdmaArea(Struct, frozen=True):
    """Everything about the network side of this node."""

    devices: Fact[tuple[RdmaDevice, ...]] = NOT_READ
    """Empty: /sys/class/infiniband was read and has none."""
    netdevs: Fact[tuple[NetDev, ...]] = NOT_READ
    uverbs: Fact[tuple[DeviceNode, ...]] = NOT_READ
    libraries: tuple[VerbsLibrary, ...] = ()
    providers: Fact[tuple[str, ...]] = NOT_READ
    """Provider libraries of libibverbs that are installed: mlx5, efa, …"""
    ibstat: Fact[Literal["ok", "partial", "error", "empty"]] = NOT_READ
    """What `ibstat` printed; tool_missing where it is not installed."""
    ibstat_devices: Fact[tuple[str, ...]] = NOT_READ
    ibv_devices: Fact[tuple[str, ...]] = NOT_READ
    """Devices that the verbs library opens (`ibv_devinfo`)."""
    ofed_version: Fact[str] = NOT_READ
    efa_driver_version: Fact[str] = NOT_READ
    """/sys/module/efa/version"""
    fi_efa_devices: Fact[int] = NOT_READ
    """Distinct devices of `fi_info -p efa`."""
    notes: tuple[str, ...] = ()
    data_direct_functions: Fact[int] = NOT_READ
    """Number of PCI functions 15b3:2100, the data-direct engines of ConnectX-8."""


class GdrArea(Struct, frozen=True):
    """GPUDirect: peer memory module, DMA-BUF, GDRCopy."""

    peermem_loaded: Fact[bool] = NOT_READ
    """nvidia_peermem (or nv_peer_mem) stands in /proc/modules."""
    peermem_version: Fact[str] = NOT_READ
    """/sys/module/nvidia_peermem/version or /sys/kernel/mm/memory_peers/nv_mem*/version."""
    peermem_installed: Fact[bool] = NOT_READ
    """The module's file is there for this kernel (modinfo)."""
    peermem_users: Fact[int] = NOT_READ
    peermem_uses_ib_core: Fact[bool] = NOT_READ
    """ib_core lists nvidia_peermem among its users in /proc/modules."""
    gdrdrv_loaded: Fact[bool] = NOT_READ
    gdrdrv_version: Fact[str] = NOT_READ
    gdrdrv_depends: Fact[tuple[str, ...]] = NOT_READ
    gdrdrv_node: Fact[bool] = NOT_READ
    """/dev/gdrdrv is there and may be read and written."""
    libgdrapi_version: Fact[str] = NOT_READ
    notes: tuple[str, ...] = ()
