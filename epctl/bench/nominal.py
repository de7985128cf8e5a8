"""Nominal figures of the GPUs at hand: what the driver says, else what the hardware tables say."""

from __future__ import annotations

from epctl.core.op import Hardware, Layout
from epctl.model.hardware import hardware_of_gpu


def hardware(layout: Layout, num_sms: int = 0) -> Hardware:
    """Of the layout's GPUs; zeros where nobody knows."""
    profile = hardware_of_gpu(layout.gpu_name) if layout.gpu_name else None
    nvlink, nvlink_source = layout.num_links_per_gpu * layout.link_gbs, ""
    if nvlink:
        nvlink_source = f"driver: {layout.num_links_per_gpu} links x {layout.link_gbs:g} GB/s"
    elif layout.num_links_per_gpu and profile is not None:
        nvlink = layout.num_links_per_gpu * float(profile.gpu.link_gbs.value)
        nvlink_source = f"{layout.num_links_per_gpu} links, {profile.gpu.link_gbs.told()}"
    ports = sum(adapter.gbps for adapter in layout.adapters) / 8
    per_node = layout.num_gpus // len(layout.hosts) if layout.hosts else 0
    return Hardware(
        gpu_name=layout.gpu_name,
        num_sms=num_sms or (int(profile.gpu.device_sms.value) if profile is not None else 0),
        nvlink_gbs=nvlink,
        nvlink_source=nvlink_source,
        hbm_peak_gbs=float(profile.gpu.hbm_peak_gbs.value) if profile is not None else 0.0,
        hbm_source=profile.gpu.hbm_peak_gbs.told() if profile is not None else "",
        rdma_gbs=ports / per_node if per_node else 0.0,
        rdma_source=f"{len(layout.adapters)} ports of a node, {per_node} GPUs" if ports and per_node else "",
    )
