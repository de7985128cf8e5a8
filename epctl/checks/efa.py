"""Checks of AWS EFA: devices, plugin, GPUDirect. Limits are in efa_limits, GIN over EFA in efa_gda."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Need, Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot.rdma import RdmaDevice
from epctl.core.views import gdr, gin, nics, plugins, versions
from epctl.core.views.gin import SEVERAL_NODES
from epctl.core.views.needs import EFA, GPU
from epctl.core.views.settings import is_on, setting, told


def _devices(context: Context) -> tuple[RdmaDevice, ...]:
    return tuple(device for device in nics.devices(context.node) if gin.driver(device) == "efa")


@check(
    "EFA-PLUGIN-NOT-FOUND",
    area="efa",
    severity="fail",
    title="NCCL finds no usable plugin for EFA",
    why="NCCL itself does not speak EFA; without aws-ofi-nccl (or with one that is too old) it runs over TCP or stops.",
    fix="Install the EFA installer's aws-ofi-nccl in the image, put its lib folder on LD_LIBRARY_PATH, set NCCL_NET_PLUGIN=ofi.",
    commands=("export NCCL_NET_PLUGIN=ofi",),
    reference="https://github.com/NVIDIA/nccl/issues/959 https://github.com/NVIDIA/nccl/issues/229 "
    "https://github.com/aws/aws-ofi-nccl/issues/67",
    needs=(EFA,),
)
def efa_plugin_not_found(context: Context) -> Iterator[Seen]:
    asked = plugins.requested(context)
    if asked == ("none",):
        yield bad(
            f"{told(context, 'NCCL_NET_PLUGIN')} keeps NCCL from loading any plugin", fix="Unset NCCL_NET_PLUGIN."
        )
        return
    present = [plugin for plugin in plugins.found(context.node) if plugins.is_ofi(plugin)]
    if not present:
        yield bad("no libnccl-net-ofi.so or libnccl-net.so of aws-ofi-nccl on the loader path")
        return
    chosen = [plugin for plugin in present if not asked or any(plugins.answers(plugin, entry) for entry in asked)]
    if not chosen:
        names = ", ".join(plugin.path for plugin in present)
        yield bad(f"{told(context, 'NCCL_NET_PLUGIN')} names none of the plugins that are here: {names}")
    for plugin in chosen:
        yield from _new_enough(context, plugin.path, plugin.version)


def _new_enough(context: Context, path: str, version: str | Absent) -> Iterator[Seen]:
    if isinstance(version, Absent):
        yield good(f"{path} (version not known)")
        return
    old = [(profile, floor) for profile, floor in context.floors("aws_ofi_nccl") if versions.below(version, floor)]
    for profile, floor in old:
        yield bad(
            f"{path} is aws-ofi-nccl {version}; {profile.title} needs {floor}",
            fix="Upgrade aws-ofi-nccl (EFA installer).",
        )
    if not old:
        yield good(f"{path}, aws-ofi-nccl {version}")


@check(
    "EFA-SILENT-SOCKET",
    area="efa",
    severity="warn",
    title="A plugin that fails to load would go unnoticed",
    why="NCCL falls back to sockets when the EFA plugin does not load, unless NCCL_NET names the network that it must use.",
    fix="Set NCCL_NET to the plugin's network, so that a failure stops the job.",
    commands=("export NCCL_NET='AWS Libfabric'",),
    reference="https://github.com/SemiAnalysisAI/InferenceX/issues/2979 https://github.com/NVIDIA/nccl/issues/1597",
    needs=(EFA,),
)
def efa_silent_socket(context: Context) -> Iterator[Seen]:
    network = setting(context, "NCCL_NET")
    if network is None:
        yield bad("NCCL_NET is not set", severity="info" if context.num_nodes == 1 else None)
    elif network.lower() in plugins.BUILT_IN:
        yield bad(
            f"{told(context, 'NCCL_NET')} leaves EFA unused", severity="info" if context.num_nodes == 1 else "fail"
        )
    else:
        yield good(told(context, "NCCL_NET"))


@check(
    "EFA-POD-RESOURCE",
    area="efa",
    severity="fail",
    title="The EFA devices of this instance do not reach this process",
    why="A pod or container gets EFA only when it asks for it; without the devices NCCL runs over TCP.",
    fix="Request all vpc.amazonaws.com/efa devices of the instance type in the pod's limits (with hugepages-2Mi), or pass each "
    "/dev/infiniband/uverbs* with --device.",
    reference="https://github.com/aws/sagemaker-hyperpod-cli/issues/306 https://github.com/aws/aws-ofi-nccl/issues/803 "
    "https://docs.aws.amazon.com/eks/latest/userguide/device-management-efa.html",
    needs=(GPU,),
)
def efa_pod_resource(context: Context) -> Iterator[Seen]:
    product = value_or(context.node.host.product, "")
    devices = _devices(context)
    severity: Severity | None = None if context.num_nodes > 1 else "warn"
    if not devices:
        if plugins.EFA_INSTANCES.fullmatch(product):
            yield bad(f"{product} has EFA (DMI), /sys/class/infiniband shows no efa device", severity=severity)
        return
    nodes = known(context.node.rdma.uverbs, "/dev/infiniband/uverbs*")
    usable = [entry for entry in nodes if entry.read_write is True]
    unclear = [entry for entry in nodes if isinstance(entry.read_write, Absent)]
    if unclear:
        yield unread(unclear[0].path, unclear[0].read_write)  # type: ignore[arg-type]
    elif not usable:
        what = "no uverbs device in /dev/infiniband" if not nodes else "no uverbs device may be opened by this user"
        yield bad(f"{len(devices)} EFA devices in sysfs, {what}", severity=severity)
    elif len(usable) < len(devices):
        yield bad(f"{len(devices)} EFA devices in sysfs, {len(usable)} uverbs devices may be opened", severity="warn")
    else:
        yield good(f"{len(devices)} EFA devices, {len(usable)} uverbs devices")


@check(
    "EFA-GDR-OFF",
    area="efa",
    severity="fail",
    title="EFA cannot reach GPU memory",
    why="Neither a peer memory module nor DMA-BUF is usable, so the plugin refuses to start on instances that have GPUDirect.",
    fix="Load efa_nv_peermem (EFA installer), or use Linux 5.12 or newer with the open NVIDIA kernel modules and leave "
    "OFI_NCCL_DISABLE_DMABUF unset.",
    commands=("sudo modprobe efa_nv_peermem",),
    reference="https://github.com/aws/aws-ofi-nccl/blob/master/src/platform-aws.cpp "
    "https://github.com/aws/aws-ofi-nccl/blob/master/src/nccl_ofi_dmabuf.cpp",
    needs=(EFA,),
)
def efa_gdr_off(context: Context) -> Iterator[Seen]:
    if is_on(context, "OFI_NCCL_DISABLE_GDR_REQUIRED_CHECK"):
        yield bad(
            f"{told(context, 'OFI_NCCL_DISABLE_GDR_REQUIRED_CHECK')} hides missing GPUDirect",
            severity="warn",
            fix="Unset OFI_NCCL_DISABLE_GDR_REQUIRED_CHECK.",
        )
    modules = {module.name for module in known(context.node.host.modules, "kernel modules (/proc/modules)")}
    peer = modules & {"efa_nv_peermem", "nvidia_peermem", "nv_peer_mem"}
    if peer or context.node.gdr.peermem_loaded is True:
        yield good(f"{', '.join(sorted(peer)) or 'a peer memory module'} is loaded")
        return
    name = "OFI_NCCL_DISABLE_DMABUF"
    way = gdr.dma_buf_way(context.node, told(context, name) if is_on(context, name) else "", by_kernel=True)
    text = f"no peer memory module is loaded; {way.text}"
    if way.state == "closed":
        yield bad(text)
    elif way.state == "open":
        yield good(text)
    else:
        yield unread("GPUDirect of EFA", Absent("not_probed", text))


@check(
    "EFA-MIXED-UVERBS",
    area="efa",
    severity="fail",
    title="Foreign uverbs devices keep libfabric from EFA",
    why="A hostPath mount of /dev/infiniband shows devices of other cards that the container may not open; libfabric must open "
    "every one and then reports no EFA at all, so traffic goes over TCP.",
    fix="Remove the hostPath mount of /dev/infiniband and take the devices that the EFA device plugin grants.",
    reference="https://github.com/aws-samples/aws-do-eks/issues/63",
    needs=(EFA,),
)
def efa_mixed_uverbs(context: Context) -> Iterator[Seen]:
    others = [device.name for device in nics.devices(context.node) if gin.driver(device) != "efa"]
    if not others:
        yield good("all RDMA devices are EFA")
        return
    seen = context.node.rdma.fi_efa_devices
    if isinstance(seen, int) and seen > 0:
        yield good(f"fi_info -p efa lists {seen} devices beside {', '.join(others)}")
        return
    opened = {probe.device: probe.opened for probe in value_or(context.node.active.verbs, ())}
    refused = [f"{name} cannot be opened (active probe)" for name in others if opened.get(name) is False]
    nodes = value_or(context.node.rdma.uverbs, ())
    refused += [f"{entry.path} may not be opened" for entry in nodes if entry.read_write is False]
    if isinstance(seen, int):
        why = refused[0] if refused else f"devices of other drivers: {', '.join(others)}"
        yield bad(f"fi_info -p efa lists no device although {len(_devices(context))} are in sysfs; {why}")
    elif refused:
        yield bad(f"{refused[0]}, beside {len(_devices(context))} EFA devices")
    elif all(opened.get(name) is True for name in others):
        yield good(f"{', '.join(others)} can be opened (active probe)")
    else:
        yield unread("fi_info -p efa", seen)


def _deepep2(context: Context) -> str:
    for name in ("deepinfer-ep", "deep-ep"):
        if versions.below(context.distributions.get(name, "0"), "2.0") is False:
            return ""
    return "DeepEP 2 or newer is not installed"


@check(
    "EFA-SM-ZERODIV",
    area="efa",
    severity="fail",
    title="DeepEP reads no link rate here and divides by zero",
    why="DeepEP takes the rate of EP_NIC_NAME (mlx5_0 by default) from ibstat to choose its number of SMs; EFA devices do not "
    "show up there.",
    fix="Pass num_sms to the buffer explicitly, or use a DeepEP that reads the rate from sysfs.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/734",
    needs=(EFA, SEVERAL_NODES, Need("deepep2", _deepep2)),
)
def efa_sm_zerodiv(context: Context) -> Iterator[Seen]:
    name = setting(context, "EP_NIC_NAME") or "mlx5_0"
    status = context.node.rdma.ibstat
    if isinstance(status, Absent):
        if status.absent != "tool_missing":
            yield unread("ibstat", status)
            return
        yield bad(f"ibstat is not installed, so the rate of {name} is not known")
        return
    listed = () if status == "empty" else known(context.node.rdma.ibstat_devices, "devices of ibstat")
    if name in listed:
        yield good(f"ibstat lists {name}")
    else:
        yield bad(f"ibstat lists {', '.join(listed) or 'no device'}; EP_NIC_NAME is {name}")
