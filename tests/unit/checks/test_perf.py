"""Checks of what slows a node down."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.checks import perf
from epctl.core.check import Check, registered
from epctl.core.fact import NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, laptop, roce_node

OWN = {one.id for one in vars(perf).values() if isinstance(one, Check)}
IB = ib_node()
ROCE = roce_node()
PLAIN = edit(ROCE, "env.variables", ())
COUNTERS = "rdma.devices.2.ports.0.counters"
DAY = edit(IB, "host.uptime_s", 86400)


def cnp(node: Snapshot, count: int) -> Snapshot:
    return edit(node, "rdma.devices.*.ports.0.hw_counters", (("rp_cnp_handled", count),))


def errors(*counts: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    return counts


CASES = [
    Case("PERF-GPU-THROTTLE", edit(IB, "gpu.gpus.1.clock_event_reasons", 0x8), IB, "GPU 1: hardware slowdown"),
    Case("PERF-GPU-THROTTLE", edit(IB, "gpu.gpus.1.clock_event_reasons", 0x48), IB, "hardware thermal"),
    Case("PERF-GPU-THROTTLE", edit(IB, "gpu.gpus.1.clock_event_reasons", 0x80), IB, "power brake"),
    Case(
        "PERF-GPU-THROTTLE",
        edit(IB, "gpu.gpus.1.clock_event_reasons", 0x20),
        edit(IB, "gpu.gpus.*.clock_event_reasons", 0x4),
        "32 °C, 72 W",
        "warn",
    ),
    Case("PERF-NVLINK-BW-FLOOR", edit(IB, "gpu.gpus.6.links.3.speed_gbs", 13.281), IB, "GPU 6: link 3 13.281 GB/s"),
    Case("PERF-NVLINK-BW-FLOOR", edit(IB, "gpu.gpus.6.links.3.errors", (("recovery", 2),)), IB, "recovery 2", "warn"),
    Case("PERF-NVLINK-BW-FLOOR", edit(IB, "gpu.gpus.6.links.3.errors", (("replay", 12),)), IB, "replay 12", "info"),
    Case(
        "PERF-NVLINK-BW-FLOOR",
        edit(gb200_node(), "gpu.gpus.0.links.3.errors", (("link_recovery_failed_events", 1),)),
        edit(
            gb200_node(),
            "gpu.gpus.0.links.3.errors",
            (("total_link_recovery_events", 1), ("rx_bytes", 9), ("fec_errors_0", 9)),
        ),
        "link_recovery_failed_events 1",
        "warn",
    ),
    Case("PERF-AR-OFF", env(IB, NCCL_IB_ADAPTIVE_ROUTING="0"), IB, "NCCL_IB_ADAPTIVE_ROUTING=0", num_nodes=2),
    Case("PERF-AR-OFF", env(IB, NCCL_IB_ADAPTIVE_ROUTING="0"), env(IB, NCCL_IB_ADAPTIVE_ROUTING="1"), "=0", "info"),
    Case("PERF-ROCE-PATH-SPREAD", PLAIN, ROCE, "8 RoCE ports", num_nodes=2),
    Case("PERF-ROCE-PATH-SPREAD", PLAIN, env(PLAIN, NCCL_IB_QPS_PER_CONNECTION="2"), "is 1"),
    Case("PERF-ROCE-PATH-SPREAD", PLAIN, env(PLAIN, NCCL_IB_ADAPTIVE_ROUTING="1"), "unset", num_nodes=2),
    Case("PERF-CC-ON", cnp(IB, 7), cnp(IB, 0), "rp_cnp_handled is 7"),
    Case("PERF-IB-ERR-COUNTERS", edit(IB, COUNTERS, errors(("symbol_error", 3))), IB, "mlx5_2: symbol_error is 3"),
    Case("PERF-IB-ERR-COUNTERS", edit(DAY, COUNTERS, errors(("port_rcv_errors", 30))), DAY, "in 24.0 h"),
    Case("PERF-IB-ERR-COUNTERS", edit(DAY, COUNTERS, errors(("link_error_recovery", 3))), DAY, "is 3", "info"),
    Case("PERF-IB-ERR-COUNTERS", edit(IB, COUNTERS, errors(("link_downed", 1))), IB, "least among its sisters 0"),
    Case(
        "PERF-IB-ERR-COUNTERS",
        edit(IB, "rdma.devices.*.ports.0.counters", errors(("link_downed", 1))),
        IB,
        "sisters 1",
        "info",
    ),
    Case("PERF-NCCL-NIC-FW", edit(IB, "rdma.devices.5.firmware", "28.39.1002"), IB, "28.39.1002: mlx5_5"),
    Case(
        "PERF-NCCL-NIC-FW",
        edit(IB, "rdma.devices.5.firmware", "28.39.1002"),
        edit(edit(IB, "rdma.devices.5.firmware", "22.41.1000"), "rdma.devices.5.board_id", "MT_0000000359"),
        "MT_0000000838",
    ),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("PERF-GPU-THROTTLE", "gpu.gpus.0.clock_event_reasons", NOT_READ, "unknown"),
        ("PERF-GPU-THROTTLE", "gpu.gpus.*.clock_event_reasons", Absent("unsupported"), "skipped"),
        ("PERF-NVLINK-BW-FLOOR", "gpu.gpus.*.links", (), "skipped"),
        ("PERF-AR-OFF", "env.variables", NOT_READ, "unknown"),
        ("PERF-CC-ON", "rdma.devices.0.ports.0.hw_counters", NOT_READ, "unknown"),
        ("PERF-CC-ON", "rdma.devices.*.ports.0.hw_counters", Absent("not_found"), "skipped"),
        ("PERF-IB-ERR-COUNTERS", "rdma.devices.0.ports.0.counters", NOT_READ, "unknown"),
        ("PERF-IB-ERR-COUNTERS", "rdma.devices.*.ports.0.counters", Absent("not_found"), "skipped"),
        ("PERF-NCCL-NIC-FW", "rdma.devices.0.firmware", NOT_READ, "unknown"),
        ("PERF-NCCL-NIC-FW", "rdma.devices.*.firmware", Absent("not_found"), "skipped"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(IB, path, value)).status == status


def test_a_passed_link_speed_says_that_no_bandwidth_was_measured() -> None:
    quiet = edit(IB, "gpu.gpus.*.links.*.errors", NOT_READ)
    assert "error counters of 18 at rest (NVML); link states alone" in run("PERF-NVLINK-BW-FLOOR", IB).evidence[0]
    assert "error counters not told" in run("PERF-NVLINK-BW-FLOOR", quiet).evidence[0]


def test_link_speeds_that_nobody_told_are_unknown() -> None:
    assert run("PERF-NVLINK-BW-FLOOR", edit(IB, "gpu.gpus.0.links.0.speed_gbs", NOT_READ)).status == "unknown"
    assert run("PERF-NVLINK-BW-FLOOR", edit(IB, "gpu.gpus.0.links", NOT_READ)).status == "unknown"


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
