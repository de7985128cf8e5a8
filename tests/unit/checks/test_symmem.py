"""Checks of what takes symmetric memory away."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.core.fact import NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Setting
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, laptop, roce_node
from tests.support.own import own

OWN = own("symmem")
IB = ib_node()

CASES = [
    Case("SYMMEM-CUMEM-OFF", env(IB, NCCL_CUMEM_ENABLE="0"), env(IB, NCCL_CUMEM_ENABLE="1"), "(environment)"),
    Case("SYMMEM-CUMEM-OFF", env(IB, NCCL_CUMEM_ENABLE="0x0"), env(IB, NCCL_CUMEM_ENABLE=""), "NCCL_CUMEM_ENABLE=0x0"),
    Case(
        "SYMMEM-CUMEM-OFF",
        edit(
            edit(IB, "env.nccl_conf", (Setting("NCCL_CUMEM_ENABLE", "0"),)), "env.nccl_conf_files", ("/etc/nccl.conf",)
        ),
        env(edit(IB, "env.nccl_conf", (Setting("NCCL_CUMEM_ENABLE", "0"),)), NCCL_CUMEM_ENABLE="1"),
        "NCCL_CUMEM_ENABLE=0 (/etc/nccl.conf)",
    ),
    Case("SYMMEM-P2P-WIN-OFF", env(IB, NCCL_P2P_DISABLE="1"), env(IB, NCCL_P2P_DISABLE="0"), "NCCL_P2P_DISABLE=1"),
    Case("SYMMEM-P2P-WIN-OFF", env(IB, NCCL_P2P_LEVEL="loc"), env(IB, NCCL_P2P_LEVEL="NVL"), "NCCL_P2P_LEVEL=loc"),
    Case("SYMMEM-P2P-WIN-OFF", env(IB, NCCL_P2P_LEVEL="0"), IB, "NCCL_P2P_LEVEL=0"),
    Case("SYMMEM-P2P-WIN-OFF", env(IB, NCCL_WIN_ENABLE="0"), IB, "NCCL_WIN_ENABLE=0"),
]


@pytest.mark.parametrize("one", sorted(OWN))
def test_environment_that_was_not_read(one: str) -> None:
    assert run(one, edit(IB, "env.variables", NOT_READ)).status == "unknown"
    assert run(one, edit(IB, "env.nccl_conf", Absent("permission"))).status == "unknown"
    assert run(one, edit(IB, "env.nccl_conf", Absent("not_found"))).status == "passed"


@pytest.mark.parametrize("one", sorted(OWN))
def test_first_generation_needs_no_symmetric_memory(one: str) -> None:
    assert run(one, IB, ("deepep-1",)).status == "skipped"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_module_has_a_case() -> None:
    assert {case.id for case in CASES} == OWN


@pytest.mark.parametrize("num_nodes", [1, 4])
@pytest.mark.parametrize("healthy", [ib_node, roce_node, efa_node, gb200_node])
@pytest.mark.parametrize("one", sorted(OWN))
def test_healthy_nodes_are_clean(one: str, healthy: Callable[[], Snapshot], num_nodes: int) -> None:
    finding = run(one, healthy(), num_nodes=num_nodes)
    assert finding.status in ("passed", "skipped") or finding.severity == "info", finding


@pytest.mark.parametrize("one", sorted(OWN))
def test_without_a_gpu_it_is_skipped(one: str) -> None:
    assert run(one, laptop(), num_nodes=2).status == "skipped"
