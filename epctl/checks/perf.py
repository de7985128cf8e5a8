"""Performance: what slows EP down without stopping it, as far as one node shows it without traffic."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from epctl.checks.nvlink import nvlink_lines
from epctl.core.check import Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Gpu
from epctl.core.snapshot.rdma import RdmaDevice
from epctl.core.views import nics, pcie
from epctl.core.views.needs import IB, NVML, RDMA, ROCE
from epctl.core.views.nics import Nic
from epctl.core.wording import counted

THROTTLES: tuple[tuple[int, str, Severity], ...] = (
    (0x8, "hardware slowdown", "fail"),
    (0x40, "hardware thermal slowdown", "fail"),
    (0x80, "power brake", "fail"),
    (0x20, "software thermal slowdown", "warn"),
)
"""Bits of NVML's clock event reasons (nvml.h) that slow a GPU down for a fault; severities of
Azure/azurehpc-health-checks azure_gpu_clock_throttling.nhc. Idle (0x1) and software power cap (0x4) are normal."""

ERRORS = ("symbol_error", "link_error_recovery", "port_rcv_errors", "port_xmit_discards")
"""InfiniBand counters that stand still on a sound cable (NCCL user guide, networking troubleshooting)."""

_TRAFFIC = re.compile(r"[tr]x_(?:packets|bytes|data)|data_[tr]x|fec_|.*_ber\Z|.*(?:successful|total)")
"""NVLink counters that say nothing of errors: traffic, corrected symbols, recoveries that succeeded."""


@check(
    "PERF-GPU-THROTTLE",
    area="perf",
    severity="fail",
    title="A GPU is slowed down by heat or by its power supply",
    why="One slow rank is late in every step, and expert parallelism waits for it.",
    fix="Check cooling and power feeds; swap the node if it stays.",
    reference="https://github.com/Azure/azurehpc-health-checks/blob/main/customTests/azure_gpu_clock_throttling.nhc "
    "https://github.com/leptonai/gpud/blob/main/components/accelerator/nvidia/hw-slowdown/component.go "
    "https://github.com/NVIDIA/nccl/issues/893",
    needs=(NVML,),
)
def perf_gpu_throttle(context: Context) -> Iterator[Seen]:
    for gpu in pcie.gpus(context.node):
        mask = gpu.clock_event_reasons
        if isinstance(mask, Absent):
            if mask.absent != "unsupported":
                yield unread(f"GPU {gpu.index} clock event reasons", mask)
            continue
        hit = [(what, severity) for bit, what, severity in THROTTLES if mask & bit]
        for what, severity in hit:
            lines = (f"nvidia-smi -q -i {gpu.index} -d PERFORMANCE,TEMPERATURE,POWER",)
            text = f"GPU {gpu.index}: {what} (NVML reasons 0x{mask:x}{_heat(gpu)})"
            yield bad(text, severity=severity, commands=lines)
        if not hit:
            yield good(f"GPU {gpu.index}: no slowdown (NVML reasons 0x{mask:x})")


def _heat(gpu: Gpu) -> str:
    return "".join(
        f", {value:.0f} {unit}"
        for value, unit in ((gpu.temperature_c, "°C"), (gpu.power_w, "W"))
        if not isinstance(value, Absent)
    )


@check(
    "PERF-NVLINK-BW-FLOOR",
    area="perf",
    severity="fail",
    title="NVLinks of a GPU are slower than those of its sisters, or show errors",
    why="Collectives inside the node run at the pace of the worst link.",
    fix="Drain the node, reset the GPU and compare again, measure with `epctl bench`; have the board or cable replaced if it stays.",
    reference="https://github.com/Azure/azurehpc-health-checks/blob/main/conf/nd96isr_h200_v5.conf "
    "https://github.com/Azure/azurehpc-health-checks/blob/main/customTests/azure_gpu_nvlink.nhc",
    needs=(NVML,),
)
def perf_nvlink_bw_floor(context: Context) -> Iterator[Seen]:
    gpus = [gpu for gpu in pcie.gpus(context.node) if gpu.links]
    for gpu in gpus:
        yield from _unread_speeds(gpu)
        sisters = [other for other in gpus if other.name == gpu.name]
        fastest = max(speed for other in sisters for speed in (*_speeds(other).values(), 0.0))
        slow = {link: speed for link, speed in _speeds(gpu).items() if speed < fastest}
        if slow:
            told = ", ".join(f"link {link} {speed:g}" for link, speed in slow.items())
            yield bad(
                f"GPU {gpu.index}: {told} GB/s, the fastest of its kind {fastest:g} GB/s (NVML)",
                commands=nvlink_lines(context.node, gpu),
            )
        yield from _link_errors(context.node, gpu)
        if _speeds(gpu):
            yield good(
                f"GPU {gpu.index}: {counted(len(_speeds(gpu)), 'link')} of {fastest:g} GB/s each way, {_counters(gpu)} (NVML); "
                "link states alone, the bandwidth itself takes traffic (`epctl bench`)"
            )


def _unread_speeds(gpu: Gpu) -> Iterator[Seen]:
    if isinstance(gpu.links, Absent):
        if gpu.links.absent != "unsupported":
            yield unread(f"GPU {gpu.index} NVLinks", gpu.links)
        return
    for link in gpu.links:
        if link.active is True and isinstance(link.speed_gbs, Absent):
            yield unread(f"GPU {gpu.index} speed of NVLink {link.link}", link.speed_gbs)


def _speeds(gpu: Gpu) -> dict[int, float]:
    return {
        link.link: speed
        for link in value_or(gpu.links, ())
        if link.active is True and (speed := value_or(link.speed_gbs, 0.0)) > 0
    }


def _counters(gpu: Gpu) -> str:
    told = [link for link in value_or(gpu.links, ()) if link.active is True]
    read = sum(isinstance(link.errors, tuple) and bool(link.errors) for link in told)
    return f"error counters of {read} at rest" if read else "error counters not told"


def _link_errors(node: Snapshot, gpu: Gpu) -> Iterator[Seen]:
    """Recoveries are interruptions of the link; other counters may hold a few replays from training it."""
    for link in value_or(gpu.links, ()):
        errors = {name: count for name, count in value_or(link.errors, ()) if count and not _TRAFFIC.match(name)}
        if errors:
            told = ", ".join(f"{name} {count}" for name, count in errors.items())
            severity: Severity = "warn" if any("recovery" in name for name in errors) else "info"
            lines = nvlink_lines(node, gpu)[: None if severity == "warn" else 2]
            text = f"GPU {gpu.index} link {link.link}: {told} since the driver started"
            yield bad(text, severity=severity, commands=lines)


@check(
    "PERF-AR-OFF",
    area="perf",
    severity="warn",
    title="Adaptive routing is switched off for NCCL on InfiniBand",
    why="All-to-all traffic then meets hot links and long tails; DeepEP's authors ask for adaptive routing under all loads.",
    fix="Unset NCCL_IB_ADAPTIVE_ROUTING (on by default on InfiniBand), and enable AR for the service level in the subnet manager.",
    commands=("unset NCCL_IB_ADAPTIVE_ROUTING",),
    reference="https://github.com/deepseek-ai/DeepEP#network-configurations https://github.com/NVIDIA/nccl-tests/issues/106 "
    "https://github.com/NVIDIA/nccl-tests/issues/199",
    needs=(IB,),
)
def perf_ar_off(context: Context) -> Iterator[Seen]:
    value = context.env.get("NCCL_IB_ADAPTIVE_ROUTING", "")
    if value.strip() == "0":
        yield bad("NCCL_IB_ADAPTIVE_ROUTING=0 on InfiniBand", severity="info" if context.num_nodes == 1 else None)
    else:
        yield good(f"NCCL_IB_ADAPTIVE_ROUTING={value or '(unset, on by default on InfiniBand)'}")


@check(
    "PERF-ROCE-PATH-SPREAD",
    area="perf",
    severity="info",
    title="NCCL sends each connection over one path of the Ethernet fabric",
    why="These are NCCL's defaults. Where flows hash to few of the equal-cost paths, bandwidth stays near half of the node's rails.",
    fix="Measure between nodes; below 60 % of the rails' rate try NCCL_IB_QPS_PER_CONNECTION=4 with NCCL_IB_SPLIT_DATA_ON_QPS=1, or "
    "adaptive routing where the fabric has it, and compare.",
    commands=("export NCCL_IB_QPS_PER_CONNECTION=4 NCCL_IB_SPLIT_DATA_ON_QPS=1",),
    reference="https://github.com/NVIDIA/cluster-readiness-engine/issues/287 "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    needs=(ROCE,),
)
def perf_roce_path_spread(context: Context) -> Iterator[Seen]:
    ports = [nic for nic in nics.fabric(context) if nic.is_roce and nic.active]
    if not ports:
        return
    env = context.env
    pairs = env.get("NCCL_IB_QPS_PER_CONNECTION", "1").strip()
    spread = [name for name in ("NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_ADAPTIVE_ROUTING") if name in env]
    if pairs in ("", "0", "1") and not spread:
        text = f"{counted(len(ports), 'RoCE port')}; NCCL_IB_QPS_PER_CONNECTION is {pairs or 'unset'}"
        yield bad(f"{text}, splitting and adaptive routing are unset")
    else:
        told = ", ".join(f"{name}={env[name]}" for name in spread) or "no other setting"
        yield good(f"NCCL_IB_QPS_PER_CONNECTION={pairs}, {told}")


@check(
    "PERF-CC-ON",
    area="perf",
    severity="info",
    title="Congestion control has slowed InfiniBand traffic down",
    why="It reduces rates below what an idle fabric carries; DeepEP's authors measure their peak without it.",
    fix="Consider congestion control off for the lane of EP, or put other traffic on lanes of lower priority.",
    reference="https://github.com/deepseek-ai/DeepEP#network-configurations",
    needs=(IB,),
)
def perf_cc_on(context: Context) -> Iterator[Seen]:
    for nic in nics.fabric(context):
        if not nic.is_ib:
            continue
        counters = nic.port.hw_counters
        if isinstance(counters, Absent):
            if counters.absent not in ("not_found", "unsupported"):
                yield unread(f"{nic.label} hw_counters", counters)
            continue
        handled = dict(counters).get("rp_cnp_handled")
        if handled:
            yield bad(f"{nic.label}: rp_cnp_handled is {handled}: it has obeyed congestion notifications (sysfs)")
        elif handled == 0:
            yield good(f"{nic.label}: rp_cnp_handled is 0 (sysfs)")


@check(
    "PERF-IB-ERR-COUNTERS",
    area="perf",
    severity="warn",
    title="An InfiniBand port has error counts",
    why="Behind them is mostly a bad cable or optic: the link is up, and slower than its sisters at full load.",
    fix="Read the counters again after a minute of traffic; if they grow, clean or replace the cable and look at mlxlink's error rates.",
    commands=("perfquery -x",),
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html "
    "https://docs.nvidia.com/networking/display/mftv4300/mlxlink+utility",
    needs=(IB,),
)
def perf_ib_err_counters(context: Context) -> Iterator[Seen]:
    ports = [nic for nic in nics.fabric(context) if nic.is_ib]
    least = min((_counter(nic, "link_downed") for nic in ports), default=0)
    for nic in ports:
        if isinstance(nic.port.counters, Absent):
            if nic.port.counters.absent not in ("not_found", "unsupported"):
                yield unread(f"{nic.label} counters", nic.port.counters)
            continue
        found = list(_port_errors(context, nic, least))
        yield from found
        if not found:
            yield good(f"{nic.label}: no errors counted (sysfs)")


def _counter(nic: Nic, name: str) -> int:
    return dict(value_or(nic.port.counters, ())).get(name, 0)


def _port_errors(context: Context, nic: Nic, least: int) -> Iterator[Seen]:
    """Counts since the driver was loaded. Less than one an hour, or a link that went down as often as all its sisters (switch
    maintenance, boot), is told as info only."""
    uptime = context.node.host.uptime_s
    for name in ERRORS:
        count = _counter(nic, name)
        if count:
            rare = isinstance(uptime, int) and count * 3600 < uptime
            since = f" in {uptime / 3600:.1f} h since boot" if isinstance(uptime, int) else ""
            text = f"{nic.label}: {name} is {count}{since} (sysfs)"
            yield bad(text, severity="info" if rare else None, commands=_cable(nic))
    downed = _counter(nic, "link_downed")
    if downed:
        text = f"{nic.label}: link_downed is {downed}, the least among its sisters {least} (sysfs)"
        yield bad(text, severity=None if downed > least else "info", commands=_cable(nic))


def _cable(nic: Nic) -> tuple[str, ...]:
    """The port's counters, and what mlxlink says of its cable."""
    name, port = shlex.quote(nic.device.name), nic.port.port
    lines = (f"perfquery -x -C {name} -P {port}",)
    mlx5 = value_or(nic.device.driver, "mlx5_core") == "mlx5_core"
    return (*lines, f"sudo mlxlink -d {name}{f' -p {port}' if port > 1 else ''} -c -e") if mlx5 else lines


