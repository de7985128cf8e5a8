"""Checks of features that one header, build or driver decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.core.fact import NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, laptop, roce_node
from tests.support.own import own

OWN = own("profile_features")
IB = ib_node()
ASKS = edit(IB, "software.deep_ep.0.warp_get", True)
NO_NCCL = edit(IB, "software.nccl_effective", Absent("not_found", "no libnccl"))
RACK = edit(gb200_node(), "gpu.driver.cuda_version", 13030)
GENK, CFT = ("nccl-genk",), ("cft",)

CASES = [
    Case("PROFILE-ENGRAM-GET", edit(IB, "software.nccl_gin_get", False), IB, "NCCL 2.32.3 declare no get"),
    Case(
        "PROFILE-ENGRAM-GET",
        ASKS,
        edit(ASKS, "software.nccl_gin_warp_get", True),
        "Engram of deepinfer-ep 2.5.0 asks for ncclGinOptFlagsWarpGet, which the headers of NCCL 2.32.3 lack",
        fix_says="as released goes without",
    ),
    Case(
        "PROFILE-GENK-BUILD",
        IB,
        edit(IB, "software.nccl_genk", True),
        "does not know NCCL_SYM_GENK_ENABLE",
        profiles=GENK,
    ),
    Case("PROFILE-GENK-BUILD", NO_NCCL, edit(IB, "software.nccl_genk", True), "no NCCL is installed", profiles=GENK),
    Case("PROFILE-CFT", gb200_node(), RACK, "the driver is of CUDA 13.0, CFT needs 13.3", profiles=CFT),
    Case("PROFILE-CFT", env(RACK, NCCL_CFT_ENABLE="0"), RACK, "NCCL_CFT_ENABLE=0", profiles=CFT, fix_says="Unset"),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "profiles"),
    [
        ("PROFILE-ENGRAM-GET", "software.nccl_gin_get", NOT_READ, ("deepep-2.5",)),
        ("PROFILE-ENGRAM-GET", "software.nccl_effective", NOT_READ, ("deepep-2.5",)),
        ("PROFILE-ENGRAM-GET", "software.deep_ep", NOT_READ, ("deepep-2.5",)),
        ("PROFILE-ENGRAM-GET", "software.deep_ep.0.warp_get", NOT_READ, ("deepep-2.5",)),
        ("PROFILE-GENK-BUILD", "software.nccl_genk", NOT_READ, GENK),
        ("PROFILE-CFT", "gpu.driver.cuda_version", NOT_READ, CFT),
        ("PROFILE-CFT", "env.variables", NOT_READ, CFT),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, profiles: tuple[str, ...]) -> None:
    assert run(one, edit(IB if one != "PROFILE-CFT" else RACK, path, value), profiles).status == "unknown"


def test_flag_that_is_defined_suits_every_build() -> None:
    node = edit(edit(ASKS, "software.nccl_gin_warp_get", True), "software.deep_ep.0.warp_get", NOT_READ)
    assert run("PROFILE-ENGRAM-GET", node).status == "passed"


def test_missing_nccl_is_another_checks_matter() -> None:
    assert run("PROFILE-ENGRAM-GET", NO_NCCL).status == "skipped"


@pytest.mark.parametrize("one", sorted(OWN))
def test_nobody_asks(one: str) -> None:
    assert run(one, IB, ("nccl-ep",)).status == "skipped"


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
    profiles = {"PROFILE-GENK-BUILD": GENK, "PROFILE-CFT": CFT}.get(one, ("deepep-2.5",))
    assert run(one, laptop(), profiles).status == "skipped"
