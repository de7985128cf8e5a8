"""Checks of headers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import jit_headers
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(jit_headers).values() if isinstance(one, Check)}
IB = ib_node()
PLANNED = dist(IB, "deepinfer-ep", None)
CHAIN = "software.toolchain"
ELSEWHERE = edit(PLANNED, f"{CHAIN}.cuda_home", "/opt/cuda-13.1")
STATIC = edit(IB, "active.nvcc_compile", NOT_PROBED)
NO_NVCC = edit(IB, f"{CHAIN}.nvcc", Absent("not_found"))


def _compile(message: str) -> Snapshot:
    return edit(edit(IB, "active.nvcc_compile", False), "active.nvcc_compile_message", message)


def _cpath(node: Snapshot, *versions: str) -> Snapshot:
    return edit(node, f"{CHAIN}.cpath_cuda_versions", versions)


CASES = [
    Case("JIT-LIBDW", edit(PLANNED, f"{CHAIN}.libdwfl_header", False), PLANNED, "elfutils/libdwfl.h"),
    Case("JIT-LIBDW", edit(IB, f"{CHAIN}.libdwfl_header", False), IB, "elfutils/libdwfl.h", "info"),
    Case("JIT-LIBDW", edit(PLANNED, f"{CHAIN}.libdw", False), IB, "libdw.so.1", "info"),
    Case("JIT-CCCL-PATH", ELSEWHERE, PLANNED, "/usr/local/cuda is /usr/local/cuda-13.1"),
    Case(
        "JIT-CCCL-PATH",
        edit(ELSEWHERE, f"{CHAIN}.usr_local_cuda", Absent("not_found")),
        env(ELSEWHERE, CPATH="/x:/opt/cuda-13.1/include/cccl/"),
        "is not there",
    ),
    Case("JIT-CCCL-PATH", edit(IB, f"{CHAIN}.cuda_home", "/opt/cuda-13.1"), IB, "/opt/cuda-13.1", "info"),
    Case(
        "JIT-CCCL-PATH",
        edit(PLANNED, f"{CHAIN}.has_cccl", False),
        edit(edit(ELSEWHERE, f"{CHAIN}.has_cccl", False), f"{CHAIN}.nvcc_version", "12.9.41"),
        "no include/cccl",
        fix_says="cuda-cccl",
    ),
    Case("JIT-CPATH", _compile("fatal error: cuda/std/tuple: No such file or directory"), IB, "cuda/std/tuple"),
    Case("JIT-CPATH", edit(STATIC, f"{CHAIN}.has_cuda_runtime_h", False), STATIC, "no include/cuda_runtime.h"),
    Case("JIT-CPATH", _cpath(STATIC, "12.8", "13.1"), _cpath(STATIC, "13.1"), "headers of CUDA 12.8, nvcc is 13.1.80"),
    Case("JIT-CPATH", _cpath(IB, "13.0"), _cpath(IB, "13.1"), "headers of CUDA 13.0", "warn"),
]


@pytest.mark.parametrize(
    ("one", "node", "profiles", "status"),
    [
        ("JIT-LIBDW", edit(IB, f"{CHAIN}.libdwfl_header", Absent("not_found")), ("deepep-2.5",), "unknown"),
        ("JIT-LIBDW", edit(IB, f"{CHAIN}.libdw", NOT_READ), ("deepep-2.5",), "unknown"),
        ("JIT-LIBDW", edit(IB, f"{CHAIN}.libdwfl_header", False), ("deepep-2",), "skipped"),
        ("JIT-CCCL-PATH", ELSEWHERE, ("nccl-ep",), "skipped"),
        ("JIT-CCCL-PATH", NO_NVCC, ("deepep-2.5",), "skipped"),
        ("JIT-CCCL-PATH", edit(IB, f"{CHAIN}.nvcc_version", Absent("failed")), ("deepep-2.5",), "unknown"),
        ("JIT-CCCL-PATH", edit(IB, f"{CHAIN}.has_cccl", NOT_READ), ("deepep-2.5",), "unknown"),
        ("JIT-CPATH", NO_NVCC, ("deepep-2.5",), "skipped"),
        ("JIT-CPATH", edit(STATIC, f"{CHAIN}.has_cuda_runtime_h", NOT_READ), ("deepep-2.5",), "unknown"),
        ("JIT-CPATH", edit(IB, f"{CHAIN}.cpath_cuda_versions", NOT_READ), ("deepep-2.5",), "unknown"),
        # What is wrong there is told by JIT-HOSTCXX-MISSING and JIT-NVCC-OLD.
        ("JIT-CPATH", _compile("gcc: error trying to exec 'cc1plus'"), ("deepep-2.5",), "passed"),
        ("JIT-CPATH", _compile("Unsupported gpu architecture 'sm_90'"), ("deepep-2.5",), "passed"),
    ],
)
def test_what_is_not_there_is_no_pass(one: str, node: Snapshot, profiles: tuple[str, ...], status: str) -> None:
    assert run(one, node, profiles).status == status


@pytest.mark.parametrize("make", [ib_node, roce_node, efa_node, gb200_node])
def test_a_healthy_node_is_clean(make: Callable[[], Snapshot]) -> None:
    for one in sorted(OWN):
        assert run(one, make()).status in ("passed", "skipped"), one


def test_nothing_applies_to_a_machine_without_gpu() -> None:
    assert {run(one, laptop()).status for one in OWN} == {"skipped"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.says}")
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_cases() -> None:
    assert {case.id for case in CASES} == OWN
    assert set(registered()) >= OWN
