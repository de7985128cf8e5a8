"""Checks of AWS EFA's devices, plugin and GPUDirect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.core.check import evaluate, registered
from epctl.core.context import Context
from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.profile import chosen
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.host import KernelModule
from epctl.core.snapshot.rdma import DeviceNode, RdmaDevice
from epctl.core.snapshot.software import NetPlugin
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, nic, roce_node
from tests.support.own import own

OWN = own("efa")
EFA = efa_node()
HPCX = NetPlugin("libnccl-net.so", "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so", "2.0", (), "2.34")
NO_PEER = edit(
    edit(EFA, "gdr.peermem_loaded", False),
    "host.modules",
    tuple(module for module in EFA.host.modules if module.name != "nvidia_peermem"),  # type: ignore[union-attr]
)
NO_DMABUF = edit(NO_PEER, "host.kernel", "5.10.245-241.978.amzn2.x86_64")
DEEPEP = dist(EFA, "deep-ep", "2.1.0")


def unset(node: Snapshot, name: str) -> Snapshot:
    variables = node.env.variables
    assert isinstance(variables, tuple)
    return edit(node, "env.variables", tuple(entry for entry in variables if entry.name != name))


def mixed(opened: object = True) -> Snapshot:
    """EFA devices beside two ConnectX cards, with fi_info's answer unknown."""
    devices = EFA.rdma.devices
    assert isinstance(devices, tuple)
    others: tuple[RdmaDevice, ...] = (nic(0), nic(1))
    node = edit(EFA, "rdma.devices", devices + others)
    node = edit(node, "active.verbs.*.opened", opened)
    return edit(node, "rdma.fi_efa_devices", Absent("tool_missing"))


