"""Profiles as data: whatever one asks for is looked at by a check, and conditional demands hold under their condition alone."""

from __future__ import annotations

import pytest

import epctl.checks  # noqa: F401 - registers them
from epctl.core.check import Finding, evaluate, registered
from epctl.core.context import Context
from epctl.core.doctor import detect
from epctl.core.fact import NOT_READ, Absent
from epctl.core.profile import Demands, Detect, Profile, chosen, profiles, resolved
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Setting
from epctl.core.snapshot.software import DeepEp
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node

PACKAGED = profiles().values()
FEATURES = sorted(
    {
        feature
        for profile in PACKAGED
        for feature in (*profile.requires, *(name for more in profile.when.values() for name in more.requires))
    }
)
FLOORS = sorted(
    {
        key
        for profile in PACKAGED
        for key in (*profile.floors, *(k for more in profile.when.values() for k in more.floors))
    }
)
BARE = edit(dist(ib_node(), "deepinfer-ep", None), "software.deep_ep", ())


def plain(node: Snapshot) -> Snapshot:
    """EFA with GIN wanted by its setting alone, so that a feature shows."""
    return env(node, NCCL_GIN_TYPE="", NCCL_SYM_GIN_KERNELS_ENABLE="")


def without_parts(node: Snapshot) -> Snapshot:
    """What a feature may ask for is missing here."""
    for path, value in {
        "gdr.gdrdrv_loaded": False,
        "rdma.ibstat": Absent("tool_missing"),
        "gpu.driver.nvidia_smi": Absent("tool_missing"),
        "gpu.p2p.0.nvlink": "chipset_not_supported",
        "software.nvshmem": (),
        "software.toolchain.cxx_format": False,
        "software.toolchain.libdwfl_header": False,
    }.items():
        node = edit(node, path, value)
    return node


NODES = (
    ib_node(),
    BARE,
    plain(efa_node()),
    efa_node(),
    gb200_node(),
    without_parts(ib_node()),
    without_parts(BARE),
    edit(BARE, "rdma.devices", ()),
)


def findings(node: Snapshot, profile: Profile, num_nodes: int) -> list[Finding]:
    context = Context(node, (profile,), num_nodes)
    return [evaluate(one, context) for one in registered().values()]


def asking(feature: str = "", **floors: str) -> Profile:
    return Profile("x", "X", "a test", Detect(), floors, (feature,) if feature else ())


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_that_a_profile_requires_is_read_by_a_check(feature: str) -> None:
    """A demand that no check reads is a promise that nobody keeps."""
    assert any(
        findings(node, asking(feature), num_nodes) != findings(node, asking(), num_nodes)
        for node in NODES
        for num_nodes in (1, 2)
    )


@pytest.mark.parametrize("key", FLOORS)
def test_each_floor_of_a_profile_is_read_by_a_check(key: str) -> None:
    jit = Profile("x", "X", "a test", Detect(), {key: "999"}, ("jit", "nvshmem", "gin", "gin_efa_gda"))
    none = Profile("x", "X", "a test", Detect(), {}, jit.requires)
    for node in NODES:
        before = {
            entry.id for entry in findings(node, none, 1) if entry.status == "failed" and entry.severity == "fail"
        }
        after = {entry.id for entry in findings(node, jit, 1) if entry.status == "failed" and entry.severity == "fail"}
        if after - before:
            return
    pytest.fail(f"nothing fails for a floor of {key} that nothing reaches")


def test_a_feature_that_nobody_knows_would_be_found_out() -> None:
    assert all(findings(node, asking("linux"), 2) == findings(node, asking(), 2) for node in NODES[:2])


WHEN = Profile(
    "x",
    "X",
    "a test",
    floors={"nccl": "2.30.0"},
    requires=("rdma",),
    when={
        "NCCL_X=5": Demands({"nccl": "2.31.0", "gdrcopy": "2.5"}, ("rdma", "gin"), {"A=1": "a"}, {"B=1": "b"}),
        "gin": Demands({"nccl": "2.29.0"}, ("gdrcopy",)),
    },
)
OTHER = Profile("y", "Y", "a test", requires=("gin",))


