"""Checks of NVSHMEM."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import nvshmem
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.software import DeepEp, SharedLibrary
from tests.support.cases import Case, run, verify
from tests.support.nodes import GIB, dist, edit, efa_node, env, gb200_node, gpu, ib_node, laptop, roce_node

OWN = {one.id for one in vars(nvshmem).values() if isinstance(one, Check)}
V1 = ("deepep-1",)
IB = dist(ib_node(), "deep-ep", "1.2.1")
ROCE = dist(roce_node(), "deep-ep", "1.2.1")
WHEEL = "/venv/lib/python3.12/site-packages/nvidia/nvshmem/lib/libnvshmem_host.so.3"
NO_LIBRARY = edit(IB, "software.nvshmem", ())
MAPPED = env(IB, NVSHMEM_ENABLE_NIC_PE_MAPPING="1")
FULL = ",".join(f"mlx5_{i}:1:2" for i in range(4))


def _version(version: str, node: Snapshot = IB) -> Snapshot:
    return edit(node, "software.nvshmem", (SharedLibrary("package", WHEEL, WHEEL, version),))


def _root(version: str) -> Snapshot:
    """An old or new folder that NVSHMEM_DIR names, beside a wheel 3.4.5."""
    path = "/opt/nvshmem/lib/libnvshmem_host.so.3"
    copies = (
        SharedLibrary("package", WHEEL, WHEEL, "3.4.5"),
        SharedLibrary("loader", path, path, "2.11.0", first=True),
        SharedLibrary("root", path, path, version),
    )
    return edit(IB, "software.nvshmem", copies)


def _needs(*missing: str) -> Snapshot:
    return edit(IB, "software.deep_ep", (DeepEp("deep-ep", "1.2.1", needed_missing=missing),))


CASES = [
    Case("NVSHMEM-TOO-OLD", _version("3.2.5"), _version("3.3.9"), f"{WHEEL} is 3.2.5", profiles=V1),
    Case("NVSHMEM-TOO-OLD", _root("3.2.5"), _root("3.4.5"), "/opt/nvshmem/lib", profiles=V1),
    Case("NVSHMEM-TOO-OLD", NO_LIBRARY, IB, "no libnvshmem_host.so", profiles=V1),
    Case(
        "NVSHMEM-LIB-MISSING", _needs("libnvshmem_host.so"), _needs("libcudart.so.12"), "libnvshmem_host.so; there is"
    ),
    Case("NVSHMEM-LIB-MISSING", _needs("libnvshmem_host.so.3"), _needs(), "libnvshmem_host.so.3, which"),
    Case(
        "NVSHMEM-LIB-MISSING",
        edit(IB, "active.deep_ep_import", "ImportError: libnvshmem_host.so: cannot open shared object file"),
        IB,
        "`import deep_ep`",
    ),
    Case("NVSHMEM-QP-LAYOUT", _version("3.5.19"), _version("3.4.5"), "3.5.19 with deep-ep 1.2.1", "", V1, 2),
    Case("NVSHMEM-QP-LAYOUT", _version("3.6.5"), _version("3.4.5"), "3.6.5", "warn", V1),
    Case("NVSHMEM-QP-LAYOUT", dist(_version("3.5.19"), "deep-ep", "2.1.0"), IB, "2.1.0", "warn", ("deepep-2",), 2),
    Case(
        "NVSHMEM-QP-LAYOUT",
        env(dist(_version("3.5.19"), "deep-ep", "2.1.0"), NVSHMEM_IB_ENABLE_IBGDA="1"),
        IB,
        "2.1.0",
        "fail",
        ("deepep-2",),
        2,
    ),
    Case(
        "NVSHMEM-AH-FAIL", _version("3.4.5", ROCE), _version("3.5.19", ROCE), "NVSHMEM 3.4.5, 8 fabric ports", "", V1, 2
    ),
    Case("NVSHMEM-AH-FAIL", _version("3.4.5", ROCE), _version("3.5.19", ROCE), "3.4.5", "warn", V1),
    Case("NVSHMEM-NIC-MAP", MAPPED, IB, "no NVSHMEM_HCA_PE_MAPPING", "", V1, 2),
    Case("NVSHMEM-NIC-MAP", MAPPED, env(IB, NVSHMEM_ENABLE_NIC_PE_MAPPING="0"), "=1 (environment)", "info", V1),
    Case(
        "NVSHMEM-NIC-MAP",
        env(MAPPED, NVSHMEM_HCA_PE_MAPPING="mlx5_0:1:2,mlx5_1"),
        env(MAPPED, DEEP_EP_DEVICE_TO_HCA_MAPPING="0:mlx5_0:1"),
        "names 3 of 8",
        "",
        V1,
        2,
    ),
    Case("NVSHMEM-NIC-MAP", env(MAPPED, NVSHMEM_HCA_PE_MAPPING=FULL), IB, "names 8 processes", "info", V1, 2),
    Case("NVSHMEM-HEAP-OOM", edit(IB, "gpu.gpus.5.memory_free_bytes", 900 << 20), IB, "GPU 5: 900 MiB", profiles=V1),
    Case("NVSHMEM-HEAP-OOM", edit(IB, "gpu.gpus.5.memory_free_bytes", 2 * GIB), IB, "GPU 5: 2 GiB", "warn", V1),
    Case(
        "NVSHMEM-HEAP-OOM",
        edit(edit(IB, "gpu.gpus.*.utilization_percent", 97), "gpu.gpus.5.memory_free_bytes", 1 << 20),
        IB,
        "GPU 5: 1 MiB",
        "warn",
        V1,
    ),
    Case("EPV1-RANK-SHAPE", gb200_node(), IB, "2 nodes with 4 GPUs", "", V1, 2),
    Case("EPV1-RANK-SHAPE", edit(IB, "gpu.gpus", (gpu(0), gpu(1))), IB, "16 nodes with 2 GPUs", "", V1, 16),
]


@pytest.mark.parametrize(
    ("num_nodes", "status", "severity"),
    [
        (1, "passed", "fail"),
        (2, "passed", "fail"),
        (5, "failed", "fail"),
        (20, "passed", "fail"),
        (24, "failed", "warn"),
    ],
)
def test_node_counts_of_the_legacy_kernels(num_nodes: int, status: str, severity: str) -> None:
    found = run("EPV1-RANK-SHAPE", IB, V1, num_nodes)
    assert (found.status, found.severity) == (status, severity)


@pytest.mark.parametrize(
    ("one", "node", "profiles", "status"),
    [
        ("NVSHMEM-TOO-OLD", edit(IB, "software.nvshmem", NOT_READ), V1, "unknown"),
        ("NVSHMEM-TOO-OLD", edit(IB, "software.nvshmem.0.version", Absent("unparsable")), V1, "unknown"),
        ("NVSHMEM-LIB-MISSING", edit(IB, "software.deep_ep", NOT_READ), V1, "unknown"),
        ("NVSHMEM-LIB-MISSING", edit(IB, "software.deep_ep", ()), V1, "skipped"),
        (
            "NVSHMEM-LIB-MISSING",
            edit(_needs(), "software.deep_ep.0.needed_missing", Absent("unparsable")),
            V1,
            "unknown",
        ),
        ("NVSHMEM-QP-LAYOUT", NO_LIBRARY, V1, "skipped"),
        ("NVSHMEM-QP-LAYOUT", edit(IB, "software.nvshmem.0.version", Absent("unparsable")), V1, "unknown"),
        ("NVSHMEM-QP-LAYOUT", dist(_version("3.6.5"), "deep-ep", "2.5.0"), ("deepep-2.5",), "skipped"),
        ("NVSHMEM-AH-FAIL", _version("3.4.5"), V1, "skipped"),
        ("NVSHMEM-AH-FAIL", edit(ROCE, "software.nvshmem", NOT_READ), V1, "unknown"),
        ("NVSHMEM-NIC-MAP", edit(MAPPED, "rdma.devices", ()), V1, "skipped"),
        ("NVSHMEM-NIC-MAP", edit(IB, "env.variables", NOT_READ), V1, "unknown"),
        ("NVSHMEM-HEAP-OOM", edit(IB, "gpu.gpus.5.memory_free_bytes", NOT_READ), V1, "unknown"),
        ("EPV1-RANK-SHAPE", IB, ("deepep-2",), "skipped"),
    ],
)
def test_what_is_not_there_is_no_pass(one: str, node: Snapshot, profiles: tuple[str, ...], status: str) -> None:
    assert run(one, node, profiles).status == status


@pytest.mark.parametrize("settings", [{"NVSHMEM_REMOTE_TRANSPORT": "ibgda"}, {"NVSHMEM_IBGDA_NUM_DCI": "1"}])
def test_settings_show_a_consumer(settings: dict[str, str]) -> None:
    assert run("NVSHMEM-HEAP-OOM", IB).status == "skipped"
    assert run("NVSHMEM-HEAP-OOM", env(IB, **settings)).status == "passed"
    assert run("NVSHMEM-HEAP-OOM", dist(IB, "pplx-kernels", "0.0.1")).status == "passed"


@pytest.mark.parametrize("make", [ib_node, roce_node, efa_node, gb200_node])
@pytest.mark.parametrize("num_nodes", [1, 4])
def test_a_healthy_node_is_clean(make: Callable[[], Snapshot], num_nodes: int) -> None:
    for one in sorted(OWN):
        assert run(one, make(), num_nodes=num_nodes).status in ("passed", "skipped"), one


def test_a_healthy_node_of_the_legacy_kernels_is_clean() -> None:
    assert {run(one, IB, V1, num_nodes=2).status for one in OWN - {"NVSHMEM-AH-FAIL"}} == {"passed"}


def test_nothing_applies_to_a_machine_without_gpu() -> None:
    assert {run(one, laptop(), V1).status for one in OWN} == {"skipped"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.says}")
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_cases() -> None:
    assert {case.id for case in CASES} == OWN
    assert set(registered()) >= OWN
