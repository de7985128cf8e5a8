"""What a plan takes against what there is: queue pairs, memory, SMs, limits of the kernels."""

from __future__ import annotations

import math

from msgspec import Struct

from epctl.core.views.sizes import told
from epctl.model.buffers import EpBufferRequest, plan_ep_buffer
from epctl.model.ep_types import EpPlan, EpRequest
from epctl.model.fit import plan_write_once
from epctl.model.inputs import Node, Number
from epctl.model.limits import KERNEL_LIMITS
from epctl.model.refusal import positive
from epctl.model.rules import Layout
from epctl.model.storage import plan_workspace

MIN_CONTEXTS = 2
"""One queue pair a peer for data and one to notify. Source: deepinfer-ep 2.5.0, deep_ep/buffers/ep.py, get_theoretical_num_qps."""
MAX_CONTEXTS = 1024
"""Source: deepinfer-ep 2.5.0, common/compiled.cuh, kNumMaxQPs."""
COUNTER_FACTOR = 3
"""Queue pairs a context and peer where GIN counters are asked for. Source: NVIDIA/nccl, gdaki/gin_host_gdaki.cc."""
WINDOW_STEP_BYTES = 1 << 32
GEMM_SMS = 2
"""The least that other kernels need beside the plan's: one pair of SMs (TPC)."""


class Budget(Struct, frozen=True):
    """One constraint. `text`: the arithmetic in one line."""

    name: str
    """queue_pairs, contexts, memory, window, sms, kernel_limits."""
    used: Number
    limit: Number
    fits: bool
    text: str


class Load(Struct, frozen=True, kw_only=True):
    """What else counts against the budgets."""

    reserved_bytes: int = 0
    """Of each GPU's memory, for weights, caches and activations."""
    counters: bool = False
    """Whether GIN counters are asked for (DeepEP does not)."""
    window_stride_bytes: int = 0
    """NCCL_WIN_STRIDE; 0: not set."""
    full_mesh: bool = False
    """Whether hybrid mode connects to every rank, as NCCL up to 2.30.4 does, and not to the ranks of its rail alone."""


def buffer_bytes_of(buffer: EpBufferRequest, layout: Layout) -> int:
    """Bytes per rank of the EP buffer without its workspace. Raises RefusalError as `buffers.plan_ep_buffer` does."""
    return plan_write_once(buffer).buffer_bytes if layout == "write_once" else plan_ep_buffer(buffer).buffer_bytes


def allocated_contexts(plan: EpPlan, node: Node) -> int:
    """GIN contexts (allocated QPs) of a rank: by the NIC's atomics."""
    by_atomics = plan.allocated_qps
    return by_atomics.fast_atomics if node.fast_atomics.value else by_atomics.slow_atomics


def queue_pairs(plan: EpPlan, node: Node, num_contexts: int, load: Load) -> int:
    """Queue pairs that one RDMA device holds: contexts x (peers + 1) x GPUs that share it; 0 without RDMA device, and inside
    one NVLink domain, where plans set EP_DISABLE_GIN=1 (model/plan/settings.py).

    Peers: every rank, itself with it; two-level plans connect to the ranks of their rail alone, one a node.
    Source: NVIDIA/nccl, gdaki/gin_host_gdaki.cc (queue count); deepseek-ai/DeepEP#649 and NVIDIA/nccl#2137 (full mesh up to NCCL 2.30.4).
    Where a GPU has several devices, each is taken to hold all of its contexts.
    """
    if not node.nics_per_gpu.value or plan.physical_domain.rdma_ranks == 1:
        return 0
    counters = COUNTER_FACTOR if load.counters else 1
    return num_contexts * (_peers(plan, load) + 1) * _sharers(node) * counters


def _peers(plan: EpPlan, load: Load) -> int:
    rail = plan.logical_domain.scaleout_ranks > 1 and not load.full_mesh
    return plan.logical_domain.scaleout_ranks if rail else plan.num_ranks


def _sharers(node: Node) -> int:
    return max(1, math.ceil(1 / node.nics_per_gpu.value))


def budgets(
    plan: EpPlan,
    node: Node,
    request: EpRequest,
    buffer_bytes: int,
    num_contexts: int | None = None,
    load: Load = Load(),  # noqa: B008 - frozen
) -> tuple[Budget, ...]:
    """Every budget of a plan. buffer_bytes: without workspace (`buffer_bytes_of`); num_contexts: None for what the rules allocate.

    Raises RefusalError non_positive_argument.
    """
    contexts = (
        allocated_contexts(plan, node) if num_contexts is None else positive("the number of contexts", num_contexts)
    )
    given = num_contexts is not None
    return (
        _queue_budget(plan, node, contexts, load, given=given),
        *([_context_budget(contexts)] if given else []),
        _memory_budget(node, buffer_bytes, load),
        _window_budget(node, buffer_bytes, load),
        _sm_budget(plan, node, request),
        _kernel_budget(plan),
    )


