"""Facts of the NVIDIA driver, the GPUs, their NVLinks and the NVLink fabric."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.core.fact import NOT_READ, Fact


class NvLink(Struct, frozen=True):
    """One NVLink of one GPU, as NVML (or `nvidia-smi nvlink`) tells it."""

    link: int
    active: Fact[bool] = NOT_READ
    speed_gbs: Fact[float] = NOT_READ
    """One direction, GB/s, as the driver prints it (26.562 for NVLink 4)."""
    version: Fact[int] = NOT_READ
    remote_type: Fact[Literal["gpu", "nvswitch", "npu", "unknown"]] = NOT_READ
    remote_pci: Fact[str] = NOT_READ
    errors: Fact[tuple[tuple[str, int], ...]] = NOT_READ
    """(counter, value) pairs; counter names in lower case with underscores: crc_flit, crc_data, replay, recovery, …"""


class Gpu(Struct, frozen=True):
    """One GPU. `index` is NVML's; every other value comes from NVML unless said otherwise."""

    index: int
    name: Fact[str] = NOT_READ
    uuid: Fact[str] = NOT_READ
    serial: Fact[str] = NOT_READ
    pci: Fact[str] = NOT_READ
    """Bus address in sysfs form, lower case: 0000:18:00.0."""
    compute_capability: Fact[str] = NOT_READ
    """As CUDA writes it: 9.0."""
    architecture: Fact[int] = NOT_READ
    """NVML's architecture number: 8 Ada, 9 Hopper, 10 Blackwell."""
    memory_total_bytes: Fact[int] = NOT_READ
    memory_free_bytes: Fact[int] = NOT_READ
    bar1_total_bytes: Fact[int] = NOT_READ
    pcie_generation: Fact[int] = NOT_READ
    pcie_generation_max: Fact[int] = NOT_READ
    pcie_width: Fact[int] = NOT_READ
    pcie_width_max: Fact[int] = NOT_READ
    sm_clock_mhz: Fact[int] = NOT_READ
    sm_clock_max_mhz: Fact[int] = NOT_READ
    memory_clock_mhz: Fact[int] = NOT_READ
    clock_event_reasons: Fact[int] = NOT_READ
    """NVML bit mask: 0x1 idle, 0x4 power cap, 0x8 hardware slowdown, 0x20 software thermal, 0x40 hardware thermal, 0x80 power brake."""
    utilization_percent: Fact[int] = NOT_READ
    temperature_c: Fact[int] = NOT_READ
    power_w: Fact[float] = NOT_READ
    persistence: Fact[bool] = NOT_READ
    mig_enabled: Fact[bool] = NOT_READ
    compute_mode: Fact[str] = NOT_READ
    """default | exclusive_process | prohibited"""
    ecc_enabled: Fact[bool] = NOT_READ
    ecc_sram_uncorrected_volatile: Fact[int] = NOT_READ
    ecc_sram_uncorrected_aggregate: Fact[int] = NOT_READ
    ecc_sram_corrected_aggregate: Fact[int] = NOT_READ
    ecc_dram_uncorrected_volatile: Fact[int] = NOT_READ
    remapped_correctable: Fact[int] = NOT_READ
    remapped_uncorrectable: Fact[int] = NOT_READ
    remap_pending: Fact[bool] = NOT_READ
    remap_failed: Fact[bool] = NOT_READ
    numa_node: Fact[int] = NOT_READ
    """From sysfs; -1 is told as absent (unsupported)."""
    local_cpus: Fact[str] = NOT_READ
    """CPU list of sysfs `local_cpulist`: 0-55,112-167."""
    links: Fact[tuple[NvLink, ...]] = NOT_READ
    """Empty: the GPU has no NVLink."""
    fabric_state: Fact[Literal["not_supported", "not_started", "in_progress", "completed"]] = NOT_READ
    fabric_status: Fact[int] = NOT_READ
    """NVML return code of the fabric registration; 0 is success."""
    fabric_clique: Fact[int] = NOT_READ
    fabric_cluster_uuid: Fact[str] = NOT_READ
    """32 hex digits; all zero on a single node."""
    fabric_health_summary: Fact[Literal["not_supported", "healthy", "unhealthy", "limited_capacity"]] = NOT_READ
    fabric_health_mask: Fact[int] = NOT_READ
    lost: Fact[str] = NOT_READ
    """'' when the GPU answers; NVML's words when it is lost or needs a reset."""


