"""Checks of GDRCopy."""

from __future__ import annotations

import pytest

from epctl.checks import gdrcopy
from epctl.core.check import registered
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, roce_node

NODE = ib_node()
IDS = {one.id for one in registered().values() if one.look.__module__ == gdrcopy.__name__}
UNLOADED = edit(NODE, "gdr.gdrdrv_loaded", False)
SHUT = edit(NODE, "gdr.gdrdrv_node", False)
WITHOUT_OPTIONS = edit(NODE, "gpu.driver.params", ())
GONE = edit(UNLOADED, "gdr.libgdrapi_version", Absent("not_found"))
OLD_MODULE = edit(NODE, "gdr.gdrdrv_version", "2.4")
DUMMY = edit(NODE, "gdr.gdrdrv_depends", ("nv-p2p-dummy",))

CASES = [
    Case("GDRCOPY-NOT-LOADED", UNLOADED, NODE, "gdrdrv is not loaded (/proc/modules); libgdrapi 2.5 is installed"),
    Case("GDRCOPY-NOT-LOADED", SHUT, NODE, "/dev/gdrdrv is missing, or this user may not"),
    Case("GDRCOPY-NOT-LOADED", env(GONE, NCCL_GDRCOPY_ENABLE="1"), NODE, "NCCL_GDRCOPY_ENABLE=1"),
    Case(
        "GDRCOPY-NOT-LOADED",
        edit(efa_node(), "gdr.gdrdrv_loaded", False),
        efa_node(),
        "profile efa",
        "fail",
        profiles=("efa",),
    ),
    Case(
        "GDRCOPY-NOT-LOADED",
        edit(WITHOUT_OPTIONS, "gdr.gdrdrv_loaded", False),
        WITHOUT_OPTIONS,
        "CPU-assisted IBGDA",
        "fail",
        profiles=("deepep-1",),
    ),
    Case("GDRCOPY-NOT-LOADED", UNLOADED, NODE, "libgdrapi 2.5", "warn", profiles=("deepep-1",)),
    Case("GDRCOPY-VERSION-SPLIT", OLD_MODULE, NODE, "gdrdrv 2.4 (sysfs), libgdrapi 2.5", "info"),
    Case("GDRCOPY-VERSION-SPLIT", OLD_MODULE, edit(NODE, "gdr.libgdrapi_version", "2.5.1"), "2.4"),
    Case("GDRCOPY-VERSION-SPLIT", OLD_MODULE, NODE, "too old for profile efa", "fail", profiles=("efa", "nccl-ep")),
    Case("GDRCOPY-FLAVOUR", DUMMY, NODE, "depends on nv-p2p-dummy (modinfo), the open driver"),
    Case("GDRCOPY-FLAVOUR", edit(NODE, "gdr.gdrdrv_depends", ("nv_p2p_dummy",)), NODE, "nv_p2p_dummy"),
    Case("GDRCOPY-FLAVOUR", DUMMY, edit(DUMMY, "gpu.driver.kernel_flavour", "proprietary"), "open"),
]


@pytest.mark.parametrize(
    ("dwords", "status"), [("PeerMappingOverride=0x1;", "warn"), ("PeerMappingOverride=10;", "fail")]
)
def test_the_drivers_option_is_read_as_a_number(dwords: str, status: str) -> None:
    """As a substring `=1` once missed 0x1 and took 10 for it."""
    node = edit(UNLOADED, "gpu.driver.params.1.value", dwords)
    assert run("GDRCOPY-NOT-LOADED", node, ("deepep-1",)).severity == status


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_has_a_case() -> None:
    assert {case.id for case in CASES} == IDS


@pytest.mark.parametrize("node", [ib_node(), roce_node(), efa_node(), gb200_node()], ids=["ib", "roce", "efa", "gb200"])
@pytest.mark.parametrize("name", sorted(IDS))
def test_a_healthy_node_stays_clean(name: str, node: Snapshot) -> None:
    assert run(name, node).status in ("passed", "skipped")


def test_nobody_misses_what_nobody_uses() -> None:
    assert run("GDRCOPY-NOT-LOADED", GONE).status == "skipped"
    assert run("GDRCOPY-VERSION-SPLIT", GONE).status == "skipped"
    gone = edit(GONE, "gdr.gdrdrv_depends", Absent("not_found"))
    assert run("GDRCOPY-FLAVOUR", gone).status == "skipped"


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("GDRCOPY-NOT-LOADED", "gdr.gdrdrv_loaded"),
        ("GDRCOPY-NOT-LOADED", "gdr.gdrdrv_node"),
        ("GDRCOPY-VERSION-SPLIT", "gdr.gdrdrv_version"),
        ("GDRCOPY-FLAVOUR", "gdr.gdrdrv_depends"),
        ("GDRCOPY-FLAVOUR", "gpu.driver.kernel_flavour"),
    ],
)
def test_a_fact_that_nobody_read_leaves_the_check_unknown(name: str, fact: str) -> None:
    assert run(name, edit(NODE, fact, Absent("not_read"))).status == "unknown"


def test_versions_that_are_none_are_unknown() -> None:
    assert run("GDRCOPY-VERSION-SPLIT", edit(NODE, "gdr.gdrdrv_version", "devel")).status == "unknown"
