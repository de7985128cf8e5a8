"""GPUDirect RDMA: can a NIC reach GPU memory at all, and by which way?"""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Need, Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.views import gdr, nics, pcie, versions
from epctl.core.views.needs import MLX5, NVML, RDMA, VERBS, is_virtual
from epctl.core.views.settings import is_off, number, setting, told
from epctl.core.views.userspace import symbol_version
from epctl.core.wording import counted

FEW_CALLBACKS = 3
"""Invalid-context callbacks of nvidia-peermem that a boot may have: single ones come from processes that died (leptonai/gpud
warns of repeated ones)."""
CONNECTX8 = 4131
C2C_NCCL = "2.27"
"""From this NCCL on NCCL_NET_GDR_C2C is 1 by default: GPUDirect to NICs at the CPU of a C2C board (src/graph/paths.cc)."""
REFUSED = (93, 95)
"""EPROTONOSUPPORT, EOPNOTSUPP."""
SUPPORTED = 9
"""EBADF: ibv_reg_dmabuf_mr found only the descriptor -1 wrong."""


@check(
    "GDR-NONE",
    area="gdr",
    severity="fail",
    title="There is no way from the NICs to GPU memory",
    why="Without a peer memory module and without DMA-BUF, GPUDirect RDMA is off for every adapter: GIN GDAKI and IBGDA are not "
    "offered, and everything else goes through host memory at a fraction of the bandwidth.",
    fix="Load nvidia-peermem when no job runs, and at boot; or use the open kernel modules on Linux 5.12 or newer with an rdma-core that "
    "registers DMA-BUF.",
    commands=("sudo modprobe nvidia-peermem", "echo nvidia-peermem | sudo tee /etc/modules-load.d/nvidia-peermem.conf"),
    reference="https://github.com/NVIDIA/nccl/issues/1412 https://github.com/NVIDIA/nccl/issues/489 "
    "https://github.com/deepseek-ai/DeepEP/issues/55 https://github.com/sgl-project/sglang/issues/6017 "
    "https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib/gdr.cc",
    needs=(RDMA,),
)
def gdr_none(context: Context) -> Iterator[Seen]:
    module, said = gdr.peermem(context)
    other = gdr.dma_buf(context)
    if module is True:
        yield good(said)
    elif other.state == "open":
        yield good(other.text)
    elif isinstance(module, Absent):
        yield unread(said, module)
    elif other.state == "unknown":
        yield Seen("unread", f"{said}, and {other.text}")
    else:
        severity: Severity = "fail" if gdr.need_gpudirect(context) else "warn"
        yield bad(f"{said}, and {other.text}", severity=severity)


@check(
    "PEERMEM-LOAD-EINVAL",
    area="gdr",
    severity="fail",
    title="nvidia-peermem cannot be loaded: it does not fit the RDMA stack",
    why="The NVIDIA driver was built before (or without) the OFED whose symbols it needs, or the kernel's own RDMA stack has none.",
    fix="Go without peermem, through DMA-BUF; or drain the node and reinstall (rebuild) the NVIDIA driver after OFED.",
    commands=("sudo dmesg | grep -i peer_memory_client", "modinfo nvidia-peermem", "ofed_info -s"),
    reference="https://github.com/Mellanox/nv_peer_memory/issues/84 https://github.com/NVIDIA/gpu-operator/issues/2868 "
    "https://github.com/siderolabs/talos/issues/12021",
    needs=(RDMA,),
)
def peermem_load_einval(context: Context) -> Iterator[Seen]:
    node = context.node
    if known(node.gdr.peermem_loaded, "nvidia_peermem (/proc/modules)"):
        yield good("nvidia_peermem is loaded (/proc/modules)")
        return
    lines = known(node.gpu.driver.kernel_log, "kernel log")
    refused = list(dict.fromkeys(entry.line for entry in lines if entry.topic == "peermem_symbol"))
    if not refused:
        yield good("nvidia_peermem is not loaded, and the kernel log holds no complaint about its symbols")
        return
    other = gdr.dma_buf(context)
    ofed = node.rdma.ofed_version
    stack = (
        f"OFED {ofed}"
        if isinstance(ofed, str)
        else "no OFED found"
        if ofed.absent == "tool_missing"
        else "OFED unknown"
    )
    severity: Severity = "fail" if other.state == "closed" else "warn"
    yield bad(f"kernel log: {refused[0]}; nvidia_peermem is not loaded, {stack}; {other.text}", severity=severity)


