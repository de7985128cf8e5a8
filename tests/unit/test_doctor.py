"""The doctor as a whole: it never raises, nothing passes that was not read, and what is installed decides what it judges for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import epctl.checks  # noqa: F401 - registers them
from epctl.core.check import AREAS, RANK, registered
from epctl.core.doctor import detect, examine
from epctl.core.errors import EpctlError
from epctl.core.fact import Absent
from epctl.core.profile import profiles
from epctl.core.snapshot import Snapshot, decode, encode
from epctl.core.snapshot.rdma import Port
from epctl.core.verdict import exit_code
from tests.support.nodes import dist, edit, efa_node, env, gb200_node, ib_node, laptop, roce_node

HEALTHY = {"ib": ib_node, "roce": roce_node, "efa": efa_node, "gb200": gb200_node}
CHECKS = registered()
REASONS = ("not_read", "not_found", "permission", "unsupported", "timed_out", "unparsable", "failed", "tool_missing")


def leaves(thing: Any, path: str = "") -> Iterator[str]:  # noqa: ANN401
    """Paths of all facts of a snapshot, for `edit`."""
    if isinstance(thing, msgspec.Struct) and not isinstance(thing, Absent):
        for name in thing.__struct_fields__:
            yield from leaves(getattr(thing, name), f"{path}.{name}" if path else name)
        return
    yield path
    if isinstance(thing, tuple) and thing and isinstance(thing[0], msgspec.Struct):
        for i, entry in enumerate(thing[:2]):
            yield from leaves(entry, f"{path}.{i}")


def facts(node: Snapshot) -> list[str]:
    """Those leaves that may be absent by their type."""
    skip = ("schema", "origin", "taken_at", "epctl_version", "notes", "message", "conf_files", "origin")
    return [path for path in leaves(node) if not path.startswith(skip) and not path.endswith(skip)]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_node_is_healthy_to_every_check(name: str) -> None:
    report = examine(HEALTHY[name](), CHECKS.values())
    assert [
        (finding.id, finding.evidence)
        for finding in report.findings
        if finding.status == "failed" and finding.severity != "info"
    ] == []
    assert exit_code(report.summary, strict=True) == 0
    assert report.summary.passed > 60


def test_a_laptop_has_one_finding_and_everything_else_is_skipped() -> None:
    report = examine(laptop(), CHECKS.values())
    assert [finding.id for finding in report.findings if finding.status == "failed"] == ["NODE-NO-GPU"]
    assert {finding.status for finding in report.findings} == {"failed", "skipped"}
    assert exit_code(report.summary, strict=False) == 1


def test_nothing_passes_on_a_snapshot_in_which_nothing_was_read() -> None:
    report = examine(Snapshot(), CHECKS.values())
    assert [finding.id for finding in report.findings if finding.status in ("passed", "failed")] == []
    assert exit_code(report.summary, strict=False) == 4
    assert report.summary.verdict == "not_measured"


@pytest.mark.parametrize("reason", ["permission", "timed_out", "failed", "unparsable"])
def test_a_gpu_node_that_could_not_be_looked_at_is_not_called_healthy(reason: Any) -> None:  # noqa: ANN401
    node = ib_node()
    for path in ("gpu.gpus", "gpu.driver.nvml_code", "gpu.driver.kernel_version", "pcie.functions", "gpu.p2p"):
        node = edit(node, path, Absent(reason))
    report = examine(node, CHECKS.values())
    assert exit_code(report.summary, strict=False) == 4, [
        finding.id for finding in report.findings if finding.status == "failed"
    ]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_facts_may_be_missing_and_no_check_has_a_bug(data: st.DataObject) -> None:
    node = HEALTHY[data.draw(st.sampled_from(sorted(HEALTHY)))]()
    paths = facts(node)
    for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=12, unique=True)):
        try:
            changed = edit(node, path, Absent(data.draw(st.sampled_from(REASONS))))
            node = decode(encode(changed), "x")
        except (EpctlError, TypeError, IndexError, AttributeError):
            continue  # that field may not be absent, or its parent is already
    report = examine(node, CHECKS.values(), num_nodes=data.draw(st.sampled_from([1, 4])))
    assert [
        finding for finding in report.findings if any("the check itself failed" in line for line in finding.evidence)
    ] == []


@pytest.mark.parametrize(
    "path",
    ["gpu.gpus", "rdma.devices", "rdma.netdevs", "pcie.functions", "active.devices", "software.nccl", "host.modules"],
)
@pytest.mark.parametrize("name", HEALTHY)
def test_an_empty_list_breaks_no_check(name: str, path: str) -> None:
    report = examine(edit(HEALTHY[name](), path, ()), CHECKS.values())
    assert [
        finding for finding in report.findings if any("the check itself failed" in line for line in finding.evidence)
    ] == []


def test_findings_come_worst_first() -> None:
    node = edit(edit(ib_node(), "gpu.gpus.0.mig_enabled", True), "host.numa_balancing", 1)
    report = examine(edit(node, "gpu.gpus.1.remap_failed", Absent("permission")), CHECKS.values())
    order = {"failed": 0, "unknown": 1, "passed": 2, "skipped": 3}
    ranks = [
        (order[finding.status], RANK[finding.severity] if finding.status == "failed" else 0)
        for finding in report.findings
    ]
    assert ranks == sorted(ranks)


def in_force(node: Snapshot) -> set[str]:
    return {profile.id for profile, _ in detect(node)}


def test_what_is_installed_decides_the_profile() -> None:
    bare = dist(ib_node(), "deepinfer-ep", None)
    assert in_force(ib_node()) == {"deepep-2.5"}
    assert in_force(bare) == {"deepep-2.5", "epctl"}
    assert in_force(dist(bare, "deep-ep", "2.1.0")) == {"deepep-2"}
    assert in_force(dist(bare, "deep-ep", "1.2.1+abc123")) == {"deepep-1"}
    assert in_force(dist(bare, "nccl-ep", "0.1.0")) == {"nccl-ep"}
    assert "efa" in in_force(efa_node())
    assert "nccl-genk" in in_force(env(ib_node(), NCCL_SYM_GENK_ENABLE="1"))


def test_every_profile_that_the_issue_of_users_names_is_there() -> None:
    assert {"deepep-2.5", "deepep-2", "deepep-1", "nccl-ep", "efa", "nccl-genk", "cft", "deepinfer", "epctl"} == set(
        profiles()
    )


@pytest.mark.parametrize("id", CHECKS)
def test_every_check_says_what_why_what_to_do_and_from_where(id: str) -> None:  # noqa: A002
    one = CHECKS[id]
    assert one.area in AREAS
    for text in (one.title, one.why, one.fix):
        assert len(text) >= 10
        assert "\n" not in text
    for url in one.reference.split():
        assert url.startswith("https://")
    assert not one.title.endswith(".")


def test_every_check_has_a_node_on_which_it_fails_and_one_on_which_it_passes() -> None:
    """Each area's tests hold the cases; this one looks that no check was forgotten."""
    from importlib import import_module
    from pathlib import Path

    covered = set()
    for path in (Path(__file__).parent / "checks").glob("test_*.py"):
        cases = getattr(import_module(f"tests.unit.checks.{path.stem}"), "CASES", ())
        covered |= {case.id for case in cases}
    assert set(CHECKS) - covered == set()