CASES = [
    Case("EFA-PLUGIN-NOT-FOUND", edit(EFA, "software.net_plugins", ()), EFA, "no libnccl-net-ofi.so"),
    Case("EFA-PLUGIN-NOT-FOUND", edit(EFA, "software.net_plugins", (HPCX,)), EFA, "aws-ofi-nccl on the loader path"),
    Case(
        "EFA-PLUGIN-NOT-FOUND",
        env(EFA, NCCL_NET_PLUGIN="none"),
        env(EFA, NCCL_NET_PLUGIN="ofi"),
        "NCCL_NET_PLUGIN=none",
    ),
    Case(
        "EFA-PLUGIN-NOT-FOUND",
        env(EFA, NCCL_NET_PLUGIN="gib"),
        env(EFA, NCCL_NET_PLUGIN="/opt/amazon/ofi-nccl/lib64/libnccl-net-ofi.so"),
        "NCCL_NET_PLUGIN=gib (environment) names none",
    ),
    Case(
        "EFA-PLUGIN-OLD",  # EFA-GDA, by NCCL_GIN_TYPE=5
        edit(EFA, "software.net_plugins.0.version", "1.21.0"),
        EFA,
        "aws-ofi-nccl 1.21.0; EP over AWS EFA (aws-ofi-nccl) needs 1.22 for GIN",
        profiles=("efa",),
        fix_says="EFA installer 1.50.0",
    ),
    Case(
        "EFA-PLUGIN-OLD",  # the proxy, for a library in force
        edit(unset(EFA, "NCCL_GIN_TYPE"), "software.net_plugins.0.version", "1.17.2"),
        edit(unset(EFA, "NCCL_GIN_TYPE"), "software.net_plugins.0.version", "1.21.0"),
        "needs 1.21",
        profiles=("efa", "nccl-ep"),
    ),
    Case(
        "EFA-PLUGIN-OLD",
        edit(env(EFA, NCCL_GIN_TYPE="2"), "software.net_plugins.0.version", "1.17.2"),
        env(EFA, NCCL_GIN_TYPE="2"),
        "needs 1.21",
        profiles=("efa",),
    ),
    Case("EFA-SILENT-SOCKET", unset(EFA, "NCCL_NET"), EFA, "NCCL_NET is not set", num_nodes=2),
    Case("EFA-SILENT-SOCKET", unset(EFA, "NCCL_NET"), EFA, "NCCL_NET is not set", "info"),
    Case("EFA-SILENT-SOCKET", env(EFA, NCCL_NET="Socket"), EFA, "NCCL_NET=Socket", "fail", num_nodes=2),
    Case("EFA-SILENT-SOCKET", env(EFA, NCCL_NET="IB"), env(EFA, NCCL_NET="Libfabric"), "NCCL_NET=IB", "info"),
    Case("EFA-POD-RESOURCE", edit(EFA, "rdma.devices", ()), EFA, "p5en.48xlarge has EFA", num_nodes=2),
    Case("EFA-POD-RESOURCE", edit(EFA, "rdma.devices", ()), EFA, "shows no efa device", "warn"),
    Case("EFA-POD-RESOURCE", edit(EFA, "rdma.uverbs", ()), EFA, "no uverbs device in /dev/infiniband", num_nodes=2),
    Case(
        "EFA-POD-RESOURCE",
        edit(EFA, "rdma.uverbs.*.read_write", False),
        EFA,
        "no uverbs device may be opened",
        num_nodes=2,
    ),
    Case(
        "EFA-POD-RESOURCE",
        edit(EFA, "rdma.uverbs", (DeviceNode("/dev/infiniband/uverbs0", True),)),
        EFA,
        "8 EFA devices in sysfs, 1 uverbs device may",
        "warn",
        num_nodes=2,
    ),
    Case("EFA-GDR-OFF", NO_DMABUF, EFA, "kernel 5.10.245"),
    Case("EFA-GDR-OFF", env(NO_PEER, OFI_NCCL_DISABLE_DMABUF="1"), NO_PEER, "OFI_NCCL_DISABLE_DMABUF=1"),
    Case(
        "EFA-GDR-OFF",
        NO_DMABUF,
        edit(NO_DMABUF, "host.modules", (KernelModule("efa_nv_peermem", 0),)),
        "no peer memory module is loaded",
    ),
    Case("EFA-GDR-OFF", edit(NO_PEER, "active.devices.0.dma_buf", False), NO_PEER, "CUDA device 0 has no DMA-BUF"),
    Case("EFA-GDR-OFF", env(EFA, OFI_NCCL_DISABLE_GDR_REQUIRED_CHECK="1"), EFA, "hides missing GPUDirect", "warn"),
    Case(
        "EFA-MIXED-UVERBS",
        edit(mixed(False), "rdma.fi_efa_devices", 0),
        edit(mixed(), "rdma.fi_efa_devices", 8),
        "mlx5_0 cannot",
    ),
    Case("EFA-MIXED-UVERBS", edit(mixed(), "rdma.fi_efa_devices", 0), EFA, "devices of other drivers: mlx5_0, mlx5_1"),
    Case("EFA-MIXED-UVERBS", edit(mixed(), "rdma.uverbs.7.read_write", False), mixed(), "uverbs7 may not be opened"),
    Case(
        "EFA-SM-ZERODIV",
        DEEPEP,
        edit(edit(DEEPEP, "rdma.ibstat", "ok"), "rdma.ibstat_devices", ("mlx5_0",)),
        "lists no device",
        num_nodes=2,
    ),
    Case(
        "EFA-SM-ZERODIV",
        edit(DEEPEP, "rdma.ibstat", Absent("tool_missing")),
        env(edit(edit(DEEPEP, "rdma.ibstat", "ok"), "rdma.ibstat_devices", ("rdmap0s0",)), EP_NIC_NAME="rdmap0s0"),
        "ibstat is not installed",
        num_nodes=2,
    ),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("EFA-PLUGIN-NOT-FOUND", "software.net_plugins", NOT_READ, "unknown"),
        ("EFA-PLUGIN-NOT-FOUND", "software.net_plugins.0.version", NOT_READ, "passed"),
        ("EFA-PLUGIN-NOT-FOUND", "rdma.devices", NOT_READ, "unknown"),
        ("EFA-PLUGIN-OLD", "software.net_plugins.0.version", NOT_READ, "unknown"),
        ("EFA-PLUGIN-OLD", "software.net_plugins.0.version", "new", "unknown"),
        ("EFA-SILENT-SOCKET", "env.variables", NOT_READ, "unknown"),
        ("EFA-POD-RESOURCE", "rdma.devices", NOT_READ, "unknown"),
        ("EFA-POD-RESOURCE", "rdma.uverbs", NOT_READ, "unknown"),
        ("EFA-POD-RESOURCE", "rdma.uverbs.0.read_write", NOT_READ, "unknown"),
        ("EFA-GDR-OFF", "host.modules", NOT_READ, "unknown"),
        ("EFA-SM-ZERODIV", "rdma.ibstat", NOT_READ, "unknown"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    profiles = ("deepep-2", "efa") if one == "EFA-PLUGIN-OLD" else ("deepep-2.5",)
    assert run(one, edit(DEEPEP, path, value), profiles, 2).status == status


def test_gpudirect_is_unknown_without_active_probes() -> None:
    assert run("EFA-GDR-OFF", edit(NO_PEER, "active.verbs", NOT_PROBED)).status == "unknown"


def test_foreign_cards_that_were_not_opened_are_unknown() -> None:
    assert run("EFA-MIXED-UVERBS", edit(mixed(), "active.verbs", NOT_PROBED)).status == "unknown"


@pytest.mark.parametrize("product", ["SYS-821GE-TNHR", "g5.48xlarge", "m5.large", "p5.48xlarge-clone.x y"])
def test_instances_without_efa_are_not_asked_for_it(product: str) -> None:
    node = edit(edit(EFA, "rdma.devices", ()), "host.product", product)
    assert run("EFA-POD-RESOURCE", node, num_nodes=2).status == "skipped"


P5 = unset(edit(EFA, "host.product", "p5.48xlarge"), "NCCL_GIN_TYPE")
COLLECTIVES_ONLY = {
    "software.nccl_effective": "2.28.9",
    "software.net_plugins.0.version": "1.17.2",
    "gdr.gdrdrv_version": "2.4",
    "gdr.libgdrapi_version": "2.4",
    "rdma.efa_driver_version": "2.17.3",
}
"""What AWS images brought before GIN."""


def old_p5() -> Snapshot:
    node = unset(P5, "NCCL_SYM_GIN_KERNELS_ENABLE")
    for path, value in COLLECTIVES_ONLY.items():
        node = edit(node, path, value)
    return node


def test_an_efa_machine_that_does_no_gin_owes_nothing_to_gin() -> None:
    """EFA GDA's demands once failed on P5, which has none."""
    context = Context(old_p5(), chosen(("efa",)))
    findings = [evaluate(one, context) for one in registered().values()]
    assert [entry.id for entry in findings if entry.status == "failed" and entry.severity == "fail"] == []
    about_gin = (
        "NCCL-TOO-OLD",
        "EFA-PLUGIN-OLD",
        "EFA-GDRDRV-OLD",
        "EFA-KMOD-OLD",
        "PROFILE-NEEDS-ENV",
        "GIN-TYPE-NONE",
    )
    assert {entry.status for entry in findings if entry.id in about_gin} == {"skipped"}


def test_the_same_machine_fails_as_soon_as_a_library_wants_gin_there() -> None:
    """Two of the library's own floors are the plugin's: NCCL 2.31.2 is newer than what NCCL EP asks for."""
    for one, says in (
        ("NCCL-TOO-OLD", "EP over AWS EFA (aws-ofi-nccl) needs 2.31.2"),
        ("EFA-PLUGIN-OLD", "needs 1.21"),
        ("EFA-GDRDRV-OLD", "gdrdrv module 2.4, needed 2.5"),
    ):
        finding = run(one, old_p5(), ("efa", "nccl-ep"))
        assert finding.status == "failed"
        assert says in " ".join(finding.evidence)
    assert run("EFA-KMOD-OLD", old_p5(), ("efa", "nccl-ep")).status == "skipped"
    assert run("PROFILE-NEEDS-ENV", old_p5(), ("efa", "nccl-ep")).status == "skipped"


@pytest.mark.parametrize(("container", "says"), [("docker", "pod's limits"), ("none", "interfaces of type efa")])
def test_missing_devices_are_no_fault_of_a_pod_on_a_host(container: str, says: str) -> None:
    node = edit(edit(EFA, "rdma.devices", ()), "host.container", container)
    finding = run("EFA-POD-RESOURCE", node)
    assert says in finding.fix
    assert "pod" not in finding.title


AZURE = edit(edit(ib_node(), "rdma.devices.0.name", "mlx5_ib0"), "rdma.ibstat_devices", ("mlx5_ib0", "mlx5_1"))


def test_any_adapter_may_have_a_name_that_deepep_does_not_ask_for() -> None:
    """Azure's mlx5_ib0 or a bond got no word while the check looked at EFA alone."""
    finding = run("EFA-SM-ZERODIV", AZURE, num_nodes=2)
    assert finding.status == "failed"
    assert "asks for mlx5_0 (fixed in deepinfer-ep 2.5.0)" in finding.evidence[0]
    named = env(AZURE, EP_NIC_NAME="mlx5_ib0")
    assert run("EFA-SM-ZERODIV", named, num_nodes=2).status == "failed", "2.5 does not read EP_NIC_NAME"
    second = dist(dist(named, "deepinfer-ep", None), "deep-ep", "2.1.0")
    assert run("EFA-SM-ZERODIV", second, ("deepep-2",), 2).status == "passed"


def test_rate_matters_to_an_installed_deepep_on_several_nodes() -> None:
    assert run("EFA-SM-ZERODIV", EFA, num_nodes=2).status == "skipped"
    assert run("EFA-SM-ZERODIV", DEEPEP).status == "skipped"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_a_case() -> None:
    assert {case.id for case in CASES} == OWN


@pytest.mark.parametrize("num_nodes", [1, 4])
@pytest.mark.parametrize("healthy", [ib_node, roce_node, efa_node, gb200_node])
@pytest.mark.parametrize("one", sorted(OWN))
def test_healthy_nodes_are_clean(one: str, healthy: Callable[[], Snapshot], num_nodes: int) -> None:
    finding = run(one, healthy(), num_nodes=num_nodes)
    assert finding.status in ("passed", "skipped") or finding.severity == "info", finding


@pytest.mark.parametrize("one", sorted(OWN))
def test_without_a_gpu_it_is_skipped(one: str) -> None:
    assert run(one, laptop(), num_nodes=2).status == "skipped"
