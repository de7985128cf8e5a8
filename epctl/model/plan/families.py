"""The families beside dispatch and combine: load balancing, bucket collectives, Engram, pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from epctl.core.views.sizes import told
from epctl.model.bucket import BucketPlan, plan_bucket
from epctl.model.engram import engram_storage, plan_engram
from epctl.model.inputs import Node
from epctl.model.lb import LbPlan, plan_lb
from epctl.model.limits import KERNEL_LIMITS
from epctl.model.plan.bounds import check_bounds
from epctl.model.plan.request import Request, flag, short
from epctl.model.plan.settle import Files, node_of, rules_of, value
from epctl.model.plan.types import BucketFamily, EngramFamily, PpFamily, Refused
from epctl.model.refusal import RefusalError, positive
from epctl.model.rules import Rules
from epctl.model.storage import plan_bucket_storage, plan_pp_storage, plan_workspace

OPS = ("all_reduce", "reduce_scatter", "all_gather")
MAX_RANKS = 1024
"""Source: KERNEL_LIMITS, ranks_over_1024."""
SCALE_HIDDEN = 128
_ELEM_BYTES = {"bf16": 2, "fp8": 1}

T = TypeVar("T")


def plan_family(name: str, request: Request, files: Files) -> Any:  # noqa: ANN401 - one of four
    """One of lb, bucket, engram, pp. Raises RefusalError as their planners do."""
    check_bounds(request)
    rules = rules_of(request, files)
    node = node_of(request, files, rules)
    return _PLANNERS[name](request, node, rules)


def or_refused(planner: Callable[[], T]) -> T | Refused:
    """What `planner` gives, or its refusal as data."""
    try:
        return planner()
    except RefusalError as error:
        return Refused(
            error_code=error.code, what=error.what, why=error.why, todo=error.todo, deepep_2_5_0=error.deepep_2_5_0
        )


def _lb(request: Request, node: Node, rules: Rules) -> LbPlan:  # noqa: ARG001
    return plan_lb(float(node.nvlink_gbs.value), device_sms=int(node.device_sms.value), rules=rules)


def _bucket(request: Request, node: Node, rules: Rules) -> BucketFamily:
    op, nodes, gpus = value(request, "op"), value(request, "nodes"), int(node.gpus_per_node.value)
    rates = float(node.nvlink_gbs.value), float(node.rdma_gbs.value)

    def planned(name: str) -> BucketPlan:
        return plan_bucket(name, nodes, gpus, *rates, device_sms=int(node.device_sms.value), rules=rules)

    mine = planned(op)
    single = nodes == gpus == 1
    ops = {name: planned(name) for name in OPS if name == "all_gather" or not single}
    storage, workspace = plan_bucket_storage(tensor_bytes(request)), plan_workspace("bucket")
    codes = ("ranks_over_1024",) if nodes * gpus > MAX_RANKS else ()
    broken = _broken(codes, storage.storage_bytes + workspace.allocated_bytes, request, node)
    return BucketFamily(
        **{name: getattr(mine, name) for name in mine.__struct_fields__},
        op=op,
        ops=ops,
        storage=storage,
        workspace=workspace,
        fits=not broken and not mine.over_device,
        limits_broken=broken,
    )


def _engram(request: Request, node: Node, rules: Rules) -> EngramFamily:  # noqa: ARG001
    tokens, entries, nodes = value(request, "tokens"), value(request, "entries_per_token"), value(request, "nodes")
    mine = plan_engram(
        value(request, "layers"),
        tokens,
        entries,
        nodes,
        fast_atomics=bool(node.fast_atomics.value),
        max_reads_per_qp=value(request, "max_reads_per_qp"),
    )
    hidden, dtype = value(request, "hidden"), value(request, "dtype")
    packs = -(-hidden // SCALE_HIDDEN) if dtype == "fp8" else 0
    storage = engram_storage(entries_per_layer(request), hidden, _ELEM_BYTES[dtype], tokens, entries, nodes, packs)
    workspace = plan_workspace("engram")
    codes = (("ranks_over_1024",) if nodes > MAX_RANKS else ()) + mine.kernel_limits_broken
    broken = _broken(codes, storage.gpu_bytes + workspace.allocated_bytes, request, node)
    return EngramFamily(
        **{name: getattr(mine, name) for name in mine.__struct_fields__},
        gpu_bytes=storage.gpu_bytes,
        rdma_storage_bytes=storage.rdma_storage_bytes,
        workspace=workspace,
        fits=not broken,
        limits_broken=broken,
    )


def _pp(request: Request, node: Node, rules: Rules) -> PpFamily:  # noqa: ARG001
    mine = plan_pp_storage(max(tensor_bytes(request)), value(request, "inflight"))
    workspace = plan_workspace("pp")
    broken = _broken((), mine.storage_bytes + workspace.allocated_bytes, request, node)
    return PpFamily(storage_bytes=mine.storage_bytes, workspace=workspace, fits=not broken, limits_broken=broken)


def _broken(codes: tuple[str, ...], size_bytes: int, request: Request, node: Node) -> tuple[str, ...]:
    """Limits of the kernels as sentences, and the memory where buffer, workspace and what is reserved do not fit a GPU."""
    found = [f"{code}: {KERNEL_LIMITS[code][0]}" for code in codes]
    reserved, memory = value(request, "reserved_bytes"), int(node.memory_bytes.value)
    if size_bytes + reserved > memory:
        parts = told(size_bytes) + (f" + reserved {told(reserved)}" if reserved else "")
        found.append(f"memory: {parts} of {told(memory)} a GPU")
    return tuple(found)


_PLANNERS: dict[str, Callable[[Request, Node, Rules], Any]] = {
    "lb": _lb,
    "bucket": _bucket,
    "engram": _engram,
    "pp": _pp,
}


def tensor_bytes(request: Request) -> tuple[int, ...]:
    """Sizes of the tensors: given, with + between them, or one of tokens x hidden BF16 values. Raises RefusalError value_invalid."""
    if request.tensor_bytes is None:
        return (positive("the number of tokens per rank", value(request, "tokens")) * value(request, "hidden") * 2,)
    return _list(request.tensor_bytes, "tensor_bytes")


def entries_per_layer(request: Request) -> tuple[int, ...]:
    """One rank's entries of each layer: one number a layer with + between them, or one for all. Raises RefusalError value_invalid."""
    layers = value(request, "layers")
    found = _list(str(value(request, "entries")), "entries")
    if len(found) == 1:
        return found * positive("the number of layers", layers)
    if request.layers is not None and len(found) != layers:
        what = f"--entries names {len(found)} layers, but --layers is {layers}"
        raise RefusalError("value_invalid", what, "there is one number a layer, or one for all", "leave --layers out")
    return found


def _list(text: str, field: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split("+"))
    except ValueError:
        what = f"{flag(field)} is {short(text)!r}"
        why = "it takes whole numbers, with + between them where there are several"
        raise RefusalError("value_invalid", what, why, f"give {flag(field)} 1000000+2000000") from None
