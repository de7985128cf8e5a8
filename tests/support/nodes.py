"""Healthy nodes as snapshots in code, and a way to change one fact of them."""

from __future__ import annotations

from typing import Any

import msgspec

from epctl.core.fact import Absent
from epctl.core.snapshot import Origin, Snapshot
from epctl.core.snapshot.gpu import Driver, Gpu, GpuArea, NvLink, P2p, PathCell, Service, Setting
from epctl.core.snapshot.host import HostArea, KernelModule, PcieArea, PciFunction
from epctl.core.snapshot.rdma import DeviceNode, GdrArea, Gid, NetDev, Port, RdmaArea, RdmaDevice, VerbsLibrary
from epctl.core.snapshot.software import (
    ActiveArea,
    DeepEp,
    Distribution,
    EnvArea,
    GinTrial,
    GpuAttributes,
    JitCache,
    NetPlugin,
    PeerAccess,
    SharedLibrary,
    SoftwareArea,
    Toolchain,
    VerbsProbe,
)

GIB = 1024**3
DRIVER = "580.95.05"
NO_ACS = Absent("unsupported", "no ACS capability")


def edit(node: Snapshot, path: str, value: Any) -> Snapshot:  # noqa: ANN401
    """`node` with one fact replaced: edit(node, "gpu.gpus.3.mig_enabled", True). Numbers are indices; `*` is every index."""
    changed: Snapshot = _edit(node, path.split("."), value)
    return changed


def _edit(thing: Any, path: list[str], value: Any) -> Any:  # noqa: ANN401
    if not path:
        return value
    head, *rest = path
    if isinstance(thing, tuple):
        if head == "*":
            return tuple(_edit(entry, rest, value) for entry in thing)
        i = int(head)
        return (*thing[:i], _edit(thing[i], rest, value), *thing[i + 1 :])
    return msgspec.structs.replace(thing, **{head: _edit(getattr(thing, head), rest, value)})


def env(node: Snapshot, **settings: str) -> Snapshot:
    """`node` with further environment variables."""
    before = node.env.variables
    assert isinstance(before, tuple)
    kept = tuple(entry for entry in before if entry.name not in settings)
    return edit(node, "env.variables", kept + tuple(Setting(name, value) for name, value in settings.items()))


def dist(node: Snapshot, name: str, version: str | None) -> Snapshot:
    """`node` with the Python distribution `name` at `version`, or without it."""
    before = node.software.distributions
    assert isinstance(before, tuple)
    kept = tuple(entry for entry in before if entry.name != name)
    return edit(node, "software.distributions", kept if version is None else (*kept, Distribution(name, version)))


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


def _port(layer: str = "InfiniBand", rate: float = 400.0) -> Port:
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
        ports=(_port(layer, rate),),
    )


def _function(
    pci: str, kind: tuple[str, str, str], upstream: tuple[str, ...], root: str, numa: int, group: int
) -> PciFunction:
    """A function at full PCIe 5.0 x16; `kind` is vendor, device, class. Bridges have ACS, switched off."""
    acs: bool | Absent = False if kind[2] == "060400" else NO_ACS
    return PciFunction(pci, *kind, upstream, root, numa, 32.0, 32.0, 16, 16, group, "identity", acs, acs)


def _tree() -> tuple[PciFunction, ...]:
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


def _host() -> HostArea:
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


def _software() -> SoftwareArea:
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


def _active(num_gpus: int = 8) -> ActiveArea:
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


