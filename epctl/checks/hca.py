"""RDMA adapters: which ones NCCL would take, and whether its software can drive them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from epctl.core.check import Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, Fact, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.rdma import RdmaDevice
from epctl.core.views import deepep, gdaki, installing, nics
from epctl.core.views.gdaki import GPU_INITIATED
from epctl.core.views.needs import MLX5, RDMA, VERBS
from epctl.core.views.nics import Nic
from epctl.core.views.settings import is_off, setting, told
from epctl.core.views.userspace import symbol_version

PROVIDERS: dict[str, str] = {
    "mlx5_core": "mlx5",
    "mlx4_core": "mlx4",
    "efa": "efa",
    "bnxt_en": "bnxt_re",
    "bnxt_re": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "irdma": "irdma",
    "erdma": "erdma",
    "hns3": "hns",
    "hns_roce": "hns",
    "mana": "mana",
    "mana_ib": "mana",
    "qedr": "qedr",
}
"""Kernel driver of the PCI function, or the RDMA driver on top of it → provider of libibverbs (rdma-core, folder `providers`)."""
MLX5_SYMBOLS, DMABUF_SYMBOLS, ORDER_SYMBOLS = "MLX5_1.25", "IBVERBS_1.12", "IBVERBS_1.8"
"""Symbol versions that NCCL looks up: data direct, DMA-BUF registration, relaxed ordering (misc/mlx5dvsymbols.cc, ibvsymbols.cc)."""
CONNECTX8 = 4131
"""MT4131, the first adapter with data direct."""


def _in_use(context: Context) -> tuple[Nic, ...]:
    """Active ports that NCCL's IB transport would take."""
    return tuple(nic for nic in nics.selected(context) if nic.active and not nic.is_efa)


@check(
    "NIC-LINKLAYER-MIX",
    area="rdma",
    severity="warn",
    title="NCCL would use InfiniBand and Ethernet ports together",
    why="Ports of different link layers cannot be connected with each other; NCCL stops, or picks the management card.",
    fix="Name the fabric's ports alone in NCCL_IB_HCA (`=` for exact names), and in NVSHMEM_HCA_LIST.",
    reference="https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib/connect.cc "
    "https://github.com/deepseek-ai/DeepEP/issues/223",
    needs=(VERBS,),
)
def nic_linklayer_mix(context: Context) -> Iterator[Seen]:
    layers: dict[str, list[str]] = {}
    for nic in _in_use(context):
        layer = nic.port.link_layer
        if isinstance(layer, Absent):
            yield unread(f"{nic.label} link layer", layer)
        else:
            layers.setdefault(layer, []).append(nic.label)
    text = "; ".join(f"{layer}: {', '.join(labels)}" for layer, labels in sorted(layers.items()))
    chosen = told(context, "NCCL_IB_HCA") if setting(context, "NCCL_IB_HCA") else "NCCL_IB_HCA is not set"
    if {"InfiniBand", "Ethernet"} <= set(layers):
        yield bad(f"active ports by link layer: {text} (sysfs); {chosen}")
    elif layers:
        yield good(f"active ports by link layer: {text} (sysfs)")


@check(
    "NIC-STORAGE-SELECTED",
    area="rdma",
    severity="warn",
    title="NCCL would use a front-end or storage adapter",
    why="Without a list NCCL takes every active RDMA port, also slow ones and ones far from the GPUs.",
    fix="Exclude it in NCCL_IB_HCA (`^=name`) and leave it out of NVSHMEM_HCA_LIST; EP_NIC_NAME must name a fabric card.",
    reference="https://github.com/NVIDIA/nccl/issues/1591 "
    "https://github.com/Azure/azurehpc-health-checks/blob/main/conf/nd96isr_h200_v5.conf",
    needs=(VERBS,),
)
def nic_storage_selected(context: Context) -> Iterator[Seen]:
    ports = _in_use(context)
    rates: dict[str, Fact[float]] = {nic.label: nics.nominal_gbps(nic, context.node) for nic in ports}
    best = max((rate for rate in rates.values() if isinstance(rate, float)), default=0.0)
    fastest = {nics.kind(nic) for nic in ports if rates[nic.label] == best}
    routed = {nic.label for nic in ports if nics.holds_default_route(nic, context.node)}
    wrong: dict[str, list[str]] = {}
    for nic in ports:
        rate = rates[nic.label]
        text = f"{nic.label}: {rate:g} Gb/s" if isinstance(rate, float) else nic.label
        if nic.label in routed and len(routed) < len(ports):
            wrong.setdefault(nic.device.name, []).append(f"{text}, its interface has the default route")
        elif isinstance(rate, Absent):
            yield unread(f"{nic.label} rate", rate)
        elif rate < best and nics.kind(nic) not in fastest:  # a slow sister of the fabric's ports is NIC-ACTIVE-RATE
            wrong.setdefault(nic.device.name, []).append(f"{text}, the fabric runs at {best:g} Gb/s (sysfs)")
        else:
            yield good(text)
    listed = shlex.quote(f"^={','.join(wrong)}")
    commands = () if setting(context, "NCCL_IB_HCA") else (f"export NCCL_IB_HCA={listed}",)
    for texts in wrong.values():
        for text in texts:
            yield bad(text, commands=commands)
    yield from _rate_adapter(context)


