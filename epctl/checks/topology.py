"""Topology: NICs for each GPU, and NVLink domains that span nodes (MNNVL with IMEX)."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Gpu
from epctl.core.views import fabric, installing, nics, pcie
from epctl.core.views.needs import MNNVL, NVML, RDMA
from epctl.core.views.versions import below
from epctl.core.wording import counted

NOT_PERMITTED = 800
"""CUDA_ERROR_NOT_PERMITTED (cuda.h): what a FABRIC allocation gives without an IMEX channel."""

_CHANNEL = "/dev/nvidia-caps-imex-channels/channel"
_CREATE_CHANNEL = (
    "sudo mkdir -p /dev/nvidia-caps-imex-channels",
    f"sudo mknod -m 0666 {_CHANNEL}0 c \"$(awk '/nvidia-caps-imex-channels/ {{print $1}}' /proc/devices)\" 0",
)
"""What the IMEX guide names for hosts with one user; 0666 lets everybody in. nvidia-modprobe lost its option for channels."""
_BY_DRA = "the DRA driver of Kubernetes runs IMEX in pods (ComputeDomain), which needs the service of the host disabled or masked"
_NODES_FILE = "/etc/nvidia-imex/nodes_config.cfg"
_UNLESS_DRA = (
    f"List the nodes in {_NODES_FILE} and start IMEX when no job runs, unless jobs bring their own: {_BY_DRA}."
)

DEFAULT_PARTITION = 32766
"""Partition id that NMX reserves for a rack's default partition (NMX-Controller gRPC API); so it repeats in every rack."""
_PARTITION_SHIFT, _PARTITION_MISSING = 12, 2
"""Two-bit field `partition assigned` of the fabric health mask; 2 is false (nvml.h)."""

CRASHES: tuple[tuple[str, str, int], ...] = (("2.27.5", "2.30", 43), ("2.30", "2.31", 39))
"""NCCL from, below, and most ranks of a clique that were reported to start (NVIDIA/nccl#2186: 44 crashed with 2.27.5, 40 with 2.30.4)."""


@check(
    "NIC-PER-GPU-RATIO",
    area="topology",
    severity="info",
    title="There are fewer fabric NICs than GPUs",
    why="Published EP bandwidths assume one 400 Gb/s card for each GPU.",
    fix="Scale the expectation to the bandwidth a GPU has, and map the GPUs evenly to the cards.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/60 https://github.com/deepseek-ai/DeepEP/issues/38",
    needs=(NVML, RDMA),
)
def nic_per_gpu_ratio(context: Context) -> Iterator[Seen]:
    num_gpus = len(pcie.gpus(context.node))
    ports = [nic for nic in nics.fabric(context) if nic.active]
    if not ports:
        return
    rates = [value_or(nics.nominal_gbps(nic, context.node), 0.0) for nic in ports]
    text = f"{counted(len(ports), 'active fabric port')} for {counted(num_gpus, 'GPU')}"
    if all(rates):
        text += f", {sum(rates):.0f} Gb/s in all, {sum(rates) / num_gpus / 8:.1f} GB/s for each GPU"
    yield bad(text) if len(ports) < num_gpus else good(text)


@check(
    "NCCL-SUBSET-NICS",
    area="topology",
    severity="info",
    title="The NICs that NCCL may use do not follow the GPUs in use",
    why="With a part of the GPUs visible, NCCL may take cards that are far from them.",
    fix="List in NCCL_IB_HCA the cards that are nearest to the visible GPUs.",
    commands=("nvidia-smi topo -m",),
    reference="https://github.com/NVIDIA/nccl/issues/1600 https://github.com/NVIDIA/nccl/issues/1591",
    needs=(NVML, RDMA),
)
def nccl_subset_nics(context: Context) -> Iterator[Seen]:
    node = context.node
    visible = _visible(context)
    if not visible or len(visible) == len(pcie.gpus(node)):
        return
    every = tuple(dict.fromkeys(nic.device.name for nic in nics.ports(node) if nic.active))
    chosen = {nic.device.name for nic in nics.selected(context) if nic.active}
    listed = f"NCCL_IB_HCA={context.env.get('NCCL_IB_HCA', '(unset)')}"
    near: set[str] = set()
    for gpu in visible:
        nearest = known(pcie.nearest(node, gpu, every), f"NIC nearest to GPU {gpu.index}")
        near.update(nearest.devices)
        if not chosen.intersection(nearest.devices):
            yield bad(f"GPU {gpu.index} is visible, its nearest NIC {', '.join(nearest.devices)} is not in {listed}")
    far = sorted(chosen - near)
    if far:
        yield bad(f"{listed} lets {', '.join(far)} in, near to none of the visible GPUs ({len(visible)})")
    else:
        yield good(f"{listed} holds NICs near to the visible GPUs ({len(visible)}): {', '.join(sorted(chosen))}")