@pytest.mark.parametrize("value", ["5", "0x5", "05"])
def test_demands_of_a_setting_hold_where_it_is_set(value: str) -> None:
    found = resolved((WHEN,), {"NCCL_X": value})[0]
    assert found.floors == {"nccl": "2.31.0", "gdrcopy": "2.5"}
    assert found.requires == ("rdma", "gin")
    assert (found.forbids, found.needs_env) == ({"A=1": "a"}, {"B=1": "b"})


@pytest.mark.parametrize("settings", [{}, {"NCCL_X": ""}, {"NCCL_X": "2"}, {"NCCL_X": "15"}])
def test_and_nowhere_else(settings: dict[str, str]) -> None:
    assert resolved((WHEN,), settings)[0] == WHEN


def test_demands_of_a_feature_hold_beside_a_profile_that_wants_it_and_never_lower_a_floor() -> None:
    found = resolved((WHEN, OTHER), {})
    assert found[0].requires == ("rdma", "gdrcopy")
    assert found[0].floors == {"nccl": "2.30.0"}
    assert found[1] == OTHER


def test_the_setting_may_stand_in_nccls_file_and_an_unreadable_environment_adds_nothing() -> None:
    efa = chosen(("efa",))
    node = edit(plain(efa_node()), "env.nccl_conf", (Setting("NCCL_GIN_TYPE", "5"),))
    node = edit(node, "env.variables", ())
    assert "gin_efa_gda" in Context(node, efa).profiles[0].requires
    assert Context(edit(node, "env.variables", NOT_READ), efa).profiles == efa


@pytest.mark.parametrize(
    ("build", "profile"),
    [
        (DeepEp("sgl-deep-ep", "0.1.0", "/x", release="1"), "deepep-1"),
        (DeepEp("sgl-deep-ep", "0.1.2.post1", "/x", release="2.1.0"), "deepep-2"),
        (DeepEp("sgl-deep-ep-v25", "0.1.0rc0", "/x", release="2.5.0"), "deepep-2.5"),
        (DeepEp("sgl-deep-ep-v25", "0.1.0rc0", "/x"), "deepep-2.5"),
        (DeepEp("deep-ep", "2.1.0", "/src/deep_ep", release="2.1.0"), "deepep-2"),
    ],
)
def test_deepep_of_another_name_or_without_metadata_puts_its_profile_in_force(build: DeepEp, profile: str) -> None:
    """Their own version numbers say nothing of DeepEP's: 0.1.2 is a DeepEP 2.1."""
    node = edit(BARE, "software.deep_ep", (build,))
    if build.distribution != "deep-ep":
        node = dist(node, build.distribution, build.version)
    found = {entry.id: why for entry, why in detect(node)}
    assert set(found) == {profile}
    assert build.distribution in found[profile] or "without metadata" in found[profile]
    context = Context(node, chosen((profile,)))
    assert {"deep-ep", "deepinfer-ep"} & set(context.distributions)


def test_two_generations_side_by_side_are_both_in_force() -> None:
    node = dist(dist(BARE, "sgl-deep-ep", "0.1.2"), "sgl-deep-ep-v25", "0.1.0rc0")
    builds = (DeepEp("sgl-deep-ep", "0.1.2", release="2.1.0"), DeepEp("sgl-deep-ep-v25", "0.1.0rc0", release="2.5.0"))
    assert {entry.id for entry, _ in detect(edit(node, "software.deep_ep", builds))} == {"deepep-2", "deepep-2.5"}


@pytest.mark.parametrize("release", ["", "devel"])
def test_a_build_that_tells_no_release_puts_nothing_in_force(release: str) -> None:
    node = edit(BARE, "software.deep_ep", (DeepEp("deep-ep", release, "/x", release=release),))
    assert {entry.id for entry, _ in detect(node)} == {"deepep-2.5", "epctl"}
