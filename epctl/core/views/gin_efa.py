"""GIN over EFA: what aws-ofi-nccl asks for in either mode, and what EFA-GDA asks for besides."""

from __future__ import annotations

from epctl.core.check import Need
from epctl.core.context import Context
from epctl.core.fact import Absent, Fact, known, value_or
from epctl.core.values import integer
from epctl.core.views import libraries, needs, nics, plugins, regkeys, versions
from epctl.core.views.gates import Gate

GDA_PLUGIN = "1.22"
"""aws-ofi-nccl of EFA installer 1.50.0, the first one with all that EFA-GDA asks for (doc/gin-getting-started.md)."""
GDA_DRIVER = "3.3.0"
"""First efa module with completion counters (the same document)."""
_FIX = "Use EFA installer 1.50 or newer, NCCL 2.31.2 or newer, and GDRCopy 2.5 or newer (gdrdrv on the host, libgdrapi in the image)."


def _wanted(context: Context) -> str:
    if not needs.has_gpu(context.node):
        return "no NVIDIA GPU in this machine"
    return "" if context.wants("gin") or context.wants("gin_efa_gda") else "nothing in use here asks for GIN over EFA"


WANTED = Need("gin_over_efa", _wanted)


def carries(context: Context) -> bool:
    """All active ports that NCCL may use are EFA. Raises Unreadable."""
    active = [nic for nic in nics.selected(context) if nic.active]
    return bool(active) and all(nic.is_efa for nic in active)


def gate(context: Context) -> Gate:
    """Versions of NCCL, the plugin and GDRCopy, where traffic goes over EFA; open where it does not. Raises Unreadable."""
    name = "GIN over EFA"
    if not carries(context):
        return Gate(name, "open", "traffic does not go over EFA alone")
    for why in (nccl(context), plugin(context, plugins.GIN_PLUGIN), gdrcopy(context)):
        if why:
            return Gate(name, "closed", why, _FIX)
    return Gate(name, "open", "NCCL, aws-ofi-nccl and GDRCopy are new enough")


def nccl(context: Context) -> str:
    """Why NCCL is none with GIN over EFA; '' when it is."""
    found = libraries.nccl(context)
    if not found:
        return "no NCCL is installed"
    return f"NCCL {found}, GIN over EFA needs {plugins.GIN_NCCL}" if versions.below(found, plugins.GIN_NCCL) else ""


def plugin(context: Context, floor: str) -> str:
    """Why the plugin is older than `floor`, or not there; '' when it is new enough."""
    for entry in plugins.found(context.node):
        if plugins.is_ofi(entry):
            found = known(entry.version, f"version of {entry.name}")
            return f"aws-ofi-nccl {found}, {floor} is needed" if versions.below(found, floor) else ""
    return "aws-ofi-nccl is not on the loader path"


def gdrcopy(context: Context) -> str:
    """Why GDRCopy is too old; the older one of its library and its module counts."""
    area = context.node.gdr
    parts: dict[str, Fact[str]] = {"gdrdrv": area.gdrdrv_version, "libgdrapi": area.libgdrapi_version}
    for name, version in parts.items():
        if isinstance(version, Absent) and version.absent == "not_found":  # not loaded, or not installed
            return f"{name} is not there, GIN over EFA needs {plugins.GIN_GDRCOPY}"
        found = known(version, f"version of {name}")
        if versions.below(found, plugins.GIN_GDRCOPY):
            return f"{name} {found}, GIN over EFA needs {plugins.GIN_GDRCOPY}"
    return ""


def instance(context: Context) -> str:
    """Why this machine has no EFA-GDA."""
    nics.devices(context.node)
    if not needs.has_efa(context.node):
        return "no EFA device in this machine"
    product = value_or(context.node.host.product, "")
    if plugins.EFA_INSTANCES.fullmatch(product) and not plugins.GDA_INSTANCES.fullmatch(product):
        return f"{product} has EFA, but no EFA GDA"
    return ""


def gda_plugin(context: Context) -> str:
    """Why the plugin is too old for EFA-GDA."""
    return plugin(context, GDA_PLUGIN)


def gda_driver(context: Context) -> str:
    """Why the efa module is too old for EFA-GDA."""
    found = known(context.node.rdma.efa_driver_version, "version of the efa module")
    return f"efa module {found}, EFA GDA needs {GDA_DRIVER}" if versions.below(found, GDA_DRIVER) else ""


def peer_mapping(context: Context) -> str:
    """Why the NVIDIA driver does not map device registers into GPUs."""
    params = known(context.node.gpu.driver.params, "/proc/driver/nvidia/params")
    words = next((entry.value for entry in params if entry.name == "RegistryDwords"), "")
    if integer(regkeys.dwords(words).get("peermappingoverride", "")) == 1:
        return ""
    return "the driver option PeerMappingOverride=1 is not set"
