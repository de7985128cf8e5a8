"""Checks of GPUDirect RDMA."""

from __future__ import annotations

import pytest

from epctl.checks import gdr
from epctl.core.check import registered
from epctl.core.fact import NOT_PROBED, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import LogLine
from epctl.core.snapshot.host import KernelModule
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, roce_node

NODE = ib_node()
IDS = {one.id for one in registered().values() if one.look.__module__ == gdr.__name__}
PLAIN = ("epctl",)


def facts(node: Snapshot, **changes: object) -> Snapshot:
    """`area__field=value`."""
    for name, value in changes.items():
        node = edit(node, name.replace("__", "."), value)
    return node


def without_peermem(node: Snapshot = NODE) -> Snapshot:
    return facts(
        node,
        gdr__peermem_loaded=False,
        gdr__peermem_version=Absent("not_found"),
        gdr__peermem_users=Absent("not_found"),
    )


def without_probes(node: Snapshot) -> Snapshot:
    return facts(node, active__devices=NOT_PROBED, active__verbs=NOT_PROBED)


BARE = without_peermem()
NO_ATTRIBUTE = edit(BARE, "active.devices.*.dma_buf", False)
REFUSED = edit(BARE, "active.verbs.*.dmabuf_errno", 95)
OLD_LIBRARY = edit(BARE, "active.verbs.*.dmabuf_errno", Absent("unsupported", "no ibv_reg_dmabuf_mr"))
OLD_KERNEL = edit(without_probes(BARE), "host.kernel", "4.18.0-553.el8.x86_64")
CLOSED = edit(without_probes(BARE), "gpu.driver.kernel_flavour", "proprietary")
PROPRIETARY = edit(edit(NODE, "gpu.driver.kernel_flavour", "proprietary"), "active.devices.*.dma_buf", False)
NO_WAY = without_peermem(PROPRIETARY)
SYMBOL = LogLine("peermem_symbol", "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)")
CALLBACK = LogLine(
    "peermem", "NVRM: nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping"
)
EINVAL = edit(NO_ATTRIBUTE, "gpu.driver.kernel_log", (SYMBOL,))
GB300 = facts(
    edit(edit(gb200_node(), "gpu.gpus.*.name", "NVIDIA GB300"), "rdma.devices.*.ca_type", "MT4131"),
    rdma__data_direct_functions=4,
)
GH200 = edit(edit(NODE, "gpu.gpus.*.name", "NVIDIA GH200 120GB"), "pcie.functions.*.upstream", ())
OLD_GH200 = edit(GH200, "software.nccl_effective", "2.25.1")
GUEST = edit(edit(NODE, "host.virtualization", "kvm"), "pcie.functions.*.upstream", ())
UNSEEN = edit(NO_ATTRIBUTE, "gdr.peermem_loaded", True)

