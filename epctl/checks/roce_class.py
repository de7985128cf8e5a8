"""RoCE: the traffic class of GDAKI's queues against the classes that lose no packets."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.checks.roce import roce_ports
from epctl.core.check import Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.views import nics
from epctl.core.views.gdaki import GDAKI
from epctl.core.views.needs import ROCE
from epctl.core.views.nics import Nic
from epctl.core.views.settings import number, setting, told


@check(
    "ROCE-GDAKI-TC",
    area="rdma",
    severity="fail",
    title="GDAKI queues are not in the lossless traffic class",
    why="The kernel's global traffic class does not cover queues that the device makes: GDAKI takes NCCL's value, 0 by default. "
    "Its packets get lost under load and kernels freeze, while host-driven NCCL on the same cards is fine.",
    fix="Set NCCL_IB_TC (or NCCL_GIN_IB_TC) to the lossless traffic class of the fabric (DSCP × 4), the same on all nodes.",
    reference="https://github.com/NVIDIA/nccl/issues/2383 "
    "https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib/gin.cc",
    needs=(ROCE, GDAKI),
)
def roce_gdaki_tc(context: Context) -> Iterator[Seen]:
    name = next((name for name in ("NCCL_GIN_IB_TC", "NCCL_IB_TC") if setting(context, name)), "")
    own = max(number(context, name) or 0, 0) & 0xFF if name else 0
    said = told(context, name) if name else "NCCL_IB_TC and NCCL_GIN_IB_TC are not set"
    for nic in roce_ports(context):
        if nic.device.driver != "mlx5_core":
            continue
        whole = nic.device.global_tclass
        if isinstance(whole, Absent) and whole.absent == "not_found":  # drivers without the file have no such setting
            whole = 0
        set_for_all = value_or(whole, 0) if name else known(whole, f"{nic.label} global traffic class")
        if set_for_all and not name:
            yield bad(f"{nic.label}: global traffic class {whole} (sysfs), {said}")
        elif set_for_all and _dscp(own) != _dscp(set_for_all):
            text = f"{nic.label}: {said}, global traffic class {whole} (sysfs): two classes on one card"
            yield bad(text, severity="warn")
        else:
            yield _on_lossless(context, nic, own, said)


def _dscp(traffic_class: int) -> int:
    """DSCP is the upper six bits of the traffic class."""
    return traffic_class >> 2


def _on_lossless(context: Context, nic: Nic, own: int, said: str) -> Seen:
    """Does the class have PFC where the interface has PFC on some priority? By the default map of mlx5 the priority is the upper
    three bits of the DSCP; another map may be set for a class that somebody chose, so this is a warning then."""
    dscp, priority = _dscp(own), own >> 5
    entries = [entry for entry in nics.netdevs(nic, context.node) if entry.kind != "bond"]
    for entry in entries:
        found = entry.pfc_priorities
        if isinstance(found, Absent) and (dscp or found.absent == "unsupported"):
            continue
        on = known(found, f"{nic.label} PFC of {entry.name}")
        if on and priority not in on:
            text = f"{entry.name} has PFC on priority {', '.join(map(str, on))}, not on {priority} (DSCP {dscp})"
            return bad(f"{nic.label}: {text}; {said}", severity="warn" if dscp else None)
    if not entries and not dscp:
        return unread(f"{nic.label} PFC", Absent("not_found", "no interface of it is in this namespace"))
    return good(f"{nic.label}: {said}; DSCP {dscp}, no PFC on other priorities than {priority} alone")
