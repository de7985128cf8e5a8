"""RDMA ports: up, at full rate, with a subnet manager, without losses."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from epctl.core.check import Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.views import adapters, nics
from epctl.core.views.needs import IB, MLX5, RDMA, wants
from epctl.core.views.nics import Nic
from epctl.core.views.settings import setting, told

LOSS_COUNTERS = (
    "local_ack_timeout_err",
    "packet_seq_err",
    "out_of_sequence",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
)
"""Counters of mlx5 in `hw_counters` that rise when packets are lost or late (NVIDIA's `Understanding mlx5 counters`)."""
LOSS_SHARE = 1e-5
"""Share of packets from which losses cost throughput on RoCE (catalogue of conditions, NIC-RETRANS)."""
MIN_LOSSES = 100
"""Fewer since boot are the flap of a link, whatever share of little traffic they are."""


@check(
    "NIC-PORT-NOT-ACTIVE",
    area="rdma",
    severity="fail",
    title="A fabric port is not active",
    why="NCCL leaves ports out that are not active and says nothing: the job is slow, or falls back to sockets.",
    fix="Check cable, switch port and (InfiniBand) the subnet manager; bring the port up. A port that is not meant to carry "
    "EP traffic belongs out of NCCL_IB_HCA.",
    commands=("rdma link show", "ibstat"),
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html "
    "https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib/init.cc https://github.com/deepseek-ai/DeepEP/issues/223",
    needs=(RDMA,),
)
def nic_port_not_active(context: Context) -> Iterator[Seen]:
    chosen = setting(context, "NCCL_IB_HCA")
    every = nics.ports(context.node)
    ports = nics.fabric(context)
    if chosen and every and not ports:
        names = ", ".join(nic.label for nic in every)
        yield bad(f"{told(context, 'NCCL_IB_HCA')} lets no port through; there are {names}", fix="Correct NCCL_IB_HCA.")
    for nic in ports:
        if isinstance(nic.port.state, Absent):
            yield unread(f"{nic.label} state", nic.port.state)
            continue
        phys = value_or(nic.port.phys_state, "")
        text = f"{nic.label}: {nic.port.state}{f', {phys}' if phys else ''} (sysfs)"
        if nic.active and phys.replace("_", "").lower() in ("", "linkup"):
            yield good(text)
        elif not chosen and adapters.not_wired(nic, every):
            yield good(f"{text}; the same port is down on every card of its kind: not in use")
        else:
            yield bad(text)


@check(
    "NIC-ACTIVE-RATE",
    area="rdma",
    severity="fail",
    title="A fabric port runs below the rate of its sisters",
    why="All-to-all is as slow as its slowest rail.",
    fix="Replace or reseat cable and optic; check speed and FEC of the switch port.",
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html "
    "https://github.com/Azure/azurehpc-health-checks/blob/main/conf/nd96isr_h200_v5.conf",
    needs=(RDMA,),
)
def nic_active_rate(context: Context) -> Iterator[Seen]:
    ports = adapters.sisters(context)
    rates: dict[str, float] = {}
    for nic in ports:
        rate = nics.nominal_gbps(nic, context.node)
        if isinstance(rate, Absent):
            yield unread(f"{nic.label} rate", rate)
        else:
            rates[nic.label] = rate
    for nic in ports:
        if nic.label in rates:
            yield _rate(context, nic, ports, rates)


def _rate(context: Context, nic: Nic, ports: tuple[Nic, ...], rates: dict[str, float]) -> Seen:
    """A card of another kind may be slower by nature: it counts only where NCCL_IB_HCA names it beside faster ones."""
    named = setting(context, "NCCL_IB_HCA") is not None
    others = [other for other in ports if named or nics.kind(other) == nics.kind(nic)]
    best = max(rates[other.label] for other in others if other.label in rates)
    rate, able = rates[nic.label], adapters.family_gbps(nic)
    lanes = nic.port.width_lanes
    width = f" on {lanes} lane{'s' if lanes > 1 else ''}" if isinstance(lanes, int) and lanes < 4 else ""
    text = f"{nic.label}: {rate:g} Gb/s{width} (sysfs), fastest sister port {best:g} Gb/s"
    if rate < best:
        alike = any(nics.kind(other) == nics.kind(nic) and rates.get(other.label, 0) > rate for other in ports)
        below = alike if able is None else rate < able
        severity: Severity = "fail" if below else "warn"
        known_as = f", this adapter can do {able:g} Gb/s" if able and below else ""
        return bad(f"{text}{known_as}", severity=severity)
    if lanes == 1 and nic.is_ib:
        return bad(text, severity="warn")  # no InfiniBand cable has one lane: three of four are lost
    return good(text)


@check(
    "IB-NO-SM",
    area="rdma",
    severity="fail",
    title="No subnet manager reaches an InfiniBand port",
    why="Without one the port gets no LID and stays in Init, or cannot reach its peers.",
    fix="Start the subnet manager (opensm, UFM or the switch's own) and check the partition membership of the port.",
    commands=("sudo sminfo", "ibstat"),
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    needs=(IB,),
)
def ib_no_sm(context: Context) -> Iterator[Seen]:
    for nic in nics.fabric(context):
        if not nic.is_ib:
            continue
        state = nic.port.state
        if isinstance(state, Absent):
            yield unread(f"{nic.label} state", state)
        elif state == "INIT":
            yield bad(f"{nic.label}: the link is up, the port stays in INIT (sysfs)")
        elif state in ("ACTIVE", "ARMED"):
            lid = nic.port.sm_lid
            if isinstance(lid, Absent):
                yield unread(f"{nic.label} SM LID", lid)
            else:
                text = f"{nic.label}: {state}, LID of the subnet manager {lid} (sysfs)"
                yield good(text) if lid else bad(text)


@check(
    "NIC-LAG-HALF-RATE",
    area="rdma",
    severity="warn",
    title="The verbs rate of a bonded card is that of one member",
    why="DeepEP takes this rate for the card's: it computes too few SMs, and dispatch and combine stay below the link.",
    fix="Pass num_sms by hand, or a DeepEP that reads /sys/class/net/<interface>/speed.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/614 https://github.com/deepseek-ai/DeepEP/issues/618 "
    "https://github.com/deepseek-ai/DeepEP/issues/671 https://github.com/deepseek-ai/DeepEP/issues/705",
    needs=(RDMA, wants("ibstat")),
)
def nic_lag_half_rate(context: Context) -> Iterator[Seen]:
    for nic in nics.fabric(context):
        if not nic.active:
            continue
        rate = known(nic.port.rate_gbps, f"{nic.label} rate")
        speeds = [value_or(entry.speed_mbps, 0) / 1000 for entry in nics.netdevs(nic, context.node)]
        fastest = max(speeds, default=0.0)
        if fastest > rate:
            yield bad(f"{nic.label}: verbs rate {rate:g} Gb/s (sysfs), its interface runs at {fastest:g} Gb/s")
        elif nics.is_bond(nic, context.node) and fastest <= 0:
            yield bad(f"{nic.label}: a bond with a verbs rate of {rate:g} Gb/s; its interface tells no speed")
        else:
            yield good(f"{nic.label}: verbs rate {rate:g} Gb/s (sysfs), no interface is faster")


@check(
    "NIC-MODULE-HOT",
    area="rdma",
    severity="warn",
    title="An optical module reported that it is too hot",
    why="Hot modules drop the link or raise its error rate under load.",
    fix="Restore the airflow; replace the module if it comes back.",
    reference="https://github.com/leptonai/gpud/blob/main/components/accelerator/nvidia/infiniband/kmsg_matcher.go",
    needs=(RDMA,),
)
def nic_module_hot(context: Context) -> Iterator[Seen]:
    lines = known(context.node.gpu.driver.kernel_log, "kernel log")
    hot = [entry.line for entry in lines if entry.topic == "mlx5_module_hot"]
    for line in dict.fromkeys(hot):
        yield bad(f"kernel log: {line}")
    if not hot:
        yield good("no high-temperature event of an optical module in this boot (kernel log)")


@check(
    "NIC-RETRANS",
    area="rdma",
    severity="warn",
    title="A port has lost or reordered many packets since boot",
    why="Lost packets are sent again after a timeout: throughput sags and latency grows tails without any link error.",
    fix="RoCE: check that PFC and ECN cover the class of this traffic on host and switches. InfiniBand: check cables and "
    "adaptive routing. Watch the counters during a run, rail by rail.",
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html "
    "https://github.com/NVIDIA/nccl/issues/394",
    needs=(MLX5,),
)
def nic_retrans(context: Context) -> Iterator[Seen]:
    for nic in nics.fabric(context):
        if not nic.active or nic.device.driver != "mlx5_core":
            continue
        if isinstance(nic.port.hw_counters, Absent):
            yield unread(f"{nic.label} hw_counters", nic.port.hw_counters)
            continue
        counted = {name: value for name, value in nic.port.hw_counters if name in LOSS_COUNTERS}
        if not counted:
            yield unread(f"{nic.label} loss counters", Absent("not_found", "hw_counters has none of them"))
            continue
        yield _losses(nic, {name: value for name, value in counted.items() if value})


def _losses(nic: Nic, losses: dict[str, int]) -> Seen:
    total = sum(losses.values())
    text = f"{nic.label}: {', '.join(f'{name} {value}' for name, value in losses.items()) or 'no losses'} since boot"
    if total < MIN_LOSSES:
        return good(text)
    counters = dict(value_or(nic.port.counters, ()))
    packets = counters.get("port_xmit_packets", 0) + counters.get("port_rcv_packets", 0)
    if not packets:
        return unread(f"{text}; packets of {nic.label}", Absent("not_found", "no packet counter"))
    text += f", {total / packets:.1e} of {packets} packets (sysfs)"
    lines = (f"rdma statistic show link {shlex.quote(f'{nic.device.name}/{nic.port.port}')}",)
    return bad(text, commands=lines) if total > LOSS_SHARE * packets else good(text)
