"""NVSHMEM on this node: who uses it with IBGDA (GPU-initiated RDMA), and which copy of it counts."""

from __future__ import annotations

from epctl.core.check import Need
from epctl.core.context import Context
from epctl.core.fact import Absent, Fact, known
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.software import SharedLibrary
from epctl.core.views import libraries, needs, nics, versions
from epctl.core.views.settings import is_on, setting, told

_DISTRIBUTIONS = ("pplx-kernels",)
"""Further packages whose kernels use IBGDA."""
_ORDER = ("root", "loaded", "package", "loader")
"""A folder that a variable names wins in the builds, then what is loaded, then the wheel."""
ASSISTED_FROM = "3.4.5"
"""First NVSHMEM that falls back to CPU-assisted IBGDA by itself (its release notes)."""


def consumer(context: Context) -> str:
    """Who uses NVSHMEM with IBGDA here, '' when nobody does. Raises Unreadable."""
    wanted = tuple(profile for profile in context.profiles if {"ibgda", "nvshmem"} & set(profile.requires))
    if wanted:
        return libraries.titles(wanted)
    if is_on(context, "NVSHMEM_IB_ENABLE_IBGDA"):
        return told(context, "NVSHMEM_IB_ENABLE_IBGDA")
    if (setting(context, "NVSHMEM_REMOTE_TRANSPORT") or "").lower() == "ibgda":
        return told(context, "NVSHMEM_REMOTE_TRANSPORT")
    tuned = next((name for name, value in context.env.items() if name.startswith("NVSHMEM_IBGDA_") and value), "")
    if tuned:
        return told(context, tuned)
    return next((name for name in _DISTRIBUTIONS if name in context.distributions), "")


def _consumer(context: Context) -> str:
    if not needs.has_gpu(context.node):
        return "no NVIDIA GPU in this machine"
    return "" if consumer(context) else "nothing here uses NVSHMEM with IBGDA"


def _mlx5(context: Context) -> str:
    every = nics.devices(context.node)
    return (
        "" if any(device.driver == "mlx5_core" for device in every) else "no mlx5 adapter, which IBGDA is written for"
    )


IBGDA = Need("ibgda", _consumer)
MLX5 = Need("mlx5", _mlx5)


def in_use(node: Snapshot) -> SharedLibrary | None:
    """The copy of libnvshmem_host that counts; None without any. Raises Unreadable."""
    copies = known(node.software.nvshmem, "copies of NVSHMEM")
    for origin in _ORDER:
        found = [copy for copy in copies if copy.origin == origin]
        if found:
            return next((copy for copy in found if copy.first), found[0])
    return None


def version(node: Snapshot) -> Fact[str]:
    """Version of that copy. Raises Unreadable when the copies could not be listed."""
    copy = in_use(node)
    return Absent("not_found", "no libnvshmem_host") if copy is None else copy.version


def cpu_assisted(node: Snapshot) -> str:
    """Why IBGDA works without the driver's options: the CPU rings the doorbells, with gdrdrv. '' when it does not.
    Raises Unreadable."""
    found = version(node)
    if isinstance(found, Absent) and found.absent == "not_found":
        return ""
    release = known(found, "version of NVSHMEM")
    if versions.below(release, ASSISTED_FROM) or not known(node.gdr.gdrdrv_loaded, "gdrdrv (/proc/modules)"):
        return ""
    return f"NVSHMEM {release} with gdrdrv lets the CPU ring the doorbells"
