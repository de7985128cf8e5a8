"""Checks of GPU-initiated networking (GIN): which gate is closed, and what stands against its backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from epctl.core.check import Need, Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.views import devx, gin, libraries, nics, pcie, versions
from epctl.core.views.gin import GDAKI, SEVERAL_NODES, WANTED
from epctl.core.views.needs import CONTAINER, NVML, RDMA
from epctl.core.views.settings import is_off, is_on, number, setting, told
from epctl.core.wording import counted

IPC_LOCK = 1 << 14
"""Bit of CAP_IPC_LOCK in CapEff (capabilities(7))."""
FUSED_FIXED = "2.30.0"
"""From this NCCL on a merged adapter does not rule out GIN (NVIDIA/nccl#1993)."""
DIRECT_CONTEXTS, HYBRID_FAST, HYBRID_PLAIN = 17, 65, 129
"""Queue pairs a peer that DeepEP 2 allocates: direct mode, hybrid mode with and without fast atomics (profile deepep-2)."""
RAIL_FIXED = "2.30.5"
"""Up to 2.30.4 NCCL builds queue pairs to all ranks even when only the rail was asked for (NVIDIA/nccl#2137)."""


@check(
    "GIN-TYPE-NONE",
    area="nccl",
    severity="fail",
    title="A gate is closed, so NCCL offers no GIN",
    why="NCCL offers GPU-initiated networking only when every gate is open on every rank; with one closed, communicators "
    "report the type NONE and the EP library stops in an assertion that does not name the gate.",
    fix="Open the gates named in the evidence. EP inside one NVLink domain goes without GIN: set EP_DISABLE_GIN=1.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/629 https://github.com/deepseek-ai/DeepEP/issues/680 "
    "https://github.com/NVIDIA/nccl/blob/master/src/init.cc",
    needs=(WANTED,),
)
def gin_type_none(context: Context) -> Iterator[Seen]:
    if not libraries.nccl(context) and not gin.needed(context):
        return  # without NCCL, and nobody here to miss it
    every = gin.gates(context)
    closed = [gate for gate in every if gate.state == "closed"]
    if not closed:
        for gate in every:
            text = f"{gate.name}: {gate.state}, {gate.text}"
            yield good(text) if gate.state == "open" else Seen("unread", text)
        return
    severity: Severity | None = None
    if not gin.needed(context) and gin.one_nvlink_domain(context):
        severity = "info"
    for gate in closed:
        yield bad(f"{gate.name}: closed, {gate.text}", severity=severity, fix=gate.fix)
    rest = [f"{gate.name} {gate.state} ({gate.text})" for gate in every if gate.state != "closed"]
    if rest:
        yield bad("other gates: " + "; ".join(rest), severity=severity, fix=closed[-1].fix)


@check(
    "GIN-RAIL-ONLY",
    area="nccl",
    severity="fail",
    title="NCCL connects GIN along rails only",
    why="With NCCL_CROSS_NIC=0 a communicator offers rail connections and no full mesh, so direct (non-hybrid) mode stops.",
    fix="Use hybrid mode, or unset NCCL_CROSS_NIC where the network joins the rails.",
    reference="https://github.com/vllm-project/vllm/pull/57991 https://github.com/NVIDIA/nccl/blob/master/src/init.cc",
    needs=(WANTED, RDMA, SEVERAL_NODES),
)
def gin_rail_only(context: Context) -> Iterator[Seen]:
    cross = number(context, "NCCL_CROSS_NIC")
    only_deepep = number(context, "NCCL_GIN_CROSS_NIC")
    if cross == 0 and only_deepep:
        yield bad(
            f"{told(context, 'NCCL_CROSS_NIC')} decides, {told(context, 'NCCL_GIN_CROSS_NIC')} is read by DeepEP alone",
            severity="warn",
            fix="Make NCCL_CROSS_NIC and NCCL_GIN_CROSS_NIC agree.",
        )
    if cross != 0:
        yield good("NCCL_CROSS_NIC is not 0, full connections are possible")
    elif is_off(context, "VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE"):
        yield bad(
            f"{told(context, 'NCCL_CROSS_NIC')}, and direct mode is asked for: "
            f"{told(context, 'VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE')}"
        )
    else:
        yield bad(f"{told(context, 'NCCL_CROSS_NIC')}: hybrid mode works, direct mode does not", severity="info")


@check(
    "GIN-MIXED-RANKS",
    area="nccl",
    severity="fail",
    title="GPUs of this node differ in what GIN needs",
    why="All ranks must support the same GIN type; one GPU without GPUDirect for cuMem memory takes GIN from all of them.",
    fix="Take the odd GPU out of the job, or drain the node and bring it in line (passthrough mode, MIG, driver).",
    reference="https://github.com/deepseek-ai/DeepEP/pull/680 https://github.com/NVIDIA/nccl/blob/master/src/init.cc",
    needs=(WANTED, NVML),
)
def gin_mixed_ranks(context: Context) -> Iterator[Seen]:
    devices = known(context.node.active.devices, "CUDA device attributes (active probe)")
    told_by = {
        device.ordinal: (
            known(device.gdr_with_vmm, f"GPUDirect attribute of CUDA device {device.ordinal}"),
            known(device.dma_buf, f"DMA-BUF attribute of CUDA device {device.ordinal}"),
        )
        for device in devices
    }
    if len(set(told_by.values())) > 1:
        usual = Counter(told_by.values()).most_common(1)[0][0]
        for ordinal, (vmm, dma_buf) in told_by.items():
            if (vmm, dma_buf) != usual:
                yield bad(
                    f"CUDA device {ordinal}: GPUDirect for cuMem {vmm}, DMA-BUF {dma_buf}; most others {usual[0]}, {usual[1]}"
                )
    elif told_by:
        yield good(f"all CUDA devices ({len(told_by)}) agree on GPUDirect for cuMem and DMA-BUF")


@check(
    "GIN-NIC-FUSED-OLD",
    area="nccl",
    severity="fail",
    title="This NCCL offers no GIN on merged ports",
    why="NCCL before 2.30 rules GIN out as soon as it merges two ports of one card into one adapter.",
    fix="Upgrade NCCL to 2.30 or newer, or set NCCL_IB_MERGE_NICS=0.",
    commands=("export NCCL_IB_MERGE_NICS=0",),
    reference="https://github.com/NVIDIA/nccl/issues/1993",
    needs=(WANTED, RDMA),
)
def gin_nic_fused_old(context: Context) -> Iterator[Seen]:
    found = libraries.nccl(context)
    if not found:
        return
    if not versions.below(found, FUSED_FIXED):
        yield good(f"NCCL {found} offers GIN on merged ports, too")
        return
    if is_off(context, "NCCL_IB_MERGE_NICS"):
        yield good(f"{told(context, 'NCCL_IB_MERGE_NICS')}: ports are not merged")
        return
    cards: dict[str, list[str]] = {}
    for nic in nics.fabric(context):
        if nic.active and not nic.is_efa:
            card = known(nic.device.sys_image_guid, f"system image GUID of {nic.device.name}")
            cards.setdefault(card, []).append(nic.label)
    merged = {card: ports for card, ports in cards.items() if len(ports) > 1}
    for ports in merged.values():
        yield bad(f"{' and '.join(ports)} are ports of one card, NCCL {found} merges them")
    if cards and not merged:
        yield good("every active fabric port is a card of its own")


def _gdaki(context: Context) -> str:
    wanted = gin.gin_type(context) == GDAKI or (gin.gin_type(context) == gin.AUTO and bool(context.wants("gin_gdaki")))
    if not wanted:
        return "GIN GDAKI is not asked for"
    mlx5 = any(gin.driver(nic.device) == "mlx5_core" for nic in nics.ports(context.node))
    return "" if mlx5 else "no mlx5 adapter, so GDAKI is out of question"


GDAKI_WANTED = Need("gdaki", _gdaki)


@check(
    "GIN-GDAKI-DOCA21",
    area="nccl",
    severity="fail",
    title="The container may lack what GDAKI needs to make queues",
    why="GDAKI makes its queues through DevX verbs; without the device files or capabilities this ends in DOCA driver error 21.",
    fix="Give the container all RDMA devices and the capability IPC_LOCK (privileged only for a test); else NCCL_GIN_TYPE=2 where "
    "the library allows the proxy.",
    reference="https://github.com/NVIDIA/nccl/issues/1943",
    needs=(CONTAINER, RDMA, WANTED, GDAKI_WANTED),
)
def gin_gdaki_doca21(context: Context) -> Iterator[Seen]:
    nodes = known(context.node.rdma.uverbs, "/dev/infiniband/uverbs*")
    if not nodes:
        yield bad("/dev/infiniband holds no uverbs device")
    for entry in nodes:
        usable = entry.read_write
        if isinstance(usable, Absent):
            yield unread(entry.path, usable)
        elif not usable:
            yield bad(f"{entry.path} may not be read and written by this user")
    tried = tuple(devx.seen(context.node))
    if tried:
        yield from tried
        return
    rights = known(context.node.host.cap_effective, "capabilities (CapEff)")
    if not rights & IPC_LOCK:
        yield bad(f"CapEff {rights:#x} lacks IPC_LOCK (bit 14)", severity="warn")
    elif nodes:
        yield good(f"{counted(len(nodes), 'uverbs device')}, CapEff {rights:#x} with IPC_LOCK")


@check(
    "GIN-QP-EXHAUST",
    area="nccl",
    severity="warn",
    title="GIN needs more queue pairs than an adapter should give",
    why="Each GIN context makes queue pairs to its peers; past the adapter's limit the communicator stops while it starts.",
    fix="Lower num_allocated_qps of the EP buffer, use hybrid mode with an NCCL newer than 2.30.4, or, on a drained node, raise the "
    "firmware's limit.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/649 https://github.com/NVIDIA/nccl/issues/2137",
    needs=(WANTED, RDMA, NVML),
)
def gin_qp_exhaust(context: Context) -> Iterator[Seen]:
    for entry in value_or(context.node.gpu.driver.kernel_log, ()):
        if entry.topic == "mlx5_resource":
            yield bad(f"kernel log: {entry.line}")
    if not (context.profile("deepep-2") or context.profile("deepep-2.5")) or is_on(context, "EP_DISABLE_GIN"):
        return
    cards = {nic.device.name: nic.device for nic in nics.fabric(context) if nic.active and not nic.is_efa}
    if not cards:
        return
    num_gpus = len(pcie.gpus(context.node))
    num_ranks = num_gpus * context.num_nodes
    per_card = -(-num_gpus // len(cards))
    fast = all(nics.atomics(device) == "fast" for device in cards.values())
    hybrid = HYBRID_FAST if fast else HYBRID_PLAIN
    nccl = libraries.nccl(context)
    peers = num_ranks if nccl and versions.below(nccl, RAIL_FIXED) else context.num_nodes
    plans = {
        f"hybrid mode, {hybrid} contexts to {peers} ranks": hybrid * (peers + 1) * per_card,
        f"direct mode, {DIRECT_CONTEXTS} contexts to {num_ranks} ranks": DIRECT_CONTEXTS * (num_ranks + 1) * per_card,
    }
    for name, device in cards.items():
        limit = known(device.max_qp, f"{name} max_qp")
        yield from _against(name, limit, plans)


def _against(card: str, limit: int, plans: dict[str, int]) -> Iterator[Seen]:
    """Warns from half of the limit on: other users of the card and GIN counters (a factor of 3) come on top."""
    for mode, queues in plans.items():
        text = f"{card}: {mode} take {queues} queue pairs, max_qp is {limit}"
        if queues > limit:
            yield bad(text, severity="fail")
        elif queues * 2 > limit:
            yield bad(text)
        else:
            yield good(text)


def _gdaki_only(context: Context) -> list[tuple[str, str]]:
    """(distribution, version) of each DeepEP 2.5 that is installed, or that the user asked to judge for."""
    listed = [(name, context.distributions.get(name, "")) for name in ("deepinfer-ep", "deep-ep")]
    found = [(name, version) for name, version in listed if version and versions.below(version, "2.5") is False]
    return found or ([("deepinfer-ep", "2.5")] if context.asked and context.profile("deepep-2.5") else [])


@check(
    "GIN-25-GDAKI-ONLY",
    area="nccl",
    severity="fail",
    title="DeepEP 2.5 finds no GDAKI here",
    why="DeepEP 2.5 compiles the GDAKI device path alone and stops without it, even with a single rank.",
    fix="EP inside one NVLink domain: set EP_DISABLE_GIN=1. Else use mlx5 adapters and leave NCCL_GIN_TYPE unset, or DeepEP 2.",
    commands=("export EP_DISABLE_GIN=1",),
    reference="https://pypi.org/project/deepinfer-ep/2.5.0/",
    needs=(NVML,),
)
def gin_25_gdaki_only(context: Context) -> Iterator[Seen]:
    for name, version in _gdaki_only(context):
        if is_on(context, "EP_DISABLE_GIN"):
            yield good(f"{name} {version} goes without GIN: {told(context, 'EP_DISABLE_GIN')}")
            continue
        kind = gin.gin_type(context)
        if kind not in (gin.AUTO, GDAKI):
            yield bad(f"{name} {version} with {told(context, 'NCCL_GIN_TYPE')}; GDAKI is 3")
        drivers = sorted({gin.driver(nic.device) for nic in gin.active_ports(context)})
        if "mlx5_core" not in drivers:
            there = f"active RDMA ports have driver {', '.join(drivers)}" if drivers else "no RDMA port is active"
            yield bad(f"{name} {version}: {there}, GDAKI needs mlx5_core")
        elif kind in (gin.AUTO, GDAKI):
            yield good(f"{name} {version}: mlx5 adapters, NCCL_GIN_TYPE {setting(context, 'NCCL_GIN_TYPE') or 'unset'}")