def _rate_adapter(context: Context) -> Iterator[Seen]:
    """The adapter whose rate DeepEP takes for all. One that is not there at all is told by EFA-SM-ZERODIV."""
    name, origin = deepep.rate_adapter(context)
    carrying = sorted({nic.device.name for nic in nics.fabric(context) if nic.active})
    if not deepep.second(context) or not carrying or name in carrying:
        return
    if any(device.name == name for device in nics.every_device(context.node)):
        yield bad(
            f"DeepEP takes its link rate from {name} ({origin}), the fabric's adapters are {', '.join(carrying)}",
            fix="DeepEP 2.0 and 2.1: set EP_NIC_NAME to an adapter of the fabric; 2.5: pass num_sms or rdma_gbs.",
            commands=(),
        )


@check(
    "NIC-NOT-MLX5",
    area="rdma",
    severity="fail",
    title="GPU-initiated RDMA is asked for, and no adapter is an mlx5",
    why="NVSHMEM's IBGDA and NCCL's GIN GDAKI write the queues of mlx5 adapters; other drivers are not served, with no more than "
    "a soft warning.",
    fix="Use GIN proxy (NCCL_GIN_TYPE=2) or the vendor's GIN plugin where the library allows it, NVSHMEM's IBRC, or another "
    "backend; EP inside one NVLink domain can set EP_DISABLE_GIN=1.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/759 https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib/gin.cc",
    needs=(RDMA, GPU_INITIATED),
)
def nic_not_mlx5(context: Context) -> Iterator[Seen]:
    drivers: dict[str, list[str]] = {}
    for nic in nics.fabric(context):
        drivers.setdefault(str(nic.device.driver), []).append(nic.label)
        if isinstance(nic.device.driver, Absent):
            yield unread(f"{nic.label} driver", nic.device.driver)
    text = "; ".join(f"{driver}: {', '.join(labels)}" for driver, labels in sorted(drivers.items()))
    if "mlx5_core" in drivers:
        yield good(f"fabric adapters by driver: {text} (sysfs)")
    elif drivers and not any(isinstance(nic.device.driver, Absent) for nic in nics.fabric(context)):
        yield bad(f"fabric adapters by driver: {text} (sysfs); asked for by {gdaki.because(context)}")


@check(
    "OFED-USERSPACE-OLD",
    area="rdma",
    severity="warn",
    title="The user-space RDMA libraries are older than NCCL asks for",
    why="NCCL misses versioned symbols: no data direct, no DMA-BUF registration or no relaxed ordering; on some B300 hosts no GIN.",
    fix="Install the user space of rdma-core or DOCA-OFED 25.x in the image, and on the host on a drained node; NCCL_IB_MERGE_NICS=0 "
    "helped one user.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/628 https://github.com/NVIDIA/nccl/blob/master/src/misc/mlx5dvsymbols.cc",
    needs=(MLX5,),
)
def ofed_userspace_old(context: Context) -> Iterator[Seen]:
    gin = context.node.active.gin
    none = isinstance(gin, tuple) and bool(gin) and not any(entry.value == "ok" for entry in gin)
    direct = any((nics.connectx(nic.device) or 0) == CONNECTX8 for nic in nics.selected(context))
    symbols: tuple[tuple[str, str, str, Severity], ...] = (
        ("libmlx5", MLX5_SYMBOLS, "data direct, of ConnectX-8", "warn" if direct else "info"),
        ("libibverbs", DMABUF_SYMBOLS, "DMA-BUF registration", "warn"),
        ("libibverbs", ORDER_SYMBOLS, "relaxed ordering", "warn"),
    )
    for library, wanted, what, severity in symbols:
        seen = symbol_version(context, library, wanted, what)
        also = "; no GIN type works (active probe)" if none else ""
        severity = "fail" if none else severity
        yield bad(f"{seen.text}{also}", severity=severity, fix=seen.fix) if seen.verdict == "bad" else seen


@check(
    "IB-VF-GUID-ZERO",
    area="rdma",
    severity="fail",
    title="An RDMA function has no node GUID",
    why="A virtual function without GUID stays down, and memory registration and rdma_cm fail on it.",
    fix="Drain the node and let the SR-IOV operator assign GUIDs (it rebinds the function), enable virtualisation in the subnet manager, "
    "and set the link state policy Follow.",
    reference="https://github.com/k8snetworkplumbingwg/sriov-network-operator/issues/267 "
    "https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin/issues/590 "
    "https://github.com/Mellanox/network-operator/issues/1825",
    needs=(MLX5,),
)
def ib_vf_guid_zero(context: Context) -> Iterator[Seen]:
    every = nics.devices(context.node)
    for device in dict.fromkeys(nic.device for nic in nics.selected(context) if nic.device.driver == "mlx5_core"):
        guid = device.node_guid
        if isinstance(guid, Absent):
            yield unread(f"{device.name} node GUID", guid)
        elif guid.replace(":", "").strip("0"):
            yield good(f"{device.name}: node GUID {guid} (sysfs)")
        else:
            spare = any(device.physfn == other.pci for other in every)
            also = f", virtual function of {device.physfn}, which is here, too" if spare else ""
            yield bad(f"{device.name}: node GUID {guid} (sysfs){also}", severity="warn" if spare else None)


