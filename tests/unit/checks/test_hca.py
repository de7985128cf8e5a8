"""Checks of RDMA adapters: selection, drivers, libraries."""

from __future__ import annotations

import msgspec
import pytest

from epctl.checks import hca
from epctl.core.check import registered
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.rdma import RdmaDevice
from epctl.core.snapshot.software import GinTrial, VerbsProbe
from epctl.probes.rdma_tree import RDMA_DRIVERS
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, nic, roce_node

NODE = ib_node()
ROCE = roce_node()
IDS = {one.id for one in registered().values() if one.look.__module__ == hca.__name__}
V1 = ("deepep-1",)


def card(name: str, pci: str, rate: float = 400.0, layer: str = "InfiniBand", **facts: object) -> RdmaDevice:
    """A further adapter of ConnectX-7."""
    made = msgspec.structs.replace(nic(0, layer, rate), name=name, pci=pci, netdevs=())
    return msgspec.structs.replace(made, **facts)


def with_cards(node: Snapshot, *cards: RdmaDevice) -> Snapshot:
    assert isinstance(node.rdma.devices, tuple)
    return edit(node, "rdma.devices", node.rdma.devices + cards)


FRONT = card("mlx5_8", "0000:02:00.0", 25.0, "Ethernet", ca_type="MT4127", board_id="MT_0000000575")
STORAGE = card("mlx5_an0", "0000:a9:00.0", 100.0, ca_type="MT4125", board_id="MT_0000000436")
SLOW_SISTER = edit(NODE, "rdma.devices.3.ports.0.rate_gbps", 200.0)
ROUTED = edit(ROCE, "rdma.netdevs.1.default_route", True)
ONE_CARD = edit(ROUTED, "rdma.devices", ROUTED.rdma.devices[:1])  # type: ignore[index]
VF = card("mlx5_8", "0000:19:00.2", physfn="0000:19:00.0")


def pod(container: object = "kubernetes") -> Snapshot:
    return edit(with_cards(NODE, VF), "host.container", container)


def driven_by(driver: object) -> Snapshot:
    return edit(ROCE, "rdma.devices.*.driver", driver)


def without_verbs(node: Snapshot, **facts: object) -> Snapshot:
    """Nothing was opened; only the files of the providers are known."""
    node = edit(edit(node, "active.verbs", Absent("not_probed")), "rdma.ibv_devices", Absent("tool_missing"))
    for name, value in facts.items():
        node = edit(node, f"rdma.{name}", value)
    return node


OLD_MLX5 = edit(NODE, "rdma.libraries.1.versions", ("MLX5_1.0", "MLX5_1.9", "MLX5_1.22"))
BLIND = edit(edit(NODE, "active.verbs", ()), "rdma.ibv_devices", ())

