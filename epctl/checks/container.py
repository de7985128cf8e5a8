"""Containers and Kubernetes: what a container hides or forbids although the host is fine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from epctl.checks.limits import MEMLOCK_FLOOR_BYTES
from epctl.core.check import Need, Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.views import fabric, needs, nics, pcie, rights, sizes
from epctl.core.views.needs import CONTAINER, GPU, NVML, RDMA
from epctl.core.views.settings import told
from epctl.core.wording import counted

NVML_UNKNOWN = 999
"""NVML_ERROR_UNKNOWN (nvml.h)."""
_GPU_NODE = re.compile(r"/dev/nvidia(?:\d+|ctl)", re.ASCII)
_CHANNEL = "/dev/nvidia-caps-imex-channels/channel"
_LEADING = re.compile(r"\d+", re.ASCII)


@check(
    "CTR-NVML-UNKNOWN",
    area="container",
    severity="fail",
    title="Containers lose their GPUs after a reload of systemd",
    why="systemd rewrites the device rules of running containers and drops devices without a link in /dev/char; NVML then says "
    "unknown error, while a new container works.",
    fix="Create the links on the host and keep them over reboots (udev rule), update the container toolkit or use CDI; restart the "
    "container when no job runs in it.",
    commands=("sudo nvidia-ctk system create-dev-char-symlinks --create-all",),
    reference="https://github.com/NVIDIA/nvidia-container-toolkit/issues/48 "
    "https://github.com/NVIDIA/nvidia-container-toolkit/issues/251 https://github.com/NVIDIA/gpu-operator/issues/485",
    needs=(GPU,),
)
def ctr_nvml_unknown(context: Context) -> Iterator[Seen]:
    node = context.node
    if not needs.in_container(node):
        yield from _links_of_host(node)
        return
    code = known(node.gpu.driver.nvml_code, "nvmlInit")
    if code != NVML_UNKNOWN:
        yield good(f"nvmlInit returns {code} in this container")
        return
    shut = [
        entry.path
        for entry in value_or(node.host.nvidia_nodes, ())
        if _GPU_NODE.fullmatch(entry.path) and entry.read_write is False
    ]
    more = f"; {', '.join(shut[:3])} may not be opened any more" if shut else ""
    yield bad(f"nvmlInit returns {NVML_UNKNOWN} in this container{more}")


def _links_of_host(node: Snapshot) -> Iterator[Seen]:
    """Which links matter is decided on the host; a container's own /dev/char says nothing."""
    links = node.host.dev_char_nvidia
    if isinstance(links, Absent):
        if links.absent != "not_found":  # not_found: no NVIDIA device in /proc/devices
            yield unread("links of NVIDIA devices in /dev/char", links)
    elif links:
        yield good("/dev/char has links for the NVIDIA devices")
    else:
        yield bad(
            "/dev/char lacks links for NVIDIA devices: containers with the systemd cgroup driver lose them at a reload",
            severity="info",
        )


def _beside_efa(context: Context) -> str:
    every = nics.devices(context.node)
    return "all RDMA devices are EFA (see EFA-POD-RESOURCE)" if all(entry.driver == "efa" for entry in every) else ""


@check(
    "CTR-NO-INFINIBAND",
    area="container",
    severity="fail",
    title="RDMA devices are there, but their device files are not",
    why="Libraries open /dev/infiniband/uverbs*; without them NCCL finds no adapter and falls back to sockets.",
    fix="Request the RDMA resource of the device plugin, or start the container with --device=/dev/infiniband; on a host load "
    "ib_uverbs (with no risk when no job runs).",
    commands=("ls -l /dev/infiniband",),
    reference="https://github.com/NVIDIA/cudf-spark/issues/7632 https://github.com/aws/aws-ofi-nccl/issues/803 "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    needs=(RDMA, Need("not_only_efa", _beside_efa)),
)
def ctr_no_infiniband(context: Context) -> Iterator[Seen]:
    node = context.node
    num_devices = len(nics.devices(node))
    entries = [entry for entry in known(node.rdma.uverbs, "/dev/infiniband") if "/uverbs" in entry.path]
    usable = [entry for entry in entries if entry.read_write is True]
    if usable:
        text = f"{counted(num_devices, 'RDMA device')} (sysfs), {counted(len(usable), 'usable uverbs file')}"
        yield bad(text, severity="info") if len(usable) < num_devices else good(text)
        return
    for entry in entries:
        if isinstance(entry.read_write, Absent):
            yield unread(f"access to {entry.path}", entry.read_write)
            return
    if entries:
        yield bad(
            f"{counted(len(entries), 'uverbs file')}, none may be read and written by this user ({entries[0].path})",
            fix="Give the user or the container's device rules read and write access to /dev/infiniband/uverbs*.",
        )
    else:
        lines = ("lsmod | grep ib_uverbs", "sudo modprobe ib_uverbs")
        text = f"{counted(num_devices, 'RDMA device')} (sysfs), no /dev/infiniband/uverbs*"
        yield bad(text, commands=() if value_or(node.host.container, "none") != "none" else lines)


