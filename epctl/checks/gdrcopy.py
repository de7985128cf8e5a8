"""GDRCopy: is its module there, does it fit the library and the driver?"""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Need, Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.views import needs, regkeys, versions
from epctl.core.views.needs import GPU
from epctl.core.views.settings import integer, is_on, told


def demand(context: Context) -> str:
    """Who cannot do without GDRCopy; '' when nobody is known to."""
    for profile in context.wants("gdrcopy"):
        return f"profile {profile.id}"
    params = context.node.gpu.driver.params
    if context.wants("ibgda") and isinstance(params, tuple):
        values = {entry.name: entry.value for entry in params}
        peers = regkeys.dwords(values.get("RegistryDwords", "")).get("peermappingoverride", "")
        # Without both options of IBGDA's ordinary way NVSHMEM needs gdrdrv for the CPU-assisted one (DeepEP docs/nvshmem.md).
        if integer(values.get("EnableStreamMemOPs", "")) != 1 or integer(peers) != 1:
            return "CPU-assisted IBGDA (the driver options of the other way are not set)"
    return ""


def _use(context: Context) -> str:
    """Who uses GDRCopy where it is; '' when nobody is known to."""
    library = context.node.gdr.libgdrapi_version
    if is_on(context, "NCCL_GDRCOPY_ENABLE"):
        return told(context, "NCCL_GDRCOPY_ENABLE")
    return f"libgdrapi {library} is installed" if isinstance(library, str) else ""


def _user(context: Context) -> str:
    if not needs.has_gpu(context.node):
        return "no NVIDIA GPU in this machine"
    return "" if demand(context) or _use(context) else "nothing here uses GDRCopy"


@check(
    "GDRCOPY-NOT-LOADED",
    area="gdr",
    severity="warn",
    title="The gdrdrv module is not loaded, or its device may not be opened",
    why="gdr_open fails: small copies between host and GPU get slow, and aws-ofi-nccl's GIN and CPU-assisted IBGDA do not start.",
    fix="Install gdrdrv for this kernel and load it at boot, or by hand when no job runs; pass /dev/gdrdrv into the container.",
    commands=("sudo modprobe gdrdrv",),
    reference="https://github.com/NVIDIA/gdrcopy/issues/251 https://github.com/NVIDIA/gdrcopy/issues/234 "
    "https://github.com/deepseek-ai/DeepEP/blob/main/docs/nvshmem.md",
    needs=(Need("gdrcopy", _user),),
)
def gdrcopy_not_loaded(context: Context) -> Iterator[Seen]:
    area = context.node.gdr
    who = demand(context)
    severity: Severity = "fail" if who else "warn"
    because = f"asked for by {who}" if who else _use(context)
    facts = (
        (area.gdrdrv_loaded, "gdrdrv is loaded (/proc/modules)", "gdrdrv is not loaded (/proc/modules)"),
        (
            area.gdrdrv_node,
            "/dev/gdrdrv may be opened",
            "/dev/gdrdrv is missing, or this user may not read and write it",
        ),
    )
    for fact, fine, wrong in facts:
        if isinstance(fact, Absent):
            yield unread("gdrdrv", fact)
        else:
            yield good(fine) if fact else bad(f"{wrong}; {because}", severity=severity)


@check(
    "GDRCOPY-VERSION-SPLIT",
    area="gdr",
    severity="info",
    title="gdrdrv is older than libgdrapi",
    why="Features are those of the older one: what a new library offers is missing at run time.",
    fix="Drain the node and upgrade gdrdrv on the host to the version of the library.",
    reference="https://github.com/NVIDIA/gdrcopy/issues/327 https://github.com/aws/aws-ofi-nccl/issues/1350",
    needs=(GPU,),
)
def gdrcopy_version_split(context: Context) -> Iterator[Seen]:
    area = context.node.gdr
    if any(
        isinstance(fact, Absent) and fact.absent == "not_found"
        for fact in (area.gdrdrv_version, area.libgdrapi_version)
    ):
        return  # one of them is not installed: nothing to compare
    module = known(area.gdrdrv_version, "version of gdrdrv")
    library = known(area.libgdrapi_version, "version of libgdrapi")
    text = f"gdrdrv {module} (sysfs), libgdrapi {library}"
    one, other = versions.parse(module), versions.parse(library)
    if one is None or other is None:
        yield unread("versions of GDRCopy", Absent("unparsable", "no versions", text))
    elif (one.major, one.minor) >= (other.major, other.minor):
        yield good(text)
    else:
        short = [profile.id for profile, floor in context.floors("gdrcopy") if versions.below(module, floor)]
        reason = f"; too old for profile {', '.join(short)}" if short else ""
        yield bad(f"{text}{reason}", severity="fail" if short else "info")


@check(
    "GDRCOPY-FLAVOUR",
    area="gdr",
    severity="fail",
    title="gdrdrv was built for the proprietary driver, and the open one is running",
    why="It loads through a dummy module, then every mapping fails.",
    fix="Build gdrdrv again from the sources of the driver that runs, and load it anew when no job runs.",
    commands=("modinfo -F depends gdrdrv",),
    reference="https://github.com/NVIDIA/gdrcopy/issues/334",
    needs=(GPU,),
)
def gdrcopy_flavour(context: Context) -> Iterator[Seen]:
    area = context.node.gdr
    if area.gdrdrv_loaded is False and isinstance(value_or(area.gdrdrv_depends, False), bool):
        return  # not there at all
    depends = known(area.gdrdrv_depends, "modules that gdrdrv depends on")
    dummy = [name for name in depends if name.replace("_", "-") == "nv-p2p-dummy"]
    flavour = known(context.node.gpu.driver.kernel_flavour, "flavour of the NVIDIA kernel module")
    text = f"gdrdrv depends on {', '.join(depends) or 'no module'} (modinfo), the {flavour} driver is running"
    yield bad(text) if dummy and flavour == "open" else good(text)
