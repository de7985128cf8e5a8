"""Errors of GPUs that hardware and driver have recorded: Xid, ECC, row remapping."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from epctl.core.check import Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, value_or
from epctl.core.snapshot.gpu import Gpu, Xid
from epctl.core.views import pcie
from epctl.core.views.needs import GPU, NVML
from epctl.core.wording import counted

FATAL_XIDS: dict[int, str] = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "row remap or page retirement could not be recorded",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",
    119: "GSP does not answer",
    120: "GSP error",
    136: "NVLink link training failed",
    140: "unrecovered ECC error",
    143: "GPU could not be initialised",
    158: "GPU fatal timeout",
}
"""NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors), with the resolutions that leptonai/gpud lists as fatal."""

WARNING_XIDS: dict[int, str] = {
    63: "row remap recorded",
    92: "high single-bit ECC error rate",
    94: "contained memory error",
}
RECOVERY_XID = 154
"""Its line tells the action that the driver recommends now, `(None)` when it takes one back."""
NVLINK5_XIDS = range(144, 151)
"""NVLink 5 (Blackwell) errors."""
TORN_DOWN_XID = 45
_BY_NVLINK = re.compile(r"\bXid (?:145|149)\b")
"""A line of Xid 45 that names its cause: `Ch 00000001 caused by previous Xid 149` (NVIDIA/open-gpu-kernel-modules#1150)."""

MAX_UNCORRECTABLE_REMAPS = 512
"""A bank group has spare rows for 512 uncorrectable remaps (leptonai/gpud remapped-rows, NVIDIA's GPU memory error management)."""
MAX_SRAM_CORRECTED = 10_000
"""Azure/azurehpc-health-checks conf/nd96isr_h200_v5.conf."""


@check(
    "GPU-XID-FATAL",
    area="gpu",
    severity="fail",
    title="A GPU had a fatal error since boot, or does not answer",
    why="Collectives hang or results are wrong, and the GPU may vanish from nvidia-smi.",
    fix="Drain the node; reset the GPU, for Xid 79 reboot. If 48, 64 or 79 come back, have the GPU replaced.",
    commands=("sudo dmesg -T | grep -i xid", "nvidia-smi -q -d ROW_REMAPPER,ECC"),
    reference="https://docs.nvidia.com/deploy/xid-errors/ "
    "https://github.com/leptonai/gpud/blob/main/components/accelerator/nvidia/xid/catalog_generated.go "
    "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/446",
    needs=(GPU,),
)
def gpu_xid_fatal(context: Context) -> Iterator[Seen]:
    for gpu in value_or(context.node.gpu.gpus, ()):
        if isinstance(gpu.lost, str) and gpu.lost:
            yield bad(f"GPU {gpu.index}: {gpu.lost} (NVML)")
    xids = context.node.gpu.driver.xids
    if isinstance(xids, Absent):
        yield unread("Xids (kernel log)", xids)
        return
    found = list(_found(xids))
    yield from found
    if not found:
        yield good(f"{counted(len(xids), 'Xid')} since boot (kernel log), none of them fatal or a memory warning")


def _distinct(xids: Iterable[Xid]) -> Iterator[tuple[Xid, str]]:
    """The first Xid of each code, GPU and gravity, with ` (5 times)` when it came back; one fault may log hundreds of lines."""
    first: dict[tuple[int, str, bool], Xid] = {}
    counts: Counter[tuple[int, str, bool]] = Counter()
    for xid in xids:
        key = (xid.code, xid.pci, xid.fatal)
        first.setdefault(key, xid)
        counts[key] += 1
    for key, xid in first.items():
        yield xid, f" ({counts[key]} times)" if counts[key] > 1 else ""


def _found(xids: tuple[Xid, ...]) -> Iterator[Seen]:
    """Faults by GPU. The last Xid 154 of a GPU says whether the driver still wants something done; what came before one that
    takes the action back was dealt with (a reset), and is told as history."""
    recovery = {xid.pci: (at, xid) for at, xid in enumerate(xids) if xid.code == RECOVERY_XID}
    last = {(xid.code, xid.pci): at for at, xid in enumerate(xids)}
    for xid, times in _distinct(xid for xid in xids if xid.code != RECOVERY_XID):
        at, told = recovery.get(xid.pci, (-1, xid))
        over = last[xid.code, xid.pci] < at and not _wants_action(told)
        seen = _judged(xid, times, over)
        if seen is not None:
            yield seen
    for _, xid in recovery.values():
        if _wants_action(xid):
            yield bad(
                f"Xid 154 of {xid.pci} (recovery action wanted): {xid.line}",
                fix="Do what the line of Xid 154 asks for.",
            )


def _wants_action(xid: Xid) -> bool:
    """`… changed from 0x0 (None) to 0x1 (GPU Reset Required)`: the word after the last `to` is not None."""
    return "(none)" not in xid.line.lower().rpartition(" to ")[2]


def _judged(xid: Xid, times: str, over: bool) -> Seen | None:
    """None for Xids that are an application's fault or of another check. `over`: the driver wants nothing done any more."""
    where = f"Xid {xid.code} of {xid.pci}{times}"
    if xid.code in FATAL_XIDS and over:
        return bad(
            f"{where} ({FATAL_XIDS[xid.code]}), since then recovered (Xid 154: None): {xid.line}",
            severity="warn",
            fix="Nothing is wanted now. Watch whether it comes back, and have the GPU replaced if it does.",
        )
    if xid.code in FATAL_XIDS:
        return bad(f"{where} ({FATAL_XIDS[xid.code]}): {xid.line}")
    if xid.code in WARNING_XIDS:
        return bad(
            f"{where} ({WARNING_XIDS[xid.code]}): {xid.line}",
            severity="warn",
            fix="Reset the GPU when the node is idle, so that remapped rows take effect, and watch whether it comes back.",
        )
    return None


@check(
    "GPU-XID-NVLINK5",
    area="gpu",
    severity="fail",
    title="NVLink 5 errors since boot",
    why="After a fatal one several engines die together, and every pair of GPUs hangs until a reset or reboot.",
    fix="Drain the node, then reset all GPUs of the NVLink domain or reboot; check the link that the line names; keep a bug report.",
    commands=("sudo dmesg -T | grep -i xid", "sudo nvidia-bug-report.sh"),
    reference="https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1355 "
    "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1150 https://github.com/leptonai/gpud/pull/1160",
    needs=(GPU,),
)
def gpu_xid_nvlink5(context: Context) -> Iterator[Seen]:
    xids = context.node.gpu.driver.xids
    if isinstance(xids, Absent):
        yield unread("Xids (kernel log)", xids)
        return
    found = [xid for xid in xids if xid.code in NVLINK5_XIDS]
    torn_down = [xid for xid in xids if xid.code == TORN_DOWN_XID and _BY_NVLINK.search(xid.line)]
    for xid, times in _distinct(found):
        yield bad(f"Xid {xid.code} of {xid.pci}{times}: {xid.line}", severity=None if xid.fatal else "warn")
    for xid, times in _distinct(torn_down):
        yield bad(f"Xid 45 of {xid.pci}{times}, caused by an NVLink error: {xid.line}")
    if not found and not torn_down:
        yield good(f"no Xid 144 to 150 among {len(xids)} since boot (kernel log)")


@check(
    "GPU-ROW-REMAP-FAILED",
    area="gpu",
    severity="fail",
    title="Memory rows of a GPU cannot be remapped any more, or a remap waits for a reset",
    why="Uncorrectable memory errors come back after each reset once no spare rows are left.",
    fix="Have the GPU replaced.",
    reference="https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/ "
    "https://github.com/Azure/azurehpc-health-checks/blob/main/customTests/azure_gpu_ecc.nhc",
    needs=(NVML,),
)
def gpu_row_remap_failed(context: Context) -> Iterator[Seen]:
    for gpu in pcie.gpus(context.node):
        if isinstance(gpu.remap_failed, Absent):
            if gpu.remap_failed.absent != "unsupported":
                yield unread(f"GPU {gpu.index} row remapping", gpu.remap_failed)
            continue
        count = value_or(gpu.remapped_uncorrectable, 0)
        look = (f"nvidia-smi -q -i {gpu.index} -d ROW_REMAPPER",)
        text = f"GPU {gpu.index}: {counted(count, 'uncorrectable remap')} (NVML)"
        if gpu.remap_failed:
            yield bad(f"{text}, a remap has failed", commands=look)
        elif count > MAX_UNCORRECTABLE_REMAPS:
            yield bad(f"{text}, more than {MAX_UNCORRECTABLE_REMAPS}", commands=look)
        elif gpu.remap_pending is True:
            yield bad(
                f"{text}, one is pending",
                severity="warn",
                fix="Reset the GPU (or reboot) when the node is idle.",
                commands=(f"sudo nvidia-smi --gpu-reset -i {gpu.index}",),
            )
        else:
            yield good(f"{text}, none has failed")


@check(
    "GPU-ECC-SRAM",
    area="gpu",
    severity="fail",
    title="A GPU has SRAM ECC errors",
    why="They show as random CUDA errors or wrong results on that GPU, and no remapping repairs SRAM.",
    fix="Drain the node, run DCGM's diagnostics, and have the GPU replaced.",
    reference="https://github.com/Azure/azurehpc-health-checks/blob/main/customTests/azure_gpu_ecc.nhc "
    "https://github.com/Azure/azurehpc-health-checks/blob/main/conf/nd96isr_h200_v5.conf",
    needs=(NVML,),
)
def gpu_ecc_sram(context: Context) -> Iterator[Seen]:
    for gpu in pcie.gpus(context.node):
        yield from _sram(gpu)


def _sram(gpu: Gpu) -> Iterator[Seen]:
    limits = (
        ("uncorrected, since the driver started", gpu.ecc_sram_uncorrected_volatile, 0),
        ("uncorrected, in all", gpu.ecc_sram_uncorrected_aggregate, 0),
        ("corrected, in all", gpu.ecc_sram_corrected_aggregate, MAX_SRAM_CORRECTED),
    )
    for what, count, limit in limits:
        text = f"GPU {gpu.index}: SRAM ECC errors {what}"
        if isinstance(count, Absent):
            if count.absent != "unsupported":
                yield unread(text, count)
        elif count > limit:
            yield bad(
                f"{text}: {count} (NVML), at most {limit} are accepted",
                commands=(f"nvidia-smi -q -i {gpu.index} -d ECC", f"dcgmi diag -r 3 -i {gpu.index}"),
            )
        else:
            yield good(f"{text}: {count} (NVML)")