def breaks(
    plan: EpPlan, node: Node, request: EpRequest, buffer_bytes: int, num_contexts: int | None, load: Load
) -> tuple[str, ...]:
    """Names of the budgets that do not fit, without their arithmetic: what a sweep needs of `budgets`."""
    contexts = (
        allocated_contexts(plan, node) if num_contexts is None else positive("the number of contexts", num_contexts)
    )
    within = bool(node.nics_per_gpu.value) or plan.physical_domain.rdma_ranks == 1
    memory = buffer_bytes + plan_workspace("ep").allocated_bytes + load.reserved_bytes
    broken = {
        "queue_pairs": not within or queue_pairs(plan, node, contexts, load) > node.max_qp.value,
        "contexts": num_contexts is not None and not MIN_CONTEXTS <= contexts <= MAX_CONTEXTS,
        "memory": memory > node.memory_bytes.value,
        "window": memory - load.reserved_bytes > window_stride(node, load),
        "sms": plan.sms_left < (GEMM_SMS if request.prefer_overlap else 0),
        "kernel_limits": bool(plan.kernel_limits_broken),
    }
    return tuple(name for name, over in broken.items() if over)


def _queue_budget(plan: EpPlan, node: Node, contexts: int, load: Load, *, given: bool) -> Budget:
    used = queue_pairs(plan, node, contexts, load)
    limit = node.max_qp
    if not node.nics_per_gpu.value:
        text = "no RDMA device, so no queue pairs; set EP_DISABLE_GIN=1 inside one NVLink domain"
        return Budget("queue_pairs", Number(0, "no RDMA device"), limit, plan.physical_domain.rdma_ranks == 1, text)
    if plan.physical_domain.rdma_ranks == 1:
        text = "one NVLink domain: with EP_DISABLE_GIN=1 there are no queue pairs"
        return Budget("queue_pairs", Number(0, "EP_DISABLE_GIN=1"), limit, True, text)
    peers, sharers = _peers(plan, load), _sharers(node)
    what = "ranks of the rail" if peers != plan.num_ranks else "ranks"
    formula = f"{contexts} contexts x ({peers} {what} + 1)"
    formula += f" x {sharers} GPUs a device" if sharers > 1 else ""
    formula += f" x {COUNTER_FACTOR} with counters" if load.counters else ""
    source = "flag" if given else f"allocated by rules {plan.rules}"
    text = f"{formula} = {used} queue pairs of {limit.value} a device"
    return Budget("queue_pairs", Number(used, f"{formula}; contexts: {source}"), limit, used <= limit.value, text)


def _context_budget(contexts: int) -> Budget:
    what, source = KERNEL_LIMITS["qps_over_1024"]
    fits = MIN_CONTEXTS <= contexts <= MAX_CONTEXTS
    text = f"{contexts} contexts of {MIN_CONTEXTS} to {MAX_CONTEXTS}: {what}, one of them notifies"
    return Budget("contexts", Number(contexts, "flag"), Number(MAX_CONTEXTS, source), fits, text)


def _memory_budget(node: Node, buffer_bytes: int, load: Load) -> Budget:
    workspace = plan_workspace("ep").allocated_bytes
    used = buffer_bytes + workspace + load.reserved_bytes
    parts = f"buffer {told(buffer_bytes)} + workspace {told(workspace)}"
    parts += f" + reserved {told(load.reserved_bytes)}" if load.reserved_bytes else ""
    limit = node.memory_bytes
    text = f"{parts} = {told(used)} of {told(int(limit.value))} a GPU"
    return Budget("memory", Number(used, parts), limit, used <= limit.value, text)


def window_stride(node: Node, load: Load) -> int:
    """Bytes of address space that NCCL's symmetric memory gives each rank, shared by all its windows: NCCL_WIN_STRIDE, else the
    largest GPU's memory, rounded up to 4 GiB. Source: NVIDIA/nccl, src/dev_runtime.cc (bigSize)."""
    wanted = load.window_stride_bytes or int(node.memory_bytes.value)
    return -(-wanted // WINDOW_STEP_BYTES) * WINDOW_STEP_BYTES


def _window_budget(node: Node, buffer_bytes: int, load: Load) -> Budget:
    used = buffer_bytes + plan_workspace("ep").allocated_bytes
    limit = window_stride(node, load)
    origin = "NCCL_WIN_STRIDE" if load.window_stride_bytes else "the GPU's memory"
    text = f"{told(used)} of windows in {told(limit)} of address space a rank ({origin}, up to a multiple of 4 GiB)"
    return Budget("window", Number(used, "buffer + workspace"), Number(limit, origin), used <= limit, text)


def _sm_budget(plan: EpPlan, node: Node, request: EpRequest) -> Budget:
    device, source = request.device_sms, node.device_sms.source
    least = GEMM_SMS if request.prefer_overlap else 0
    fits = plan.sms_left >= least
    end = f"{plan.sms_left} left for GEMMs" if least else f"{plan.sms_left} left, nothing overlaps"
    text = f"{plan.num_sms} SMs of {device}: {end}"
    limit = Number(device - least, f"{source}; {least} for other kernels" if least else source)
    return Budget("sms", Number(plan.num_sms, f"rules {plan.rules}"), limit, fits, text)


def _kernel_budget(plan: EpPlan) -> Budget:
    broken = plan.kernel_limits_broken
    text = "; ".join(f"{code}: {KERNEL_LIMITS[code][0]}" for code in broken) or "no limit of the kernels is broken"
    source = "; ".join(KERNEL_LIMITS[code][1] for code in broken) or f"{len(KERNEL_LIMITS)} known limits"
    return Budget("kernel_limits", Number(len(broken), source), Number(0, "limits of the kernels"), not broken, text)
