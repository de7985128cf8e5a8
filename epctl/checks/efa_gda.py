"""Checks of GPU-initiated networking over EFA: the proxy backend, and EFA-GDA (NCCL_GIN_TYPE=5)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from epctl.core.check import Need, Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known
from epctl.core.views import deepep, gin, gin_efa, installing, libraries, plugins, versions
from epctl.core.views.gin import AUTO, EFA_GDA, PROXY
from epctl.core.views.gin_efa import WANTED
from epctl.core.views.needs import EFA
from epctl.core.views.settings import is_off, setting, told

DEFAULTS_TO_PROXY = "2.31.0"
"""From this NCCL on EFA has GIN at all, with the proxy as the default (aws-ofi-nccl doc/gin-getting-started.md)."""
_FORK = re.compile(r"\+.*(efa|aws|amzn|amazon)", re.I)
"""Local version of a build for EFA."""


def _asks_for_gda(context: Context) -> str:
    kind = setting(context, "NCCL_GIN_TYPE")
    return "" if gin.gin_type(context) == EFA_GDA else f"NCCL_GIN_TYPE is {kind or 'unset'}, not 5 (EFA-GDA)"


GDA = Need("efa_gda", _asks_for_gda)


@check(
    "EFA-GDRDRV-OLD",
    area="efa",
    severity="fail",
    title="GDRCopy is too old for GIN over EFA",
    why="aws-ofi-nccl's GIN wants GDRCopy 2.5, and the lower version of library and kernel module counts; below it the "
    "communicator reports GIN type NONE.",
    fix="Drain the node and install gdrdrv 2.5 or newer on the host (node image), and libgdrapi 2.5 or newer in the image.",
    reference="https://github.com/aws/aws-ofi-nccl/issues/1350 https://github.com/aws/aws-ofi-nccl/issues/1371",
    needs=(EFA, WANTED),
)
def efa_gdrdrv_old(context: Context) -> Iterator[Seen]:
    for profile, floor in context.floors("gdrcopy"):
        yield from _gdrcopy(context, floor, profile.title)


def _gdrcopy(context: Context, floor: str, who: str) -> Iterator[Seen]:
    parts = {"libgdrapi": context.node.gdr.libgdrapi_version, "gdrdrv module": context.node.gdr.gdrdrv_version}
    for name, version in parts.items():
        if isinstance(version, Absent):
            if version.absent == "not_found":  # the file is not there: not installed, or not loaded
                yield bad(f"{name} is not there, {who} needs {floor} for GIN")
            else:
                yield unread(f"{name} version", version)
            continue
        old = versions.below(version, floor)
        if old is None:
            yield unread(f"{name} version", Absent("unparsable", version))
        else:
            text = f"{name} {version}, needed {floor}"
            yield bad(text) if old else good(text)


@check(
    "EFA-KMOD-OLD",
    area="efa",
    severity="fail",
    title="EFA driver or libraries are too old for EFA-GDA",
    why="EFA-GDA counts completions on the device; an older efa module, or an rdma-core without that call, fails late, when the "
    "context is made.",
    fix="Run EFA installer 1.50.0 or newer on the host (driver; drain the node first) and in the image (rdma-core, libfabric).",
    reference="https://github.com/aws/aws-ofi-nccl/issues/1369 "
    "https://github.com/awslabs/awsome-distributed-ai/issues/1234",
    needs=(EFA, GDA),
)
def efa_kmod_old(context: Context) -> Iterator[Seen]:
    version = context.node.rdma.efa_driver_version
    if isinstance(version, Absent):
        yield unread("/sys/module/efa/version", version)
    else:
        # With another choice of profiles the floor is that of EFA-GDA all the same: NCCL_GIN_TYPE=5 asks for it.
        for floor in [floor for _, floor in context.floors("efa_driver")] or [gin_efa.GDA_DRIVER]:
            text = f"efa module {version}, needed {floor}"
            old = versions.below(version, floor)
            if old is None:
                yield unread("/sys/module/efa/version", Absent("unparsable", version))
            else:
                yield bad(text) if old else good(text)
    library = next((entry for entry in context.node.rdma.libraries if entry.name == "libefa"), None)
    if library is None or (isinstance(library.path, Absent) and library.path.absent == "not_found"):
        yield bad("libefa is not on the loader path")
        return
    where = known(library.path, "libefa")
    if "efadv_create_comp_cntr" in known(library.symbols, f"symbols of {where}"):
        yield good(f"{where} exports efadv_create_comp_cntr")
    else:
        yield bad(f"{where} does not export efadv_create_comp_cntr")


@check(
    "EFA-PEERMAP-REGKEY",
    area="efa",
    severity="fail",
    title="The NVIDIA driver does not let GPUs map EFA doorbells",
    why="EFA-GDA maps device registers into the GPU's address space, which the driver allows with PeerMappingOverride=1 only.",
    fix="On the host set NVreg_RegistryDwords in modprobe.d, PeerMappingOverride=1 beside the dwords that are in force, and rebuild "
    "the initramfs; it holds from the next boot on: drain the node first.",
    reference="https://github.com/aws/aws-ofi-nccl/blob/master/doc/gin-getting-started.md "
    "https://github.com/aws/aws-ofi-nccl/issues/1369",
    needs=(EFA, GDA),
)
def efa_peermap_regkey(context: Context) -> Iterator[Seen]:
    params = known(context.node.gpu.driver.params, "/proc/driver/nvidia/params")
    words = next((entry.value for entry in params if entry.name == "RegistryDwords"), "")
    text = f"RegistryDwords: {words.strip() or 'empty'} (/proc/driver/nvidia/params)"
    lines = installing.driver_options(context.node, PeerMappingOverride="1")
    yield bad(text, commands=lines) if gin_efa.peer_mapping(context) else good(text)


@check(
    "EFA-GIN-DEFAULT-PROXY",
    area="efa",
    severity="warn",
    title="GIN over EFA goes through a CPU thread, or its settings do not fit",
    why="Without NCCL_GIN_TYPE=5 NCCL takes its proxy on EFA, which is bound by the CPU; with it, NCCL's own symmetric GIN kernels "
    "ask for signals that EFA-GDA lacks.",
    fix="On P5en and P6 set NCCL_GIN_TYPE=5 together with NCCL_SYM_GIN_KERNELS_ENABLE=0.",
    commands=("export NCCL_GIN_TYPE=5 NCCL_SYM_GIN_KERNELS_ENABLE=0",),
    reference="https://github.com/aws/aws-ofi-nccl/blob/master/doc/gin-getting-started.md "
    "https://github.com/awslabs/awsome-distributed-ai/issues/1234",
    needs=(EFA, WANTED),
)
def efa_gin_default_proxy(context: Context) -> Iterator[Seen]:
    kind = gin.gin_type(context)
    if kind == EFA_GDA:
        if is_off(context, "NCCL_SYM_GIN_KERNELS_ENABLE"):
            yield good("NCCL_GIN_TYPE=5, NCCL_SYM_GIN_KERNELS_ENABLE=0")
        else:
            off = setting(context, "NCCL_SYM_GIN_KERNELS_ENABLE") or "unset"
            yield bad(f"NCCL_GIN_TYPE=5, but NCCL_SYM_GIN_KERNELS_ENABLE is {off}")
        return
    product = known(context.node.host.product, "instance type (DMI)")
    if not plugins.GDA_INSTANCES.fullmatch(product) or kind not in (AUTO, PROXY):
        return
    nccl = libraries.nccl(context)
    if not nccl or versions.below(nccl, DEFAULTS_TO_PROXY):
        return
    kind_text = setting(context, "NCCL_GIN_TYPE") or "unset"
    if _upstream(context):
        yield good(f"NCCL_GIN_TYPE is {kind_text}; {_upstream(context)[0]} could not use EFA-GDA")
    else:
        yield bad(f"{product}, NCCL {nccl}, NCCL_GIN_TYPE is {kind_text}: NCCL takes the proxy")


def _upstream(context: Context) -> tuple[str, ...]:
    """DeepEP releases of the second generation that are not marked as builds for EFA."""
    return tuple(f"{name} {version}" for name, version in deepep.second(context).items() if not _FORK.search(version))


@check(
    "EFA-GDA-UNSUPPORTED-USE",
    area="efa",
    severity="fail",
    title="This DeepEP cannot run on EFA-GDA",
    why="EFA-GDA has no signals at virtual addresses, no strong signals and at most 512 signals and counters a device; upstream "
    "DeepEP uses the first, and 2.5 has a device path for GDAKI alone.",
    fix="Install Amazon's DeepEP fork for EFA, or set NCCL_GIN_TYPE=2 where the library allows the proxy.",
    reference="https://github.com/aws/aws-ofi-nccl/blob/master/doc/gin-getting-started.md "
    "https://github.com/NVIDIA/nccl/issues/2210 https://github.com/awslabs/awsome-distributed-ai/issues/1234",
    needs=(EFA, GDA),
)
def efa_gda_unsupported_use(context: Context) -> Iterator[Seen]:
    for library in _upstream(context):
        # A fork keeps the name deep-ep; only its local version could tell, so this is no certain failure.
        certain = library.startswith("deepinfer-ep")
        note = "" if certain else " (unless it is a fork for EFA without a mark in its version)"
        yield bad(f"{library} with {told(context, 'NCCL_GIN_TYPE')}{note}", severity=None if certain else "warn")
    if not _upstream(context):
        installed = ", ".join(
            f"{name} {version}"
            for name, version in context.distributions.items()
            if name in ("deep-ep", "deepinfer-ep")
        )
        yield good(f"EP libraries: {installed or 'no upstream DeepEP 2'}")
