"""Checks of Python and PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import python
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_PROBED, NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.software import SharedLibrary
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(python).values() if isinstance(one, Check)}
IB = ib_node()
STATIC = edit(IB, "active.deep_ep_import", NOT_PROBED)
NO_TORCH = edit(IB, "software.torch_version", Absent("not_found"))
V1 = dist(edit(IB, "software.deep_ep", ()), "deepinfer-ep", None)
LIB = "/venv/lib/python3.12/site-packages/nvidia/nccl/lib"
PLAIN = edit(
    V1,
    "software.nccl",
    tuple(SharedLibrary("package", f"{LIB}/{name}", f"{LIB}/{name}") for name in ("libnccl.so", "libnccl.so.2")),
)
PLAIN = edit(PLAIN, "software.nvshmem", ())
EXPANDABLE = env(IB, PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128, expandable_segments:True")


def _import(line: str) -> Snapshot:
    return edit(IB, "active.deep_ep_import", line)


CASES = [
    Case(
        "PY-UNDEF-SYM",
        _import("ImportError: _C.so: undefined symbol: ncclDevCommCreate"),
        IB,
        "ncclDevCommCreate",
        fix_says="Install the NCCL",
    ),
    Case(
        "PY-UNDEF-SYM",
        _import("ImportError: _C.so: undefined symbol: _ZN3c105ErrorC2E"),
        IB,
        "_ZN3c10",
        fix_says="Rebuild",
    ),
    Case(
        "PY-UNDEF-SYM",
        _import("ImportError: _C.so: undefined symbol: __cudaRegisterLinkedBinary_5"),
        IB,
        "LinkedBinary",
        fix_says="clean tree",
    ),
    Case(
        "PY-UNDEF-SYM",
        _import("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"),
        IB,
        "libcudart.so.12",
        fix_says="brings libcudart.so.12",
    ),
    Case("PY-UNDEF-SYM", _import("the interpreter was ended by signal 11"), IB, "signal 11", fix_says="by hand"),
    Case(
        "PY-UNDEF-SYM",
        edit(STATIC, "software.deep_ep.0.undefined_nccl_symbols", ("ncclGin1", "ncclGin2", "ncclGin3", "ncclGin4")),
        STATIC,
        "4 NCCL symbols",
    ),
    Case("PY-UNDEF-SYM", edit(IB, "software.deep_ep.0.undefined_nccl_symbols", ("ncclGin1",)), IB, "ncclGin1"),
    Case(
        "PY-UNDEF-SYM",
        edit(STATIC, "software.deep_ep.0.torch_built", "2.10"),
        edit(IB, "software.deep_ep.0.torch_built", "2.10"),
        "built for PyTorch 2.10",
        "warn",
    ),
    Case("PY-VERSIONS", edit(IB, "software.python_version", "3.9.18"), IB, "Python 3.9.18"),
    Case("PY-VERSIONS", edit(IB, "software.torch_version", "2.9.1+cu128"), IB, "PyTorch 2.9.1+cu128"),
    Case("PY-VERSIONS", edit(IB, "software.torch_cuda", Absent("unsupported")), IB, "without CUDA"),
    Case("PY-VERSIONS", NO_TORCH, IB, "deepinfer-ep 2.5.0 needs 2.10"),
    Case("PY-VERSIONS", dist(NO_TORCH, "deepinfer-ep", None), IB, "/opt/venv/bin/python3 has no PyTorch", "warn"),
    Case("PY-SO-NAMES", V1, PLAIN, "libnccl.so.2, and no libnccl.so", profiles=("deepep-1",)),
    Case("PY-SO-NAMES", IB, PLAIN, "libnvshmem_host.so.3", "info", ("deepep-2",)),
    Case(
        "PY-EXPANDABLE-SEGMENTS",
        dist(EXPANDABLE, "mooncake-transfer-engine", "0.3.8"),
        EXPANDABLE,
        "mooncake-transfer-engine 0.3.8",
    ),
    Case(
        "PY-EXPANDABLE-SEGMENTS",
        env(IB, PYTORCH_ALLOC_CONF="expandable_segments:True", TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK="1"),
        dist(env(IB, PYTORCH_ALLOC_CONF="expandable_segments:False"), "uccl", "0.1.1"),
        "ALLOCATOR_HOOK=1",
    ),
]


@pytest.mark.parametrize(
    ("one", "node", "profiles", "status"),
    [
        ("PY-UNDEF-SYM", edit(IB, "software.deep_ep", ()), ("deepep-2.5",), "passed"),
        ("PY-UNDEF-SYM", edit(STATIC, "software.deep_ep", ()), ("deepep-2.5",), "skipped"),
        ("PY-UNDEF-SYM", edit(IB, "software.deep_ep", NOT_READ), ("deepep-2.5",), "unknown"),
        (
            "PY-UNDEF-SYM",
            edit(STATIC, "software.deep_ep.0.undefined_nccl_symbols", Absent("unparsable")),
            ("deepep-2.5",),
            "unknown",
        ),
        ("PY-VERSIONS", edit(IB, "software.python_version", NOT_READ), ("deepep-2.5",), "unknown"),
        ("PY-VERSIONS", edit(IB, "software.torch_version", Absent("failed")), ("deepep-2.5",), "unknown"),
        ("PY-VERSIONS", edit(IB, "software.torch_version", "nightly"), ("deepep-2.5",), "unknown"),
        ("PY-VERSIONS", edit(IB, "software.torch_cuda", Absent("unparsable")), ("deepep-2.5",), "unknown"),
        ("PY-VERSIONS", IB, ("nccl-ep",), "skipped"),
        ("PY-SO-NAMES", IB, ("deepep-2.5",), "skipped"),
        ("PY-SO-NAMES", edit(PLAIN, "software.nccl", NOT_READ), ("deepep-1",), "unknown"),
        ("PY-EXPANDABLE-SEGMENTS", edit(IB, "env.variables", NOT_READ), ("deepep-2.5",), "unknown"),
        ("PY-EXPANDABLE-SEGMENTS", edit(EXPANDABLE, "software.distributions", NOT_READ), ("deepep-2.5",), "unknown"),
    ],
)
def test_what_is_not_there_is_no_pass(one: str, node: Snapshot, profiles: tuple[str, ...], status: str) -> None:
    assert run(one, node, profiles).status == status


@pytest.mark.parametrize("make", [ib_node, roce_node, efa_node, gb200_node])
def test_a_healthy_node_is_clean(make: Callable[[], Snapshot]) -> None:
    for one in sorted(OWN):
        assert run(one, make()).status in ("passed", "skipped"), one


def test_nothing_applies_to_a_machine_without_gpu() -> None:
    assert {run(one, laptop(), ("deepep-1", "deepep-2.5")).status for one in OWN} == {"skipped"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.says}")
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_cases() -> None:
    assert {case.id for case in CASES} == OWN
    assert set(registered()) >= OWN
