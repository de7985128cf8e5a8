"""Checks of errors that GPUs and driver have recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import gpu_errors
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Xid
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(gpu_errors).values() if isinstance(one, Check)}
IB = ib_node()
PCI = "0000:18:00"
FATAL_LINE = "149, NETIR_LINK_EVT Fatal XC0 i0 Link 00"
TORN = "45, pid=1451, name=python3, Ch 00000001 caused by previous Xid 149"


def logged(*xids: Xid) -> Snapshot:
    return edit(IB, "gpu.driver.xids", xids)


WANTED = Xid(154, PCI, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
TAKEN_BACK = Xid(154, PCI, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
APPLICATION = logged(Xid(31, PCI, "MMU fault"), Xid(13, PCI, "graphics exception"), Xid(43, PCI, "stopped"))

CASES = [
    *(
        Case("GPU-XID-FATAL", logged(Xid(code, PCI, "NVRM: Xid")), APPLICATION, f"Xid {code} of {PCI}")
        for code in (48, 62, 64, 74, 79, 95, 109, 119, 120, 136, 140, 143, 158)
    ),
    *(
        Case("GPU-XID-FATAL", logged(Xid(code, PCI, "x")), IB, f"Xid {code}", "warn", fix_says="Reset")
        for code in (63, 92, 94)
    ),
    Case(
        "GPU-XID-FATAL",
        logged(Xid(154, PCI, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")),
        logged(Xid(154, PCI, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)")),
        "Node Reboot Required",
        fix_says="154",
    ),
    Case("GPU-XID-FATAL", logged(TAKEN_BACK, WANTED), logged(WANTED, TAKEN_BACK), "GPU Reset Required", fix_says="154"),
    Case(
        "GPU-XID-FATAL",
        logged(Xid(95, PCI, "uncontained"), WANTED, TAKEN_BACK),  # was reset, as it was told to be
        logged(WANTED, TAKEN_BACK),
        "since then recovered",
        "warn",
    ),
    Case("GPU-XID-FATAL", logged(WANTED, TAKEN_BACK, Xid(95, PCI, "again")), IB, "again"),
    Case("GPU-XID-FATAL", logged(Xid(95, PCI, "one"), TAKEN_BACK, Xid(95, PCI, "two")), IB, "(2 times)"),
    Case("GPU-XID-FATAL", logged(Xid(95, PCI, "one"), Xid(154, "0000:28:00", TAKEN_BACK.line)), IB, "Xid 95"),
    Case("GPU-XID-FATAL", logged(Xid(95, PCI, "one"), TAKEN_BACK, WANTED), IB, "Xid 95"),
    Case("GPU-XID-FATAL", logged(*(Xid(119, PCI, "GSP") for _ in range(40))), IB, "(40 times)"),
    Case("GPU-XID-FATAL", edit(IB, "gpu.gpus.6.lost", "GPU is lost"), IB, "GPU 6: GPU is lost"),
    Case("GPU-XID-NVLINK5", logged(Xid(149, PCI, FATAL_LINE, fatal=True)), APPLICATION, "NETIR_LINK_EVT"),
    Case("GPU-XID-NVLINK5", logged(Xid(144, PCI, "144, SAW_MVB Nonfatal")), IB, "Nonfatal", "warn"),
    Case(
        "GPU-XID-NVLINK5",
        logged(Xid(45, PCI, TORN)),
        logged(Xid(45, PCI, "45, pid=149, preempted")),
        "previous Xid 149",
    ),
    Case("GPU-ROW-REMAP-FAILED", edit(IB, "gpu.gpus.1.remap_failed", True), IB, "GPU 1"),
    Case(
        "GPU-ROW-REMAP-FAILED",
        edit(IB, "gpu.gpus.1.remapped_uncorrectable", 513),
        edit(IB, "gpu.gpus.1.remapped_uncorrectable", 512),
        "513 uncorrectable",
    ),
    Case("GPU-ROW-REMAP-FAILED", edit(IB, "gpu.gpus.1.remap_pending", True), IB, "pending", "warn", fix_says="Reset"),
    Case("GPU-ECC-SRAM", edit(IB, "gpu.gpus.4.ecc_sram_uncorrected_volatile", 1), IB, "since the driver started: 1"),
    Case("GPU-ECC-SRAM", edit(IB, "gpu.gpus.4.ecc_sram_uncorrected_aggregate", 2), IB, "in all: 2"),
    Case(
        "GPU-ECC-SRAM",
        edit(IB, "gpu.gpus.4.ecc_sram_corrected_aggregate", 10_001),
        edit(IB, "gpu.gpus.4.ecc_sram_corrected_aggregate", 10_000),
        "10001",
    ),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("GPU-XID-FATAL", "gpu.driver.xids", Absent("permission"), "unknown"),
        ("GPU-XID-NVLINK5", "gpu.driver.xids", Absent("permission"), "unknown"),
        ("GPU-ROW-REMAP-FAILED", "gpu.gpus.0.remap_failed", NOT_READ, "unknown"),
        ("GPU-ROW-REMAP-FAILED", "gpu.gpus.*.remap_failed", Absent("unsupported"), "skipped"),
        ("GPU-ECC-SRAM", "gpu.gpus.0.ecc_sram_uncorrected_volatile", NOT_READ, "unknown"),
        ("GPU-ECC-SRAM", "gpu.gpus.0.ecc_sram_corrected_aggregate", Absent("unsupported"), "passed"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(IB, path, value)).status == status


def test_a_lost_gpu_is_told_without_the_kernel_log() -> None:
    node = edit(edit(IB, "gpu.driver.xids", Absent("permission")), "gpu.gpus.0.lost", "GPU is lost")
    assert run("GPU-XID-FATAL", node).status == "failed"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_a_case() -> None:
    assert {case.id for case in CASES} == OWN
    assert set(registered()) >= OWN


@pytest.mark.parametrize("num_nodes", [1, 4])
@pytest.mark.parametrize("healthy", [ib_node, roce_node, efa_node, gb200_node])
@pytest.mark.parametrize("one", sorted(OWN))
def test_healthy_nodes_are_clean(one: str, healthy: Callable[[], Snapshot], num_nodes: int) -> None:
    assert run(one, healthy(), num_nodes=num_nodes).status in ("passed", "skipped")


@pytest.mark.parametrize("one", sorted(OWN))
def test_without_a_gpu_it_is_skipped(one: str) -> None:
    assert run(one, laptop()).status == "skipped"
