"""Checks of the CUDA generation and majors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import cuda
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(cuda).values() if isinstance(one, Check)}
IB = ib_node()
NO_NVCC = edit(IB, "software.toolchain.nvcc_version", Absent("not_found"))

CASES = [
    Case("CUDA-ARCH-UNSUPPORTED", edit(IB, "gpu.gpus.3.compute_capability", "8.0"), IB, "GPU 3"),
    Case("CUDA-ARCH-UNSUPPORTED", IB, gb200_node(), "10.0", profiles=("cft",)),
    Case(
        "CUDA-ARCH-UNSUPPORTED",
        edit(IB, "gpu.gpus.*.compute_capability", "6.1"),
        edit(IB, "gpu.gpus.*.compute_capability", "7.0"),
        "GIN",
        profiles=("nccl-genk",),
    ),
    Case("CUDA-MAJOR-MIX", dist(IB, "nvidia-nccl-cu12", "2.30.4"), IB, "nvidia-nccl-cu12 2.30.4"),
    Case("CUDA-MAJOR-MIX", edit(IB, "software.torch_cuda", "12.8"), NO_NVCC, "nvidia-nvshmem-cu13"),
    Case("CUDA-MAJOR-MIX", edit(IB, "software.toolchain.nvcc_version", "12.9.41"), IB, "nvcc (CUDA 12.9.41)"),
    Case(
        "CUDA-MAJOR-MIX", edit(IB, "software.toolchain.nvcc_version", "12.9"), IB, "nvcc", "warn", profiles=("nccl-ep",)
    ),
    Case(
        "CUDA-MAJOR-MIX",
        env(IB, NVSHMEM_DIR="/opt/libnvshmem-linux-x86_64-3.4.5_cuda12-archive"),
        env(IB, NVSHMEM_DIR="/opt/nvshmem-3.4.5"),
        "NVSHMEM_DIR=",
    ),
    Case("CUDA-VMM-GDR-ATTR", edit(IB, "active.devices.2.gdr_with_vmm", False), IB, "CUDA device 2"),
    Case("CUDA-VMM-GDR-ATTR", edit(IB, "active.devices.2.gdr_with_vmm", False), IB, "= 0", "warn", profiles=("epctl",)),
    Case(
        "CUDA-VMM-GDR-ATTR",
        edit(IB, "active.devices.2.gdr_with_vmm", False),
        IB,
        "= 0",
        profiles=("epctl",),
        num_nodes=2,
    ),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("CUDA-ARCH-UNSUPPORTED", "gpu.gpus.0.compute_capability", NOT_READ, "unknown"),
        ("CUDA-MAJOR-MIX", "software.torch_cuda", NOT_READ, "unknown"),
        ("CUDA-MAJOR-MIX", "software.distributions", NOT_READ, "unknown"),
        ("CUDA-MAJOR-MIX", "env.variables", NOT_READ, "passed"),
        ("CUDA-VMM-GDR-ATTR", "active.devices", NOT_PROBED, "unknown"),
        ("CUDA-VMM-GDR-ATTR", "active.devices.1.gdr_with_vmm", NOT_PROBED, "unknown"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(IB, path, value)).status == status


def test_one_version_alone_is_no_mix() -> None:
    node = edit(edit(NO_NVCC, "software.torch_cuda", Absent("not_found")), "software.distributions", ())
    assert run("CUDA-MAJOR-MIX", node).status == "skipped"


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
