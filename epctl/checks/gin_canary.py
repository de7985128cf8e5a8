"""Checks of what the GIN canary saw: two ranks that tried put, signal and wait with each type of GIN that NCCL offers."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, Severity, bad, check, good
from epctl.core.context import Context
from epctl.core.fact import Absent, known
from epctl.core.snapshot.software import GinTrial
from epctl.core.views import gin
from epctl.core.views.gin import WANTED
from epctl.core.wording import counted

SILENT = ("hang", "lost")
"""Outcomes without an error message."""
CREATION = "device communicator"
EMULATION = "EPCTL_EMULATE_NODES=2 epctl doctor tries GIN's software without an adapter, as two played nodes, and says EMULATED."


def _trials(context: Context) -> tuple[GinTrial, ...]:
    return known(context.node.active.gin, "GIN canary (active probe)")


def _told(trial: GinTrial) -> str:
    """The evidence of one type: how it ended, where, and over what."""
    emulated = ", EMULATED over the loopback plugin" if trial.emulated else ""
    if trial.value == "ok":
        took = "" if isinstance(trial.round_ns, Absent) else f", a round took {trial.round_ns / 1e3:.1f} µs"
        return f"{trial.name}: put, signal and wait work{took}{emulated} (GIN canary)"
    words = {
        "hang": "hangs",
        "lost": "the signal never came",
        "wrong": "the signal came, and the data was not as sent",
        "failed": "failed",
        "untried": "was not tried",
    }
    where = f" in {trial.where}" if trial.where else ""
    detail = f": {trial.detail}" if trial.detail else ""
    return f"{trial.name}: {words.get(trial.value, trial.value)}{where}{detail}{emulated} (GIN canary)"


def _severity(context: Context) -> Severity:
    """Inside one NVLink domain a library may go without GIN."""
    return "fail" if gin.needed(context) or not gin.one_nvlink_domain(context) else "warn"


def _silent(trial: GinTrial) -> bool:
    """Neither works nor says why, after its device communicator was made."""
    return trial.value in SILENT and trial.where != CREATION


@check(
    "GIN-GDAKI-HANG",
    area="nccl",
    severity="fail",
    title="GIN GDAKI sends, and the signal never arrives",
    why="The first kernel of an EP library that uses GDAKI then hangs without a message, though NCCL reported the type as usable.",
    fix="Look first at MTU (ROCE-MTU-SMALL), traffic class (ROCE-GDAKI-TC), ACS (PCI-ACS-ON), atomics (ATOMIC-CAP-NONE, "
    "ATOMIC-LOST-CQE-HANG) and firmware; until then set NCCL_GIN_TYPE=2 where the library allows the proxy.",
    commands=("export NCCL_GIN_TYPE=2", "epctl doctor --only ROCE-MTU-SMALL,ROCE-GDAKI-TC,PCI-ACS-ON,ATOMIC-CAP-NONE"),
    reference="https://github.com/NVIDIA/nccl/issues/2372 https://github.com/NVIDIA/nccl/issues/1957 "
    "https://github.com/NVIDIA/nccl/issues/2255",
    needs=(WANTED,),
)
def gin_gdaki_hang(context: Context) -> Iterator[Seen]:
    for trial in _trials(context):
        if trial.name != "gdaki":
            continue
        others = [other for other in _trials(context) if other.name != "gdaki" and other.value == "ok"]
        if _silent(trial):
            beside = f"; {', '.join(other.name for other in others)} works" if others else ""
            yield bad(f"{_told(trial)}{beside}", severity=_severity(context))
        elif trial.value == "ok":
            yield good(_told(trial))


@check(
    "GIN-SIGNAL-LOST",
    area="nccl",
    severity="fail",
    title="GIN sends, and the signal never arrives",
    why="Puts are posted and no error is told, so each kernel that waits for a signal waits for ever.",
    fix="Look at the adapters' atomics (ATOMIC-CAP-NONE), at ACS and relaxed ordering (PCI-ACS-ON), and at what the network drops "
    "(ROCE-MTU-SMALL); start the job with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=NET.",
    commands=("epctl doctor --only ATOMIC-CAP-NONE,PCI-ACS-ON,ROCE-MTU-SMALL",),
    reference="https://github.com/NVIDIA/nccl/issues/2255 https://github.com/NVIDIA/nccl/issues/1957",
    needs=(WANTED,),
)
def gin_signal_lost(context: Context) -> Iterator[Seen]:
    for trial in _trials(context):
        if trial.name == "gdaki":
            continue
        if _silent(trial):
            yield bad(_told(trial), severity=_severity(context))
        elif trial.value == "ok":
            yield good(_told(trial))


@check(
    "GIN-INIT-RAIL-HANG",
    area="nccl",
    severity="fail",
    title="NCCL does not come back from making a device communicator with GIN",
    why="GIN joins the ranks in a ring over their adapters; two neighbours on rails that are not connected wait without a limit.",
    fix="Order the ranks so that neighbours share a rail, route between the rails, or take an NCCL with the fix.",
    reference="https://github.com/NVIDIA/nccl/issues/2318",
    needs=(WANTED,),
)
def gin_init_rail_hang(context: Context) -> Iterator[Seen]:
    for trial in _trials(context):
        if trial.value == "hang" and trial.where == CREATION:
            yield bad(_told(trial), severity=_severity(context))
        elif trial.value != "untried" and not (trial.value == "failed" and trial.where == CREATION):
            yield good(f"{trial.name}: the device communicator was made (GIN canary)")


@check(
    "GIN-CANARY-FAILED",
    area="nccl",
    severity="fail",
    title="GIN does not work between two ranks of this node",
    why="A type of GIN that NCCL offers ends with an error, or delivers wrong data, in the smallest program that uses it; EP libraries "
    "do the same with less to say about it.",
    fix="Go by the error in the evidence; the gates of GIN-TYPE-NONE and the rights of GIN-GDAKI-DOCA21 are the usual causes.",
    commands=("epctl doctor --only GIN-TYPE-NONE,GIN-GDAKI-DOCA21,GIN-QP-EXHAUST",),
    reference="https://github.com/NVIDIA/nccl/issues/1943 https://github.com/deepseek-ai/DeepEP/issues/680",
    needs=(WANTED,),
)
def gin_canary_failed(context: Context) -> Iterator[Seen]:
    found = _trials(context)
    if not found:
        yield _none_offered(context)
    for trial in found:
        if trial.value in ("failed", "wrong"):
            yield bad(_told(trial), severity=_severity(context))
        elif trial.value == "ok":
            yield good(_told(trial))
        elif trial.value == "untried":
            yield Seen("unread", _told(trial))


def _none_offered(context: Context) -> Seen:
    ports = counted(len(gin.active_ports(context)), "active RDMA port")
    closed = [gate for gate in gin.gates(context) if gate.state == "closed"]
    gates = (
        "; ".join(f"{gate.name}: {gate.text}" for gate in closed) or "no gate that can be seen from outside is closed"
    )
    severity: Severity = "info" if not gin.needed(context) and gin.one_nvlink_domain(context) else "fail"
    return bad(
        f"NCCL offers no GIN between two ranks of this node, which has {ports} (GIN canary); {gates}",
        severity=severity,
        fix=" ".join((*dict.fromkeys(gate.fix for gate in closed if gate.fix), EMULATION)),
    )
