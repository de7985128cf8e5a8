"""IBGDA: what GPU-initiated RDMA of NVSHMEM asks of driver, container and settings."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known
from epctl.core.snapshot import Snapshot
from epctl.core.views import devx, gdr, gin, installing, nvshmem, regkeys, rights, versions
from epctl.core.views.needs import CONTAINER, RDMA
from epctl.core.views.nvshmem import IBGDA, MLX5
from epctl.core.views.settings import integer, is_off, is_on, number, setting, told
from epctl.core.wording import counted

DEFAULT_QPS, DEFAULT_SMS = 24, 20
"""num_qps_per_rank and num_sms that DeepEP's legacy Buffer takes when nobody says otherwise."""
NO_QPS_FROM = "3.6"
"""NVSHMEM that reports no queue pair for groups whose members all reach each other by NVLink (DeepEP#695)."""
DEFAULT_DEPTH, DEFAULT_TOKENS = 1024, 128
"""NVSHMEM_QP_DEPTH when it is not set (deep_ep/buffers/legacy.py); tokens a rank of DeepEP's tests and SGLang's default."""
_TOKENS = ("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "VLLM_MOE_DP_CHUNK_SIZE")
"""Settings of serving frameworks for the tokens that a rank dispatches at once."""


@check(
    "IBGDA-REGKEY",
    area="nvshmem",
    severity="fail",
    title="The NVIDIA driver was loaded without the options for IBGDA",
    why="The GPU may not map the adapter's doorbell page without them (error 800 of the host registration).",
    fix="On the host set both options in modprobe.d, beside the registry dwords that are in force (GPU Operator: its kernel module "
    "parameters), and rebuild the initramfs; they hold from the next boot on: drain the node first. Where that is not possible, "
    "NVSHMEM 3.4.5 or newer with gdrdrv, which is slower.",
    reference="https://github.com/deepseek-ai/DeepEP/blob/main/docs/nvshmem.md https://github.com/deepseek-ai/DeepEP/issues/36 "
    "https://github.com/deepseek-ai/DeepEP/issues/484 https://github.com/NVIDIA/nvshmem/issues/23",
    needs=(IBGDA, MLX5),
)
def ibgda_regkey(context: Context) -> Iterator[Seen]:
    params = known(context.node.gpu.driver.params, "/proc/driver/nvidia/params")
    settings = {entry.name: entry.value for entry in params}
    stream, dwords = settings.get("EnableStreamMemOPs", ""), settings.get("RegistryDwords", "")
    missing = [] if integer(stream) == 1 else [f"EnableStreamMemOPs is {stream or 'not listed'}"]
    if integer(regkeys.dwords(dwords).get("peermappingoverride", "")) != 1:
        missing.append(f"RegistryDwords ({dwords or 'empty'}) lacks PeerMappingOverride=1")
    if not missing:
        yield good(f"EnableStreamMemOPs is {stream}, RegistryDwords {dwords} (/proc/driver/nvidia/params)")
        return
    text = f"{'; '.join(missing)} (/proc/driver/nvidia/params)"
    assisted = nvshmem.cpu_assisted(context.node)
    lines = installing.driver_options(context.node, "NVreg_EnableStreamMemOPs=1", PeerMappingOverride="1")
    yield bad(f"{text}; {assisted}", severity="warn", commands=lines) if assisted else bad(text, commands=lines)


@check(
    "IBGDA-MEMTYPE-SKIP",
    area="nvshmem",
    severity="fail",
    title="Adapters cannot keep their control buffers in GPU memory",
    why="IBGDA registers queues in GPU memory with the adapter; without peer memory or DMA-BUF NVSHMEM skips every adapter.",
    fix="Load nvidia-peermem on the host when no job runs, or use the open kernel modules on Linux 5.12 or newer; at a cost put the "
    "buffers on the host with NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE=hostmem.",
    commands=("sudo modprobe nvidia-peermem",),
    reference="https://github.com/deepseek-ai/DeepEP/issues/128 https://github.com/deepseek-ai/DeepEP/issues/303 "
    "https://github.com/NVIDIA/nvshmem/issues/51 https://github.com/NVIDIA/nvshmem/issues/67",
    needs=(IBGDA, MLX5),
)
def ibgda_memtype_skip(context: Context) -> Iterator[Seen]:
    name = "NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE"
    if (setting(context, name) or "").lower() == "hostmem":
        yield good(f"{told(context, name)}: the control buffers are on the host")
        return
    loaded = context.node.gdr.peermem_loaded
    if loaded is True:
        yield good("nvidia_peermem is loaded (/proc/modules)")
        return
    other = gdr.dma_buf_way(context.node, by_kernel=True)
    if other.state == "open":
        yield good(other.text)
        return
    known(loaded, "nvidia_peermem (/proc/modules)")
    if other.state == "closed":
        yield bad(f"nvidia_peermem is not loaded, and {other.text}")
    else:
        yield unread("nvidia_peermem is not loaded; DMA-BUF", Absent("not_probed", other.text))


@check(
    "IBGDA-UNPRIV",
    area="nvshmem",
    severity="fail",
    title="The container may lack what IBGDA needs to make queues",
    why="IBGDA allocates its queues through DevX; in an unprivileged container the allocation of the doorbell page fails.",
    fix="Give low-latency pods the RDMA devices and the capability IPC_LOCK, then SYS_RAWIO if that is not enough; privileged only "
    "to test whether rights are the cause.",
    reference="https://github.com/sgl-project/sglang/issues/12533",
    needs=(IBGDA, CONTAINER, RDMA, MLX5),
)
def ibgda_unpriv(context: Context) -> Iterator[Seen]:
    tried = tuple(devx.seen(context.node))
    yield from tried or _hints(context.node)


def _hints(node: Snapshot) -> Iterator[Seen]:
    entries = [entry for entry in known(node.rdma.uverbs, "/dev/infiniband") if "/uverbs" in entry.path]
    if not any(entry.read_write is True for entry in entries):
        for entry in entries:
            known(entry.read_write, f"access to {entry.path}")
        yield bad(
            f"{counted(len(entries), 'uverbs file')} in /dev/infiniband, none may be read and written by this user"
        )
    wanted: tuple[rights.Right, ...] = ("IPC_LOCK", "SYS_RAWIO")
    lacking = [right for right in wanted if not rights.has(node, right)]
    for right in lacking:
        yield bad(f"{rights.told(node, right)}; whether DevX needs it here was not tried", severity="warn")
    if not lacking:
        yield good(f"{counted(len(entries), 'uverbs file')}, {rights.told(node, 'SYS_RAWIO')}")


@check(
    "NVSHMEM-QP-COUNT",
    area="nvshmem",
    severity="fail",
    title="The number of NVSHMEM's queue pairs does not fit the kernels",
    why="Normal kernels want a queue pair per channel (half of their SMs), low latency one per local expert; a device assert stops "
    "the first kernel otherwise.",
    fix="Pass num_qps_per_rank = max(local experts, SMs / 2), and unset NVSHMEM_IBGDA_NUM_RC_PER_PE and NVSHMEM_IBGDA_NUM_DCT.",
    commands=("unset NVSHMEM_IBGDA_NUM_RC_PER_PE NVSHMEM_IBGDA_NUM_DCT",),
    reference="https://github.com/deepseek-ai/DeepEP/issues/134 https://github.com/deepseek-ai/DeepEP/issues/695 "
    "https://github.com/deepseek-ai/DeepEP/issues/461",
    needs=(IBGDA, MLX5),
)
def nvshmem_qp_count(context: Context) -> Iterator[Seen]:
    channels = DEFAULT_SMS // 2
    overrides = context.profile("deepep-1") is not None
    chosen = number(context, "NVSHMEM_IBGDA_NUM_RC_PER_PE")
    if chosen is None:
        yield good(
            f"NVSHMEM_IBGDA_NUM_RC_PER_PE is not set; DeepEP asks for {DEFAULT_QPS} unless it is told another number"
        )
    elif chosen < channels:
        text = f"{told(context, 'NVSHMEM_IBGDA_NUM_RC_PER_PE')}, {DEFAULT_SMS} SMs make {channels} channels"
        own = "; DeepEP puts num_qps_per_rank in its place"
        yield bad(text + own if overrides else text, severity="info" if overrides else None)
    else:
        yield good(f"{told(context, 'NVSHMEM_IBGDA_NUM_RC_PER_PE')}, {channels} channels by default")
    if number(context, "NVSHMEM_IBGDA_NUM_DCT"):
        yield bad(
            f"{told(context, 'NVSHMEM_IBGDA_NUM_DCT')}: DeepEP's kernels use reliable connections alone",
            severity="warn",
        )
    if overrides and gin.one_nvlink_domain(context):
        yield from _no_queues(context.node)


def _no_queues(node: Snapshot) -> Iterator[Seen]:
    found = nvshmem.version(node)
    if isinstance(found, Absent) and found.absent == "not_found":
        return
    release = known(found, "version of NVSHMEM")
    text = f"NVSHMEM {release}, all ranks in one NVLink domain"
    if versions.below(release, NO_QPS_FROM) is False:
        yield bad(
            f"{text}: it reports no queue pairs for such a group",
            fix="Pin NVSHMEM 3.3.9 to 3.4.5 for groups inside one NVLink domain.",
        )
    else:
        yield good(text)


@check(
    "NVSHMEM-QP-DEPTH",
    area="nvshmem",
    severity="fail",
    title="NVSHMEM's queues are too short for the tokens of a rank",
    why="The low-latency kernels assert a depth of 2 × (tokens + 1), so that they never have to look for a free slot.",
    fix="Raise NVSHMEM_QP_DEPTH to at least 2 × (max dispatch tokens per rank + 1); very large values may fail at queue creation.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/427 https://github.com/deepseek-ai/DeepEP/issues/208 "
    "https://github.com/deepseek-ai/DeepEP/blob/main/deep_ep/buffers/legacy.py",
    needs=(IBGDA,),
)
def nvshmem_qp_depth(context: Context) -> Iterator[Seen]:
    chosen = number(context, "NVSHMEM_QP_DEPTH")
    depth = DEFAULT_DEPTH if chosen is None else chosen
    have = f"queue depth {depth} ({'NVSHMEM_QP_DEPTH' if chosen is not None else 'default'})"
    asked = {told(context, name): number(context, name) or 0 for name in _TOKENS if setting(context, name)}
    for source, tokens in (asked or {f"{DEFAULT_TOKENS} tokens a rank by default": DEFAULT_TOKENS}).items():
        needed = 2 * (tokens + 1)
        text = f"{have}, {source} takes {needed}"
        deeper = f"export NVSHMEM_QP_DEPTH={1 << (needed - 1).bit_length()}"
        yield bad(text, commands=(deeper,)) if depth < needed else good(text)


@check(
    "NVSHMEM-IBGDA-DISABLED-ENV",
    area="nvshmem",
    severity="fail",
    title="A setting turns IBGDA off",
    why="A recipe for one role leaks into another; the low-latency kernels then call NVSHMEM before it is initialised.",
    fix="Unset these variables; DeepEP sets its own values.",
    commands=("unset NVSHMEM_DISABLE_IBGDA NVSHMEM_IB_ENABLE_IBGDA NVSHMEM_REMOTE_TRANSPORT",),
    reference="https://github.com/sgl-project/sglang/issues/7888",
    needs=(IBGDA,),
)
def nvshmem_ibgda_disabled_env(context: Context) -> Iterator[Seen]:
    if is_on(context, "NVSHMEM_DISABLE_IBGDA"):
        yield bad(told(context, "NVSHMEM_DISABLE_IBGDA"))
    if is_off(context, "NVSHMEM_IB_ENABLE_IBGDA"):
        yield bad(told(context, "NVSHMEM_IB_ENABLE_IBGDA"))
    transport = (setting(context, "NVSHMEM_REMOTE_TRANSPORT") or "").lower()
    # ibrc is the default, and the host's part of a job that uses IBGDA on the device (NVSHMEM, src/host/transport).
    if transport not in ("", "ibgda", "ibrc"):
        yield bad(
            f"{told(context, 'NVSHMEM_REMOTE_TRANSPORT')}: the host's transport is not InfiniBand's", severity="warn"
        )
    yield good("IBGDA is not turned off in the environment")
