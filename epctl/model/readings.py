"""What a snapshot says of a node, in the terms of a plan."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from epctl.core.capability import Capabilities, capabilities
from epctl.core.context import Context
from epctl.core.fact import Absent, Fact, Unreadable, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Gpu
from epctl.core.views import fabric, nics

NVLINK_SHARE = 0.9
"""Of the links' nominal rate, what a plan counts on. Source: deepinfer-ep 2.5.0, which multiplies what `nvidia-smi nvlink -s` prints."""
SMEM_BYTES = {"8.0": 166_912, "9.0": 232_448, "10.0": 232_448, "10.3": 232_448}
"""Compute capability → shared memory that one block can have. Source: CUDA tuning guides of Ampere, Hopper and Blackwell."""


class Reading(Struct, frozen=True):
    """One value out of a snapshot, and how it came about."""

    value: Fact[bool | int | float]
    how: str = ""


class Readings(Struct, frozen=True):
    """All that a plan can take from one snapshot."""

    name: str
    gpu_name: str
    """'' when not known."""
    values: dict[str, Reading]
    """By the field of `inputs.Node`."""
    efa: bool = False
    """Whether the fabric is AWS's."""


def read(node: Snapshot) -> Readings:
    """Readings of `node`; never raises. Rates are per GPU and of the weakest one, since the slowest rank sets the pace of a call."""
    context = Context(node)
    found = capabilities(context)
    gpus = value_or(node.gpu.gpus, ())
    values = {
        "gpus_per_node": _gpus_per_node(node),
        "nvlink_gbs": _nvlink(node, found),
        "rdma_gbs": _rdma(found),
        "device_sms": _device_sms(node),
        "memory_bytes": _least(node, lambda gpu: gpu.memory_total_bytes, "NVML total"),
        "smem_bytes": _smem(node),
        "compute_capability": _capability(node),
        **_adapters(context, found, len(gpus)),
    }
    name = node.origin.name or value_or(node.host.hostname, "") or "this machine"
    return Readings(name, value_or(gpus[0].name, "") if gpus else "", values, _is_efa(context))


def _is_efa(context: Context) -> bool:
    try:
        fabric = nics.fabric(context)
    except Unreadable:
        return False
    return bool(fabric) and all(nic.is_efa for nic in fabric)


def _gpus_per_node(node: Snapshot) -> Reading:
    gpus = node.gpu.gpus
    if isinstance(gpus, Absent):
        return Reading(gpus)
    if fabric.is_mnnvl(node):
        why = f"{len(gpus)} GPUs here, but their NVLink domain reaches into other trays of the rack"
        return Reading(Absent("unsupported", why))
    return Reading(len(gpus), f"{len(gpus)} GPUs") if gpus else Reading(Absent("not_found", "no GPU"))


def _weakest(values: list[tuple[float, str]], count: int) -> Reading:
    value, how = min(values)
    return Reading(value, how if count == 1 else f"{how}, weakest of {count} GPUs" if len(set(values)) > 1 else how)


def _nvlink(node: Snapshot, found: Capabilities) -> Reading:
    if not found.gpus:
        return Reading(_no_gpu(node))
    values = []
    for gpu in found.gpus:
        if isinstance(gpu.nvlink_gbs, Absent):
            return Reading(gpu.nvlink_gbs)
        active = value_or(gpu.nvlinks_active, 0)
        each = f" x {gpu.nvlink_gbs / active:.3f} GB/s x {NVLINK_SHARE}" if active else ""
        values.append((round(gpu.nvlink_gbs * NVLINK_SHARE, 6), f"{active} active links{each}"))
    return _weakest(values, len(values))


def _rdma(found: Capabilities) -> Reading:
    values = []
    for gpu in found.gpus:
        if isinstance(gpu.rdma_usable_gbps, Absent):
            return Reading(gpu.rdma_usable_gbps)
        values.append((gpu.rdma_usable_gbps / 8, f"{gpu.rdma_usable_gbps:g} Gb/s of {_some(gpu.nics)} / 8"))
    return _weakest(values, len(values)) if values else Reading(Absent("not_found", "no GPU"))


def _device_sms(node: Snapshot) -> Reading:
    devices = node.active.devices
    if isinstance(devices, Absent):
        return Reading(devices)
    counts: list[int] = []
    for device in devices:
        if isinstance(device.num_sms, Absent):
            return Reading(device.num_sms)
        counts.append(device.num_sms)
    return Reading(min(counts), "CUDA device attribute") if counts else Reading(Absent("not_found", "no CUDA device"))


def _least(node: Snapshot, pick: Callable[[Gpu], Fact[int]], how: str) -> Reading:
    values: list[int] = []
    for gpu in value_or(node.gpu.gpus, ()):
        value = pick(gpu)
        if isinstance(value, Absent):
            return Reading(value)
        values.append(value)
    return Reading(min(values), how) if values else Reading(_no_gpu(node))


def _smem(node: Snapshot) -> Reading:
    gpus = value_or(node.gpu.gpus, ())
    if not gpus:
        return Reading(_no_gpu(node))
    capability = gpus[0].compute_capability
    if isinstance(capability, Absent):
        return Reading(capability)
    if capability not in SMEM_BYTES:
        return Reading(Absent("unsupported", f"compute capability {capability} is not in the table"))
    return Reading(SMEM_BYTES[capability], f"compute capability {capability}")


def _capability(node: Snapshot) -> Reading:
    """The lowest."""
    found = []
    for gpu in value_or(node.gpu.gpus, ()):
        if isinstance(gpu.compute_capability, Absent):
            return Reading(gpu.compute_capability)
        found.append(gpu.compute_capability)
    numbers = [float(text) for text in found if text.replace(".", "", 1).isdigit()]
    if len(numbers) < len(found):
        return Reading(Absent("unsupported", f"compute capability {found[0]} is no number"))
    return Reading(min(numbers), "compute capability (NVML)") if numbers else Reading(_no_gpu(node))


_ADAPTERS = ("fast_atomics", "max_qp", "nics_per_gpu", "gdaki")


def _adapters(context: Context, found: Capabilities, num_gpus: int) -> dict[str, Reading]:
    """Of the fabric's active ports."""
    try:
        fabric = nics.fabric(context)
    except Unreadable as error:
        return dict.fromkeys(_ADAPTERS, Reading(error.absent))
    devices = {nic.device.name: nic.device for nic in fabric if nic.active}
    if not devices or not num_gpus:
        missing = Reading(Absent("not_found", "no active RDMA port" if num_gpus else "no GPU"))
        return dict.fromkeys(_ADAPTERS, missing)
    limits = [device.max_qp for device in devices.values()]
    known = [limit for limit in limits if not isinstance(limit, Absent)]
    absent = next((limit for limit in limits if isinstance(limit, Absent)), None)
    kinds = found.atomics
    efa = any(nic.is_efa for nic in fabric if nic.active)
    return {
        "fast_atomics": Reading(kinds if isinstance(kinds, Absent) else kinds == "fast", f"RDMA atomics: {kinds}"),
        "max_qp": Reading(absent if absent is not None else min(known), f"max_qp of {_some(tuple(devices))}"),
        "nics_per_gpu": Reading(len(devices) / num_gpus, f"{len(devices)} adapters, {num_gpus} GPUs"),
        "gdaki": Reading(not efa, "EFA devices" if efa else "no EFA device"),
    }


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} and {len(names) - 1} others"


def _no_gpu(node: Snapshot) -> Absent:
    return node.gpu.gpus if isinstance(node.gpu.gpus, Absent) else Absent("not_found", "no GPU")