@check(
    "PEERMEM-LOADED-GDR-OFF",
    area="gdr",
    severity="fail",
    title="nvidia-peermem is loaded, but NCCL does not see it or it is not registered",
    why="NCCL looks for the module's version in sysfs; and a module that did not register with this RDMA stack does nothing.",
    fix="Mount /sys of the host in the container. Where the module did not register: drain the node (unloading it takes the memory "
    "regions of running jobs away), unload and load it again after OFED; check that driver and OFED were built together.",
    commands=("sudo lsof /dev/infiniband/uverbs*", "sudo modprobe -r nvidia-peermem && sudo modprobe nvidia-peermem"),
    reference="https://github.com/NVIDIA/nccl/issues/1939 https://github.com/NVIDIA/nccl/issues/1537",
    needs=(RDMA,),
)
def peermem_loaded_gdr_off(context: Context) -> Iterator[Seen]:
    area = context.node.gdr
    if not known(area.peermem_loaded, "nvidia_peermem (/proc/modules)"):
        return
    # With DMA-BUF GPUDirect works all the same.
    severity: Severity = "warn" if gdr.dma_buf(context).state == "open" else "fail"
    version = area.peermem_version
    if isinstance(version, str):
        yield good(f"nvidia_peermem {version} (sysfs)")
    elif version.absent in ("not_found", "permission", "failed"):
        yield bad(f"nvidia_peermem is in /proc/modules, its version in sysfs: {version}", severity=severity)
    else:
        yield unread("version of nvidia_peermem", version)
    if area.peermem_uses_ib_core is False and value_or(area.peermem_users, 0) == 0:
        yield bad("nvidia_peermem has no user, and ib_core does not list it (/proc/modules)", severity=severity)
    elif isinstance(area.peermem_uses_ib_core, Absent) and area.peermem_uses_ib_core.absent != "unsupported":
        yield unread("users of ib_core", area.peermem_uses_ib_core)


@check(
    "PEERMEM-KMSG",
    area="gdr",
    severity="warn",
    title="nvidia-peermem reports invalid contexts again and again",
    why="Repeated ones mean that driver and RDMA stack do not get on: registrations of GPU memory vanish, jobs hang at their end.",
    fix="Drain the node and update driver and OFED, or move to DMA-BUF.",
    reference="https://github.com/leptonai/gpud/blob/main/components/accelerator/nvidia/peermem/kmsg_matcher.go",
    needs=(RDMA,),
)
def peermem_kmsg(context: Context) -> Iterator[Seen]:
    lines = [
        entry.line
        for entry in known(context.node.gpu.driver.kernel_log, "kernel log")
        if entry.topic == "peermem" and "invalid context" in entry.line.lower()
    ]
    if len(lines) > FEW_CALLBACKS:
        yield bad(f"{len(lines)} lines in this boot's kernel log, the last: {lines[-1]}")
    else:
        yield good(f"{counted(len(lines), 'invalid-context line')} of nvidia-peermem in this boot (kernel log)")