def test_a_port_with_nothing_but_its_number_breaks_no_check() -> None:
    node = edit(ib_node(), "rdma.devices.*.ports", (Port(1),))
    report = examine(node, CHECKS.values())
    assert [
        finding for finding in report.findings if any("the check itself failed" in line for line in finding.evidence)
    ] == []


def unreadable(*paths: str) -> Snapshot:
    node = ib_node()
    for path in paths:
        node = edit(node, path, Absent("timed_out"))
    return node


@pytest.mark.parametrize(
    "node",
    [
        edit(unreadable("gpu.gpus", "gpu.p2p"), "gpu.driver.nvml_code", 999),
        unreadable("gpu.gpus", "gpu.p2p", "gpu.driver.nvml_code"),
        unreadable("rdma.devices"),
    ],
    ids=["NVML says unknown error", "NVML hangs", "RDMA devices cannot be read"],
)
def test_a_node_whose_essential_parts_could_not_be_read_is_never_fine(node: Snapshot) -> None:
    summary = examine(node, CHECKS.values()).summary
    assert summary.verdict in ("failed", "not_measured")
    assert exit_code(summary, strict=False) in (1, 4)


def test_one_unread_check_of_severity_fail_takes_the_word_healthy_away() -> None:
    summary = examine(unreadable("gpu.driver.xids", "gpu.driver.kernel_log"), CHECKS.values()).summary
    assert summary.verdict == "incomplete"
    assert exit_code(summary, strict=False) == 0
    assert exit_code(summary, strict=True) == 4


def test_checks_that_do_not_apply_are_no_fault() -> None:
    summary = examine(ib_node(), [CHECKS["EFA-KMOD-OLD"]]).summary
    assert summary.verdict == "not_applicable"
    assert exit_code(summary, strict=True) == 0


def test_a_profile_that_was_asked_for_is_judged_as_if_its_library_were_installed() -> None:
    report = examine(efa_node(), CHECKS.values(), ("deepep-2.5",), 2)
    failed = {finding.id for finding in report.findings if finding.status == "failed" and finding.severity == "fail"}
    assert {"GIN-25-GDAKI-ONLY", "PROFILE-FORBIDS"} <= failed
    assert report.summary.verdict == "failed"
