"""NVLink: are all links up, does every pair have them, can multicast (NVLS) be bound?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from epctl.checks.gpu import pairs
from epctl.checks.gpu_errors import NVLINK5_XIDS
from epctl.core.check import Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Gpu
from epctl.core.views import fabric, pcie
from epctl.core.views.needs import GPU, NVML, NVSWITCH, SEVERAL_GPUS
from epctl.core.views.versions import major
from epctl.core.wording import counted, ranges

_EIGHTEEN = re.compile(r"\b(H100|H200|B200|B300|GB200|GB300)\b(?!.*\b(PCIe|NVL)\b)")
_TWELVE = re.compile(r"\bA100-SXM")
"""Links of boards that have all of them wired (NVIDIA data sheets; Azure/azurehpc-health-checks azure_gpu_nvlink.nhc)."""

NVLINK_XID = 74
IMEX_CLASS_SINCE = 550
"""Driver branch from which the module registers nvidia-caps-imex-channels by itself (NVIDIA/open-gpu-kernel-modules)."""
_FATAL_SXID = re.compile(r"SXid.*(?<!Non-)(?<!Non)\bFatal\b", re.IGNORECASE)


@check(
    "NVLINK-INACTIVE",
    area="gpu",
    severity="fail",
    title="NVLinks of a GPU are down",
    why="The GPU is slower than its peers, or cannot reach them over NVLink at all.",
    fix="Drain the node, then reset the GPU (on the host); if the link stays down, have the baseboard, bridge or cable replaced.",
    reference="https://github.com/Azure/azurehpc-health-checks/blob/main/customTests/azure_gpu_nvlink.nhc "
    "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1150",
    needs=(NVML,),
)
def nvlink_inactive(context: Context) -> Iterator[Seen]:
    gpus = pcie.gpus(context.node)
    for gpu in gpus:
        if isinstance(gpu.links, Absent):
            if gpu.links.absent != "unsupported":
                yield unread(f"GPU {gpu.index} NVLinks", gpu.links)
        elif gpu.links:
            yield _links_of(context.node, gpu, gpus)


def _links_of(node: Snapshot, gpu: Gpu, gpus: tuple[Gpu, ...]) -> Seen:
    links = value_or(gpu.links, ())
    for link in links:
        if isinstance(link.active, Absent) and link.active.absent != "unsupported":
            return unread(f"GPU {gpu.index} NVLink {link.link}", link.active)
    active = _active(gpu)
    wanted = _wired(gpu, gpus)
    down = ranges(link.link for link in links if link.active is False)
    text = f"GPU {gpu.index}: {active} of {counted(wanted, 'NVLink')} {'is' if wanted == 1 else 'are'} active (NVML)"
    if active >= wanted:
        return good(text) if wanted else good(f"GPU {gpu.index}: no NVLink is wired on any GPU of this kind (NVML)")
    if not active and len(gpus) == 1 and value_or(node.host.virtualization, "none") != "none":
        return good(f"GPU {gpu.index}: NVLinks are off, as they are for a virtual machine with one GPU")
    return bad(text + (f"; down: {down}" if down else ""), commands=nvlink_lines(node, gpu))


def nvlink_lines(node: Snapshot, gpu: Gpu) -> tuple[str, ...]:
    """A look at the links of one GPU and, where this is the host, its reset."""
    look = (f"nvidia-smi nvlink -s -i {gpu.index}", f"nvidia-smi nvlink -e -i {gpu.index}")
    inside = value_or(node.host.container, "none") != "none"
    return look if inside else (*look, f"sudo nvidia-smi --gpu-reset -i {gpu.index}")


def _active(gpu: Gpu) -> int:
    return sum(link.active is True for link in value_or(gpu.links, ()))


def _wired(gpu: Gpu, gpus: tuple[Gpu, ...]) -> int:
    """Links this GPU should have: by its name, else as many as the best GPU of the same name. A PCIe card without a bridge
    lists its links as inactive, and so do its sisters."""
    name = value_or(gpu.name, "")
    if _EIGHTEEN.search(name):
        return 18
    if _TWELVE.search(name):
        return 12
    return max(_active(other) for other in gpus if other.name == gpu.name)


@check(
    "NVLINK-PAIRWISE-ONLY",
    area="gpu",
    severity="fail",
    title="Not every pair of GPUs is joined by NVLink",
    why="PCIe cards have NVLink only between bridged neighbours, and DeepEP asks for it between every pair of the node.",
    fix="Limit EP to the bridged pair of a node, or use SXM or HGX systems.",
    commands=("nvidia-smi topo -p2p n",),
    reference="https://github.com/deepseek-ai/DeepEP/blob/main/deep_ep/utils/envs.py",
    needs=(SEVERAL_GPUS,),
)
def nvlink_pairwise_only(context: Context) -> Iterator[Seen]:
    severity: Severity | None = None if context.wants("nvlink") else "warn"
    gpus = pcie.gpus(context.node)
    cards = [gpu.index for gpu in gpus if "PCIE" in value_or(gpu.name, "").upper()]
    if cards and len(gpus) > 2:
        yield bad(
            f"{len(cards)} of {len(gpus)} GPUs are PCIe cards, which DeepEP takes in pairs only", severity=severity
        )
    table = known(context.node.gpu.p2p, "P2P status (NVML)")
    without = [(entry.a, entry.b) for entry in table if isinstance(entry.nvlink, str) and entry.nvlink != "ok"]
    for entry in table:
        if isinstance(entry.nvlink, Absent):
            yield unread(f"NVLink P2P status of {entry.a}→{entry.b}", entry.nvlink)
    if without:
        yield bad(
            f"no NVLink in {len(without)} of {len(table)} ordered pairs (NVML): {pairs(without)}", severity=severity
        )
    elif table:
        yield good(f"NVLink joins all {len(table)} ordered pairs (NVML)")


@check(
    "NVLINK-SPEED-UNREADABLE",
    area="gpu",
    severity="warn",
    title="DeepEP cannot read NVLink speeds from nvidia-smi",
    why="It parses `nvidia-smi nvlink -s`; without speed lines it picks odd SM counts, and 2.5 stops in its bucket collectives.",
    fix="Put nvidia-smi into the image (NVIDIA_DRIVER_CAPABILITIES with utility), and check the links.",
    commands=("nvidia-smi nvlink -s -i 0",),
    reference="https://pypi.org/project/deepinfer-ep/2.5.0/",
    needs=(GPU,),
)
def nvlink_speed_unreadable(context: Context) -> Iterator[Seen]:
    if _no_link_up(value_or(context.node.gpu.gpus, ())):
        return  # no speed to print: a guest with one GPU, PCIe cards; NVLINK-INACTIVE tells links that should be up
    severity: Severity | None = "fail" if context.profile("deepep-2.5") else None
    tool, lines = context.node.gpu.driver.nvidia_smi, context.node.gpu.nvlink_status_lines
    if isinstance(tool, Absent) and tool.absent in ("not_found", "tool_missing"):
        yield bad("nvidia-smi is not on PATH", severity=severity)
    elif lines is True:
        yield good("nvidia-smi nvlink -s prints GB/s lines for GPU 0")
    elif isinstance(lines, Absent):
        yield unread("nvidia-smi nvlink -s", lines)
    else:
        yield bad(f"{value_or(tool, 'nvidia-smi')} nvlink -s prints no GB/s line for GPU 0", severity=severity)


def _no_link_up(gpus: tuple[Gpu, ...]) -> bool:
    """NVML says of every GPU that it has no NVLink, or none that is active."""
    states = [
        state
        for gpu in gpus
        for state in ([gpu.links] if isinstance(gpu.links, Absent) else [link.active for link in gpu.links])
    ]
    return bool(gpus) and not any(
        state is True or (isinstance(state, Absent) and state.absent != "unsupported") for state in states
    )


@check(
    "NVLINK-RXDET-KMSG",
    area="gpu",
    severity="warn",
    title="The driver could not detect NVLink receivers at boot",
    why="Such a link does not come up, and NVLink stays down or incomplete.",
    fix="Drain the node and power-cycle it; if the lines come back, treat it as an NVLink hardware fault.",
    commands=("sudo dmesg -T | grep -i rx-det",),
    reference="https://github.com/leptonai/gpud/blob/main/components/accelerator/nvidia/nvlink/kmsg.go",
    needs=(GPU,),
)
def nvlink_rxdet_kmsg(context: Context) -> Iterator[Seen]:
    lines = [
        entry.line for entry in known(context.node.gpu.driver.kernel_log, "kernel log") if entry.topic == "nvlink_rxdet"
    ]
    if lines:
        yield bad(f"{counted(len(lines), 'line')} in the kernel log, the first: {lines[0]}")
    else:
        yield good("no line on the post-Rx-detect link mask in the kernel log")


def _nvls_severity(context: Context) -> Severity | None:
    """NCCL does not bind multicast memory when it was told not to use NVLS."""
    variables = context.node.env.variables
    return "warn" if isinstance(variables, tuple) and context.env.get("NCCL_NVLS_ENABLE") == "0" else None


def _judge_nvls(context: Context, wrong: list[tuple[str, Severity | None]], looked: list[str]) -> Iterator[Seen]:
    """`looked`: what was found in order; empty where nothing could be looked at, which is no reason to pass."""
    multicast = fabric.multicast(context.node)
    if multicast is False:
        yield good("no GPU offers NVLink multicast (CUDA attribute), so NCCL does not use NVLS")
    elif not wrong and looked:
        yield good(f"{'; '.join(looked)}; the bind itself was not tried, because it can hang a machine")
    elif not wrong:
        return
    elif isinstance(multicast, Absent):
        yield unread(f"whether the GPUs offer NVLink multicast ({wrong[0][0]})", multicast)
    else:
        lowered = _nvls_severity(context)
        note = "; NCCL_NVLS_ENABLE=0 keeps NCCL from using it" if lowered else ""
        for text, severity in wrong:
            yield bad(f"the GPUs offer NVLink multicast, but {text}{note}", severity=lowered or severity)


@check(
    "NVLS-BIND-401",
    area="gpu",
    severity="fail",
    title="NVLink multicast (NVLS) is offered, but what it stands on is not in order",
    why="NCCL then stops at init while it binds multicast memory, with CUDA error 401 or 1.",
    fix="Start the fabric manager; where GPUs stay unregistered, drain the node and reset them. As a stop-gap set "
    "NCCL_NVLS_ENABLE=0, which costs bandwidth.",
    commands=("systemctl status nvidia-fabricmanager", "nvidia-smi -q | grep -A 4 Fabric"),
    reference="https://github.com/NVIDIA/nccl/issues/1672 https://github.com/pytorch/pytorch/issues/177472 "
    "https://github.com/pytorch/ci-infra/pull/541",
    needs=(NVSWITCH, SEVERAL_GPUS),
)
def nvls_bind_401(context: Context) -> Iterator[Seen]:
    node = context.node
    state = fabric.service(node, fabric.FABRIC_MANAGER)
    runs = fabric.runs(node, fabric.FABRIC_MANAGER)
    elsewhere = fabric.managed_elsewhere(node)
    wrong: list[tuple[str, Severity | None]] = []
    if isinstance(state, str) and runs is not True and not elsewhere:
        # It may run unseen in a container of this host, where the fabric works.
        unseen = isinstance(runs, Absent) and fabric.registered(node) and node.active.cu_init == 0
        wrong.append((fabric.told(node, fabric.FABRIC_MANAGER), "warn" if unseen else None))
    wrong += [
        (f"GPU {gpu.index} is not registered: {gpu.fabric_state}, status {gpu.fabric_status}", None)
        for gpu in pcie.gpus(node)
        if fabric.registers(gpu) and (gpu.fabric_state != "completed" or value_or(gpu.fabric_status, 0) != 0)
    ]
    if node.host.imex_in_proc_devices is False and _should_have_imex_class(node):
        # Without channels only allocations that cross nodes are refused, unless the whole rack is one NVLink domain.
        severity: Severity | None = None if fabric.is_mnnvl(node) else "warn"
        wrong.append(("nvidia-caps-imex-channels is not in /proc/devices", severity))
    if isinstance(runs, Absent) and not elsewhere and not wrong:
        yield unread(f"state of {fabric.FABRIC_MANAGER}", runs)
        return
    for gpu in () if wrong else pcie.gpus(node):
        if isinstance(gpu.fabric_state, Absent) and gpu.fabric_state.absent != "unsupported":
            yield unread(f"GPU {gpu.index} fabric state", gpu.fabric_state)
            return
    looked = [fabric.told(node, fabric.FABRIC_MANAGER)] if runs is True else [elsewhere]
    if fabric.works(node):
        looked.append("all GPUs are registered" if fabric.registered(node) else "all NVLinks are up")
    elif elsewhere:
        looked = []
    yield from _judge_nvls(context, wrong, looked)


def _should_have_imex_class(node: Snapshot) -> bool:
    branch = major(value_or(node.gpu.driver.kernel_version, ""))
    return branch is not None and branch >= IMEX_CLASS_SINCE


@check(
    "NVLS-BIND-HANG",
    area="gpu",
    severity="fail",
    title="NVLink multicast (NVLS) is offered over a switch path that is damaged",
    why="Binding multicast memory waits for every member; over a broken path NCCL hangs at init with four GPUs or more.",
    fix="Treat it as an NVSwitch fault: drain the node, restart the fabric manager and reset the GPUs (both end every job); until "
    "then NCCL_NVLS_ENABLE=0.",
    commands=("nvidia-smi nvlink -s", "sudo dmesg -T | grep -iE 'xid|nvswitch'"),
    reference="https://github.com/NVIDIA/nccl-tests/issues/216",
    needs=(NVSWITCH, SEVERAL_GPUS),
)
def nvls_bind_hang(context: Context) -> Iterator[Seen]:
    gpus = pcie.gpus(context.node)
    if len(gpus) <= 2:
        return
    wrong: list[tuple[str, Severity | None]] = [(text, None) for text in dict.fromkeys(_damage(context.node, gpus))]
    for gpu in () if wrong else gpus:
        if isinstance(gpu.links, Absent) and gpu.links.absent != "unsupported":
            yield unread(f"GPU {gpu.index} NVLinks", gpu.links)
            return
    looked = [f"{sum(map(_active, gpus))} NVLinks of {len(gpus)} GPUs are up (NVML)"] if any(map(_active, gpus)) else []
    log = isinstance(context.node.gpu.driver.xids, tuple) and isinstance(context.node.gpu.driver.kernel_log, tuple)
    looked += [f"kernel log {'without NVLink or NVSwitch errors' if log else 'not readable'}"] if looked else []
    yield from _judge_nvls(context, wrong, looked)


def _damage(node: Snapshot, gpus: tuple[Gpu, ...]) -> Iterator[str]:
    for gpu in gpus:
        active, wired = _active(gpu), _wired(gpu, gpus)
        if isinstance(gpu.links, tuple) and active < wired:
            yield f"GPU {gpu.index} has {active} of {wired} NVLinks up"
        if gpu.fabric_health_summary == "unhealthy":
            yield f"the NVLink fabric of GPU {gpu.index} is unhealthy (NVML)"
    for xid in value_or(node.gpu.driver.xids, ()):
        if xid.code == NVLINK_XID or (xid.code in NVLINK5_XIDS and xid.fatal):
            yield f"the kernel log has Xid {xid.code} of {xid.pci}"
    for entry in value_or(node.gpu.driver.kernel_log, ()):
        if _FATAL_SXID.search(entry.line):
            yield f"the kernel log has {entry.line}"