@check(
    "CTR-NO-IPCLOCK",
    area="container",
    severity="fail",
    title="The container may not lock memory",
    why="Without CAP_IPC_LOCK the limit on locked memory holds, and memory registrations fail although the devices are there.",
    fix="Kubernetes: securityContext.capabilities.add: [IPC_LOCK]; docker: --cap-add=IPC_LOCK --ulimit memlock=-1.",
    reference="https://github.com/NVIDIA/aicr/issues/2306 https://github.com/llm-d/llm-d/issues/2043",
    needs=(CONTAINER, RDMA),
)
def ctr_no_ipclock(context: Context) -> Iterator[Seen]:
    limit = context.node.host.memlock_bytes
    if limit == -1:
        yield good("RLIMIT_MEMLOCK is unlimited")
    elif rights.has(context.node, "IPC_LOCK"):
        yield good(rights.told(context.node, "IPC_LOCK"))
    else:
        size = known(limit, "limit on locked memory (RLIMIT_MEMLOCK)")
        text = f"{rights.told(context.node, 'IPC_LOCK')}, RLIMIT_MEMLOCK is {sizes.told(size)}"
        yield bad(text, severity=None if size < MEMLOCK_FLOOR_BYTES else "warn")


def _machine_gpus(node: Snapshot) -> int:
    """GPUs on the PCI bus that the NVIDIA driver could drive: not those that a virtual machine was given. Raises Unreadable."""
    addresses = needs.gpu_functions(node)
    taken = [entry for entry in value_or(node.pcie.functions, ()) if entry.pci in addresses and pcie.given_away(entry)]
    return len(addresses) - len(taken)


def _shares(visible: int) -> Severity:
    """With one GPU every peer is outside of this container; with several, EP may stay inside."""
    return "warn" if visible == 1 else "info"


@check(
    "CTR-IPC-NS",
    area="container",
    severity="warn",
    title="Ranks in other containers of this host cannot share memory with this one",
    why="NCCL takes ranks of one host for neighbours; in separate IPC and PID namespaces they cannot map each other's memory.",
    fix="One container per node for EP; or, where all pods of the host are trusted, hostIPC and hostPID for all of them; with IMEX, "
    "fabric handles.",
    reference="https://github.com/opendatahub-io/kserve/pull/802 https://github.com/LMCache/LMCache/issues/3862 "
    "https://github.com/llm-d/llm-d/issues/1381",
    needs=(CONTAINER, NVML),
)
def ctr_ipc_ns(context: Context) -> Iterator[Seen]:
    visible, total = len(pcie.gpus(context.node)), _machine_gpus(context.node)
    if visible >= total:
        yield good(f"{visible} of {total} GPUs of the machine are in this container")
        return
    private = known(context.node.host.private_namespaces, "namespaces of this process")
    text = f"{visible} of {total} GPUs of the machine are in this container"
    if private:
        yield bad(f"{text}, its own namespaces: {', '.join(private)}", severity=_shares(visible))
    else:
        yield good(f"{text}, IPC and PID namespaces are the host's")


@check(
    "CTR-GPU-ISOLATED",
    area="container",
    severity="warn",
    title="The container sees some of the machine's GPUs only",
    why="To import memory of a GPU, CUDA must see that GPU; ranks in another container of this host fail with invalid device.",
    fix="Make all GPUs that belong to the job visible in each of its containers and choose by index, or switch P2P between them off.",
    reference="https://github.com/NVIDIA/nccl/issues/1647 https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/294",
    needs=(CONTAINER, NVML),
)
def ctr_gpu_isolated(context: Context) -> Iterator[Seen]:
    visible, total = len(pcie.gpus(context.node)), _machine_gpus(context.node)
    text = f"NVML lists {counted(visible, 'GPU')}, the PCI bus has {total}"
    yield bad(text, severity=_shares(visible)) if visible < total else good(text)


def _deepep(context: Context) -> str:
    if not needs.has_gpu(context.node):
        return "no NVIDIA GPU in this machine"
    return "" if any(profile.id.startswith("deepep") for profile in context.profiles) else "DeepEP is not in use here"


