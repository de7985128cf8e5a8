"""Checks of NCCL's version, copies and plugins."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.core.fact import NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.software import DeepEp, Root, SharedLibrary
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, roce_node
from tests.support.own import own

OWN = own("nccl")
IB = ib_node()
WHEEL = "/opt/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
OLD = edit(edit(IB, "software.nccl_effective", "2.28.9"), "software.torch_nccl_pin", "2.28.9")
PIP = edit(dist(IB, "nvidia-nccl-cu13", "2.28.9"), "software.torch_nccl_pin", "2.28.9")
SYSTEM = "/usr/lib/x86_64-linux-gnu/libnccl.so.2"
ROOT = "/opt/nccl"


def copies(*extra: SharedLibrary, node: Snapshot = IB) -> Snapshot:
    before = node.software.nccl
    assert isinstance(before, tuple)
    return edit(node, "software.nccl", before + extra)


def rooted(sha256: str, *, headers: bool = True, lib: bool = True) -> Snapshot:
    node = copies(SharedLibrary("root", f"{ROOT}/lib/libnccl.so.2", f"{ROOT}/lib/libnccl.so.2.32.3", "2.32.3", sha256))
    node = edit(node, "software.roots", (Root("EP_NCCL_ROOT_DIR", ROOT, True, lib, headers),))
    return env(node, EP_NCCL_ROOT_DIR=ROOT)


NO_NCCL = Absent("not_found", "no libnccl")
CASES = [
    Case("NCCL-TOO-OLD", OLD, IB, "DeepEP 2.5 (deepinfer-ep) needs 2.32.3", fix_says="--no-deps"),
    Case("NCCL-TOO-OLD", edit(IB, "software.nccl_effective", "2.30.3"), IB, "2.30.4", profiles=("deepep-2",)),
    Case("NCCL-TOO-OLD", OLD, edit(IB, "software.nccl_effective", "2.31.2"), "2.31.2", profiles=("efa", "nccl-ep")),
    Case("NCCL-TOO-OLD", edit(IB, "software.nccl_effective", NO_NCCL), IB, "no NCCL is installed; deepinfer-ep 2.5.0"),
    Case(
        "NCCL-BUILD-RUNTIME-SKEW", edit(IB, "software.nccl_effective", NO_NCCL), IB, "built with NCCL 2.32.3, and none"
    ),
    Case("NCCL-DOWNGRADED-BY-PIP", PIP, IB, "nvidia-nccl-cu13 2.28.9 (PyTorch pins 2.28.9)"),
    Case("NCCL-DOWNGRADED-BY-PIP", edit(PIP, "software.deep_ep", ()), IB, "is PyTorch's pin; DeepEP 2.5"),
    Case(
        "NCCL-DOWNGRADED-BY-PIP",
        edit(IB, "software.deep_ep.0.undefined_nccl_symbols", ("ncclDevCommCreate",)),
        IB,
        "needs ncclDevCommCreate",
    ),
    Case(
        "NCCL-DUPLICATE-LOADED",
        copies(
            SharedLibrary("loaded", WHEEL, WHEEL, "2.32.3", "ab" * 32),
            SharedLibrary("loaded", SYSTEM, SYSTEM, "2.28.9", "cd" * 32),
        ),
        copies(SharedLibrary("loaded", WHEEL, WHEEL, "2.32.3", "ab" * 32)),
        "loaded at once",
    ),
    Case("NCCL-DUPLICATE-LOADED", rooted("ee" * 32), rooted("ab" * 32), "the EP library expects /opt/nccl/lib"),
    Case("NCCL-DUPLICATE-LOADED", rooted("ee" * 32), rooted("ab" * 32), "PyTorch uses", "warn", profiles=("deepep-1",)),
    Case(
        "NCCL-DUPLICATE-LOADED",
        copies(
            SharedLibrary("loader", SYSTEM, SYSTEM, "2.28.9", "cd" * 32, True),
            node=edit(edit(IB, "software.nccl_effective", "2.28.9"), "software.nccl_effective_path", SYSTEM),
        ),
        copies(SharedLibrary("loader", SYSTEM, SYSTEM, "2.28.9", "cd" * 32, True)),
        SYSTEM,
    ),
    Case("NCCL-DUPLICATE-LOADED", dist(IB, "nvidia-nccl-cu12", "2.27.3"), IB, "the last one wins", "warn"),
    Case("NCCL-DUPLICATE-LOADED", env(IB, EP_SUPPRESS_NCCL_CHECK="1"), IB, "EP_SUPPRESS_NCCL_CHECK=1", "warn"),
    Case("NCCL-ROOT-NOT-FOUND", dist(IB, "nvidia-nccl-cu13", None), IB, "are not set and no nvidia-nccl"),
    Case("NCCL-ROOT-NOT-FOUND", rooted("ab" * 32, headers=False), rooted("ab" * 32), "no include/nccl_device"),
    Case("NCCL-ROOT-NOT-FOUND", rooted("ab" * 32, lib=False), rooted("ab" * 32), "no libnccl.so"),
    Case("NCCL-BUILD-RUNTIME-SKEW", edit(IB, "software.nccl_effective", "2.31.1"), IB, "was built with NCCL 2.32.3"),
    Case(
        "NCCL-BUILD-RUNTIME-SKEW",
        edit(edit(IB, "software.deep_ep.0.nccl_built", "2.30.4"), "software.nccl_effective", "2.32.3"),
        edit(IB, "software.deep_ep.0.nccl_built", "2.31.1"),
        "2.30.4, in use is 2.32.3",
    ),
    Case("NCCL-BUILD-RUNTIME-SKEW", edit(IB, "software.nccl_headers", "2.33.1"), IB, "headers of NCCL 2.33.1"),
    Case("NCCL-BUILD-RUNTIME-SKEW", env(IB, NCCL_ENABLE_VERSION_CHECK="0"), IB, "hides a mismatch", "warn"),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("NCCL-TOO-OLD", "software.nccl_effective", NOT_READ, "unknown"),
        ("NCCL-TOO-OLD", "software.nccl_effective", "unversioned", "unknown"),
        ("NCCL-DOWNGRADED-BY-PIP", "software.deep_ep", NOT_READ, "unknown"),
        ("NCCL-DOWNGRADED-BY-PIP", "software.deep_ep.0.nccl_built", NOT_READ, "passed"),
        ("NCCL-DUPLICATE-LOADED", "software.nccl", NOT_READ, "unknown"),
        ("NCCL-DUPLICATE-LOADED", "software.nccl_effective_path", NOT_READ, "unknown"),
        ("NCCL-DUPLICATE-LOADED", "software.nccl", (), "skipped"),
        ("NCCL-ROOT-NOT-FOUND", "software.distributions", NOT_READ, "unknown"),
        ("NCCL-BUILD-RUNTIME-SKEW", "software.deep_ep", NOT_READ, "unknown"),
        ("NCCL-BUILD-RUNTIME-SKEW", "software.deep_ep", (), "skipped"),
        ("NCCL-BUILD-RUNTIME-SKEW", "software.deep_ep.0.nccl_built", NOT_READ, "unknown"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(IB, path, value)).status == status


def test_both_traces_of_the_build_absent() -> None:
    node = edit(
        edit(IB, "software.deep_ep.0.nccl_built", NOT_READ), "software.deep_ep.0.undefined_nccl_symbols", NOT_READ
    )
    assert run("NCCL-DOWNGRADED-BY-PIP", node).status == "unknown"


def test_the_wheel_of_the_fix_follows_the_cuda_of_pytorch() -> None:
    assert "nvidia-nccl-cu13>=2.32.3" in run("NCCL-TOO-OLD", OLD).commands[0]
    assert "nvidia-nccl-cu12>=2.32.3" in run("NCCL-TOO-OLD", edit(OLD, "software.torch_cuda", "12.8")).commands[0]


def test_no_nccl_is_nothing_to_a_node_without_an_ep_library() -> None:
    """It is a definite no, never an unknown."""
    bare = edit(edit(dist(IB, "deepinfer-ep", None), "software.deep_ep", ()), "software.nccl_effective", NO_NCCL)
    for one in ("NCCL-TOO-OLD", "NCCL-BUILD-RUNTIME-SKEW", "GIN-TYPE-NONE", "GIN-NIC-FUSED-OLD"):
        assert run(one, bare, ("deepep-2.5", "epctl")).status == "skipped", one


@pytest.mark.parametrize(
    ("build", "generation"),
    [
        (DeepEp("sgl-deep-ep", "0.1.2", "/x", "2.30.4", release="2.1.0"), 2),
        (DeepEp("sgl-deep-ep", "0.1.0", "/x", "2.30.4", release="1"), 1),
        (DeepEp("sgl-deep-ep-v25", "0.1.0rc0", "/x", "2.30.4"), 2),
    ],
)
def test_own_numbers_of_a_distribution_do_not_make_it_a_first_generation(build: DeepEp, generation: int) -> None:
    node = edit(IB, "software.deep_ep", (build,))
    status = run("NCCL-BUILD-RUNTIME-SKEW", node, ("deepep-2",)).status
    assert status == ("skipped" if generation == 1 else "failed")


def test_first_generation_has_no_nccl_of_its_build() -> None:
    node = edit(IB, "software.deep_ep", (DeepEp("deep-ep", "1.2.1", "/x", "2.27.3", "2.11.0", (), ()),))
    assert run("NCCL-BUILD-RUNTIME-SKEW", node, ("deepep-1",)).status == "skipped"
    assert run("NCCL-DOWNGRADED-BY-PIP", node, ("deepep-1",)).status == "passed"


def test_contents_that_cannot_be_compared_are_unknown() -> None:
    assert run("NCCL-DUPLICATE-LOADED", edit(rooted("x"), "software.nccl.*.sha256", NOT_READ)).status == "unknown"


def test_different_versions_need_no_digest() -> None:
    node = edit(edit(rooted("x"), "software.nccl.*.sha256", NOT_READ), "software.nccl.0.version", "2.31.1")
    assert run("NCCL-DUPLICATE-LOADED", node).status == "failed"


def test_root_that_was_not_looked_at() -> None:
    assert run("NCCL-ROOT-NOT-FOUND", env(IB, NCCL_DIR="/opt/other")).status == "unknown"


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
