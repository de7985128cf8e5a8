"""What a plan takes for granted of the NVLink domain."""

from __future__ import annotations

from epctl.core.fact import Absent
from epctl.model.hardware import DEFAULT_HARDWARE, hardware
from epctl.model.plan.request import Request
from epctl.model.plan.settle import Files, Settled, source_name

RACK_GPUS = 72
"""GPUs of an NVL72 rack, which one tray's snapshot does not count."""


def domain_note(found: Settled) -> str:
    """'' or that the GPUs planned as one NVLink domain are not those that NVLink joins, with the call that takes them as they are."""
    joined, where = _domain(found.request, found.files)
    gpus, nodes = found.gpus_per_node, found.nodes
    if not joined or gpus == joined or (gpus < joined and nodes == 1):
        return ""
    if gpus > joined:
        text = f"{gpus} GPUs are planned as one NVLink domain, but {where} joins {joined} by NVLink."
        wide = nodes * gpus
        return (
            f"{text} Over RDMA between them: --nodes {wide // joined} --gpus-per-node {joined}."
            if wide % joined == 0
            else text
        )
    text = f"NVLink joins {joined} GPUs of {where}, but {nodes} nodes of {gpus} are planned over RDMA."
    total = nodes * gpus
    domains = -(-total // joined)
    if total % domains:
        return text
    return (
        f"{text} If they share a domain, as trays of one rack do: --nodes {domains} --gpus-per-node {total // domains}."
    )


def _domain(request: Request, files: Files) -> tuple[int, str]:
    """GPUs that NVLink joins, and of what; 0 where that is not known."""
    name = source_name(request)
    if name:
        reading = files.readings[name].values["gpus_per_node"]
        if not isinstance(reading.value, Absent):
            return int(reading.value), f"snapshot {files.readings[name].name}"
        return (RACK_GPUS, "an NVL72 rack") if "rack" in reading.value.detail else (0, "")
    profile = request.hardware or DEFAULT_HARDWARE
    return hardware(profile).gpus_per_node, f"hardware {profile}"