@check(
    "CTR-CVD-PER-RANK",
    area="container",
    severity="warn",
    title="CUDA_VISIBLE_DEVICES is not one list of numbers for the whole node",
    why="DeepEP reads it as comma-separated GPU numbers of the node; with one GPU per rank it compares a GPU with itself, UUIDs it "
    "cannot parse. On PCIe boards it stops.",
    fix="Give every process the whole list in numbers and let it choose by its local rank.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/582 https://github.com/deepseek-ai/DeepEP/pull/730 "
    "https://github.com/deepseek-ai/DeepEP/blob/main/deep_ep/utils/envs.py",
    needs=(Need("deepep", _deepep),),
)
def ctr_cvd_per_rank(context: Context) -> Iterator[Seen]:
    if "CUDA_VISIBLE_DEVICES" not in context.env:
        yield good("CUDA_VISIBLE_DEVICES is not set: every process sees all GPUs")
        return
    gpus = value_or(context.node.gpu.gpus, ())
    pcie_board = any("PCIE" in value_or(gpu.name, "").upper() for gpu in gpus)
    severity: Severity = "fail" if pcie_board else "warn"
    text = told(context, "CUDA_VISIBLE_DEVICES")
    entries = [entry.strip() for entry in context.env["CUDA_VISIBLE_DEVICES"].strip(",").split(",")]
    if entries in ([""], ["-1"]):
        yield bad(
            f"{text} hides every GPU",
            severity="fail",
            fix="Unset CUDA_VISIBLE_DEVICES.",
            commands=("unset CUDA_VISIBLE_DEVICES",),
        )
        return
    every = (f"export CUDA_VISIBLE_DEVICES={','.join(str(gpu.index) for gpu in gpus)}",) if gpus else ()
    odd = [entry for entry in entries if not (entry.isascii() and entry.isdigit())]
    beyond = [entry for entry in entries if entry not in odd and gpus and int(entry[:9]) >= len(gpus)]
    ranks = _local_ranks(context)
    if odd:
        yield bad(f"{text}: {odd[0]!r} is no number", severity=severity, commands=every)
    elif beyond:
        ends = f"NVML lists {counted(len(gpus), 'GPU')}, so CUDA ends the list at {beyond[0]}"
        yield bad(f"{text}: {ends}", severity=severity, commands=every)
    elif len(entries) == 1 and ranks > 1:
        yield bad(f"{text} with {ranks} ranks on this node", severity=severity, commands=every)
    else:
        yield good(f"{text}: {counted(len(entries), 'number')}")


def _local_ranks(context: Context) -> int:
    """Ranks of this node as the launcher tells (torchrun, Open MPI, Slurm); 0 when none does."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        found = _LEADING.match(context.env.get(name, ""))
        if found:
            return int(found.group(0)[:9])
    return 0


def _rack_scale(context: Context) -> str:
    rack = fabric.rack_scale(context.node) and any(fabric.registers(gpu) for gpu in pcie.gpus(context.node))
    return "" if rack else "NVLink of this machine ends inside of it"


@check(
    "CTR-UNPRIV-GB200",
    area="container",
    severity="fail",
    title="An unprivileged container of a rack-scale system has no IMEX channel",
    why="Memory is shared over the rack's NVLink through an IMEX channel; NCCL fails at the start where the container has none.",
    fix="Use the DRA driver (ComputeDomain), or pass /dev/nvidia-caps-imex-channels/channel0 to the container; not --privileged "
    "for all.",
    commands=("ls -l /dev/nvidia-caps-imex-channels",),
    reference="https://github.com/NVIDIA/nccl/issues/1925",
    needs=(CONTAINER, NVML, Need("rack_scale", _rack_scale)),
)
def ctr_unpriv_gb200(context: Context) -> Iterator[Seen]:
    node = context.node
    channels = [entry for entry in known(node.host.nvidia_nodes, "/dev/nvidia*") if entry.path.startswith(_CHANNEL)]
    usable = [entry for entry in channels if entry.read_write is True]
    code = node.active.cumem_fabric
    tried = f"; a fabric handle gives {code}" if isinstance(code, int) else ""
    if usable or code == 0:
        where = usable[0].path if usable else "a fabric handle could be made"
        yield good(f"{where}{tried if usable else ''}")
    elif rights.has(node, "SYS_ADMIN"):
        yield good(
            f"privileged container ({rights.told(node, 'SYS_ADMIN')}); for its channels see IMEX-CHANNEL-MISSING"
        )
    elif channels:
        yield _closed_channel(channels[0].path, channels[0].read_write, tried)
    else:
        yield bad(f"no {_CHANNEL}* in this container, {rights.told(node, 'SYS_ADMIN')}{tried}")


def _closed_channel(path: str, read_write: bool | Absent, tried: str) -> Seen:
    if isinstance(read_write, Absent):
        return unread(f"access to {path}", read_write)
    return bad(f"{path} may not be read and written by this user{tried}")
