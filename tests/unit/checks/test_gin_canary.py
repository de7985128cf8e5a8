"""Checks of what the GIN canary saw."""

from __future__ import annotations

import pytest

from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.software import GinTrial
from tests.support.cases import Case, run, verify
from tests.support.nodes import dist, edit, ib_node
from tests.support.own import own

OWN = own("gin_canary")
IB = ib_node()
PROXY = GinTrial("proxy", "ok", round_ns=31_400)
GDAKI = GinTrial("gdaki", "ok", round_ns=9_100)
LOST = "rank 0 waited 5 s for rank 1's put signal in GIN put"


def tried(*trials: GinTrial) -> Snapshot:
    """A node whose canary told of these."""
    return edit(IB, "active.gin", trials)


WELL = tried(PROXY, GDAKI)
NO_NIC = edit(edit(IB, "rdma.devices", ()), "active.gin", ())
CASES = [
    Case(
        "GIN-GDAKI-HANG",
        tried(PROXY, GinTrial("gdaki", "lost", LOST, "GIN put")),
        WELL,
        LOST,
        fix_says="NCCL_GIN_TYPE=2",
    ),
    Case("GIN-GDAKI-HANG", tried(PROXY, GinTrial("gdaki", "hang", "x", "kernel")), WELL, "hangs in kernel: x"),
    Case("GIN-GDAKI-HANG", tried(PROXY, GinTrial("gdaki", "hang", "x", "trial")), WELL, "proxy works"),
    Case(
        "GIN-SIGNAL-LOST", tried(GinTrial("proxy", "lost", LOST, "GIN put")), WELL, "the signal never came in GIN put"
    ),
    Case("GIN-SIGNAL-LOST", tried(GinTrial("efa_gda", "hang", "x", "trial"), PROXY), WELL, "efa_gda: hangs in trial"),
    Case(
        "GIN-INIT-RAIL-HANG",
        tried(GinTrial("gdaki", "hang", "x", "device communicator")),
        WELL,
        "gdaki: hangs in device communicator",
        fix_says="neighbours share a rail",
    ),
    Case(
        "GIN-CANARY-FAILED",
        tried(PROXY, GinTrial("gdaki", "failed", "DOCA 21", "device communicator")),
        WELL,
        "DOCA 21",
    ),
    Case("GIN-CANARY-FAILED", tried(GinTrial("proxy", "wrong", "8 of 65536", "data")), WELL, "data was not as sent"),
    Case("GIN-CANARY-FAILED", NO_NIC, WELL, "no active RDMA port", fix_says="EP_DISABLE_GIN=1"),
    Case("GIN-CANARY-FAILED", dist(NO_NIC, "deepinfer-ep", None), WELL, "NCCL offers no GIN", "info"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.says}")
def test_it_fails_and_passes(case: Case) -> None:
    verify(case)


def test_every_check_has_a_case() -> None:
    assert {case.id for case in CASES} == OWN


@pytest.mark.parametrize("one", sorted(OWN))
def test_without_the_canary_nothing_is_known(one: str) -> None:
    finding = run(one, edit(IB, "active.gin", Absent("tool_missing", "there is no CUDA compiler")))
    assert finding.status == "unknown"
    assert "there is no CUDA compiler" in finding.evidence[0]


def test_a_creation_that_hangs_is_no_lost_signal() -> None:
    node = tried(GinTrial("gdaki", "hang", "x", "device communicator"), GinTrial("proxy", "ok"))
    assert run("GIN-GDAKI-HANG", node).status == "skipped"
    assert run("GIN-SIGNAL-LOST", node).status == "passed"


def test_what_could_not_be_tried_is_not_passed() -> None:
    node = tried(GinTrial("efa_gda", "untried", "there are no kernels", "kernels"))
    assert run("GIN-CANARY-FAILED", node).status == "unknown"
    assert run("GIN-INIT-RAIL-HANG", node).status == "skipped"


def test_times_and_emulation_are_told() -> None:
    finding = run("GIN-SIGNAL-LOST", tried(GinTrial("proxy", "ok", round_ns=31_400, emulated=True)))
    assert finding.evidence == (
        "proxy: put, signal and wait work, a round took 31.4 µs, EMULATED over the loopback plugin (GIN canary)",
    )


def test_a_library_that_goes_without_gin_is_only_warned() -> None:
    from tests.support.nodes import env

    node = env(tried(GinTrial("proxy", "lost", LOST)), EP_DISABLE_GIN="1")
    assert run("GIN-SIGNAL-LOST", node).severity == "warn"
