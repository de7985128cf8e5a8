"""The NVLink fabric of a node: whether it is up, and whether this operating system is the one that has to run it."""

from __future__ import annotations

import re

from epctl.core.fact import Absent, Fact, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Gpu, Service

FABRIC_MANAGER = "nvidia-fabricmanager"
IMEX = "nvidia-imex"
NVLSM = "nvlsm"

_RACK_GPUS = re.compile(r"\b(GB200|GB300|GH200)\b")


def service(node: Snapshot, name: str) -> Fact[str]:
    """systemd's word for a service of this node; absent when it was not asked for or could not be read."""
    return _entry(node, name).state


def runs(node: Snapshot, name: str) -> Fact[bool]:
    """Does the daemon run on this machine, whoever started it? True by its process or its unit, False when neither is there;
    absent when processes could not be seen and the unit alone says no: it may run in a container of this host."""
    entry = _entry(node, name)
    if entry.running is True or entry.state == "active":
        return True
    return entry.state if isinstance(entry.state, Absent) and entry.running is not False else entry.running


def load_state(node: Snapshot, name: str) -> str:
    """systemd's word for the unit (loaded, masked, not-found), '' when it is not known."""
    return value_or(_entry(node, name).load, "")


def told(node: Snapshot, name: str) -> str:
    """`nvidia-imex is inactive, masked (systemd); no such process`, for evidence."""
    entry = _entry(node, name)
    words = f"{name} is {value_or(entry.state, 'of unknown state')}"
    words += {"masked": ", masked", "not-found": ", not installed"}.get(load_state(node, name), "") + " (systemd)"
    if isinstance(entry.running, bool):
        words += "; its process runs" if entry.running else "; no process of it runs"
    return words


def _entry(node: Snapshot, name: str) -> Service:
    missing = Absent("not_read")
    return next((entry for entry in node.gpu.driver.services if entry.name == name), Service(name, missing))


def rack_scale(node: Snapshot) -> bool:
    """The NVSwitches stand in trays of their own (GB200, GB300, GH200 racks), so no fabric manager runs on this node."""
    return node.host.architecture == "aarch64" or any(
        _RACK_GPUS.search(value_or(gpu.name, "")) for gpu in value_or(node.gpu.gpus, ())
    )


def is_mnnvl(node: Snapshot) -> bool:
    """NVLink of this node reaches other nodes. A cluster UUID alone does not say so: HGX H100 boards report one, too
    (meta-pytorch/torchcomms#1315)."""
    return rack_scale(node) and any(has_cluster(gpu) for gpu in value_or(node.gpu.gpus, ()))


def has_cluster(gpu: Gpu) -> bool:
    """The GPU reports a cluster UUID that is not all zero."""
    return bool(value_or(gpu.fabric_cluster_uuid, "").replace("-", "").strip("0"))


def registered(node: Snapshot) -> bool:
    """Every GPU completed its fabric registration with status 0."""
    gpus = value_or(node.gpu.gpus, ())
    return bool(gpus) and all(gpu.fabric_state == "completed" and gpu.fabric_status == 0 for gpu in gpus)


def registers(gpu: Gpu) -> bool:
    """The GPU takes part in fabric registration at all (from Hopper on, and only behind NVSwitches)."""
    return isinstance(gpu.fabric_state, str) and gpu.fabric_state != "not_supported"


def links_up(node: Snapshot) -> bool:
    """Every GPU has NVLinks and all of them are active."""
    gpus = value_or(node.gpu.gpus, ())
    return bool(gpus) and all(
        (links := value_or(gpu.links, ())) and all(link.active is True for link in links) for gpu in gpus
    )


def works(node: Snapshot) -> bool:
    """As far as NVML tells: all GPUs are registered; or none takes part in registration and all links are up."""
    unregistered = not any(registers(gpu) for gpu in value_or(node.gpu.gpus, ()))
    return registered(node) or (unregistered and links_up(node))


def managed_elsewhere(node: Snapshot) -> str:
    """Why the fabric manager is not a service of this operating system; '' when it has to run here.

    In the shared NVSwitch model (Fabric Manager User Guide, virtualisation) the switches stay with the host; a guest that was
    given the switches themselves has to run the fabric manager, and shows it by a fabric that does not come up without.
    """
    if rack_scale(node):
        return "rack-scale NVLink, its fabric manager runs outside the compute tray"
    if value_or(node.host.container, "none") != "none":
        return "in a container, the fabric manager is a service of the host"
    if value_or(node.host.virtualization, "none") != "none" and works(node):
        return "virtual machine whose fabric is up, the fabric manager runs on the host"
    return ""


def multicast(node: Snapshot) -> Fact[bool]:
    """CUDA's attribute for NVLink multicast: True when any GPU has it; absent when nobody was asked."""
    devices = node.active.devices
    if isinstance(devices, Absent):
        return devices
    answers = [device.multicast for device in devices]
    if any(answer is True for answer in answers):
        return True
    return next((answer for answer in answers if isinstance(answer, Absent)), False)
