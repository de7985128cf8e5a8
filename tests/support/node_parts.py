"""Parts of healthy nodes: GPUs, cards, ports, the PCIe tree, host and software."""

from __future__ import annotations

from epctl.core.fact import Absent
from epctl.core.snapshot.gpu import Gpu, NvLink
from epctl.core.snapshot.host import HostArea, KernelModule, PciFunction
from epctl.core.snapshot.rdma import DeviceNode, Gid, Port, RdmaDevice
from epctl.core.snapshot.software import (
    ActiveArea,
    DeepEp,
    Distribution,
    GinTrial,
    GpuAttributes,
    JitCache,
    PeerAccess,
    SharedLibrary,
    SoftwareArea,
    Toolchain,
    VerbsProbe,
)

GIB = 1024**3
DRIVER = "580.95.05"
NO_ACS = Absent("unsupported", "no ACS capability")


def _links() -> tuple[NvLink, ...]:
    return tuple(
        NvLink(
            i,
            True,
            26.562,
            4,
            "nvswitch",
            f"0000:0{i % 4 + 4}:00.0",
            (("crc_flit", 0), ("crc_data", 0), ("replay", 0), ("recovery", 0)),
        )
        for i in range(18)
    )


def gpu(i: int, name: str = "NVIDIA H100 80GB HBM3", pci: str | None = None) -> Gpu:
    """A healthy Hopper GPU of an NVSwitch board."""
    return Gpu(
        index=i,
        name=name,
        uuid=f"GPU-{i:08x}-0000-4000-8000-000000000000",
        serial=f"165000000000{i}",
        pci=pci or f"0000:{0x18 + 0x10 * i:02x}:00.0",
        compute_capability="9.0",
        architecture=9,
        memory_total_bytes=80 * GIB,
        memory_free_bytes=79 * GIB,
        bar1_total_bytes=128 * GIB,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        sm_clock_mhz=1980,
        sm_clock_max_mhz=1980,
        memory_clock_mhz=2619,
        clock_event_reasons=0x1,
        utilization_percent=0,
        temperature_c=32,
        power_w=72.0,
        persistence=True,
        mig_enabled=False,
        compute_mode="default",
        ecc_enabled=True,
        ecc_sram_uncorrected_volatile=0,
        ecc_sram_uncorrected_aggregate=0,
        ecc_sram_corrected_aggregate=0,
        ecc_dram_uncorrected_volatile=0,
        remapped_correctable=0,
        remapped_uncorrectable=0,
        remap_pending=False,
        remap_failed=False,
        numa_node=0 if i < 4 else 1,
        local_cpus="0-55" if i < 4 else "56-111",
        links=_links(),
        fabric_state="completed",
        fabric_status=0,
        fabric_clique=0,
        fabric_cluster_uuid="0" * 32,
        fabric_health_summary="healthy",
        fabric_health_mask=0,
        lost="",
    )


