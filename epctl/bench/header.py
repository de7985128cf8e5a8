"""What every output begins with: the topology it was made on, and what was not real about it."""

from __future__ import annotations

from collections.abc import Mapping

from epctl.core.op import Layout
from epctl.core.render.safe import plain
from epctl.core.wording import counted

NO_KERNEL = "NO KERNEL RAN: plain PyTorch on the CPU; times say nothing about a GPU"
EMULATED = "EMULATED: several nodes are played on one host; times say nothing about a network"
MAX_NAMES = 4


def cautions(layout: Layout) -> tuple[str, ...]:
    """What nobody may overlook."""
    return (*([NO_KERNEL] if layout.tier == "cpu" else []), *([EMULATED] if layout.emulated else []))


def lines(layout: Layout) -> tuple[str, ...]:
    """One fact or a few a line; the cautions first."""
    return (*cautions(layout), _ranks(layout), *_gpus(layout), _network(layout), *_versions(layout))


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    return plain(shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} more")


def _ranks(layout: Layout) -> str:
    hosts = counted(len(layout.hosts), "host")
    return (
        f"layout     {layout.scale_out} x {layout.scale_up} (scale-out x scale-up): {counted(layout.num_ranks, 'rank')} on "
        f"{hosts} ({_some(layout.hosts)})"
    )


def _gpus(layout: Layout) -> tuple[str, ...]:
    if layout.tier == "cpu":
        return ()
    shared = f", {layout.num_ranks // layout.num_gpus} ranks on each" if layout.num_gpus < layout.num_ranks else ""
    told = f"GPUs       {layout.num_gpus} x {plain(layout.gpu_name) or 'of a kind that NVML does not tell'}{shared}"
    if not layout.num_links_per_gpu:
        return (told, "NVLink     none seen")
    rate = layout.num_links_per_gpu * layout.link_gbs
    each = f" x {layout.link_gbs:g} GB/s = {rate:.0f} GB/s each way" if layout.link_gbs else ""
    return (told, f"NVLink     {counted(layout.num_links_per_gpu, 'link')} a GPU{each}")


def _network(layout: Layout) -> str:
    gin = f"GIN {layout.gin_type}" if layout.gin_type else "no GIN"
    if not layout.adapters:
        return f"network    no active RDMA port; {gin}"
    rates = sorted({adapter.gbps for adapter in layout.adapters if adapter.gbps})
    speed = f" of {' and '.join(f'{rate:g}' for rate in rates)} Gb/s" if rates else ""
    names = _some(tuple(adapter.name for adapter in layout.adapters))
    rails = counted(layout.num_rails, "rail")
    return f"network    {counted(len(layout.adapters), 'NIC')} a node{speed} ({names}), {rails}; {gin}"


def _versions(layout: Layout) -> tuple[str, ...]:
    found = [
        f"{name} {plain(version)}"
        for name, version in (("NCCL", layout.nccl_version), ("driver", layout.driver_version))
        if version
    ]
    return (f"versions   {', '.join(found)}",) if found else ()


def absences(absent: Mapping[str, str]) -> tuple[str, ...]:
    """Ops that do not run here, and why."""
    return tuple(f"not run: {name}: {plain(why)}" for name, why in absent.items())
