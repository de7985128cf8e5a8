"""Checks of GPU-initiated networking over EFA."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, roce_node
from tests.support.own import own

OWN = own("efa_gda")
EFA = efa_node()
P5EN = edit(EFA, "host.product", "p5en.48xlarge")
PROFILE = ("efa",)


def gin(node: Snapshot, kind: str) -> Snapshot:
    return env(node, NCCL_GIN_TYPE=kind)


CASES = [
    Case(
        "EFA-GDRDRV-OLD", edit(EFA, "gdr.gdrdrv_version", "2.4"), EFA, "gdrdrv module 2.4, needed 2.5", profiles=PROFILE
    ),
    Case("EFA-GDRDRV-OLD", edit(EFA, "gdr.libgdrapi_version", "2.4.1"), EFA, "libgdrapi 2.4.1", profiles=PROFILE),
    Case(
        "EFA-GDRDRV-OLD",
        edit(EFA, "gdr.gdrdrv_version", Absent("not_found")),
        EFA,
        "gdrdrv module is not there",
        profiles=PROFILE,
    ),
    Case(
        "EFA-KMOD-OLD",
        edit(EFA, "rdma.efa_driver_version", "2.17.3"),
        edit(EFA, "rdma.efa_driver_version", "3.3.0g"),
        "efa module 2.17.3",
    ),
    Case("EFA-KMOD-OLD", edit(EFA, "rdma.libraries.1.symbols", ()), EFA, "does not export efadv_create_comp_cntr"),
    Case(
        "EFA-KMOD-OLD", edit(EFA, "rdma.libraries.1.path", Absent("not_found")), EFA, "libefa is not on the loader path"
    ),
    Case("EFA-KMOD-OLD", edit(EFA, "rdma.libraries", ()), EFA, "libefa is not on the loader path"),
    Case(
        "EFA-PEERMAP-REGKEY",
        edit(EFA, "gpu.driver.params.1.value", "RMForceStaticBar1=1;"),
        edit(EFA, "gpu.driver.params.1.value", '"RMForceStaticBar1=1;PeerMappingOverride=0x1"'),
        "RegistryDwords: RMForceStaticBar1=1;",
    ),
    Case("EFA-PEERMAP-REGKEY", edit(EFA, "gpu.driver.params.1.value", "PeerMappingOverride=10"), EFA, "Override=10"),
    Case("EFA-PEERMAP-REGKEY", edit(EFA, "gpu.driver.params", ()), EFA, "RegistryDwords: empty"),
    Case(
        "EFA-GIN-DEFAULT-PROXY",
        gin(P5EN, ""),
        P5EN,
        "NCCL_GIN_TYPE is unset: NCCL takes the proxy",
        profiles=(*PROFILE, "nccl-ep"),
    ),
    Case("EFA-GIN-DEFAULT-PROXY", gin(P5EN, "2"), P5EN, "NCCL_GIN_TYPE is 2", profiles=PROFILE),
    Case(
        "EFA-GIN-DEFAULT-PROXY",
        gin(P5EN, "2"),
        dist(gin(P5EN, "2"), "deep-ep", "2.1.0"),
        "p5en.48xlarge",
        profiles=PROFILE,
    ),
    Case(
        "EFA-GIN-DEFAULT-PROXY",
        env(EFA, NCCL_SYM_GIN_KERNELS_ENABLE="1"),
        EFA,
        "NCCL_SYM_GIN_KERNELS_ENABLE is 1",
        profiles=PROFILE,
    ),
    Case("EFA-GDA-UNSUPPORTED-USE", dist(EFA, "deepinfer-ep", "2.5.0"), EFA, "deepinfer-ep 2.5.0 with NCCL_GIN_TYPE=5"),
    Case("EFA-GDA-UNSUPPORTED-USE", dist(EFA, "deep-ep", "2.1.0"), dist(EFA, "deep-ep", "2.1.0+efa"), "fork", "warn"),
    Case(
        "EFA-GDA-UNSUPPORTED-USE", dist(EFA, "deep-ep", "2.0.0"), dist(EFA, "deep-ep", "1.2.1"), "deep-ep 2.0.0", "warn"
    ),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("EFA-GDRDRV-OLD", "gdr.libgdrapi_version", NOT_READ, "unknown"),
        ("EFA-GDRDRV-OLD", "gdr.gdrdrv_version", "new", "unknown"),
        ("EFA-KMOD-OLD", "rdma.efa_driver_version", Absent("permission"), "unknown"),
        ("EFA-KMOD-OLD", "rdma.efa_driver_version", "new", "unknown"),
        ("EFA-KMOD-OLD", "rdma.libraries.1.symbols", NOT_READ, "unknown"),
        ("EFA-KMOD-OLD", "rdma.libraries.1.path", NOT_PROBED, "unknown"),
        ("EFA-PEERMAP-REGKEY", "gpu.driver.params", NOT_READ, "unknown"),
        ("EFA-GDA-UNSUPPORTED-USE", "software.distributions", NOT_READ, "unknown"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(EFA, path, value), PROFILE).status == status


def test_the_option_is_merged_with_those_in_force() -> None:
    """A fresh line would take other registry dwords away."""
    finding = run("EFA-PEERMAP-REGKEY", edit(EFA, "gpu.driver.params.1.value", "RMForceStaticBar1=1;"), PROFILE)
    assert any('"RMForceStaticBar1=1;PeerMappingOverride=1;"' in line for line in finding.commands)
    assert not any("reboot" in line for line in finding.commands)


def test_without_nccl_there_is_no_advice_on_its_types() -> None:
    node = edit(gin(P5EN, ""), "software.nccl_effective", Absent("not_found"))
    assert run("EFA-GIN-DEFAULT-PROXY", node, (*PROFILE, "nccl-ep")).status == "skipped"


def test_unknown_instance_type() -> None:
    assert (
        run("EFA-GIN-DEFAULT-PROXY", gin(edit(EFA, "host.product", NOT_READ), ""), (*PROFILE, "nccl-ep")).status
        == "unknown"
    )


@pytest.mark.parametrize("one", ["EFA-KMOD-OLD", "EFA-PEERMAP-REGKEY", "EFA-GDA-UNSUPPORTED-USE"])
def test_gda_is_looked_at_only_where_it_is_asked_for(one: str) -> None:
    finding = run(one, gin(EFA, "2"), PROFILE)
    assert finding.status == "skipped"
    assert "NCCL_GIN_TYPE is 2" in finding.evidence[0]


@pytest.mark.parametrize(("product", "nccl"), [("p5.48xlarge", "2.32.3"), ("p5en.48xlarge", "2.30.4")])
def test_no_advice_where_gda_is_not_to_be_had(product: str, nccl: str) -> None:
    node = edit(edit(gin(EFA, ""), "host.product", product), "software.nccl_effective", nccl)
    assert run("EFA-GIN-DEFAULT-PROXY", node, PROFILE).status == "skipped"


def test_gin_over_efa_is_no_matter_for_nvshmem() -> None:
    assert run("EFA-GDRDRV-OLD", edit(EFA, "gdr.gdrdrv_version", "2.4"), ("deepep-1",)).status == "skipped"


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