@check(
    "PERF-NCCL-NIC-FW",
    area="perf",
    severity="info",
    title="Cards of one kind have different firmware",
    why="Dual-port and multi-queue set-ups are sensitive to it: the same code is slower or faulty with one of the levels.",
    fix="On drained nodes bring all cards of a kind to one firmware level that was tested with your NCCL.",
    commands=("sudo mlxfwmanager --query",),
    reference="https://github.com/Infrawaves/DeepEP_ibrc_dual-ports_multiQP/issues/4 "
    "https://github.com/Mellanox/network-operator/pull/1339",
    needs=(RDMA,),
)
def perf_nccl_nic_fw(context: Context) -> Iterator[Seen]:
    kinds: dict[str, dict[str, list[str]]] = {}
    for device in nics.devices(context.node):
        if isinstance(device.firmware, Absent) and device.firmware.absent in ("not_found", "unsupported"):
            continue
        version = known(device.firmware, f"{device.name} firmware")
        kinds.setdefault(_kind(device), {}).setdefault(version, []).append(device.name)
    for kind, versions in kinds.items():
        told = "; ".join(f"{version}: {', '.join(names)}" for version, names in versions.items())
        yield bad(f"{kind}: firmware {told} (sysfs)") if len(versions) > 1 else good(f"{kind}: firmware {told} (sysfs)")


def _kind(device: RdmaDevice) -> str:
    """Board (its PSID), else card type, else driver."""
    return next(
        (fact for fact in (device.board_id, device.ca_type, device.driver) if isinstance(fact, str) and fact), "cards"
    )
