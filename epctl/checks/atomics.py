"""RDMA atomics: there, fast where the adapter can, and known to be so by the libraries."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from epctl.core.check import Need, Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.views import deepep, gdaki, installing, needs, nics, versions
from epctl.core.views.gdaki import GDAKI, GPU_INITIATED
from epctl.core.views.needs import MLX5, RDMA, ROCE

ATOMIC_MODE = 4
"""PCI_ATOMIC_MODE that DeepEP asks for (README, PCI atomic mode)."""
CONNECTX8 = "MT4131"
"""The one card type that DeepEP takes for fast atomics (deep_ep/utils/envs.py)."""
QUEUES_FAST, QUEUES_PLAIN = 65, 129
"""Queue pairs to each peer that DeepEP 2 makes in hybrid mode, with and without fast atomics (buffers/elastic.py)."""
ERROR_AWARE = "2.30.8"
"""Up to 2.30.7 GDAKI's wait loops take an error completion for one that is still to come (NVIDIA/nccl#2383)."""
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def _deepep(context: Context) -> str:
    if not needs.has_gpu(context.node):
        return "no NVIDIA GPU in this machine"
    used = any(context.profile(name) for name in ("deepep-2", "deepep-2.5"))
    return "" if used else "DeepEP 2 is not in use here"


DEEPEP = Need("deepep", _deepep)


@check(
    "ATOMIC-CAP-NONE",
    area="atomics",
    severity="fail",
    title="An adapter reports no RDMA atomics",
    why="GDAKI and IBGDA signal with atomics: they initialise, then signals, barriers and counters never arrive.",
    fix="Enable atomics in the adapter's firmware (PCI atomic settings), or use another function of it.",
    reference="https://docs.nvidia.com/networking/display/rdmacore50/Atomic+Operations "
    "https://github.com/open-mpi/ompi/issues/1148 https://github.com/open-mpi/ompi/issues/1077",
    needs=(RDMA, GPU_INITIATED),
)
def atomic_cap_none(context: Context) -> Iterator[Seen]:
    for device in dict.fromkeys(nic.device for nic in nics.fabric(context) if nic.active and not nic.is_efa):
        found = device.atomic_cap
        if isinstance(found, Absent):
            yield unread(f"{device.name} atomic capability", found)
        elif found == "ATOMIC_NONE":
            yield bad(f"{device.name}: {found} (verbs); asked for by {gdaki.because(context)}")
        else:
            yield good(f"{device.name}: {found} (verbs)")


@check(
    "ATOMIC-PCI-MODE",
    area="atomics",
    severity="info",
    title="PCI_ATOMIC_MODE of an adapter is at its default",
    why="RDMA atomics on GPU memory are right but slow, and dispatch notifications lag.",
    fix="On a drained node set it to 4 where the firmware offers it (ADVANCED_PCI_SETTINGS=1 shows it), reboot, and run a correctness "
    "test: resetting a card takes its network down.",
    reference="https://github.com/deepseek-ai/DeepEP#readme https://github.com/deepseek-ai/DeepEP/issues/661 "
    "https://github.com/NVIDIA/nccl/issues/2210",
    needs=(MLX5, DEEPEP),
)
def atomic_pci_mode(context: Context) -> Iterator[Seen]:
    for device in dict.fromkeys(nic.device for nic in nics.fabric(context) if nic.device.driver == "mlx5_core"):
        mode = device.pci_atomic_mode
        if isinstance(mode, Absent):
            if mode.absent != "unsupported":  # unsupported: this firmware or function has no such setting
                yield unread(f"{device.name} PCI_ATOMIC_MODE", mode)
        elif mode == ATOMIC_MODE:
            yield good(f"{device.name}: PCI_ATOMIC_MODE {mode} (mlxconfig)")
        else:
            text = f"{device.name}: PCI_ATOMIC_MODE {mode}, DeepEP asks for {ATOMIC_MODE} (mlxconfig)"
            yield bad(text, commands=_set_mode(value_or(device.pci, "")))