def ib_node() -> Snapshot:
    """HGX H100, 8 × NDR 400 InfiniBand, DeepEP 2.5 installed: nothing is wrong with it."""
    return Snapshot(
        origin=Origin("sample", "unit-test"),
        taken_at="2026-11-30T12:00:00Z",
        epctl_version="0.1.0",
        host=_host(),
        gpu=GpuArea(
            driver=Driver(
                nvml_code=0,
                version=DRIVER,
                cuda_version=13000,
                kernel_version=DRIVER,
                kernel_flavour="open",
                params=(Setting("EnableStreamMemOPs", "1"), Setting("RegistryDwords", "PeerMappingOverride=1;")),
                libcuda=f"/usr/lib/x86_64-linux-gnu/libcuda.so.{DRIVER}",
                libcuda_version=DRIVER,
                libnvidia_ml=f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{DRIVER}",
                libnvidia_ml_version=DRIVER,
                nvidia_smi="/usr/bin/nvidia-smi",
                confidential_computing=False,
                services=(
                    Service("nvidia-fabricmanager", "active"),
                    Service("nvidia-persistenced", "active"),
                    Service("nvidia-imex", "inactive"),
                    Service("nvlsm", "inactive"),
                ),
                fabric_manager_version=DRIVER,
                nvlsm=Absent("not_found"),
                imex_domain=Absent("not_found"),
                imex_matrix_bad=Absent("not_found"),
                xids=(),
                kernel_log=(),
            ),
            gpus=tuple(gpu(i) for i in range(8)),
            p2p=tuple(P2p(a, b, "ok", "ok", "ok", "ok") for a in range(8) for b in range(8) if a != b),
            topology=tuple(
                [PathCell(a, f"GPU{b}", "X" if a == b else "NV18") for a in range(8) for b in range(8)]
                + [
                    PathCell(a, f"mlx5_{b}", "PIX" if a == b else "NODE" if a // 4 == b // 4 else "SYS")
                    for a in range(8)
                    for b in range(8)
                ]
            ),
            nvlink_status_lines=True,
        ),
        pcie=PcieArea(functions=_tree(), iommu_groups=60, default_topology_file=False),
        rdma=RdmaArea(
            devices=tuple(nic(i) for i in range(8)),
            netdevs=(
                NetDev("eth0", True, 1500, 25000, "physical", "0000:02:00.0", ("10.0.0.11/24",), True, ()),
                NetDev("lo", True, 65536, -1, "virtual", Absent("not_found"), ("127.0.0.1/8",), False, ()),
                *(
                    NetDev(
                        f"ib{i}",
                        True,
                        4092,
                        400000,
                        "physical",
                        f"0000:{0x19 + 0x10 * i:02x}:00.0",
                        (f"10.1.{i}.11/24",),
                        False,
                        (),
                    )
                    for i in range(8)
                ),
            ),
            uverbs=tuple(DeviceNode(f"/dev/infiniband/uverbs{i}", True) for i in range(8)),
            libraries=(
                VerbsLibrary(
                    "libibverbs",
                    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
                    ("IBVERBS_1.8", "IBVERBS_1.12", "IBVERBS_1.14"),
                    (),
                ),
                VerbsLibrary("libmlx5", "/usr/lib/x86_64-linux-gnu/libmlx5.so.1", ("MLX5_1.20", "MLX5_1.25"), ()),
            ),
            providers=("mlx5",),
            ibstat="ok",
            ibstat_devices=tuple(f"mlx5_{i}" for i in range(8)),
            ibv_devices=tuple(f"mlx5_{i}" for i in range(8)),
            ofed_version="MLNX_OFED_LINUX-24.10-2.1.8.0",
            efa_driver_version=Absent("not_found"),
            fi_efa_devices=Absent("not_found"),
            data_direct_functions=0,
        ),
        gdr=GdrArea(
            peermem_loaded=True,
            peermem_version=DRIVER,
            peermem_installed=True,
            peermem_users=0,
            peermem_uses_ib_core=True,
            gdrdrv_loaded=True,
            gdrdrv_version="2.5",
            gdrdrv_depends=("nvidia",),
            gdrdrv_node=True,
            libgdrapi_version="2.5",
        ),
        software=_software(),
        env=EnvArea(variables=(), nccl_conf=(), nccl_conf_files=()),
        active=_active(),
    )


def roce_node() -> Snapshot:
    """The same node with RoCE cards, jumbo frames and IPv4 addresses."""
    node = edit(ib_node(), "rdma.devices", tuple(nic(i, "Ethernet") for i in range(8)))
    front = NetDev("eno1", True, 1500, 25000, "physical", "0000:02:00.0", ("10.0.0.11/24",), True, ())
    fabric = tuple(
        NetDev(
            f"eth{i}",
            True,
            9000,
            400000,
            "physical",
            f"0000:{0x19 + 0x10 * i:02x}:00.0",
            (f"10.0.{i}.1/24",),
            False,
            (),
            (3,),
        )
        for i in range(8)
    )
    node = env(node, NCCL_IB_TC="106", NCCL_IB_QPS_PER_CONNECTION="4", NCCL_IB_SPLIT_DATA_ON_QPS="1")
    return edit(node, "rdma.netdevs", (front, *fabric))


def efa_node() -> Snapshot:
    """AWS P5en: Hopper behind NVSwitch, 8 EFA devices (a real one has 16), aws-ofi-nccl installed and asked for."""
    cards = tuple(
        msgspec.structs.replace(
            nic(i),
            name=f"rdmap{i}s0",
            driver="efa",
            ca_type=Absent("not_found"),
            atomic_cap="ATOMIC_NONE",
            pci_atomic_mode=Absent("not_found"),
            netdevs=(),
            max_qp=1024,
            ports=(msgspec.structs.replace(_port(rate=100.0), link_layer="Unspecified", lid=0, sm_lid=0),),
        )
        for i in range(8)
    )
    node = edit(ib_node(), "rdma.devices", cards)
    for path, value in {
        "rdma.providers": ("efa",),
        "rdma.ibstat": "empty",
        "rdma.ibstat_devices": (),
        "rdma.ibv_devices": tuple(card.name for card in cards),
        "rdma.efa_driver_version": "3.3.0",
        "rdma.fi_efa_devices": 8,
        "rdma.libraries": (
            VerbsLibrary(
                "libibverbs", "/usr/lib64/libibverbs.so.1", ("IBVERBS_1.8", "IBVERBS_1.12", "IBVERBS_1.14"), ()
            ),
            VerbsLibrary("libefa", "/usr/lib64/libefa.so.1", ("EFA_1.3",), ("efadv_create_comp_cntr",)),
            VerbsLibrary("libfabric", "/opt/amazon/efa/lib64/libfabric.so.1", ("FABRIC_1.8",), ()),
        ),
        "software.net_plugins": (
            NetPlugin("libnccl-net-ofi.so", "/opt/amazon/ofi-nccl/lib64/libnccl-net-ofi.so", "1.22.0", (), "2.34"),
        ),
        "software.deep_ep": (),
        "host.virtualization": "amazon",
        "host.vendor": "Amazon EC2",
        "host.product": "p5en.48xlarge",
        "host.hugepages_2m_total": 16384,
        "host.hugepages_2m_free": 16000,
    }.items():
        node = edit(node, path, value)
    node = dist(node, "deepinfer-ep", None)
    return env(node, NCCL_NET="AWS Libfabric", NCCL_GIN_TYPE="5", NCCL_SYM_GIN_KERNELS_ENABLE="0")


def gb200_node() -> Snapshot:
    """GB200 compute tray: 4 Blackwell GPUs of an NVL72 rack with IMEX running."""
    node = ib_node()
    cards = tuple(
        msgspec.structs.replace(
            gpu(i, "NVIDIA GB200"),
            compute_capability="10.0",
            architecture=10,
            fabric_cluster_uuid="7b7ed6a2" * 4,
            fabric_clique=5,
            links=tuple(NvLink(k, True, 50.0, 5, "nvswitch") for k in range(18)),
        )
        for i in range(4)
    )
    tray = (
        DeviceNode("/dev/nvidiactl", True),
        DeviceNode("/dev/nvidia-uvm", True),
        DeviceNode("/dev/nvidia-caps-imex-channels/channel0", True),
    )
    for path, value in {
        "gpu.gpus": cards,
        "gpu.p2p": tuple(P2p(a, b, "ok", "ok", "ok", "ok") for a in range(4) for b in range(4) if a != b),
        "gpu.driver.services": (Service("nvidia-imex", "active"), Service("nvidia-persistenced", "active")),
        "gpu.driver.imex_domain": "UP",
        "gpu.driver.imex_matrix_bad": (),
        "host.architecture": "aarch64",
        "host.nvidia_nodes": tray,
        "active": _active(4),
        "pcie.functions": tuple(
            entry for entry in _tree() if entry.vendor != "10de" or entry.pci in {card.pci for card in cards}
        ),
    }.items():
        node = edit(node, path, value)
    return node


def laptop() -> Snapshot:
    """No NVIDIA hardware at all."""
    node = ib_node()
    for path, value in {
        "gpu": GpuArea(driver=Driver(nvml_code=12, nvml_message="NVML Shared Library Not Found")),
        "rdma": RdmaArea(devices=(), netdevs=(), uverbs=()),
        "pcie": PcieArea(functions=(), iommu_groups=0),
        "gdr": GdrArea(),
        "active": ActiveArea(),
    }.items():
        node = edit(node, path, value)
    return edit(node, "software.distributions", ())