def port(layer: str = "InfiniBand", rate: float = 400.0) -> Port:
    ib = layer == "InfiniBand"
    gid = Gid(0, "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1", "")
    roce = (
        Gid(0, "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1", "eth"),
        Gid(1, "fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "eth"),
        Gid(2, "0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1", "eth"),
        Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth"),
    )
    zero = (
        ("symbol_error", 0),
        ("link_error_recovery", 0),
        ("link_downed", 0),
        ("port_rcv_errors", 0),
        ("port_xmit_discards", 0),
    )
    hw = (
        ("local_ack_timeout_err", 0),
        ("packet_seq_err", 0),
        ("out_of_sequence", 0),
        ("rnr_nak_retry_err", 0),
        ("implied_nak_seq_err", 0),
    )
    return Port(
        port=1,
        state="ACTIVE",
        phys_state="LinkUp",
        rate_gbps=rate,
        width_lanes=4,
        link_layer=layer,
        lid=17 if ib else 0,
        sm_lid=1 if ib else 0,
        active_mtu=4096,
        max_mtu=4096,
        gids=(gid,) if ib else roce,
        counters=zero,
        hw_counters=hw,
    )


def nic(i: int, layer: str = "InfiniBand", rate: float = 400.0) -> RdmaDevice:
    """A healthy ConnectX-7 beside GPU i."""
    return RdmaDevice(
        name=f"mlx5_{i}",
        driver="mlx5_core",
        pci=f"0000:{0x19 + 0x10 * i:02x}:00.0",
        numa_node=0 if i < 4 else 1,
        ca_type="MT4129",
        board_id="MT_0000000838",
        firmware="28.43.2566",
        node_guid=f"946d:ae03:00aa:{i:04x}",
        sys_image_guid=f"946d:ae03:00aa:{i:04x}",
        physfn=Absent("not_found"),
        num_lag_ports=1,
        atomic_cap="ATOMIC_HCA",
        max_qp=131072,
        max_qp_rd_atom=16,
        pci_atomic_mode=4,
        advanced_pci_settings=1,
        global_tclass=0,
        netdevs=(f"ib{i}" if layer == "InfiniBand" else f"eth{i}",),
        ports=(port(layer, rate),),
    )


def _function(
    pci: str, kind: tuple[str, str, str], upstream: tuple[str, ...], root: str, numa: int, group: int
) -> PciFunction:
    """A function at full PCIe 5.0 x16; `kind` is vendor, device, class. Bridges have ACS, switched off."""
    acs: bool | Absent = False if kind[2] == "060400" else NO_ACS
    return PciFunction(pci, *kind, upstream, root, numa, 32.0, 32.0, 16, 16, group, "identity", acs, acs)


def pcie_tree() -> tuple[PciFunction, ...]:
    bridge = ("1000", "c030", "060400")
    found: list[PciFunction] = []
    for i in range(8):
        bus, numa = 0x18 + 0x10 * i, 0 if i < 4 else 1
        host = f"pci0000:{bus - 3:02x}"
        root, switch = f"0000:{bus - 3:02x}:01.0", f"0000:{bus - 2:02x}:00.0"
        down = (f"0000:{bus - 1:02x}:00.0", f"0000:{bus - 1:02x}:01.0")
        found += [_function(root, bridge, (), host, numa, 1), _function(switch, bridge, (root,), host, numa, 1)]
        found += [_function(port, bridge, (root, switch), host, numa, 1) for port in down]
        gpu_kind, nic_kind = ("10de", "2330", "030200"), ("15b3", "1021", "020700")
        found.append(_function(f"0000:{bus:02x}:00.0", gpu_kind, (root, switch, down[0]), host, numa, 2 + i))
        found.append(_function(f"0000:{bus + 1:02x}:00.0", nic_kind, (root, switch, down[1]), host, numa, 20 + i))
    nvswitch = ("10de", "22a3", "068000")
    found += [_function(f"0000:0{k + 4}:00.0", nvswitch, (), "pci0000:00", 0, 40) for k in range(4)]
    return tuple(found)


def _modules() -> tuple[KernelModule, ...]:
    return (
        KernelModule("nvidia", 300, ("nvidia_uvm", "nvidia_modeset", "nvidia_peermem", "gdrdrv")),
        KernelModule("nvidia_uvm", 4),
        KernelModule("nvidia_peermem", 0),
        KernelModule("gdrdrv", 0),
        KernelModule("ib_core", 1, ("nvidia_peermem", "rdma_cm", "ib_uverbs", "mlx5_ib")),
        KernelModule("mlx5_core", 1, ("mlx5_ib",)),
    )


def host() -> HostArea:
    nodes = ("/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{i}" for i in range(8)), "/dev/gdrdrv")
    return HostArea(
        hostname="gpu-node-01",
        os="Ubuntu 22.04.5 LTS",
        kernel="5.15.0-142-generic",
        architecture="x86_64",
        cmdline="BOOT_IMAGE=/vmlinuz root=/dev/nvme0n1p2 ro iommu=pt",
        cpu_model="Intel(R) Xeon(R) Platinum 8480C",
        num_cpus=112,
        num_numa_nodes=2,
        memory_total_bytes=2048 * GIB,
        virtualization="none",
        container="none",
        vendor="Supermicro",
        product="SYS-821GE-TNHR",
        bios_date="08/14/2025",
        modules=_modules(),
        nvidia_nodes=tuple(DeviceNode(path, True) for path in nodes),
        imex_in_proc_devices=True,
        dev_char_nvidia=True,
        memlock_bytes=-1,
        nofile=1048576,
        file_max=9223372036854775807,
        shm_total_bytes=1024 * GIB,
        shm_free_bytes=1020 * GIB,
        shm_files=(),
        hugepages_2m_total=0,
        hugepages_2m_free=0,
        numa_balancing=0,
        ptrace_scope=0,
        cap_effective=0x1FFFFFFFFFF,
        affinity="0-111",
        port_range=(32768, 60999),
        firewall="none",
    )


