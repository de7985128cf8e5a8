"""Healthy nodes as snapshots in code, and a way to change one fact of them."""

from __future__ import annotations

from typing import Any

import msgspec

from epctl.core.fact import Absent
from epctl.core.snapshot import Origin, Snapshot
from epctl.core.snapshot.gpu import Driver, GpuArea, NvLink, P2p, PathCell, Service, Setting
from epctl.core.snapshot.host import PcieArea
from epctl.core.snapshot.rdma import DeviceNode, GdrArea, NetDev, RdmaArea, VerbsLibrary
from epctl.core.snapshot.software import (
    ActiveArea,
    Distribution,
    EnvArea,
    NetPlugin,
)
from tests.support.node_parts import DRIVER, GIB, active, gpu, host, nic, pcie_tree, port, software

__all__ = ["GIB", "dist", "edit", "efa_node", "env", "gb200_node", "gpu", "ib_node", "laptop", "nic", "roce_node"]


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


def ib_node() -> Snapshot:
    """HGX H100, 8 × NDR 400 InfiniBand, DeepEP 2.5 installed: nothing is wrong with it."""
    return Snapshot(
        origin=Origin("sample", "unit-test"),
        taken_at="2026-11-30T12:00:00Z",
        epctl_version="0.1.0",
        host=host(),
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
        pcie=PcieArea(functions=pcie_tree(), iommu_groups=60, default_topology_file=False),
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
        software=software(),
        env=EnvArea(variables=(), nccl_conf=(), nccl_conf_files=()),
        active=active(),
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
            ports=(msgspec.structs.replace(port(rate=100.0), link_layer="Unspecified", lid=0, sm_lid=0),),
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
        "active": active(4),
        "pcie.functions": tuple(
            entry for entry in pcie_tree() if entry.vendor != "10de" or entry.pci in {card.pci for card in cards}
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
