"""Whether GPU-initiated RDMA over mlx5 (GIN GDAKI, IBGDA) is what this node is meant for."""

from __future__ import annotations

from epctl.core.check import Need
from epctl.core.context import Context
from epctl.core.views import gin, needs
from epctl.core.views.settings import is_off, is_on, told


def why_not_gdaki(context: Context) -> str:
    """'' when GIN GDAKI is asked for: by NCCL_GIN_TYPE=3, or by a profile in force while nothing chooses another way."""
    if is_off(context, "NCCL_GIN_ENABLE"):
        return f"GIN is switched off: {told(context, 'NCCL_GIN_ENABLE')}"
    chosen = gin.gin_type(context)
    if chosen == gin.GDAKI:
        return ""
    if chosen != gin.AUTO:
        return f"{told(context, 'NCCL_GIN_TYPE')} asks for another GIN backend than GDAKI"
    if is_on(context, "EP_DISABLE_GIN"):
        return f"GIN is not used: {told(context, 'EP_DISABLE_GIN')}"
    return "" if context.wants("gin_gdaki") else "no library in use here asks for GIN GDAKI"


def why_not_gpu_initiated(context: Context) -> str:
    """'' when GIN GDAKI or NVSHMEM's IBGDA is asked for."""
    return "" if context.wants("ibgda") else why_not_gdaki(context)


def gdaki(context: Context) -> bool:
    """GIN GDAKI is asked for."""
    return not why_not_gdaki(context)


def because(context: Context) -> str:
    """Who asks for it, for evidence."""
    if gin.gin_type(context) == gin.GDAKI:
        return told(context, "NCCL_GIN_TYPE")
    names = [profile.id for profile in (*context.wants("gin_gdaki"), *context.wants("ibgda"))]
    return f"profile {', '.join(names)}"


def _gdaki(context: Context) -> str:
    return why_not_gdaki(context) if needs.has_gpu(context.node) else "no NVIDIA GPU in this machine"


def _gpu_initiated(context: Context) -> str:
    if not needs.has_gpu(context.node):
        return "no NVIDIA GPU in this machine"
    return why_not_gpu_initiated(context)


GDAKI = Need("gdaki", _gdaki)
GPU_INITIATED = Need("gpu_initiated", _gpu_initiated)
