"""NVSHMEM below DeepEP 1 and the legacy kernels: versions, libraries, what they ask of a job."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.views import installing, nics, nvshmem, pcie, sizes, versions
from epctl.core.views.needs import GPU, NVML, ROCE, wants
from epctl.core.views.nvshmem import IBGDA, MLX5
from epctl.core.views.settings import is_on, setting, told
from epctl.core.wording import counted

RELAID = "3.5.19"
"""First NVSHMEM with the new order of queues per peer (DeepEP#553), and the one that fixes address handles (nvshmem#21)."""
_LIBRARY = "libnvshmem_host.so"
SUPPORTED = "3.3.9"
"""First NVSHMEM that DeepEP's legacy kernels take without a patch (DeepEP docs/nvshmem.md)."""
PEERS_PER_NODE = 8
"""NUM_MAX_NVL_PEERS of DeepEP's legacy kernels."""
LEGACY_NODES = (1, 2, 3, 4, 6, 8, 12, 16, 18, 20)
"""Node counts that the legacy normal kernels are compiled for (csrc/kernels/legacy/launch.cuh, get_dispatch_config)."""
GRANULE_BYTES = 512 * sizes.MIB
"""NVSHMEM_CUMEM_GRANULARITY that DeepEP sets."""
LOW_LATENCY_BYTES = 1_880_000_000
"""Buffer of the low-latency kernels for 128 tokens a rank, hidden 7168, 256 experts: twice the sum of the dispatch and combine
messages (get_low_latency_rdma_size_hint of DeepEP)."""


def _wheel(context: Context, floor: str = SUPPORTED) -> tuple[str, ...]:
    """The wheel of PyTorch's CUDA major, below the release that orders its queues anew; then deep_ep is built again, as it is
    linked with NVSHMEM's device code. Nothing for a floor beyond that release."""
    if versions.below(floor, RELAID) is not True:
        return ()
    name = f"nvidia-nvshmem-cu{installing.torch_cuda_major(context)}"
    python = installing.python(context.node)
    return (
        f"{python} -m pip install --no-deps '{name}>={floor},<{RELAID}'",
        f"{python} -m pip install --no-deps --no-build-isolation --force-reinstall DEEPEP_SOURCE_FOLDER",
    )


@check(
    "NVSHMEM-TOO-OLD",
    area="nvshmem",
    severity="fail",
    title="NVSHMEM is older than the library in use needs",
    why="Older releases lack interfaces that DeepEP's legacy kernels use, or need a private patch.",
    fix=f"Install the wheel of PyTorch's CUDA major, below {RELAID} (see NVSHMEM-QP-LAYOUT); point NVSHMEM_DIR at no older copy; "
    "then build deep_ep again, as NVSHMEM's device code is linked into it.",
    reference="https://github.com/deepseek-ai/DeepEP/blob/main/docs/nvshmem.md https://github.com/deepseek-ai/DeepEP/issues/150",
    needs=(IBGDA,),
)
def nvshmem_too_old(context: Context) -> Iterator[Seen]:
    copy = nvshmem.in_use(context.node)
    for profile, floor in context.floors("nvshmem"):
        if copy is None:
            yield bad(
                f"no {_LIBRARY} was found; {profile.title} needs NVSHMEM {floor}", commands=_wheel(context, floor)
            )
            continue
        found = known(copy.version, f"version of {copy.path}")
        old = versions.below(found, floor)
        if old is None:
            yield unread(f"version of {copy.path}", Absent("unparsable", line=found))
        else:
            text = f"{copy.path} is {found}, {profile.title} needs {floor}"
            yield bad(text, commands=_wheel(context, floor)) if old else good(text)


@check(
    "NVSHMEM-LIB-MISSING",
    area="nvshmem",
    severity="fail",
    title="deep_ep does not find libnvshmem_host",
    why="The wheel's folder is not on the loader path, or an older build asks for the name without a version, which wheels lack.",
    fix="Rebuild with a DeepEP that sets the run path and asks for the versioned name, or add a link and LD_LIBRARY_PATH.",
    reference="https://github.com/NousResearch/torchtitan/issues/44 https://github.com/deepseek-ai/DeepEP/pull/627 "
    "https://github.com/NVIDIA-NeMo/Automodel/issues/2614",
    needs=(GPU,),
)
def nvshmem_lib_missing(context: Context) -> Iterator[Seen]:
    lines = _on_loader_path(context)
    line = context.node.active.deep_ep_import
    if isinstance(line, str) and "libnvshmem" in line:
        yield bad(f"`import deep_ep` ends with: {line}", commands=lines)
    copies = [copy.path for copy in value_or(context.node.software.nvshmem, ())]
    for build in known(context.node.software.deep_ep, "installed builds of DeepEP"):
        name = f"{build.distribution} {build.version}"
        missing = build.needed_missing
        if isinstance(missing, Absent):
            if missing.absent != "not_found":  # not_found: it has no compiled module
                yield unread(f"libraries that {name} needs", missing)
            continue
        lacking = [library for library in missing if library.startswith("libnvshmem")]
        if not lacking:
            yield good(f"{name} finds its NVSHMEM libraries, or needs none")
        elif lacking[0] == _LIBRARY and copies:
            yield bad(f"{name} asks for {_LIBRARY}; there is {copies[0]}", commands=lines)
        else:
            text = f"{name} asks for {', '.join(lacking)}, which the loader does not find"
            yield bad(text, commands=lines)


def _on_loader_path(context: Context) -> tuple[str, ...]:
    """The line that puts the wheel's folder on the loader path."""
    folder = f"\"$({installing.python(context.node)} -c 'import nvidia.nvshmem as n; print(n.__path__[0])')/lib"
    return (f'export LD_LIBRARY_PATH={folder}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"',)


@check(
    "NVSHMEM-QP-LAYOUT",
    area="nvshmem",
    severity="fail",
    title="This NVSHMEM orders its queues in another way than DeepEP's legacy kernels expect",
    why="From 3.5.19 on the queues of a peer stand elsewhere; kernels without DeepEP's pull request 564 write to the wrong peer, and "
    "every dispatch between nodes ends in the timeout of 100 s.",
    fix=f"Pin NVSHMEM {SUPPORTED} to 3.4.5, or apply DeepEP's pull request 564; build deep_ep again in either case.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/553 https://github.com/deepseek-ai/DeepEP/issues/707 "
    "https://github.com/deepseek-ai/DeepEP/pull/564",
    needs=(GPU,),
)
def nvshmem_qp_layout(context: Context) -> Iterator[Seen]:
    found = nvshmem.version(context.node)
    version = context.distributions.get("deep-ep")
    legacy = version is not None and versions.below(version, "2.5") is True
    if not (legacy or context.profile("deepep-1")):
        return
    if isinstance(found, Absent) and found.absent == "not_found":
        return
    release = known(found, "version of NVSHMEM")
    who = f"deep-ep {version}" if legacy else "DeepEP 1"
    text = f"NVSHMEM {release} with {who}"
    if versions.below(release, RELAID):
        yield good(f"{text}: queues are ordered as the kernels expect (up to {RELAID})")
        return
    uses = context.num_nodes > 1 and bool(nvshmem.consumer(context))
    yield bad(
        f"{text}: wrong unless that build has pull request 564",
        severity=None if uses else "warn",
        commands=_wheel(context),
    )


@check(
    "NVSHMEM-AH-FAIL",
    area="nvshmem",
    severity="fail",
    title="This NVSHMEM may fail to make address handles on RoCE",
    why="Before 3.5.19 it passes a field that was never set; on Ethernet ports the creation then fails with EINVAL, depending on "
    "what stood in memory.",
    fix="Upgrade NVSHMEM together with DeepEP's pull request 564 (see NVSHMEM-QP-LAYOUT), or port the initialisation back.",
    reference="https://github.com/NVIDIA/nvshmem/issues/21 https://github.com/NVIDIA/nvshmem/issues/33 "
    "https://github.com/deepseek-ai/DeepEP/issues/307",
    needs=(IBGDA, ROCE, MLX5),
)
def nvshmem_ah_fail(context: Context) -> Iterator[Seen]:
    found = nvshmem.version(context.node)
    if isinstance(found, Absent) and found.absent == "not_found":
        return
    release = known(found, "version of NVSHMEM")
    ports = [nic.label for nic in nics.fabric(context) if nic.is_roce]
    text = f"NVSHMEM {release}, {counted(len(ports), 'fabric port')} with link layer Ethernet"
    if ports and versions.below(release, RELAID):
        yield bad(text, severity=None if context.num_nodes > 1 else "warn")
    else:
        yield good(text)


@check(
    "NVSHMEM-NIC-MAP",
    area="nvshmem",
    severity="warn",
    title="NVSHMEM maps adapters by a rank that DeepEP numbers otherwise",
    why="DeepEP's normal kernels start one NVSHMEM job a rail, so each process is the first one of its node and takes the first "
    "adapter of the list: all ranks share one card.",
    fix="Unset NVSHMEM_ENABLE_NIC_PE_MAPPING for the normal kernels, or give a mapping per rank (DEEP_EP_DEVICE_TO_HCA_MAPPING where "
    "the build has it).",
    commands=("unset NVSHMEM_ENABLE_NIC_PE_MAPPING",),
    reference="https://github.com/deepseek-ai/DeepEP/issues/336 https://github.com/deepseek-ai/DeepEP/pull/466 "
    "https://github.com/deepseek-ai/DeepEP/issues/137",
    needs=(IBGDA, MLX5, NVML),
)
def nvshmem_nic_map(context: Context) -> Iterator[Seen]:
    name = "NVSHMEM_ENABLE_NIC_PE_MAPPING"
    if not is_on(context, name):
        yield good(f"{name} is not set: each process takes the nearest adapter")
        return
    text = told(context, name)
    per_rank = setting(context, "DEEP_EP_DEVICE_TO_HCA_MAPPING")
    num_gpus = len(pcie.gpus(context.node))
    mapped = _mapped(setting(context, "NVSHMEM_HCA_PE_MAPPING") or "")
    if per_rank:
        yield good(f"{text} with {told(context, 'DEEP_EP_DEVICE_TO_HCA_MAPPING')}")
    elif mapped >= num_gpus:
        yield bad(
            f"{text}, NVSHMEM_HCA_PE_MAPPING names {mapped} processes: right for low latency alone", severity="info"
        )
    else:
        more = f"NVSHMEM_HCA_PE_MAPPING names {mapped} of {num_gpus}" if mapped else "no NVSHMEM_HCA_PE_MAPPING"
        yield bad(f"{text}, {more}", severity=None if context.num_nodes > 1 else "info")


def _mapped(text: str) -> int:
    """Processes that `mlx5_0:1:2,mlx5_1:1:2` (adapter, port, count) names."""
    total = 0
    for entry in filter(None, (part.strip() for part in text.split(","))):
        count = [*entry.split(":"), "", ""][2]
        total += int(count[:4]) if count.isascii() and count.isdigit() else 1
    return total


@check(
    "NVSHMEM-HEAP-OOM",
    area="nvshmem",
    severity="fail",
    title="Too little GPU memory is free for the communication buffer",
    why="NVSHMEM takes its heap in granules of 512 MiB when the buffer is made; without room cuMemCreate ends with status 2. "
    "NVSHMEM_SYMMETRIC_SIZE does not help.",
    fix="Make the buffer before the KV cache, lower the framework's memory fraction, tokens or hidden size; end what a dead job left.",
    commands=("nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv",),
    reference="https://github.com/sgl-project/sglang/issues/29942 https://github.com/deepseek-ai/DeepEP/issues/157",
    needs=(IBGDA, NVML),
)
def nvshmem_heap_oom(context: Context) -> Iterator[Seen]:
    for gpu in pcie.gpus(context.node):
        free = known(gpu.memory_free_bytes, f"free memory of GPU {gpu.index}")
        text = f"GPU {gpu.index}: {sizes.told(free)} free (NVML)"
        if free < 2 * GRANULE_BYTES:
            # A job that computes now may be the one that has its buffer already.
            busy = value_or(gpu.utilization_percent, 0) > 0
            yield bad(f"{text}, two granules take {sizes.told(2 * GRANULE_BYTES)}", severity="warn" if busy else None)
        elif free < LOW_LATENCY_BYTES + GRANULE_BYTES:
            yield bad(
                f"{text}, a low-latency buffer of usual size takes {sizes.told(LOW_LATENCY_BYTES + GRANULE_BYTES)}",
                severity="warn",
            )
        else:
            yield good(text)


@check(
    "EPV1-RANK-SHAPE",
    area="nvshmem",
    severity="fail",
    title="DeepEP's legacy kernels are not made for this number of ranks",
    why="They assert 8 ranks a node, and their normal kernels exist for certain node counts only.",
    fix="Change the size of the EP group, use DeepEP 2 or newer, or the low-latency kernels for larger groups.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/50 https://github.com/deepseek-ai/DeepEP/issues/392 "
    "https://github.com/deepseek-ai/DeepEP/blob/main/csrc/kernels/legacy/launch.cuh",
    needs=(NVML, wants("ibgda")),
)
def epv1_rank_shape(context: Context) -> Iterator[Seen]:
    num_gpus, num_nodes = len(pcie.gpus(context.node)), context.num_nodes
    text = f"{counted(num_nodes, 'node')} with {counted(num_gpus, 'GPU')}"
    severity: Severity | None = None
    if num_nodes == 1 and num_gpus <= PEERS_PER_NODE:
        yield good(f"one node with {counted(num_gpus, 'GPU')}: any even group up to {PEERS_PER_NODE} ranks")
    elif num_gpus != PEERS_PER_NODE:
        yield bad(f"{text}; the legacy kernels want {PEERS_PER_NODE} ranks on each")
    elif num_nodes not in LEGACY_NODES:
        listed = ", ".join(map(str, LEGACY_NODES[1:]))
        severity = "warn" if num_nodes > LEGACY_NODES[-1] else None  # large groups are left to the low-latency kernels
        yield bad(f"{text}; the normal kernels exist for {listed} nodes", severity=severity)
    else:
        yield good(text)