def _visible(context: Context) -> tuple[Gpu, ...]:
    """GPUs that CUDA_VISIBLE_DEVICES names by index or UUID; none when it is unset or names something else."""
    names = [part.strip() for part in context.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return tuple(
        gpu
        for gpu in pcie.gpus(context.node)
        if any(
            name == str(gpu.index) or (name.startswith("GPU-") and value_or(gpu.uuid, "").startswith(name))
            for name in names
        )
    )


def _mnnvl_severity(context: Context) -> Severity | None:
    """Between nodes only: a job on one node, or without MNNVL, does not use what is missing."""
    switched_off = isinstance(context.node.env.variables, tuple) and context.env.get("NCCL_MNNVL_ENABLE") == "0"
    return "warn" if context.num_nodes == 1 or switched_off else None


@check(
    "IMEX-DAEMON-DOWN",
    area="topology",
    severity="fail",
    title="IMEX does not run, or its domain is not up",
    why="Nodes of one NVLink domain then cannot map each other's memory: NCCL says that MNNVL does not work, or falls back.",
    fix="When no job runs start IMEX on all nodes of the domain with the same nodes_config.cfg; look at the node that the matrix names. "
    "Where Kubernetes runs IMEX (ComputeDomains of the DRA driver), its service has to stay off.",
    commands=("nvidia-imex-ctl -H -N",),
    reference="https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/ "
    "https://github.com/NVIDIA/nccl/blob/master/src/mnnvl.cc "
    "https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/626 "
    "https://github.com/NVIDIA/cloud-native-docs/pull/162 https://github.com/NVIDIA/aicr/pull/2520",
    needs=(MNNVL,),
)
def imex_daemon_down(context: Context) -> Iterator[Seen]:
    driver = context.node.gpu.driver
    domain, cells = driver.imex_domain, driver.imex_matrix_bad
    severity = _mnnvl_severity(context)
    if isinstance(domain, str):
        text = f"IMEX domain is {domain} (nvidia-imex-ctl)"
        yield good(text) if domain.upper() == "UP" else bad(text, severity=severity)
    if isinstance(cells, tuple) and cells:
        yield bad(f"IMEX connections that are not up: {', '.join(cells)} (nvidia-imex-ctl)", severity=severity)
    if isinstance(domain, str):
        return
    if domain.absent in ("failed", "timed_out", "unparsable", "permission"):
        yield unread("IMEX domain (nvidia-imex-ctl)", domain)
    yield _imex_service(context, severity)


def _imex_service(context: Context, severity: Severity | None) -> Seen:
    """What units and processes say, for nodes whose domain could not be asked for."""
    node = context.node
    state, told = fabric.service(node, fabric.IMEX), fabric.told(node, fabric.IMEX)
    if fabric.runs(node, fabric.IMEX) is True:
        return good(f"{told}; whether its domain is up could not be asked for")
    if isinstance(state, Absent):
        return unread("state of nvidia-imex", state)
    if value_or(node.host.container, "none") != "none":
        return unread("IMEX", Absent("unsupported", "in a container, it is a service of the host"))
    if state == "inactive" and fabric.load_state(node, fabric.IMEX) == "masked":
        return unread("IMEX", Absent("unsupported", f"{told}: {_BY_DRA}"))
    text = f"{told}, while the GPUs belong to an NVLink domain of several nodes"
    if state == "failed":
        return bad(text, severity=severity, commands=("journalctl -b -u nvidia-imex | tail -50",))
    if _usable_channels(node) or node.active.cumem_fabric == 0:
        # So looks a DRA driver without a running ComputeDomain, and a prolog of Slurm that starts IMEX with each job.
        return bad(f"{text}; an IMEX channel may be used", severity="warn", fix=_UNLESS_DRA)
    if node.gpu.driver.imex_nodes_file is not True:
        return bad(f"{text}; {_NODES_FILE} is not known to be there", severity="warn", fix=_UNLESS_DRA)
    commands = ("sudo systemctl enable --now nvidia-imex", "nvidia-imex-ctl -H -N")
    return bad(f"{text}; {_NODES_FILE} is there", severity=severity, commands=commands)


def _usable_channels(node: Snapshot) -> tuple[str, ...]:
    """IMEX channels that this user may open; none where the device nodes could not be listed."""
    nodes = value_or(node.host.nvidia_nodes, ())
    return tuple(entry.path for entry in nodes if entry.path.startswith(_CHANNEL) and entry.read_write is True)


@check(
    "IMEX-CHANNEL-MISSING",
    area="topology",
    severity="fail",
    title="There is no IMEX channel that this user may open",
    why="Allocations that other nodes shall map (FABRIC handles) are refused with 'not permitted' (800).",
    fix="Create channel0 (NVreg_CreateImexChannel0=1, or mknod), give the user access (mode 0666 lets everybody in: on shared "
    "nodes a channel for each user), and pass the device to the container.",
    commands=("grep nvidia-caps-imex-channels /proc/devices", "ls -l /dev/nvidia-caps-imex-channels/"),
    reference="https://github.com/NVIDIA/nvbandwidth/issues/39 https://github.com/NVIDIA/nvidia-modprobe/issues/9 "
    "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html",
    needs=(MNNVL,),
)
def imex_channel_missing(context: Context) -> Iterator[Seen]:
    host = context.node.host
    severity = _mnnvl_severity(context)
    fix = ""
    if fabric.load_state(context.node, fabric.IMEX) == "masked":
        severity, fix = "warn", f"Nothing to create by hand where {_BY_DRA}: claim a channel for the pod."
    if host.imex_in_proc_devices is False:
        yield bad(
            "nvidia-caps-imex-channels is not in /proc/devices",
            severity=severity,
            fix="Use a driver of branch 550 or newer, loaded on this host.",
        )
    if context.node.active.cumem_fabric == NOT_PERMITTED:
        text = f"cuMemCreate with a FABRIC handle returns {NOT_PERMITTED} (not permitted)"
        yield bad(text, severity=severity, fix=fix)
    nodes = known(host.nvidia_nodes, "device nodes of NVIDIA")
    channels = [entry for entry in nodes if entry.path.startswith(_CHANNEL)]
    usable = _usable_channels(context.node)
    if usable:
        yield good(f"{usable[0]} may be read and written")
    elif not channels:
        here = value_or(host.container, "none") == "none" and not fix
        text = "/dev/nvidia-caps-imex-channels has no channel"
        yield bad(text, severity=severity, fix=fix, commands=_create(context.node) if here else ())
    else:
        for entry in channels:
            if isinstance(entry.read_write, Absent):
                yield unread(f"access to {entry.path}", entry.read_write)
            else:
                yield bad(f"{entry.path} may not be read and written by this user", severity=severity, fix=fix)


def _create(node: Snapshot) -> tuple[str, ...]:
    """The channel now, and from the next load of the driver on."""
    kept = installing.module_option(node, "NVreg_CreateImexChannel0=1", installing.IMEX_FILE)
    return (*_CREATE_CHANNEL, *kept)


@check(
    "MNNVL-CLIQUE-SPLIT",
    area="topology",
    severity="fail",
    title="GPUs of this node are not in one NVLink domain",
    why="Only GPUs of the same cluster UUID and clique id reach each other over NVLink; a GPU outside is served by the network.",
    fix="Correct the partitions of the NVLink fabric (NMX controller); place EP groups by cluster UUID plus clique id.",
    commands=("nvidia-smi -q | grep -A 6 Fabric",),
    reference="https://github.com/meta-pytorch/torchcomms/pull/3612 https://github.com/NVIDIA/nccl/issues/1301 "
    "https://docs.nvidia.com/networking/display/nmxcv100/grpc+api",
    needs=(MNNVL,),
)
def mnnvl_clique_split(context: Context) -> Iterator[Seen]:
    domains: dict[tuple[str, int], list[int]] = {}
    for gpu in pcie.gpus(context.node):
        key = (
            known(gpu.fabric_cluster_uuid, f"GPU {gpu.index} cluster UUID"),
            known(gpu.fabric_clique, f"GPU {gpu.index} clique id"),
        )
        domains.setdefault(key, []).append(gpu.index)
        unassigned = value_or(gpu.fabric_health_mask, 0) >> _PARTITION_SHIFT & 0b11 == _PARTITION_MISSING
        if key[1] == 0 or unassigned:
            yield bad(
                f"GPU {gpu.index}: no partition of its NVLink domain is assigned to it (clique id {key[1]})",
                severity="warn",
            )
    told = [
        f"GPU {', '.join(map(str, found))}: cluster {uuid}, clique {clique}"
        for (uuid, clique), found in domains.items()
    ]
    if len(domains) > 1:
        yield bad("; ".join(told))
        return
    default = any(clique == DEFAULT_PARTITION for _, clique in domains)
    yield good(told[0] + (" (the default partition, the same number in every rack)" if default else ""))


@check(
    "MNNVL-CRASH-LARGE",
    area="topology",
    severity="warn",
    title="NCCL of this version was reported to crash with so many ranks in one NVLink domain",
    why="Communicators of large cliques died at init on NVL72 racks while smaller ones started; the cause was not published.",
    fix="Upgrade NCCL; NCCL_MNNVL_ENABLE=0 confirms it, at the price of NVLink between nodes.",
    reference="https://github.com/NVIDIA/nccl/issues/2186",
    needs=(MNNVL,),
)
def mnnvl_crash_large(context: Context) -> Iterator[Seen]:
    ranks = context.num_nodes * len(pcie.gpus(context.node))
    version = _nccl(context.node)
    if not version:
        return
    text = f"NCCL {version}, {ranks} ranks ({counted(context.num_nodes, 'node')}) in one clique at most"
    limit = next((limit for low, high, limit in CRASHES if below(version, low) is False and below(version, high)), None)
    if limit is None or ranks <= limit or context.env.get("NCCL_MNNVL_ENABLE") == "0":
        yield good(text)
    else:
        yield bad(f"{text}; reported to start with up to {limit}")


def _nccl(node: Snapshot) -> str:
    """Version in use, '' where no NCCL is installed."""
    version = node.software.nccl_effective
    if isinstance(version, Absent) and version.absent == "not_found":
        return ""
    return known(version, "NCCL version")