@check(
    "GDR-PROPRIETARY-MODULE",
    area="gdr",
    severity="warn",
    title="The proprietary NVIDIA kernel module is in use",
    why="It offers no DMA-BUF, so GPUDirect RDMA stands on nvidia-peermem. That takes cuMem allocations only if they were made with "
    "gpuDirectRDMACapable, as NCCL and DeepEP 2.5 do; others, and segments that grow, fail to register with bad address (14).",
    fix="Load nvidia-peermem when no job runs, and keep expandable_segments out of PyTorch's allocator settings; at the next "
    "maintenance, on a drained node, switch to the open kernel modules (Blackwell needs them in any case).",
    reference="https://github.com/microsoft/mscclpp/issues/657 https://github.com/microsoft/mscclpp/issues/496 "
    "https://github.com/NVIDIA/gdrcopy/issues/257 https://github.com/meta-pytorch/torchcomms/pull/1354 "
    "https://github.com/uccl-project/uccl/issues/839",
    needs=(RDMA,),
)
def gdr_proprietary_module(context: Context) -> Iterator[Seen]:
    flavour = known(context.node.gpu.driver.kernel_flavour, "flavour of the NVIDIA kernel module")
    devices = value_or(context.node.active.devices, ())
    if flavour == "open":
        yield good("open kernel module (/proc/driver/nvidia/version)")
        return
    if devices and all(device.dma_buf is True for device in devices):
        yield good("proprietary kernel module, but all GPUs export DMA-BUF (CUDA attribute)")
        return
    asked = ", ".join(profile.id for profile in context.wants("symmetric_memory"))
    allocator = context.env.get("PYTORCH_CUDA_ALLOC_CONF", "") or context.env.get("PYTORCH_ALLOC_CONF", "")
    module, said = gdr.peermem(context)
    why = f": {module}" if isinstance(module, Absent) else ""
    text = f"proprietary kernel module (/proc/driver/nvidia/version); {said}{why}"
    if asked:
        text += f"; {asked} registers symmetric memory, which is cuMem"
    if "expandable_segments:true" in allocator.lower():
        yield bad(f"{text}; expandable segments of PyTorch are cuMem, too, and grow", severity="fail")
    elif module is True:
        yield bad(text, severity="info")
    else:
        yield bad(text, severity="fail" if asked and module is False else "warn")


@check(
    "DMABUF-OFED-UNSUPPORTED",
    area="gdr",
    severity="fail",
    title="An adapter claims DMA-BUF and refuses GPU memory",
    why="NCCL asks with an invalid descriptor, believes the answer, and aborts when it registers real memory.",
    fix="Set NCCL_DMABUF_ENABLE=0 with nvidia-peermem loaded; or drain the node and upgrade OFED.",
    commands=("export NCCL_DMABUF_ENABLE=0",),
    reference="https://github.com/NVIDIA/nccl/issues/778",
    needs=(VERBS,),
)
def dmabuf_ofed_unsupported(context: Context) -> Iterator[Seen]:
    if is_off(context, "NCCL_DMABUF_ENABLE"):
        yield good(f"NCCL does not use DMA-BUF: {told(context, 'NCCL_DMABUF_ENABLE')}")
        return
    probes = {probe.device: probe for probe in known(context.node.active.verbs, "verbs (active probe)")}
    for name in dict.fromkeys(nic.device.name for nic in nics.fabric(context) if nic.active and not nic.is_efa):
        probe = probes.get(name)
        if probe is None:
            yield unread(f"{name} DMA-BUF", Absent("not_probed", "libibverbs does not list it"))
        elif isinstance(probe.dmabuf_errno, int) and probe.dmabuf_errno in REFUSED:
            yield good(f"{name}: says at once that it has no DMA-BUF (errno {probe.dmabuf_errno})")
        elif isinstance(probe.dmabuf_gpu_errno, Absent):
            yield unread(f"{name} registration of GPU memory by DMA-BUF", probe.dmabuf_gpu_errno)
        else:
            text = f"{name}: errno {probe.dmabuf_errno} for descriptor -1, {probe.dmabuf_gpu_errno} for GPU memory (active probe)"
            lied = probe.dmabuf_errno == SUPPORTED and probe.dmabuf_gpu_errno in REFUSED
            yield bad(text) if lied else good(text)


def _gb300(context: Context) -> str:
    return "" if "GB300" in gdr.compute_names(context.node) else "no GB300 in this machine"


