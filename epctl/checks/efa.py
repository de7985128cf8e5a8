"""Checks of AWS EFA: devices, plugin, GPUDirect. Limits are in efa_limits, GIN over EFA in efa_gda."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot.rdma import RdmaDevice
from epctl.core.views import deepep, gdr, gin, gin_efa, nics, plugins, versions
from epctl.core.views.gin import SEVERAL_NODES
from epctl.core.views.needs import EFA, GPU, RDMA
from epctl.core.views.settings import is_on, setting, told
from epctl.core.wording import counted

_LAUNCH = "Launch the instance with network interfaces of type efa, and install the EFA driver and load the efa module before jobs start."
_GRANT = (
    "Request all vpc.amazonaws.com/efa devices in the pod's limits (with hugepages-2Mi), or pass /dev/infiniband/uverbs* with "
    "--device; where the host itself shows none, the instance was launched without EFA interfaces."
)


def _devices(context: Context) -> tuple[RdmaDevice, ...]:
    return tuple(device for device in nics.devices(context.node) if gin.driver(device) == "efa")


@check(
    "EFA-PLUGIN-NOT-FOUND",
    area="efa",
    severity="fail",
    title="NCCL finds no plugin for EFA",
    why="NCCL itself does not speak EFA; without aws-ofi-nccl it runs over TCP or stops.",
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
        yield good(f"{plugin.path}, aws-ofi-nccl {value_or(plugin.version, 'of unknown version')}")


@check(
    "EFA-PLUGIN-OLD",
    area="efa",
    severity="fail",
    title="aws-ofi-nccl is too old for GIN over EFA",
    why="The plugin has GIN from 1.21 on, and EFA-GDA's libraries came with 1.22; an older one serves collectives alone, and "
    "communicators report the GIN type NONE.",
    fix="Use EFA installer 1.50.0 or newer in the image; collectives go on working with the old plugin.",
    reference="https://github.com/aws/aws-ofi-nccl/blob/master/doc/gin-getting-started.md",
    needs=(EFA, gin_efa.WANTED),
)
def efa_plugin_old(context: Context) -> Iterator[Seen]:
    present = [plugin for plugin in plugins.found(context.node) if plugins.is_ofi(plugin)]
    for profile, floor in context.floors("aws_ofi_nccl"):
        for plugin in present:
            version = known(plugin.version, f"version of {plugin.path}")
            text = f"{plugin.path} is aws-ofi-nccl {version}; {profile.title} needs {floor} for GIN"
            old = versions.below(version, floor)
            if old is None:
                yield unread(f"version of {plugin.path}", Absent("unparsable", line=version))
            else:
                yield bad(text) if old else good(text)


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
    title="This process does not have the EFA devices that the instance type offers",
    why="An instance has EFA only when its network interfaces were made as EFA at launch, and a pod or container only when it asks for "
    "the devices; without them NCCL runs over TCP.",
    fix="On the host: launch the instance with network interfaces of type efa, and load the efa module before jobs start. In a pod: "
    "request all vpc.amazonaws.com/efa devices of the type (with hugepages-2Mi). In a container: pass each /dev/infiniband/uverbs* "
    "with --device.",
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
            text = f"{product} has EFA (DMI), /sys/class/infiniband shows no efa device"
            inside = value_or(context.node.host.container, "")
            yield bad(text, severity=severity, fix=_GRANT if inside not in ("", "none") else _LAUNCH if inside else "")
        return
    nodes = known(context.node.rdma.uverbs, "/dev/infiniband/uverbs*")
    usable = [entry for entry in nodes if entry.read_write is True]
    unclear = [entry for entry in nodes if isinstance(entry.read_write, Absent)]
    if unclear:
        yield unread(unclear[0].path, unclear[0].read_write)  # type: ignore[arg-type]
    elif not usable:
        what = "no uverbs device in /dev/infiniband" if not nodes else "no uverbs device may be opened by this user"
        yield bad(f"{counted(len(devices), 'EFA device')} in sysfs, {what}", severity=severity)
    elif len(usable) < len(devices):
        yield bad(
            f"{counted(len(devices), 'EFA device')} in sysfs, {counted(len(usable), 'uverbs device')} may be opened",
            severity="warn",
        )
    else:
        yield good(f"{counted(len(devices), 'EFA device')}, {counted(len(usable), 'uverbs device')}")


@check(
    "EFA-GDR-OFF",
    area="efa",
    severity="fail",
    title="EFA cannot reach GPU memory",
    why="Neither a peer memory module nor DMA-BUF is usable, so the plugin refuses to start on instances that have GPUDirect.",
    fix="Load efa_nv_peermem (EFA installer) when no job runs, or use Linux 5.12 or newer with the open NVIDIA kernel modules and leave "
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
            commands=("unset OFI_NCCL_DISABLE_GDR_REQUIRED_CHECK",),
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
        yield good(f"fi_info -p efa lists {counted(seen, 'device')} beside {', '.join(others)}")
        return
    opened = {probe.device: probe.opened for probe in value_or(context.node.active.verbs, ())}
    refused = [f"{name} cannot be opened (active probe)" for name in others if opened.get(name) is False]
    nodes = value_or(context.node.rdma.uverbs, ())
    refused += [f"{entry.path} may not be opened" for entry in nodes if entry.read_write is False]
    if isinstance(seen, int):
        why = refused[0] if refused else f"devices of other drivers: {', '.join(others)}"
        yield bad(f"fi_info -p efa lists no device although {len(_devices(context))} are in sysfs; {why}")
    elif refused:
        yield bad(f"{refused[0]}, beside {counted(len(_devices(context)), 'EFA device')}")
    elif all(opened.get(name) is True for name in others):
        yield good(f"{', '.join(others)} can be opened (active probe)")
    else:
        yield unread("fi_info -p efa", seen)


@check(
    "EFA-SM-ZERODIV",
    area="efa",
    severity="fail",
    title="DeepEP reads no link rate here and divides by zero",
    why="DeepEP takes the rate of one adapter from ibstat to choose its number of SMs: mlx5_0, or what EP_NIC_NAME says (not in 2.5). "
    "EFA devices do not show up there, others have other names (mlx5_ib0, mlx5_bond_0). The bucket buffers of 2.5 refuse to start.",
    fix="Pass num_sms (or rdma_gbs) explicitly. DeepEP 2.0 and 2.1: set EP_NIC_NAME to an adapter of the fabric that ibstat lists; 2.5: "
    "an adapter of the fabric has to be called mlx5_0 (rdma dev set).",
    reference="https://github.com/deepseek-ai/DeepEP/issues/734 https://pypi.org/project/deepinfer-ep/2.5.0/",
    needs=(RDMA, SEVERAL_NODES, deepep.SECOND),
)
def efa_sm_zerodiv(context: Context) -> Iterator[Seen]:
    name, origin = deepep.rate_adapter(context)
    status = context.node.rdma.ibstat
    if isinstance(status, Absent):
        if status.absent != "tool_missing":
            yield unread("ibstat", status)
            return
        yield bad(f"ibstat is not installed, so the rate of {name} is not known")
        return
    listed = () if status == "empty" else known(context.node.rdma.ibstat_devices, "devices of ibstat")
    if name in listed:
        yield good(f"ibstat lists {name} ({origin})")
    else:
        yield bad(f"ibstat lists {', '.join(listed) or 'no device'}; DeepEP asks for {name} ({origin})")