CASES = [
    Case(
        "GDR-NONE", NO_ATTRIBUTE, NODE, "no nvidia_peermem (sysfs), and CUDA device 0 has no DMA-BUF (CUDA attribute)"
    ),
    Case("GDR-NONE", NO_ATTRIBUTE, BARE, "CUDA attribute"),  # DMA-BUF alone is enough
    Case("GDR-NONE", REFUSED, edit(NODE, "active.verbs.*.dmabuf_errno", 95), "errno 95"),  # so is peermem
    Case("GDR-NONE", OLD_LIBRARY, NODE, "this libibverbs has no ibv_reg_dmabuf_mr"),
    Case(
        "GDR-NONE",
        OLD_KERNEL,
        edit(BARE, "host.kernel", "4.18.0-553.el8.x86_64"),
        "kernel 4.18.0-553.el8.x86_64 has no",
    ),
    Case(
        "GDR-NONE", CLOSED, edit(NODE, "gpu.driver.kernel_flavour", "proprietary"), "proprietary NVIDIA kernel module"
    ),
    Case("GDR-NONE", env(BARE, NCCL_DMABUF_ENABLE="0"), BARE, "switched off by NCCL_DMABUF_ENABLE=0"),
    Case("GDR-NONE", NO_ATTRIBUTE, NODE, "CUDA attribute", "warn", profiles=PLAIN),
    Case("GDR-NONE", UNSEEN, NODE, "is loaded, but shows no version where NCCL looks"),
    Case(
        "GDR-NONE",
        edit(without_peermem(efa_node()), "active.devices.*.dma_buf", False),
        edit(
            edit(without_peermem(efa_node()), "active.devices.*.dma_buf", False),
            "host.modules",
            (KernelModule("efa_nv_peermem", 0),),
        ),
        "no nvidia_peermem",
    ),
    Case(
        "PEERMEM-LOAD-EINVAL",
        EINVAL,
        NODE,
        "Unknown symbol ib_register_peer_memory_client (err -22); nvidia_peermem is not",
    ),
    Case("PEERMEM-LOAD-EINVAL", EINVAL, edit(NODE, "gpu.driver.kernel_log", (SYMBOL,)), "OFED MLNX_OFED_LINUX"),
    Case(
        "PEERMEM-LOAD-EINVAL", edit(BARE, "gpu.driver.kernel_log", (SYMBOL,)), BARE, "all GPUs export DMA-BUF", "warn"
    ),
    Case(
        "PEERMEM-LOAD-EINVAL",
        edit(EINVAL, "rdma.ofed_version", Absent("tool_missing")),
        BARE,
        "no OFED found",
    ),
    Case("PEERMEM-LOADED-GDR-OFF", UNSEEN, NODE, "its version in sysfs: not found"),
    Case("PEERMEM-LOADED-GDR-OFF", edit(NODE, "gdr.peermem_version", Absent("permission")), NODE, "permission", "warn"),
    Case(
        "PEERMEM-LOADED-GDR-OFF",
        facts(edit(NODE, "active.devices.*.dma_buf", False), gdr__peermem_uses_ib_core=False),
        facts(NODE, gdr__peermem_uses_ib_core=False, gdr__peermem_users=2),
        "ib_core does not list it",
    ),
    Case(
        "PEERMEM-KMSG",
        edit(NODE, "gpu.driver.kernel_log", (CALLBACK,) * 4),
        edit(NODE, "gpu.driver.kernel_log", (CALLBACK,) * 3),
        "4 lines in this boot's kernel log",
    ),
    # With nvidia-peermem cuMem memory of NCCL and DeepEP registers (gpuDirectRDMACapable): most driver 535 and 550 fleets.
    Case("GDR-PROPRIETARY-MODULE", PROPRIETARY, NODE, "nvidia_peermem 580.95.05 is loaded (sysfs); deepep-2.5", "info"),
    Case("GDR-PROPRIETARY-MODULE", PROPRIETARY, NODE, "proprietary kernel module", "info", profiles=("deepep-1",)),
    Case("GDR-PROPRIETARY-MODULE", NO_WAY, NODE, "no nvidia_peermem (sysfs); deepep-2.5 registers symmetric", "fail"),
    Case("GDR-PROPRIETARY-MODULE", NO_WAY, NODE, "no nvidia_peermem", "warn", profiles=("deepep-1",)),
    Case(
        "GDR-PROPRIETARY-MODULE",
        edit(PROPRIETARY, "gdr.peermem_version", Absent("permission")),
        NODE,
        "version of nvidia_peermem: permission",
        "warn",
    ),
    Case(
        "GDR-PROPRIETARY-MODULE",
        env(PROPRIETARY, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
        edit(NODE, "gpu.driver.kernel_flavour", "proprietary"),  # its GPUs export DMA-BUF
        "expandable segments",
        "fail",
        profiles=("deepep-1",),
    ),
    Case(
        "DMABUF-OFED-UNSUPPORTED",
        edit(NODE, "active.verbs.5.dmabuf_gpu_errno", 95),
        NODE,
        "mlx5_5: errno 9 for descriptor -1, 95",
    ),
    Case(
        "DMABUF-OFED-UNSUPPORTED",
        edit(NODE, "active.verbs.5.dmabuf_gpu_errno", 95),
        edit(edit(NODE, "active.verbs.*.dmabuf_errno", 95), "active.verbs.*.dmabuf_gpu_errno", 95),
        "mlx5_5",
    ),
    Case(
        "DMABUF-OFED-UNSUPPORTED",
        edit(NODE, "active.verbs.0.dmabuf_gpu_errno", 93),
        env(edit(NODE, "active.verbs.0.dmabuf_gpu_errno", 93), NCCL_DMABUF_ENABLE="0"),
        "mlx5_0",
    ),
    Case("DATADIRECT-OFF", facts(GB300, rdma__data_direct_functions=0), GB300, "no data-direct function"),
    Case("DATADIRECT-OFF", env(GB300, NCCL_IB_DATA_DIRECT="0"), GB300, "NCCL_IB_DATA_DIRECT=0", fix_says="Unset"),
    Case("DATADIRECT-OFF", edit(GB300, "rdma.libraries.1.versions", ("MLX5_1.24",)), GB300, "ends at MLX5_1.24"),
    Case("GDR-LEVEL-TIGHT", OLD_GH200, GH200, "nearest NIC of every GPU: PHB (sysfs); NCCL_NET_GDR_LEVEL is not set"),
    Case("GDR-LEVEL-TIGHT", env(GH200, NCCL_NET_GDR_C2C="0"), env(OLD_GH200, NCCL_NET_GDR_C2C="1"), "PHB"),
    Case("GDR-LEVEL-TIGHT", OLD_GH200, env(OLD_GH200, NCCL_NET_GDR_LEVEL="SYS"), "PHB"),
    Case("GDR-LEVEL-TIGHT", GUEST, NODE, "PHB"),
    Case("GDR-LEVEL-TIGHT", GUEST, edit(NODE, "host.virtualization", "kvm"), "PHB"),
    Case("GDR-LEVEL-TIGHT", GUEST, edit(GUEST, "pcie.default_topology_file", True), "PHB"),
    Case("GDR-LEVEL-TIGHT", GUEST, env(GUEST, NCCL_TOPO_FILE="/etc/topo.xml"), "PHB"),
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


def test_a_half_that_nobody_probed_leaves_gpudirect_unknown() -> None:
    found = run("GDR-NONE", without_probes(BARE))
    assert found.status == "unknown"
    assert "no nvidia_peermem" in found.evidence[0]
    assert run("GDR-NONE", edit(BARE, "active.verbs", NOT_PROBED)).status == "unknown"
    assert run("GDR-NONE", edit(BARE, "active.devices", NOT_PROBED)).status == "unknown"


def test_a_module_whose_version_may_not_be_read_leaves_gpudirect_unknown() -> None:
    assert run("GDR-NONE", edit(NO_ATTRIBUTE, "gdr.peermem_version", Absent("permission"))).status == "unknown"


def test_active_probes_say_more_than_the_age_of_the_kernel() -> None:
    assert run("GDR-NONE", edit(BARE, "host.kernel", "4.18.0-553.el8.x86_64")).status == "passed"


def test_unloading_the_module_is_for_a_drained_node() -> None:
    assert "drain" in run("PEERMEM-LOADED-GDR-OFF", UNSEEN).fix


def test_a_module_that_is_not_loaded_is_not_unseen() -> None:
    assert run("PEERMEM-LOADED-GDR-OFF", BARE).status == "skipped"


def test_data_direct_belongs_to_gb300_with_connectx_8() -> None:
    assert run("DATADIRECT-OFF", gb200_node()).status == "skipped"
    assert run("DATADIRECT-OFF", edit(GB300, "rdma.devices.*.ca_type", "MT4129")).status == "skipped"


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("PEERMEM-LOAD-EINVAL", edit(BARE, "gpu.driver.kernel_log", Absent("permission"))),
        ("PEERMEM-LOAD-EINVAL", edit(NODE, "gdr.peermem_loaded", Absent("permission"))),
        ("PEERMEM-LOADED-GDR-OFF", edit(NODE, "gdr.peermem_loaded", Absent("not_read"))),
        ("PEERMEM-LOADED-GDR-OFF", edit(NODE, "gdr.peermem_version", Absent("not_read"))),
        ("PEERMEM-LOADED-GDR-OFF", edit(NODE, "gdr.peermem_uses_ib_core", Absent("not_read"))),
        ("PEERMEM-KMSG", edit(NODE, "gpu.driver.kernel_log", Absent("permission"))),
        ("GDR-PROPRIETARY-MODULE", edit(NODE, "gpu.driver.kernel_flavour", Absent("not_read"))),
        ("DMABUF-OFED-UNSUPPORTED", without_probes(NODE)),
        ("DMABUF-OFED-UNSUPPORTED", edit(NODE, "active.verbs", ())),
        ("DMABUF-OFED-UNSUPPORTED", edit(NODE, "active.verbs.*.dmabuf_gpu_errno", NOT_PROBED)),
        ("DATADIRECT-OFF", edit(GB300, "rdma.data_direct_functions", Absent("not_read"))),
        ("DATADIRECT-OFF", edit(GB300, "gpu.gpus.*.name", Absent("failed"))),
        ("GDR-LEVEL-TIGHT", edit(GUEST, "pcie.default_topology_file", Absent("not_read"))),
        ("GDR-LEVEL-TIGHT", edit(GH200, "software.nccl_effective", Absent("not_found"))),
        ("GDR-LEVEL-TIGHT", edit(NODE, "host.virtualization", Absent("not_read"))),
    ],
)
def test_what_nobody_read_leaves_the_check_unknown(name: str, node: Snapshot) -> None:
    assert run(name, node).status == "unknown"