class P2p(Struct, frozen=True):
    """NVML's P2P status of an ordered pair of GPU indices; `ok`, or NVML's word (chipset_not_supported, …)."""

    a: int
    b: int
    nvlink: Fact[str] = NOT_READ
    read: Fact[str] = NOT_READ
    write: Fact[str] = NOT_READ
    atomics: Fact[str] = NOT_READ


class PathCell(Struct, frozen=True):
    """One cell of `nvidia-smi topo -m`: from a GPU (`GPU0`) to a GPU or an RDMA device name."""

    gpu: int
    other: str
    """GPU3, or the RDMA device's name (mlx5_0)."""
    path: str
    """X, NV18, PIX, PXB, PHB, NODE, SYS."""


class Setting(Struct, frozen=True):
    """One name and its value, as text."""

    name: str
    value: str


class Service(Struct, frozen=True):
    """One service of this node: systemd's word for its state (active, inactive, failed, unknown)."""

    name: str
    state: Fact[str] = NOT_READ
    load: Fact[str] = NOT_READ
    """systemd's word for its unit: loaded, masked, not-found."""
    running: Fact[bool] = NOT_READ
    """A process of that name runs in this PID namespace, whoever started it (systemd, or a container of this host)."""


class Xid(Struct, frozen=True):
    """One NVRM Xid of the kernel log of this boot."""

    code: int
    pci: str
    line: str
    fatal: bool = False
    """True when the line of an NVLink 5 Xid (144-150) carries the word Fatal."""


class LogLine(Struct, frozen=True):
    """One line of the kernel log that a check may want. `topic`: nvlink_rxdet, peermem, peermem_symbol, mlx5_module_hot,
    mlx5_resource, oom or nvidia."""

    topic: str
    line: str


class Driver(Struct, frozen=True):
    """The driver in kernel and user space, its services, and what the kernel log says of the GPUs."""

    nvml_code: Fact[int] = NOT_READ
    """Return code of nvmlInit_v2: 0 fine, 9 driver not loaded, 12 library not found, 18 library and driver differ, 999 unknown."""
    nvml_message: str = ""
    version: Fact[str] = NOT_READ
    """As NVML tells it."""
    cuda_version: Fact[int] = NOT_READ
    """CUDA version that the driver supports: 13000 for 13.0 (nvmlSystemGetCudaDriverVersion)."""
    kernel_version: Fact[str] = NOT_READ
    """Of the loaded kernel module: /proc/driver/nvidia/version."""
    kernel_flavour: Fact[Literal["open", "proprietary"]] = NOT_READ
    params: Fact[tuple[Setting, ...]] = NOT_READ
    """/proc/driver/nvidia/params."""
    libcuda: Fact[str] = NOT_READ
    """Real path of the libcuda.so.1 that the loader picks."""
    libcuda_version: Fact[str] = NOT_READ
    """Suffix of that file."""
    libnvidia_ml: Fact[str] = NOT_READ
    libnvidia_ml_version: Fact[str] = NOT_READ
    nvidia_smi: Fact[str] = NOT_READ
    """Path of nvidia-smi on PATH."""
    confidential_computing: Fact[bool] = NOT_READ
    services: tuple[Service, ...] = ()
    """nvidia-fabricmanager, nvidia-imex, nvidia-persistenced, nvlsm."""
    fabric_manager_version: Fact[str] = NOT_READ
    nvlsm: Fact[str] = NOT_READ
    """Path of the NVLink subnet manager's program."""
    imex_domain: Fact[str] = NOT_READ
    """Domain state that `nvidia-imex-ctl -H -N` prints: UP, DOWN, DEGRADED."""
    imex_matrix_bad: Fact[tuple[str, ...]] = NOT_READ
    """Cells of its matrix other than C, as `A-B: I`."""
    xids: Fact[tuple[Xid, ...]] = NOT_READ
    kernel_log: Fact[tuple[LogLine, ...]] = NOT_READ
    imex_nodes_file: Fact[bool] = NOT_READ
    """/etc/nvidia-imex/nodes_config.cfg is there: somebody set IMEX up to run as a service of this host."""


class GpuArea(Struct, frozen=True):
    """Everything about the GPUs of this node."""

    driver: Driver = Driver()
    gpus: Fact[tuple[Gpu, ...]] = NOT_READ
    p2p: Fact[tuple[P2p, ...]] = NOT_READ
    topology: Fact[tuple[PathCell, ...]] = NOT_READ
    """`nvidia-smi topo -m`."""
    nvlink_status_lines: Fact[bool] = NOT_READ
    """True when `nvidia-smi nvlink -s` printed a GB/s line for GPU 0 (what DeepEP parses)."""
    notes: tuple[str, ...] = ()
    """Sources that disagree or could be read in part only."""
