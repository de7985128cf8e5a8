"""Checks of NCCL's network plugins."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epctl.core.fact import NOT_READ, Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.software import NetPlugin
from tests.support.cases import Case, run, verify
from tests.support.nodes import edit, efa_node, env, gb200_node, ib_node, laptop, roce_node
from tests.support.own import own

OWN = own("net_plugin")
IB = ib_node()


def plugin(missing: tuple[str, ...] = (), glibc: str = "2.34", name: str = "libnccl-net.so") -> Snapshot:
    found = NetPlugin(name, f"/usr/local/gib/lib64/{name}", "1.0", missing, glibc)
    return env(edit(IB, "software.net_plugins", (found,)), NCCL_NET="gIB")


CASES = [
    Case("NCCL-PLUGIN-UNLOADABLE", plugin(glibc="2.41"), plugin(), "needs GLIBC_2.41, this system has 2.39"),
    Case("NCCL-PLUGIN-UNLOADABLE", plugin(("libprotobuf.so.32",)), plugin(), "libprotobuf.so.32"),
    Case("NCCL-PLUGIN-UNLOADABLE", env(IB, NCCL_NET="gIB"), plugin(), "NCCL_NET=gIB (environment), and no such plugin"),
    Case(
        "NCCL-PLUGIN-UNLOADABLE",
        env(plugin(), NCCL_NET_PLUGIN="fastrak"),
        env(plugin(name="libnccl-net-fastrak.so"), NCCL_NET_PLUGIN="fastrak"),
        "NCCL_NET_PLUGIN=fastrak",
    ),
    Case("NCCL-PLUGIN-UNLOADABLE", env(plugin(glibc="2.41"), NCCL_NET="IB"), plugin(), "GLIBC_2.41", "warn"),
]


@pytest.mark.parametrize(
    ("one", "path", "value", "status"),
    [
        ("NCCL-PLUGIN-UNLOADABLE", "software.net_plugins", NOT_READ, "unknown"),
        ("NCCL-PLUGIN-UNLOADABLE", "software.net_plugins", (), "skipped"),
        ("NCCL-PLUGIN-UNLOADABLE", "env.nccl_conf", Absent("permission"), "unknown"),
    ],
)
def test_one_fact_absent(one: str, path: str, value: object, status: str) -> None:
    assert run(one, edit(IB, path, value)).status == status


@pytest.mark.parametrize(
    ("path", "status"), [("missing", "unknown"), ("glibc_needed", "unknown"), ("version", "passed")]
)
def test_plugin_that_was_read_in_part(path: str, status: str) -> None:
    assert run("NCCL-PLUGIN-UNLOADABLE", edit(plugin(), f"software.net_plugins.0.{path}", NOT_READ)).status == status


def test_plugin_outside_the_loader_path_is_not_called_missing() -> None:
    assert run("NCCL-PLUGIN-UNLOADABLE", env(IB, NCCL_NET_PLUGIN="/opt/x/libnccl-net-x.so")).status == "unknown"


def test_plugins_switched_off_are_nothing_to_look_at() -> None:
    assert run("NCCL-PLUGIN-UNLOADABLE", env(plugin(glibc="2.41"), NCCL_NET_PLUGIN="none")).status == "skipped"


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