CASES = [
    Case("NIC-LINKLAYER-MIX", with_cards(NODE, FRONT), NODE, "Ethernet: mlx5_8; InfiniBand: mlx5_0"),
    Case(
        "NIC-LINKLAYER-MIX", with_cards(NODE, FRONT), env(with_cards(NODE, FRONT), NCCL_IB_HCA="^=mlx5_8"), "is not set"
    ),
    Case("NIC-LINKLAYER-MIX", env(with_cards(NODE, FRONT), NCCL_IB_HCA="mlx5"), ROCE, "NCCL_IB_HCA=mlx5 (environment)"),
    Case("NIC-STORAGE-SELECTED", with_cards(NODE, STORAGE), NODE, "mlx5_an0: 100 Gb/s, the fabric runs at 400 Gb/s"),
    Case("NIC-STORAGE-SELECTED", with_cards(NODE, STORAGE), SLOW_SISTER, "mlx5_an0"),
    Case(
        "NIC-STORAGE-SELECTED",
        with_cards(NODE, STORAGE),
        env(with_cards(NODE, STORAGE), NCCL_IB_HCA="mlx5_0"),
        "mlx5_an0",
    ),
    Case("NIC-STORAGE-SELECTED", ROUTED, ONE_CARD, "mlx5_0: 400 Gb/s, its interface has the default route"),
    Case("NIC-NOT-MLX5", driven_by("bnxt_en"), ROCE, "bnxt_en: mlx5_0, mlx5_1"),
    Case("NIC-NOT-MLX5", driven_by("irdma"), ROCE, "asked for by profile deepep-1", profiles=V1),
    Case("NIC-NOT-MLX5", env(efa_node(), NCCL_GIN_TYPE="3"), env(NODE, NCCL_GIN_TYPE="3"), "NCCL_GIN_TYPE=3"),
    # Data direct is a matter of ConnectX-8: rdma-core 39 of Ubuntu 22.04 is no fault beside a ConnectX-7.
    Case("OFED-USERSPACE-OLD", OLD_MLX5, NODE, "ends at MLX5_1.22, MLX5_1.25 (data direct", "info"),
    Case("OFED-USERSPACE-OLD", edit(OLD_MLX5, "rdma.devices.*.ca_type", "MT4131"), NODE, "data direct", "warn"),
    Case(
        "OFED-USERSPACE-OLD",
        edit(OLD_MLX5, "active.gin", (GinTrial("proxy", "failed"),)),
        NODE,
        "no GIN type works",
        "fail",
    ),
    Case(
        "OFED-USERSPACE-OLD", edit(NODE, "rdma.libraries.0.versions", ("IBVERBS_1.8",)), NODE, "IBVERBS_1.12 (DMA-BUF"
    ),
    Case(
        "IB-VF-GUID-ZERO",
        edit(NODE, "rdma.devices.4.node_guid", "0000:0000:0000:0000"),
        NODE,
        "mlx5_4: node GUID 0000:",
    ),
    Case(
        "IB-VF-GUID-ZERO",
        with_cards(NODE, msgspec.structs.replace(VF, node_guid="0000:0000:0000:0000")),
        with_cards(NODE, VF),
        "virtual function of 0000:19:00.0, which is here, too",
        "warn",
    ),
    Case("NIC-PF-AND-VF", pod(), NODE, "mlx5_8 is a virtual function of mlx5_0 (0000:19:00.0)"),
    Case("NIC-PF-AND-VF", pod(), env(pod(), NCCL_IB_HCA="^=mlx5_0"), "mlx5_8"),
    Case("NIC-PF-AND-VF", pod(), env(pod(), NCCL_IB_MERGE_NICS="0"), "mlx5_8"),
    # On a host with SR-IOV both are always there.
    Case("NIC-PF-AND-VF", with_cards(NODE, VF), NODE, "seen from the host", "info"),
    Case("NIC-PF-AND-VF", pod(Absent("permission")), NODE, "container: permission", "warn"),
    Case("RDMA-PROVIDER-MISSING", BLIND, NODE, "sysfs has mlx5_0, mlx5_1"),
    Case(
        "RDMA-PROVIDER-MISSING",
        without_verbs(NODE, providers=("efa", "rxe")),
        without_verbs(NODE),
        "mlx5_0 (driver mlx5_core) needs the provider mlx5; installed and configured: efa, rxe",
    ),
    Case("RDMA-PROVIDER-MISSING", without_verbs(efa_node(), providers=()), efa_node(), "configured: none"),
    Case(
        "RDMA-PROVIDER-MISSING",
        without_verbs(driven_by("bnxt_en")),
        without_verbs(driven_by("ice"), providers=("irdma",)),
        "needs the provider bnxt_re",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_has_a_case() -> None:
    assert {case.id for case in CASES} == IDS


@pytest.mark.parametrize("node", [ib_node(), roce_node(), efa_node(), gb200_node()], ids=["ib", "roce", "efa", "gb200"])
@pytest.mark.parametrize("name", sorted(IDS))
def test_a_healthy_node_stays_clean(name: str, node: Snapshot) -> None:
    assert run(name, node).status in ("passed", "skipped")


def test_the_fix_excludes_the_slow_adapter_by_its_exact_name() -> None:
    found = run("NIC-STORAGE-SELECTED", with_cards(NODE, STORAGE, FRONT))
    assert found.commands == ("export NCCL_IB_HCA='^=mlx5_an0,mlx5_8'",)


def test_the_adapter_whose_rate_deepep_takes_is_one_of_the_fabric() -> None:
    """Its default name may be that of a storage card, and 2.5 has no setting for another."""
    slow = edit(NODE, "rdma.devices.0.ports.0.rate_gbps", 100.0)
    slow = edit(edit(slow, "rdma.devices.0.board_id", "MT_0000000012"), "rdma.devices.0.ca_type", "MT4125")
    found = run("NIC-STORAGE-SELECTED", slow)
    assert any("takes its link rate from mlx5_0 (fixed in deepinfer-ep 2.5.0)" in line for line in found.evidence)
    second = dist(dist(env(slow, EP_NIC_NAME="mlx5_1"), "deepinfer-ep", None), "deep-ep", "2.1.0")
    assert not any("link rate" in line for line in run("NIC-STORAGE-SELECTED", second).evidence)


def test_gpu_initiated_rdma_that_nobody_asks_for_needs_no_mlx5() -> None:
    assert run("NIC-NOT-MLX5", env(driven_by("bnxt_en"), NCCL_GIN_TYPE="2")).status == "skipped"
    assert run("NIC-NOT-MLX5", env(driven_by("bnxt_en"), EP_DISABLE_GIN="1")).status == "skipped"
    assert run("NIC-NOT-MLX5", driven_by("bnxt_en"), ("nccl-ep",)).status == "skipped"


def test_every_driver_that_the_probe_tells_has_a_provider() -> None:
    assert set(RDMA_DRIVERS.values()) <= set(hca.PROVIDERS)
    for driver in RDMA_DRIVERS.values():
        wanted = hca.PROVIDERS[driver]
        assert run("RDMA-PROVIDER-MISSING", without_verbs(driven_by(driver), providers=(wanted,))).status == "passed"
        assert run("RDMA-PROVIDER-MISSING", without_verbs(driven_by(driver), providers=("rxe",))).status == "failed"


def test_adapters_that_verbs_cannot_open_for_another_reason_are_unknown() -> None:
    node = edit(edit(NODE, "active.verbs", (VerbsProbe("mlx5_0", True),)), "rdma.ibv_devices", ("mlx5_0",))
    found = run("RDMA-PROVIDER-MISSING", node)
    assert found.status == "unknown"
    assert "although the provider mlx5 is installed" in found.evidence[0]
    assert run("RDMA-PROVIDER-MISSING", without_verbs(driven_by("newcomer"))).status == "unknown"


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("NIC-LINKLAYER-MIX", "rdma.devices.1.ports.0.link_layer"),
        ("NIC-STORAGE-SELECTED", "rdma.devices.1.ports.0.rate_gbps"),
        ("NIC-NOT-MLX5", "rdma.devices.*.driver"),
        ("OFED-USERSPACE-OLD", "rdma.libraries.1.versions"),
        ("IB-VF-GUID-ZERO", "rdma.devices.1.node_guid"),
        ("NIC-PF-AND-VF", "rdma.devices.1.physfn"),
        ("NIC-LINKLAYER-MIX", "env.variables"),
    ],
)
def test_a_fact_that_nobody_read_leaves_the_check_unknown(name: str, fact: str) -> None:
    assert run(name, edit(NODE, fact, Absent("permission"))).status == "unknown"


def test_providers_that_nobody_read_leave_the_check_unknown() -> None:
    assert run("RDMA-PROVIDER-MISSING", without_verbs(NODE, providers=Absent("not_read"))).status == "unknown"
