"""The log of a job as an area of the snapshot: recorded logs, damaged ones, very long ones, and files that are none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epctl.core.errors import EpctlError
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot, decode, encode
from epctl.core.snapshot.gpu import Setting
from epctl.core.snapshot.job import Conflict, JobArea, LogEvent
from epctl.probes import job as probe
from epctl.probes.job import MAX_EVENTS, job
from epctl.probes.readers.nccl_log import MAX_WARNINGS
from epctl.probes.reading import MAX_BYTES
from tests.support.logs import given, healthy, info, warn

FIXTURES = Path(__file__).parent.parent / "data" / "readers" / "nccl_log"


def events(area: JobArea) -> tuple[LogEvent, ...]:
    assert isinstance(area.events, tuple)
    return area.events


def of(*lines: str) -> JobArea:
    return given(*lines).job


def test_a_recorded_log_of_a_failed_job() -> None:
    area = job(FIXTURES / "roce_bond_completion_error.txt")
    assert (area.log, area.network, area.num_ranks, area.num_nodes) == ("roce_bond_completion_error.txt", "IB", 64, 8)
    assert (area.whole, area.info, area.notes) == (True, True, ())
    assert area.nccl_versions == ("2.26.2+cuda12.2",)
    assert area.ranks_unfinished == ()
    assert area.bootstrap == (Setting("trn-0007", "bond1:198.51.100.221"),)
    assert isinstance(area.settings, tuple)
    assert Setting("NCCL_IB_TC", "160") in area.settings
    assert isinstance(area.gdr, Absent)
    found = [event for event in events(area) if event.kind == "ib_completion_error"]
    assert [(event.code, event.vendor_err, event.hca) for event in found] == [
        (12, 129, "mlx5_bond_3"),
        (12, 129, "mlx5_bond_6"),
        (5, 249, "mlx5_bond_6"),
    ]
    assert {event.peer for event in found} == {"198.51.100.182"}
    assert [event.order for event in events(area)] == [0, 1, 2, 3]


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.txt")), ids=lambda path: path.stem)
def test_every_recorded_log_survives_the_way_through_a_snapshot(path: Path) -> None:
    node = Snapshot(job=job(path))
    assert decode(encode(node), "x") == node


def test_equal_warnings_are_one_event_and_different_ones_are_not() -> None:
    refused = "socketStartConnect: Connect to 10.0.0.{0}<{1}> failed : Connection refused"
    area = of(
        warn(refused.format(2, 4000), "n1"),
        warn(refused.format(2, 4001), "n3"),
        warn(refused.format(9, 4002), "n1"),
        warn("never seen 17 before"),
        warn("never seen 0x18 before"),
    )
    assert [(event.kind, event.peer, event.count, event.hosts) for event in events(area)[:2]] == [
        ("connection_refused", "10.0.0.2", 2, ("n1", "n3")),
        ("connection_refused", "10.0.0.9", 1, ("n1",)),
    ]
    assert [(event.kind, event.count) for event in events(area)[2:]] == [("other", 2)]


def test_order_is_that_of_the_lines_whatever_their_level() -> None:
    area = of(
        info("NET/IB : No device found."),
        warn("Cuda failure 802 'system not yet initialized'"),
        "[rank0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
        info("NET/Plugin: Could not find: libnccl-net.so", "n2"),
    )
    assert [(event.kind, event.weight, event.level, event.hosts) for event in events(area)] == [
        ("ib_no_device", "note", "info", ("n1",)),
        ("cuda_failure", "error", "warn", ("n1",)),
        ("watchdog_timeout", "error", "program", ()),
        ("net_plugin_not_found", "note", "info", ("n2",)),
    ]


def test_numbers_of_lines_that_are_no_warnings_are_read_too() -> None:
    (event,) = events(of(info("Call to ibv_create_qp failed with error Cannot allocate memory")))
    assert (event.level, event.code, event.code_name, event.call) == ("info", 12, "ENOMEM", "ibv_create_qp")


def test_lines_of_a_regular_end_are_notes() -> None:
    area = of(
        info("[Service thread] Connection closed by localRank 1"),
        info("comm 0x50 rank 0 nranks 2 cudaDev 0 busId 18000 - Abort COMPLETE"),
        info("socketPollConnect: connect returned Connection refused, retrying (1/34)"),
    )
    assert {event.kind: event.weight for event in events(area)} == {
        "peer_finished": "note",
        "aborted": "note",
        "connect_retried": "note",
    }


def test_transports_settings_and_conflicts() -> None:
    area = of(
        *healthy(
            info("Channel 01/0 : 0[0] -> 1[0] [send] via NET/IBext_v8/3(1)/GDRDMA(PCI)"),
            info("Channel 00 : 0[0] -> 1[1] via P2P/CUMEM"),
            info("NCCL_ALGO set by environment to RING."),
            info("NCCL_ALGO set by environment to TREE.", "n2"),
        )
    )
    assert area.transports == ("NET/IB/GDRDMA", "NET/IBext_v8(1)/GDRDMA(PCI)", "P2P/CUMEM")
    assert area.env_conflicts == (Conflict("NCCL_ALGO", ("RING", "TREE")),)
    assert (area.gin_type, area.gin_plugin, area.net_devices) == (3, "GIN_IB_GDAKI", ("mlx5_0",))
    assert isinstance(area.ranks, tuple)
    assert [(rank.rank, rank.host, rank.pci, rank.finished) for rank in area.ranks] == [
        (0, "n1", "0000:18:00.0", True),
        (1, "n2", "0000:18:00.0", True),
    ]


def test_a_log_of_warnings_only_has_no_info_records() -> None:
    assert of("NCCL version 2.32.3+cuda13.0", warn("Cuda failure 2 'out of memory'")).info is False
    assert of(*healthy()).info is True


def test_a_log_that_breaks_off_is_used_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cut.log"
    path.write_text("\n".join(healthy()) + "\nn1:100:1")
    area = job(path)
    assert area.network == "IB"
    assert "truncated" in area.notes[0]


def test_of_a_very_long_log_beginning_and_end_are_read(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    filler = "step 1 loss 2.3\n" * (MAX_BYTES // 16 + 5000)
    path.write_text("\n".join(healthy()) + "\n" + filler + warn("Cuda failure 700 'an illegal memory access'") + "\n")
    area = job(path)
    assert (area.network, area.whole) == ("IB", False)
    assert [event.code for event in events(area)] == [700]
    assert "MiB in its middle were not read" in area.notes[0]
    assert isinstance(area.ranks_unfinished, Absent)


def test_more_warnings_than_can_be_told_apart_are_admitted() -> None:
    area = of(*(warn("Cuda failure 2 'out of memory'") for _ in range(MAX_WARNINGS + 1)))
    assert (area.whole, len(events(area)), events(area)[0].count) == (False, 1, MAX_WARNINGS)
    assert str(MAX_WARNINGS + 1) in area.notes[0]


def test_a_job_over_very_many_hosts_keeps_every_kind() -> None:
    text = "NET/IB : Got completion from peer 10.0.{0}.{1}<1> with error {2}, opcode 0, len 0, vendor err 129"
    lines = [warn(text.format(k // 250, k % 250, 12), f"n{k}") for k in range(MAX_EVENTS + 50)]
    area = of(*lines, warn(text.format(9, 9, 13)))
    assert [(event.code, event.count) for event in events(area)] == [(12, MAX_EVENTS + 50), (13, 1)]
    assert len(events(area)[0].hosts) == probe.MAX_EVENT_HOSTS


@pytest.mark.parametrize(
    "content", [b"", b" \n\n", b"step 1 loss 2.3\n", b"<html>502</html>", b"\x7fELF\x00\x01", b"NCCL INFO\n"]
)
def test_a_file_that_is_no_log_of_nccl_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(content)
    with pytest.raises(EpctlError, match=r"is empty|is no log of NCCL") as caught:
        job(path)
    assert "NCCL_DEBUG=INFO" in caught.value.todo


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none.log", "does not exist"),
        (tmp_path, "is a folder"),
        (Path("/dev/null"), "no plain file"),
    ):
        with pytest.raises(EpctlError, match=words) as caught:
            job(path)
        assert caught.value.why
        assert caught.value.todo


def test_a_file_without_permission_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.log"
    path.write_text("x")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(EpctlError, match="could not be read") as caught:
        job(path)
    assert caught.value.why == "Permission denied"


def test_an_empty_area_is_what_a_snapshot_has_without_a_log() -> None:
    assert Snapshot().job == JobArea()
    assert msgspec.json.decode(msgspec.json.encode(JobArea()), type=JobArea) == JobArea()
