"""The ladder says yes, no or unknown for each way of moving expert traffic, and names the gate that closed it."""

from __future__ import annotations

import pytest

from epctl.core.context import Context
from epctl.core.fact import NOT_PROBED, Absent
from epctl.core.ladder import CFT, EFA_GDA, GDAKI, GET, LSA, MULTIMEM, PROXY, Rung, ladder
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.software import ActiveArea
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, laptop, roce_node


def rungs(node: Snapshot) -> dict[str, Rung]:
    return {rung.rung: rung for rung in ladder(Context(node))}


BLACKWELL = edit(edit(gb200_node(), "software.toolchain.nvcc_version", "13.3"), "gpu.driver.cuda_version", 13030)


def states(node: Snapshot) -> dict[str, str]:
    return {name: rung.state for name, rung in rungs(node).items()}


def test_healthy_infiniband_node_has_all_but_efa_and_blackwells() -> None:
    assert states(ib_node()) == {
        LSA: "yes",
        MULTIMEM: "yes",
        PROXY: "yes",
        GDAKI: "yes",
        EFA_GDA: "no",
        GET: "yes",
        CFT: "no",
    }
    assert states(roce_node()) == states(ib_node())


def test_efa_node_has_efa_gda_and_get_but_not_gdaki() -> None:
    found = rungs(efa_node())
    assert found[EFA_GDA].state == "yes"
    assert found[GET].state == "yes"
    assert found[GDAKI].state == "no"
    assert "mlx5" in found[GDAKI].gate


def test_without_a_gpu_every_rung_is_closed_by_that() -> None:
    for rung in ladder(Context(laptop())):
        assert (rung.state, rung.gate) == ("no", "no NVIDIA GPU in this machine")


@pytest.mark.parametrize(
    ("rung", "node", "gate"),
    [
        (LSA, edit(ib_node(), "gpu.p2p.0.nvlink", "chipset_not_supported"), "GPU 0 and GPU 1 have no NVLink"),
        (LSA, edit(ib_node(), "gpu.gpus.2.mig_enabled", True), "MIG is enabled on GPU 2"),
        (LSA, edit(ib_node(), "gpu.gpus.5.links.*.active", False), "GPU 5 has no active NVLink"),
        (LSA, edit(ib_node(), "software.nccl_effective", "2.27.3"), "NCCL 2.27.3"),
        (LSA, env(ib_node(), NCCL_CUMEM_ENABLE="0"), "NCCL_CUMEM_ENABLE=0"),
        (LSA, edit(ib_node(), "gpu.gpus", ib_node().gpu.gpus[:1]), "needs two"),  # type: ignore[index]
        (MULTIMEM, edit(ib_node(), "active.devices.3.multicast", False), "GPU 3 reports no multicast"),
        (MULTIMEM, env(ib_node(), NCCL_NVLS_ENABLE="0"), "NCCL_NVLS_ENABLE=0"),
        (MULTIMEM, edit(ib_node(), "gpu.gpus.1.fabric_state", "in_progress"), "GPU 1 is in progress"),
        (PROXY, edit(ib_node(), "rdma.devices", ()), "no RDMA device"),
        (PROXY, edit(ib_node(), "rdma.devices.*.ports.*.state", "DOWN"), "no fabric RDMA port is active"),
        (PROXY, env(ib_node(), NCCL_IB_HCA="=nothing"), "NCCL_IB_HCA lets no RDMA port through"),
        (PROXY, env(ib_node(), NCCL_GIN_ENABLE="0"), "NCCL_GIN_ENABLE=0"),
        (PROXY, edit(ib_node(), "active.devices.6.gdr_with_vmm", False), "CUDA device 6"),
        (
            PROXY,
            edit(
                edit(edit(ib_node(), "gdr.peermem_loaded", False), "gdr.peermem_version", Absent("not_found")),
                "active.devices.*.dma_buf",
                False,
            ),
            "CUDA device 0 has no DMA-BUF",
        ),
        (GDAKI, edit(ib_node(), "rdma.devices.0.atomic_cap", "ATOMIC_NONE"), "mlx5_0 reports no RDMA atomics"),
        (GDAKI, env(ib_node(), NCCL_GIN_TYPE="2"), "NCCL_GIN_TYPE=2"),
        (EFA_GDA, edit(efa_node(), "gdr.gdrdrv_version", "2.4"), "gdrdrv 2.4"),
        (EFA_GDA, edit(efa_node(), "host.product", "p5.48xlarge"), "p5.48xlarge has EFA, but no EFA GDA"),
        (EFA_GDA, edit(efa_node(), "software.net_plugins.0.version", "1.19.0"), "aws-ofi-nccl 1.19.0"),
        (EFA_GDA, edit(efa_node(), "rdma.efa_driver_version", "2.17.2"), "efa module 2.17.2"),
        (EFA_GDA, edit(efa_node(), "gpu.driver.params", ()), "PeerMappingOverride"),
        (GET, edit(ib_node(), "software.nccl_effective", "2.30.7"), "NCCL 2.30.7"),
        (CFT, edit(gb200_node(), "software.toolchain.nvcc_version", "13.1"), "CUDA toolkit 13.1"),
    ],
)
def test_a_closed_gate_is_named(rung: str, node: Snapshot, gate: str) -> None:
    found = rungs(node)[rung]
    assert found.state == "no"
    assert gate in found.gate
    assert found.fix