def software() -> SoftwareArea:
    site = "/opt/venv/lib/python3.12/site-packages"
    lib = f"{site}/nvidia/nccl/lib/libnccl.so.2"
    return SoftwareArea(
        python_version="3.12.3",
        python_executable="/opt/venv/bin/python3",
        glibc_version="2.39",
        distributions=(
            Distribution("torch", "2.11.0+cu130"),
            Distribution("nvidia-nccl-cu13", "2.32.3"),
            Distribution("deepinfer-ep", "2.5.0"),
            Distribution("nvidia-nvshmem-cu13", "3.4.5"),
        ),
        torch_version="2.11.0+cu130",
        torch_cuda="13.0",
        torch_nccl_pin="2.32.3",
        nccl=(SharedLibrary("package", lib, lib, "2.32.3", "ab" * 32),),
        nccl_effective="2.32.3",
        nccl_effective_path=lib,
        nccl_headers="2.32.3",
        nccl_gin_get=True,
        nccl_gin_warp_get=False,
        nccl_genk=False,
        nvshmem=(
            SharedLibrary(
                "package",
                f"{site}/nvidia/nvshmem/lib/libnvshmem_host.so.3",
                f"{site}/nvidia/nvshmem/lib/libnvshmem_host.so.3",
                "3.4.5",
                "cd" * 32,
            ),
        ),
        net_plugins=(),
        roots=(),
        deep_ep=(DeepEp("deepinfer-ep", "2.5.0", f"{site}/deep_ep", "2.32.3", "2.11.0", (), (), "2.5.0", False),),
        toolchain=Toolchain(
            cuda_home="/usr/local/cuda-13.1",
            cuda_home_origin="/usr/local/cuda",
            nvcc="/usr/local/cuda-13.1/bin/nvcc",
            nvcc_version="13.1.80",
            gxx="/usr/bin/g++",
            gxx_version="13.3.0",
            nvcc_ccbin=Absent("not_found"),
            cxx_format=True,
            libdwfl_header=True,
            libdw=True,
            has_cuda_runtime_h=True,
            has_cccl=True,
            usr_local_cuda="/usr/local/cuda-13.1",
            cpath_cuda_versions=(),
        ),
        jit_caches=(JitCache("deepep", "/root/.deep_ep", True, "ext4", True, 12),),
    )


def active(num_gpus: int = 8) -> ActiveArea:
    pairs = tuple(PeerAccess(a, b, True, True) for a in range(num_gpus) for b in range(num_gpus) if a != b)
    return ActiveArea(
        cu_init=0,
        cu_driver_version=13000,
        devices=tuple(
            GpuAttributes(i, f"GPU-{i:08x}-0000-4000-8000-000000000000", 132, True, True, True, True, True)
            for i in range(num_gpus)
        ),
        peers=pairs,
        cumem_export=0,
        cumem_fabric=0,
        nvcc_compile=True,
        verbs=tuple(VerbsProbe(f"mlx5_{i}", True, 9, 0) for i in range(8)),
        pidfd_getfd=0,
        deep_ep_import="",
        gin=(GinTrial("proxy", "ok", round_ns=21_000), GinTrial("gdaki", "ok", round_ns=9_000)),
    )