def _set_mode(pci: str) -> tuple[str, ...]:
    if not _ADDRESS.fullmatch(pci):
        return ()
    at = shlex.quote(pci)
    return (
        f"sudo mlxconfig -d {at} set ADVANCED_PCI_SETTINGS=1",
        f"sudo mlxconfig -d {at} set PCI_ATOMIC_MODE={ATOMIC_MODE}",
    )


@check(
    "ATOMIC-SLOW-NIC",
    area="atomics",
    severity="info",
    title="DeepEP takes a ConnectX-8 for a card with slow atomics",
    why="It asks ibstat for the card type of one adapter; anything but MT4131, or no answer, doubles its queue pairs (129 instead "
    "of 65 to a peer in hybrid mode): a slow start, and resources run short.",
    fix="Install infiniband-diags. DeepEP 2.0 and 2.1: set EP_NIC_NAME to a ConnectX-8 of the fabric; 2.5 asks for mlx5_0 and nothing "
    "else: let a ConnectX-8 have that name (rdma dev set), or pass num_allocated_qps.",
    reference="https://github.com/deepseek-ai/DeepEP/blob/main/deep_ep/utils/envs.py https://github.com/deepseek-ai/DeepEP/issues/667",
    needs=(RDMA, DEEPEP),
)
def atomic_slow_nic(context: Context) -> Iterator[Seen]:
    fabric = [nic.device for nic in nics.fabric(context) if nic.active]
    for device in fabric:
        if isinstance(device.ca_type, Absent) and device.driver == "mlx5_core":
            yield unread(f"{device.name} card type", device.ca_type)
    fast = [device.name for device in fabric if device.ca_type == CONNECTX8]
    if not fast:
        if fabric:
            yield good(f"no ConnectX-8 among the fabric's adapters: {QUEUES_PLAIN} queue pairs to a peer are right")
        return
    name, _ = deepep.rate_adapter(context)
    asked = next((device for device in nics.every_device(context.node) if device.name == name), None)
    told = context.node.rdma.ibstat
    plain = f"{QUEUES_PLAIN} queue pairs instead of {QUEUES_FAST}, {fast[0]} is a ConnectX-8"
    if isinstance(told, Absent) and told.absent == "tool_missing":
        yield bad(
            f"ibstat is not installed: {plain}",
            commands=installing.packages(context.node, deb="infiniband-diags", rpm="infiniband-diags"),
        )
    elif asked is None:
        yield bad(f"DeepEP asks ibstat for {name}, which this node does not have: {plain}")
    elif asked.ca_type != CONNECTX8:
        yield bad(f"DeepEP asks ibstat for {name}, which is {asked.ca_type}: {plain}")
    elif known(told, "ibstat") in ("error", "empty"):
        yield bad(f"ibstat gives no answer ({told}): {plain}")
    else:
        yield good(f"ibstat tells {CONNECTX8} for {name}")


@check(
    "ATOMIC-LOST-CQE-HANG",
    area="atomics",
    severity="warn",
    title="One lost packet would hang GDAKI kernels on RoCE",
    why="Device code of NCCL up to 2.30.7 waits on after an error completion: one send that ran out of retries is a silent hang.",
    fix="Upgrade NCCL; until then remove what loses packets (traffic class, PFC, MTU), and keep host NCCL and GIN in one lossless "
    "class or on cards of their own.",
    reference="https://github.com/NVIDIA/nccl/issues/2383 https://github.com/NVIDIA/nccl/issues/968",
    needs=(ROCE, GDAKI),
)
def atomic_lost_cqe_hang(context: Context) -> Iterator[Seen]:
    fabric = [nic for nic in nics.fabric(context) if nic.active and nic.is_roce]
    ports = [nic.label for nic in fabric if nic.device.driver == "mlx5_core"]
    if not ports:
        return
    nccl = known(context.node.software.nccl_effective, "version of the NCCL in use")
    old = versions.below(nccl, ERROR_AWARE)
    text = f"NCCL {nccl}, GDAKI over RoCE ({', '.join(ports)}), asked for by {gdaki.because(context)}"
    if old is None:
        yield unread("NCCL version", Absent("unparsable", nccl[:80]))
    else:
        yield bad(text) if old else good(text)
