"""GPUs, their links and the driver: NVML first, the texts of nvidia-smi where it is silent, sysfs for what hangs on PCIe."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.gpu import Driver, Gpu, GpuArea
from epctl.probes import nvidia_smi, sysfs
from epctl.probes.driver import HostSide, host_side, with_nvml
from epctl.probes.nvml_gpus import gpus_of, p2p_of
from epctl.probes.reading import Reading
from epctl.probes.source import Source
from epctl.probes.together import together

NVML_TIMEOUT_S = 20.0
"""Without persistence mode the driver wakes up every GPU first; the collector ends by itself before that."""


def gpu(source: Source) -> GpuArea:
    """The area of the GPUs. The sources are read at the same time."""
    found = together(
        {
            "nvml": lambda: source.document("nvml", NVML_TIMEOUT_S),
            "status": lambda: nvidia_smi.reading(source, "nvlink_status"),
            "topo": lambda: nvidia_smi.reading(source, "topo"),
            "host": lambda: host_side(source),
        }
    )
    document, status, topo = found["nvml"], found["status"], found["topo"]
    host = HostSide(Driver(), (str(found["host"]),)) if isinstance(found["host"], Absent) else found["host"]
    gpus, notes = _gpus(source, document, status, topo)
    if isinstance(document, dict) and document.get("partial"):
        notes = ("NVML did not answer in time: what it said until then is used", *notes)
    return GpuArea(
        driver=with_nvml(host.driver, document),
        gpus=gpus,
        p2p=p2p_of(document),
        topology=nvidia_smi.cells(topo),
        nvlink_status_lines=nvidia_smi.speed_lines(status),
        notes=(
            *host.notes,
            *notes,
            *nvidia_smi.problems("nvlink_status", status),
            *nvidia_smi.problems("topo", topo),
        ),
    )


def _gpus(
    source: Source,
    document: Any,  # noqa: ANN401 - JSON
    status: Reading[Any] | Absent,
    topo: Reading[Any] | Absent,
) -> tuple[Fact[tuple[Gpu, ...]], tuple[str, ...]]:
    """The GPUs, and notes. What `nvidia-smi nvlink -e` and `-c` print is asked for only where it is needed."""
    told = gpus_of(document)
    needed = isinstance(told, Absent) or _lacks_errors(told)
    errors = nvidia_smi.reading(source, "nvlink_errors") if needed else Absent("not_read")
    if isinstance(told, Absent):
        printed = nvidia_smi.listed(status, errors)
        printed = printed or nvidia_smi.listed(nvidia_smi.reading(source, "nvlink_caps")) or nvidia_smi.labelled(topo)
        if not printed:
            return told, ()
        gpus, notes = nvidia_smi.with_links(printed, status, errors)
        notes = (f"GPUs are those that nvidia-smi prints; {told}", *notes)
    else:
        gpus, notes = nvidia_smi.with_links(told, status, errors)
    return tuple(_placed(source, gpu, topo) for gpu in gpus), notes


def _lacks_errors(gpus: tuple[Gpu, ...]) -> bool:
    """A link that is up has no error counters."""
    return any(
        link.active is True and isinstance(link.errors, Absent)
        for gpu in gpus
        if isinstance(gpu.links, tuple)
        for link in gpu.links
    )


def _placed(source: Source, gpu: Gpu, topo: Reading[Any] | Absent) -> Gpu:
    """`gpu` with its NUMA node and the CPUs next to it: from sysfs, else from the columns of `nvidia-smi topo -m`."""
    if isinstance(gpu.pci, Absent):
        node: Fact[int] = gpu.pci
        cpus: Fact[str] = gpu.pci
    else:
        node = sysfs.numa_node(source, f"/sys/bus/pci/devices/{gpu.pci}/numa_node")
        cpus = sysfs.word(source, f"/sys/bus/pci/devices/{gpu.pci}/local_cpulist")
    printed_cpus, printed_node = nvidia_smi.affinity(topo, gpu.index)
    if isinstance(node, Absent) and node.absent != "unsupported" and printed_node >= 0:
        node = printed_node
    if isinstance(cpus, Absent) and printed_cpus:
        cpus = printed_cpus
    return structs.replace(gpu, numa_node=node, local_cpus=cpus)
