"""Checks of the compilers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import jit
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(jit).values() if isinstance(one, Check)}
IB, RACK = ib_node(), gb200_node()
CHAIN = "software.toolchain"
GONE = Absent("not_found", "no executable /opt/cuda/bin/nvcc")
NO_NVCC = edit(edit(IB, f"{CHAIN}.nvcc", GONE), f"{CHAIN}.nvcc_version", GONE)
NO_TOOLKIT = edit(NO_NVCC, f"{CHAIN}.cuda_home", GONE)
NO_GXX = edit(edit(IB, f"{CHAIN}.gxx", Absent("not_found")), f"{CHAIN}.gxx_version", Absent("not_found"))
CCBIN = env(edit(NO_GXX, f"{CHAIN}.nvcc_ccbin", "/usr/bin/g++-13"), NVCC_CCBIN="/usr/bin/g++-13")
NO_FRONT = edit(IB, f"{CHAIN}.cxx_format", Absent("failed", "g++: fatal error: cannot execute 'cc1plus'"))


def _nvcc(version: str, node: Snapshot = IB) -> Snapshot:
    return edit(node, f"{CHAIN}.nvcc_version", version)


def _compile(message: str) -> Snapshot:
    return edit(edit(IB, "active.nvcc_compile", False), "active.nvcc_compile_message", message)


CASES = [
    Case("JIT-NVCC-MISSING", NO_NVCC, IB, "/usr/local/cuda-13.1 (from /usr/local/cuda)"),
    Case("JIT-NVCC-MISSING", NO_TOOLKIT, IB, "no CUDA toolkit", profiles=("epctl",)),
    Case("JIT-NVCC-OLD", _nvcc("12.8.93"), _nvcc("12.9.41"), "is 12.8.93, "),
    Case("JIT-NVCC-OLD", _nvcc("12.2.140"), _nvcc("12.3.52"), "12.2.140", profiles=("deepep-2",)),
    Case("JIT-NVCC-OLD", _nvcc("12.9"), _nvcc("13.0"), "needs 13.0", profiles=("epctl",)),
    Case("JIT-NVCC-OLD", _nvcc("12.8.93", RACK), _nvcc("12.9.41", RACK), "capability 10.0", profiles=("deepep-2",)),
    Case("JIT-NVCC-OLD", _nvcc("12.2"), IB, "needs 12.3", profiles=("deepep-1",)),
    Case("JIT-NVCC-OLD", dist(_nvcc("12.2"), "deep-ep", "1.2.1"), IB, "needs 12.3", "info", ("deepep-1",)),
    Case("JIT-NVCC-OLD", _compile("nvcc fatal : Unsupported gpu architecture 'compute_103a'"), IB, "compute_103a"),
    Case("JIT-HOSTCXX-MISSING", NO_GXX, IB, "no g++ on PATH"),
    Case("JIT-HOSTCXX-MISSING", env(IB, NVCC_CCBIN="/opt/gcc/bin/g++"), CCBIN, "NVCC_CCBIN=/opt/gcc/bin/g++"),
    Case("JIT-HOSTCXX-MISSING", NO_FRONT, IB, "cc1plus"),
    Case("JIT-HOSTCXX-MISSING", _compile("gcc: error trying to exec 'cc1plus': execvp"), IB, "cc1plus"),
    Case("JIT-HOSTCXX-MISSING", _compile("#error -- unsupported GNU version! gcc later than 15"), IB, "later than 15"),
    Case("JIT-CXX-FORMAT", edit(IB, f"{CHAIN}.cxx_format", False), IB, "no <format>"),
    Case("JIT-CXX-FORMAT", edit(NO_FRONT, f"{CHAIN}.gxx_version", "12.3.0"), NO_FRONT, "is 12.3.0"),
    Case("JIT-CXX-FORMAT", edit(IB, f"{CHAIN}.gxx_version", "11.4.0"), IB, "needs 12", profiles=("epctl",)),
]


@pytest.mark.parametrize(
    ("one", "node", "profiles", "status"),
    [
        ("JIT-NVCC-MISSING", edit(IB, f"{CHAIN}.nvcc", NOT_READ), ("deepep-2.5",), "unknown"),
        ("JIT-NVCC-MISSING", env(NO_NVCC, EP_JIT_NVCC_COMPILER="/opt/nvcc"), ("deepep-2.5",), "unknown"),
        ("JIT-NVCC-MISSING", env(NO_NVCC, EP_JIT_NVCC_COMPILER="/opt/nvcc"), ("epctl",), "failed"),
        ("JIT-NVCC-MISSING", NO_NVCC, ("nccl-ep",), "skipped"),
        ("JIT-NVCC-OLD", NO_NVCC, ("deepep-2.5",), "skipped"),
        ("JIT-NVCC-OLD", _nvcc("unknown"), ("deepep-2.5",), "unknown"),
        ("JIT-NVCC-OLD", edit(IB, f"{CHAIN}.nvcc_version", Absent("timed_out")), ("deepep-2.5",), "unknown"),
        ("JIT-NVCC-OLD", env(_nvcc("12.2"), EP_JIT_NVCC_COMPILER="/opt/nvcc"), ("deepep-2",), "unknown"),
        ("JIT-HOSTCXX-MISSING", edit(IB, f"{CHAIN}.gxx", NOT_READ), ("deepep-2.5",), "unknown"),
        ("JIT-HOSTCXX-MISSING", NO_GXX, ("nccl-ep",), "skipped"),
        ("JIT-CXX-FORMAT", NO_GXX, ("deepep-2.5",), "skipped"),
        ("JIT-CXX-FORMAT", edit(NO_FRONT, f"{CHAIN}.gxx_version", Absent("failed")), ("deepep-2.5",), "unknown"),
        ("JIT-CXX-FORMAT", CCBIN, ("epctl",), "unknown"),
        ("JIT-CXX-FORMAT", CCBIN, ("deepep-2.5",), "passed"),
    ],
)
def test_what_is_not_there_is_no_pass(one: str, node: Snapshot, profiles: tuple[str, ...], status: str) -> None:
    assert run(one, node, profiles).status == status


@pytest.mark.parametrize("make", [ib_node, roce_node, efa_node, gb200_node])
@pytest.mark.parametrize("profiles", [("deepep-2.5",), ("deepep-2.5", "epctl"), ("efa",)])
def test_a_healthy_node_is_clean(make: Callable[[], Snapshot], profiles: tuple[str, ...]) -> None:
    for one in sorted(OWN):
        assert run(one, make(), profiles).status in ("passed", "skipped"), one


def test_nothing_applies_to_a_machine_without_gpu() -> None:
    assert {run(one, laptop()).status for one in OWN} == {"skipped"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.says}")
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_cases() -> None:
    assert {case.id for case in CASES} == OWN
    assert set(registered()) >= OWN
