"""Checks of the driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import driver
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Driver
from epctl.core.snapshot.rdma import DeviceNode
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(driver).values() if isinstance(one, Check)}
IB = ib_node()
COMPAT = edit(
    edit(IB, "gpu.driver.libcuda", "/usr/local/cuda/compat/libcuda.so.590.44.01"),
    "gpu.driver.libcuda_version",
    "590.44.01",
)
NO_UVM_NODE = edit(IB, "host.nvidia_nodes", (DeviceNode("/dev/nvidiactl", True),))
FRESH = edit(edit(NO_UVM_NODE, "host.modules", ()), "active.cu_init", NOT_PROBED)
"""After a boot, before any CUDA call: that call loads the module."""
NO_DRIVER = edit(
    IB, "gpu.driver", Driver(nvml_code=9, nvml_message="Driver Not Loaded", kernel_version=Absent("not_found"))
)
NO_DRIVER = edit(NO_DRIVER, "gpu.gpus", Absent("failed", "Driver Not Loaded"))

CASES = [
    Case("NODE-NO-DRIVER", NO_DRIVER, IB, "nvmlInit returns 9"),
    Case("NODE-NO-DRIVER", edit(NO_DRIVER, "pcie.functions.*.driver", "vfio-pci"), IB, "bound to vfio-pci"),
    Case("NODE-NO-DRIVER", edit(IB, "gpu.driver.nvml_code", 12), IB, "library is not found", fix_says="--gpus all"),
    Case("NODE-NO-DRIVER", edit(IB, "gpu.driver.nvml_code", 999), IB, "returns 999"),
    Case("DRV-NVML-MISMATCH", edit(IB, "gpu.driver.nvml_code", 18), IB, "returns 18"),
    Case("DRV-NVML-MISMATCH", edit(IB, "gpu.driver.libnvidia_ml_version", "580.126.09"), IB, "580.126.09"),
    Case(
        "DRV-NVML-MISMATCH",
        edit(IB, "gpu.driver.libcuda_version", "570.86.15"),
        COMPAT,
        "libcuda.so.580.95.05 is 570.86.15",
    ),
    Case("DRV-FWD-COMPAT", edit(COMPAT, "active.cu_init", 803), COMPAT, "803"),
    Case("DRV-FWD-COMPAT", edit(COMPAT, "active.cu_init", 804), IB, "/compat/"),
    Case(
        "DRV-FWD-COMPAT",
        edit(COMPAT, "active.cu_init", NOT_PROBED),
        edit(IB, "active.cu_init", NOT_PROBED),
        "not tried",
        "warn",
    ),
    Case("DRV-FWD-COMPAT", edit(COMPAT, "active.cu_init", 999), edit(IB, "active.cu_init", 999), "999", "warn"),
    Case("DRV-UVM-MISSING", NO_UVM_NODE, IB, "/dev/nvidia-uvm does not exist"),
    Case("DRV-UVM-MISSING", edit(edit(FRESH, "active.cu_init", 999), "host.container", "none"), IB, "is not loaded"),
    Case("DRV-UVM-MISSING", edit(FRESH, "host.container", "docker"), IB, "does not exist"),
    Case("DRV-UVM-MISSING", edit(IB, "host.modules", ()), IB, "nvidia_uvm is not loaded"),
    Case(
        "DRV-UVM-MISSING", edit(IB, "host.nvidia_nodes", (DeviceNode("/dev/nvidia-uvm", False),)), IB, "may not be read"
    ),
    Case("DRV-UVM-MISSING", NO_UVM_NODE, edit(NO_UVM_NODE, "software.nccl_effective", "2.21.5"), "nvidia-uvm"),
    Case("DRV-TOO-OLD", edit(IB, "active.cu_driver_version", 12080), IB, "CUDA 12.8"),
    Case(
        "DRV-TOO-OLD",
        edit(edit(IB, "active.cu_driver_version", NOT_PROBED), "gpu.driver.cuda_version", 12040),
        edit(IB, "software.torch_cuda", "13.1"),
        "CUDA 12.4 (NVML)",
    ),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("NODE-NO-DRIVER", "gpu.driver.kernel_version", NOT_READ, "passed"),
        ("DRV-NVML-MISMATCH", "gpu.driver.nvml_code", NOT_READ, "unknown"),
        ("DRV-NVML-MISMATCH", "gpu.driver.kernel_version", NOT_READ, "unknown"),
        ("DRV-NVML-MISMATCH", "gpu.driver.libcuda", NOT_READ, "unknown"),
        ("DRV-NVML-MISMATCH", "gpu.driver.libcuda_version", Absent("unparsable"), "unknown"),
        ("DRV-NVML-MISMATCH", "gpu.driver.libcuda", Absent("not_found"), "passed"),
        ("DRV-NVML-MISMATCH", "gpu.driver.libcuda_version", "1.1", "passed"),
        ("DRV-UVM-MISSING", "host.nvidia_nodes", NOT_READ, "unknown"),
        ("DRV-UVM-MISSING", "host.nvidia_nodes", (DeviceNode("/dev/nvidia-uvm", NOT_READ),), "unknown"),
        ("DRV-UVM-MISSING", "host.modules", NOT_READ, "unknown"),
        ("DRV-TOO-OLD", "software.torch_cuda", Absent("unsupported", "CPU build"), "skipped"),
        ("DRV-TOO-OLD", "software.torch_cuda", NOT_READ, "unknown"),
        ("DRV-TOO-OLD", "software.torch_cuda", "thirteen", "unknown"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(IB, path, value)).status == status


def test_a_module_that_the_first_cuda_call_loads_is_not_missed_before_it() -> None:
    found = run("DRV-UVM-MISSING", FRESH)
    assert (found.status, "first CUDA call" in found.evidence[0]) == ("unknown", True)


def test_forward_compatibility_needs_to_be_told_from_a_missing_path() -> None:
    node = edit(edit(IB, "active.cu_init", NOT_PROBED), "gpu.driver.libcuda", NOT_READ)
    assert run("DRV-FWD-COMPAT", node).status == "unknown"


def test_driver_that_nobody_could_look_for_is_unknown() -> None:
    assert run("NODE-NO-DRIVER", edit(NO_DRIVER, "gpu.driver.kernel_version", Absent("permission"))).status == "unknown"
    assert run("NODE-NO-DRIVER", edit(NO_DRIVER, "gpu.driver.nvml_code", NOT_READ)).status == "unknown"


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
