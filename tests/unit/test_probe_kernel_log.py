"""Lines of the kernel log that checks want."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.fact import Absent
from epctl.core.snapshot.gpu import LogLine, Xid
from epctl.probes.kernel_log import JOURNAL, MAX_PER_KIND, MAX_PER_TOPIC, kernel_log, read_log
from epctl.probes.source import Output
from tests.support.fake_source import FakeSource

BOOT = "[    0.000000] Linux version 6.8.0-60-generic\n"
DENIED = Output(b"", b"dmesg: read kernel buffer failed: Operation not permitted\n", 1)
OFF_THE_BUS = "[  100.0] NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def log(text: str) -> tuple[tuple[Xid, ...], tuple[LogLine, ...]]:
    found = read_log(text)
    assert isinstance(found.xids, tuple)
    assert isinstance(found.lines, tuple)
    return found.xids, found.lines


@pytest.mark.parametrize(
    ("line", "code", "pci", "fatal"),
    [
        (OFF_THE_BUS, 79, "0000:18:00.0", False),
        ("NVRM: Xid (PCI:0000:CB:00): 13, pid=1, name=python3, Graphics SM Warp Exception", 13, "0000:cb:00.0", False),
        ("NVRM: Xid (0000:03:00): 31, Ch 00000010", 31, "0000:03:00.0", False),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 31, pid=1", 31, "0000:01:00.0", False),
        ("NVRM: Xid (PCI:00000000:1b:00): 94, pid=1", 94, "0000:1b:00.0", False),
        (
            "kernel: NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x0)",
            149,
            "0009:01:00.0",
            True,
        ),
        ("NVRM: Xid (PCI:0009:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 01 (0x1 0x0)", 145, "0009:01:00.0", False),
        ("NVRM: Xid (PCI:0009:01:00): 145, RLW_REMAP Non-fatal XC0 i0 Link 01 (0x1 0x0)", 145, "0009:01:00.0", False),
        ("NVRM: Xid (PCI:0009:01:00): 45, pid=2, Ch 01, errorString CTX_RESET Fatal", 45, "0009:01:00.0", False),
    ],
)
def test_xid(line: str, code: int, pci: str, fatal: bool) -> None:
    assert log(BOOT + line)[0] == (Xid(code, pci, line, fatal),)


@pytest.mark.parametrize(
    ("topic", "line"),
    [
        ("nvlink_rxdet", "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!"),
        ("nvlink_rxdet", "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!"),
        ("peermem", "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"),
        ("peermem_symbol", "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err 0)"),
        ("peermem_symbol", "nv_peer_mem: disagrees about version of symbol ib_unregister_peer_memory_client"),
        ("mlx5_module_hot", "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature"),
        ("mlx5_resource", "mlx5_core 0000:41:00.0: mlx5_cmd_check:816: CREATE_MKEY(0x200) op_mod(0x0) failed, status limits exceeded(0x8)"),
        ("mlx5_resource", "mlx5_core 0000:41:00.0: mlx5_cmd_out_err:816: CREATE_QP(0x500) op_mod(0x0) failed, status no resources(0xf)"),
        ("oom", "Out of memory: Killed process 1234 (python) total-vm:1kB"),
        ("oom", "Memory cgroup out of memory: Killed process 99 (vllm)"),
        ("oom", "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=abc"),
        ("nvidia", "NVRM: API mismatch: the client has the version 580.95.05, but"),
        ("nvidia", "NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x62:0x40:2409)"),
        ("nvidia", "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 11001, Fatal, Link 12 ingress invalid command"),
    ],
)  # fmt: skip
def test_topic(topic: str, line: str) -> None:
    assert log(f"{BOOT}[    9.1] {line}\n")[1] == (LogLine(topic, f"[    9.1] {line}"),)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)",
        "NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.",
        "NVRM: Persistence mode is deprecated and will be removed in a future release. Please use nvidia-persistenced instead.",
        "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838: ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), err(-22)",
        "mlx5_core 0000:5c:00.0: Port module event: module 0, Cable plugged",
        "nvidia: loading out-of-tree module taints kernel.",
    ],
)  # fmt: skip
def test_harmless(line: str) -> None:
    assert log(BOOT + line) == ((), ())


def test_flood_does_not_push_out_a_fatal_one() -> None:
    flood = "NVRM: Xid (PCI:0000:18:00): 31, pid=1\n" * 5000
    xids, _ = log(BOOT + flood + OFF_THE_BUS)
    assert [xid.code for xid in xids] == [31] * MAX_PER_KIND + [79]
    mild, grave = (
        f"NVRM: Xid (PCI:0009:01:00): 145, RLW_REMAP {word} XC0 i0 Link 01\n" for word in ("Nonfatal", "Fatal")
    )
    xids, _ = log(mild * 5000 + grave)
    assert [xid.fatal for xid in xids] == [False] * MAX_PER_KIND + [True]
    lines = "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!\n" * 1000
    assert len(log(lines)[1]) == MAX_PER_TOPIC


def test_the_last_recovery_action_is_kept() -> None:
    """It says what the driver wants now; the ones before it are history."""
    head = "NVRM: Xid (PCI:0000:18:00): "
    wanted = f"{head}154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    over = f"{head}154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    xids = read_log("\n".join([*[wanted, over] * MAX_PER_KIND, f"{head}95, x", wanted])).xids
    assert isinstance(xids, tuple)
    assert len(xids) == MAX_PER_KIND + 1
    assert [xid.line for xid in xids[-2:]] == [f"{head}95, x", wanted]


def test_dmesg_is_enough() -> None:
    source = FakeSource(commands={("dmesg",): BOOT + OFF_THE_BUS})
    found = kernel_log(source)
    assert isinstance(found.xids, tuple)
    assert found.xids[0].code == 79
    assert found.note == ""
    assert JOURNAL not in source.asked


def test_plain_user_reads_the_journal() -> None:
    found = kernel_log(FakeSource(commands={("dmesg",): DENIED, JOURNAL: BOOT + OFF_THE_BUS}))
    assert isinstance(found.xids, tuple)
    assert len(found.xids) == 1


@pytest.mark.parametrize(
    "journal",
    [
        "-- No entries --\n",
        Output(
            b"-- No entries --\n", b"Hint: You are currently not seeing messages from other users and the system.\n"
        ),
        Output(b"", b"No journal files were opened due to insufficient permissions.\n", 1),
        Absent("tool_missing", "journalctl is not on PATH"),
    ],
)
def test_nobody_may_read_it(journal: str | Output | Absent) -> None:
    found = kernel_log(FakeSource(commands={("dmesg",): DENIED, JOURNAL: journal}))
    assert isinstance(found.xids, Absent)
    assert found.xids.absent == "permission"
    assert found.xids.line == "dmesg: read kernel buffer failed: Operation not permitted"
    assert found.lines == found.xids


def test_ring_that_lost_its_begin() -> None:
    ring = "[86400.5] something\n[86401.0] else\n"
    source = FakeSource(commands={("dmesg",): ring, JOURNAL: BOOT + OFF_THE_BUS})
    assert kernel_log(source).xids == read_log(BOOT + OFF_THE_BUS).xids
    alone = kernel_log(FakeSource(commands={("dmesg",): ring}))
    assert alone.xids == ()
    assert "oldest lines" in alone.note


def test_no_log_at_all() -> None:
    found = kernel_log(FakeSource())
    assert found.xids == Absent("tool_missing", "dmesg is not on PATH")


@given(st.text(max_size=300), st.binary(max_size=200))
def test_any_log(text: str, raw: bytes) -> None:
    log(text)
    log(f"NVRM: Xid (PCI:{text}): 79, {text}")
    kernel_log(FakeSource(commands={("dmesg",): raw, JOURNAL: raw[::-1]}))