@check(
    "DATADIRECT-OFF",
    area="gdr",
    severity="warn",
    title="Data direct of ConnectX-8 is not in use",
    why="On GB300 the adapter's data-direct engine reaches GPU memory without the CPU's path, which gives about half the bandwidth.",
    fix="Use an rdma-core or DOCA-OFED with data direct (MLX5_1.25) and a kernel with its driver; leave NCCL_IB_DATA_DIRECT alone.",
    reference="https://github.com/meta-pytorch/torchcomms/issues/3014 https://github.com/NVIDIA/aicr/issues/1413",
    needs=(NVML, MLX5, Need("gb300", _gb300)),
)
def datadirect_off(context: Context) -> Iterator[Seen]:
    if not any(nics.connectx(nic.device) == CONNECTX8 for nic in nics.fabric(context)):
        return
    if number(context, "NCCL_IB_DATA_DIRECT") == 0:
        yield bad(told(context, "NCCL_IB_DATA_DIRECT"), fix="Unset NCCL_IB_DATA_DIRECT.")
    yield symbol_version(context, "libmlx5", "MLX5_1.25", "data direct")
    count = known(context.node.rdma.data_direct_functions, "data-direct functions (PCI 15b3:2100)")
    yield (
        good(f"{counted(count, 'data-direct function')} (PCI 15b3:2100)")
        if count
        else bad("no data-direct function (PCI 15b3:2100)")
    )


@check(
    "GDR-LEVEL-TIGHT",
    area="gdr",
    severity="warn",
    title="NICs look too far from the GPUs for NCCL to use GPUDirect",
    why="By default NCCL uses GPUDirect within a PCIe switch only; on Grace Hopper and behind virtual PCI trees every NIC looks "
    "farther away, and data goes through host memory.",
    fix="Try NCCL_NET_GDR_LEVEL=SYS (or PHB) and compare; in virtual machines give NCCL a topology file.",
    commands=("export NCCL_NET_GDR_LEVEL=SYS",),
    reference="https://github.com/NVIDIA/nccl/issues/1579 https://github.com/Azure/aks-rdma-infiniband/issues/36",
    needs=(NVML, RDMA),
)
def gdr_level_tight(context: Context) -> Iterator[Seen]:
    for name in ("NCCL_NET_GDR_LEVEL", "NCCL_TOPO_FILE"):
        if setting(context, name):
            yield good(f"{told(context, name)} tells NCCL")
            return
    hopper = "GH200" in gdr.compute_names(context.node)
    if not hopper and not is_virtual(context.node):
        yield good("neither a GH200 nor a virtual machine: the distances are those of the board")
        return
    names = tuple(dict.fromkeys(nic.device.name for nic in nics.fabric(context) if not nic.is_efa))
    if not names:  # aws-ofi-nccl brings its own topology
        return
    paths = [
        known(pcie.nearest(context.node, gpu, names), f"GPU {gpu.index} to NIC") for gpu in pcie.gpus(context.node)
    ]
    text = f"nearest NIC of every GPU: {', '.join(sorted({path.path for path in paths}))} ({paths[0].origin})"
    if any(path.path in ("PIX", "PXB") for path in paths):
        yield good(text)
    elif hopper and not is_off(context, "NCCL_NET_GDR_C2C") and _knows_c2c(context):
        yield good(f"{text}; NCCL {context.node.software.nccl_effective} uses GPUDirect over C2C")
    elif not hopper and known(context.node.pcie.default_topology_file, f"{text}; NCCL's default topology file"):
        yield good(f"{text}; NCCL reads /var/run/nvidia-topologyd/virtualTopology.xml")
    else:
        yield bad(f"{text}; NCCL_NET_GDR_LEVEL is not set")


def _knows_c2c(context: Context) -> bool:
    if number(context, "NCCL_NET_GDR_C2C"):
        return True
    nccl = known(context.node.software.nccl_effective, "version of the NCCL in use")
    return versions.below(nccl, C2C_NCCL) is False