@check(
    "NIC-PF-AND-VF",
    area="rdma",
    severity="fail",
    title="A physical function and a virtual one of the same card are both in use",
    why="NCCL takes them for two ports of one card and merges them; a peer that sees one of them does not, and connecting fails.",
    fix="Expose one of them to the job, name it in NCCL_IB_HCA, or set NCCL_IB_MERGE_NICS=0.",
    commands=("export NCCL_IB_MERGE_NICS=0",),
    reference="https://github.com/NVIDIA/nccl/issues/1422",
    needs=(VERBS,),
)
def nic_pf_and_vf(context: Context) -> Iterator[Seen]:
    if is_off(context, "NCCL_IB_MERGE_NICS"):
        yield good(f"ports are not merged: {told(context, 'NCCL_IB_MERGE_NICS')}")
        return
    devices = dict.fromkeys(nic.device for nic in _in_use(context))
    by_pci = {device.pci: device.name for device in devices if isinstance(device.pci, str)}
    for device in devices:
        parent = device.physfn
        if isinstance(parent, Absent):
            if parent.absent in ("not_found", "unsupported"):  # no link `physfn` in sysfs: it is a physical function
                yield good(f"{device.name} is a physical function")
            else:
                yield unread(f"{device.name} physical function", parent)
        elif parent in by_pci:
            text = f"{device.name} is a virtual function of {by_pci[parent]} ({parent}), both are active (sysfs)"
            yield _together(context, text)
        else:
            yield good(f"{device.name}: its physical function {parent} is not in use here")


def _together(context: Context, text: str) -> Seen:
    """On a host the virtual functions wait for pods and guests, as SR-IOV means it; only a job of the host itself is hit."""
    where = context.node.host.container
    if isinstance(where, Absent):
        return bad(f"{text}; container: {where}", severity="warn")
    if where == "none":
        return bad(f"{text}; seen from the host, where it matters to jobs that run outside pods alone", severity="info")
    return bad(text)


@check(
    "RDMA-PROVIDER-MISSING",
    area="rdma",
    severity="fail",
    title="The verbs library cannot drive the adapters of this node",
    why="libibverbs needs a provider library for each kind of adapter; without it NCCL finds no device and goes to sockets.",
    fix="Install ibverbs-providers (Debian, Ubuntu), or the rdma-core of the distribution or the vendor, in the image.",
    reference="https://github.com/NVIDIA/k8s-test-infra/issues/558 https://github.com/NVIDIA/nvidia-docker/issues/930 "
    "https://github.com/NVIDIA/caffe/issues/590",
    needs=(RDMA,),
)
def rdma_provider_missing(context: Context) -> Iterator[Seen]:
    node = context.node
    devices = tuple(dict.fromkeys(nic.device for nic in nics.fabric(context)))
    opened = {probe.device for probe in value_or(node.active.verbs, ()) if probe.opened is True}
    listed = set(value_or(node.rdma.ibv_devices, ()))
    if node.rdma.ibv_devices == () and devices and not opened:
        names = ", ".join(device.name for device in devices)
        yield _without(node, devices, f"sysfs has {names}, ibv_devinfo finds no device")
        return
    for device in devices:
        if device.name in opened or device.name in listed:
            how = "opened (active probe)" if device.name in opened else "listed by ibv_devinfo"
            yield good(f"{device.name}: {how}")
        else:
            yield _by_provider(node, device)


def _without(node: Snapshot, devices: tuple[RdmaDevice, ...], text: str) -> Seen:
    """The provider of EFA that fits its driver comes with the EFA installer."""
    if all(device.driver == "efa" for device in devices):
        return bad(
            text, fix="Run the EFA installer, in an image with --skip-kmod: it brings rdma-core with the provider."
        )
    return bad(text, commands=installing.packages(node, deb="ibverbs-providers", rpm="libibverbs"))


def _by_provider(node: Snapshot, device: RdmaDevice) -> Seen:
    installed = node.rdma.providers
    driver = known(device.driver, f"{device.name} driver")
    wanted = PROVIDERS.get(driver)
    if wanted is None:
        return unread(f"{device.name} provider", Absent("not_found", f"epctl knows none for driver {driver}"))
    if isinstance(installed, Absent):
        return unread(f"{device.name}: libibverbs does not list it; providers", installed)
    found = ", ".join(installed) or "none"
    if wanted not in installed:
        text = f"{device.name} (driver {driver}) needs the provider {wanted}; installed and configured: {found}"
        return _without(node, (device,), text)
    if isinstance(node.rdma.ibv_devices, Absent):
        return good(f"{device.name}: provider {wanted} is installed")
    return unread(
        f"{device.name}", Absent("failed", f"ibv_devinfo does not list it although the provider {wanted} is installed")
    )
