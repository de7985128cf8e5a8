"""The collector verbs_query against a library that plays libibverbs; its lines as facts; and their place among the other sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.core.fact import Absent
from epctl.core.snapshot.rdma import RdmaArea, RdmaDevice
from epctl.probes import verbs_query
from epctl.probes.rdma import rdma
from epctl.probes.source import COLLECTORS, LiveSource
from tests.support.fake_source import FakeSource
from tests.support.played_rdma import build
from tests.support.probing import odd_document, reason, survives

IB = "/sys/class/infiniband"
READERS = Path(__file__).parent.parent / "data" / "readers"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("played"))


@pytest.fixture
def ask(library: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - a function
    """Runs the collector in its child process."""

    def run(devices: str, **numbers: int) -> Any:  # noqa: ANN401 - JSON
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
        monkeypatch.setenv("FAKE_DEVICES", devices)
        for name, value in numbers.items():
            monkeypatch.setenv(f"FAKE_{name}", str(value))
        return LiveSource().document("verbs_query", 15.0)

    return run


def told(document: Any) -> tuple[RdmaDevice, ...]:  # noqa: ANN401 - JSON
    found = verbs_query.facts(document)
    assert isinstance(found, tuple), found
    return found


def limits(device: RdmaDevice) -> tuple[object, ...]:
    return device.atomic_cap, device.max_qp, device.max_qp_rd_atom


def mtus(device: RdmaDevice) -> list[tuple[object, ...]]:
    assert isinstance(device.ports, tuple), device.ports
    return [(port.port, port.active_mtu, port.max_mtu) for port in device.ports]


def test_limits_and_mtus_come_from_the_right_places_of_the_structures(ask: Any) -> None:  # noqa: ANN401
    document = ask(
        "mlx5_0,rdmap0s6", ATOMIC_rdmap0s6=0, QPS_mlx5_0=262144, READS_rdmap0s6=0, PORTS_mlx5_0=2, MTU_mlx5_0=3
    )
    assert (document["ended"], document["stages"][-1]) == ("", {"stage": "end"})
    first, second = told(document)
    assert limits(first) == ("ATOMIC_HCA", 262144, 16)
    assert mtus(first) == [(1, 1024, 4096), (2, 1024, 4096)]
    assert limits(second) == ("ATOMIC_NONE", 131072, 0)
    assert mtus(second) == [(1, 4096, 4096)]


@pytest.mark.parametrize("numbers", [{}, {"OPEN_mlx5_0": 13}, {"QUERY": 5}, {"PORT": 5}])
def test_every_handle_is_given_back(ask: Any, numbers: dict[str, int]) -> None:  # noqa: ANN401
    ask("mlx5_0,mlx5_1", **numbers)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(COLLECTORS / "verbs_query.py")],
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == b""


def test_what_is_refused_is_told_with_its_reason(ask: Any) -> None:  # noqa: ANN401
    shut, broken, deaf, fine = told(ask("a,b,c,d", OPEN_a=13, QUERY_b=5, PORT_c=22, MTU_d=9, ATOMIC_d=7))
    assert shut.atomic_cap == Absent("permission", "ibv_open_device: errno 13")
    assert broken.max_qp == broken.ports == Absent("failed", "ibv_query_device: errno 5")
    assert deaf.max_qp == 131072
    assert deaf.ports == (), "a port that could not be asked says nothing"
    assert (fine.max_qp, reason(fine.atomic_cap)) == (131072, "unparsable")
    assert mtus(fine)[0][2] == 4096
    assert isinstance(fine.ports, tuple)
    assert reason(fine.ports[0].active_mtu) == "unsupported"


def test_a_crash_leaves_the_devices_before_it(ask: Any) -> None:  # noqa: ANN401
    first, second = told(ask("mlx5_0,mlx5_1", QUERY_mlx5_1=-2))
    assert first.max_qp == 131072
    assert reason(second.max_qp) == "failed"
    assert "in the stage query of mlx5_1" in str(second.max_qp)


def test_a_machine_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libibverbs.so.1").write_bytes(b"no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    document = LiveSource().document("verbs_query", 15.0)
    found = verbs_query.facts(document)
    assert reason(found) == "not_found" or found == (), "the loader goes on to the system's own"


def node(**more: Any) -> FakeSource:  # noqa: ANN401 - parts of a source
    files = {f"{IB}/mlx5_0/ports/1/state": "4: ACTIVE", f"{IB}/mlx5_0/ports/1/link_layer": "Ethernet"}
    return FakeSource(files, **more)


def document(**attributes: Any) -> Any:  # noqa: ANN401 - JSON
    line = {
        "stage": "query",
        "device": "mlx5_0",
        "attributes": {"atomic_cap": 1, "max_qp": 1000, "max_qp_rd_atom": 16, **attributes},
        "ports": [{"port": 1, "active_mtu": 3, "max_mtu": 5}],
    }
    return {"stages": [{"stage": "list", "devices": ["mlx5_0"]}, line], "ended": "", "detail": ""}


def only(area: RdmaArea) -> RdmaDevice:
    assert isinstance(area.devices, tuple)
    (device,) = area.devices
    return device


def test_a_slim_image_without_ibv_devinfo_knows_atomics_queue_pairs_and_mtu() -> None:
    device = only(rdma(node(documents={"verbs_query": document()})))
    assert limits(device) == ("ATOMIC_HCA", 1000, 16)
    assert mtus(device) == [(1, 1024, 4096)]
    assert isinstance(device.ports, tuple)
    assert device.ports[0].state == "ACTIVE", "sysfs stays the first source"


class Counting(FakeSource):
    queries = 0

    def document(self, name: str, timeout_s: float = 10.0) -> Any:  # noqa: ANN401 - JSON
        self.queries += name == "verbs_query"
        return super().document(name, timeout_s)


def test_devices_are_opened_again_only_for_what_ibv_devinfo_left_out() -> None:
    listed: dict[tuple[str, ...], str] = {
        ("ibv_devinfo", "-v"): (READERS / "ibv_devinfo" / "cx7_ndr_ib_verbose.txt").read_text()
    }
    files = {f"{IB}/mlx5_0/ports/1/state": "4: ACTIVE"}
    source = Counting(files, commands=listed)
    rdma(source)
    assert source.queries == 0
    source = Counting({**files, f"{IB}/mlx5_9/ports/1/state": "4: ACTIVE"}, commands=listed)
    rdma(source)
    assert source.queries == 1


def test_nothing_is_opened_where_there_is_no_device() -> None:
    source = Counting(folders={"/sys/class": ["net"]})
    assert rdma(source).devices == ()
    assert source.queries == 0


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Absent("timed_out", "no answer"), "timed_out"),
        ({"stages": [{"stage": "list", "devices": {"error": "not_found", "detail": "libibverbs.so.1"}}]}, "not_found"),
        ({"stages": [{"stage": "list", "devices": []}]}, "not_found"),
        (document(atomic_cap={"error": "permission", "detail": "errno 13"}), "permission"),
        (Absent("not_read", "an older recording"), "tool_missing"),
    ],
)
def test_the_reason_is_that_of_the_library_where_ibv_devinfo_is_not_installed(found: Any, why: str) -> None:  # noqa: ANN401
    assert reason(only(rdma(node(documents={"verbs_query": found}))).atomic_cap) == why


@given(st.data())
@settings(max_examples=60)
def test_any_document_gives_an_area(data: st.DataObject) -> None:
    damaged = odd_document(document(), data)
    verbs_query.facts(damaged)
    survives(rdma=rdma(node(documents={"verbs_query": damaged})))