def test_newest_toolkit_on_blackwell_opens_the_last_rung() -> None:
    assert states(BLACKWELL)[CFT] == "yes"


def test_cft_needs_a_driver_and_an_nccl_that_have_it_too() -> None:
    for path, value, says in (
        ("gpu.driver.cuda_version", 13000, "the driver is of CUDA 13.0"),
        ("software.nccl_effective", "2.30.7", "CFT needs 2.31.0"),
    ):
        found = rungs(edit(BLACKWELL, path, value))[CFT]
        assert found.state == "no"
        assert says in found.gate
    assert states(env(BLACKWELL, NCCL_CFT_ENABLE="0"))[CFT] == "no"


def test_without_nccl_the_answer_is_no_and_not_unknown() -> None:
    found = rungs(edit(ib_node(), "software.nccl_effective", Absent("not_found", "no libnccl")))
    for name in (LSA, PROXY, GDAKI, GET):
        assert found[name].state == "no", name
        assert "no NCCL is installed" in found[name].gate


def test_get_is_what_the_headers_declare_and_what_engrams_kernels_ask_for() -> None:
    """Released NCCL has no ncclGinOptFlagsWarpGet, and the released 2.5.0 does without; a build that asks for it needs it."""
    asks = edit(ib_node(), "software.deep_ep.0.warp_get", True)
    assert states(asks)[GET] == "no"
    assert "ncclGinOptFlagsWarpGet" in rungs(asks)[GET].gate
    assert states(edit(asks, "software.nccl_gin_warp_get", True))[GET] == "yes"
    assert states(edit(ib_node(), "software.nccl_gin_get", False))[GET] == "no"
    assert states(edit(ib_node(), "software.nccl_gin_get", Absent("not_found")))[GET] == "unknown"


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("software.nccl_effective", "2.28.9", "NCCL 2.28.9, GIN over EFA needs 2.31.2"),
        ("software.net_plugins.0.version", "1.17.2", "aws-ofi-nccl 1.17.2"),
        ("gdr.gdrdrv_version", "2.4", "gdrdrv 2.4"),
        ("gdr.libgdrapi_version", Absent("not_found"), "libgdrapi is not there"),
    ],
)
def test_the_proxy_over_efa_asks_for_more_than_over_infiniband(path: str, value: object, says: str) -> None:
    efa = env(efa_node(), NCCL_GIN_TYPE="2")
    assert states(efa)[PROXY] == "yes"
    found = rungs(edit(efa, path, value))[PROXY]
    assert found.state == "no"
    assert says in found.gate
    if path != "software.nccl_effective":
        assert states(edit(ib_node(), path, value) if "plugins" not in path else ib_node())[PROXY] == "yes"


def test_a_refusal_of_devx_closes_gdaki_whatever_the_capabilities_say() -> None:
    refused = edit(ib_node(), "active.verbs.3.devx_uar_errno", 1)
    assert "mlx5_3: mlx5dv_devx_alloc_uar gives errno 1" in rungs(refused)[GDAKI].gate
    assert states(refused)[GET] == "no"
    unopened = edit(ib_node(), "active.verbs.3.devx_uar_errno", Absent("permission", "mlx5dv_open_device: errno 1"))
    assert states(unopened)[GDAKI] == "no"
    assert states(unopened)[PROXY] == "yes"
    assert states(edit(ib_node(), "active.verbs.*.devx_uar_errno", Absent("unsupported")))[GDAKI] == "yes"


@pytest.mark.parametrize(
    ("dwords", "state"),
    [("PeerMappingOverride=0x1;", "yes"), ("peermappingoverride=1", "yes"), ("PeerMappingOverride=10", "no")],
)
def test_the_option_of_efa_gda_is_read_as_a_number(dwords: str, state: str) -> None:
    assert states(edit(efa_node(), "gpu.driver.params.1.value", dwords))[EFA_GDA] == state


def test_what_only_an_active_probe_knows_is_unknown_without_it() -> None:
    found = rungs(edit(ib_node(), "active", ActiveArea()))
    assert found[LSA].state == "yes"
    for name in (MULTIMEM, PROXY, GDAKI, GET):
        assert found[name].state == "unknown", name
        assert "not probed" in found[name].gate


def test_a_closed_gate_wins_over_an_unreadable_one() -> None:
    node = edit(env(ib_node(), NCCL_GIN_ENABLE="0"), "software.nccl_effective", NOT_PROBED)
    assert states(node)[PROXY] == "no"


def test_efa_ports_beside_mlx5_ones_do_not_close_gdaki_for_having_no_atomics() -> None:
    node = ib_node()
    efa = efa_node().rdma.devices
    assert isinstance(node.rdma.devices, tuple)
    assert isinstance(efa, tuple)
    node = env(edit(node, "rdma.devices", (*node.rdma.devices, efa[0])), NCCL_IB_HCA="mlx5,rdmap")
    assert rungs(node)[GDAKI].state == "yes", rungs(node)[GDAKI]
