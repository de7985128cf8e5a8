"""Budgets: what a plan takes against what there is, which one breaks, and the nearest plan that fits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.model.budget import (
    Budget,
    Change,
    Load,
    allocated_contexts,
    budgets,
    buffer_bytes_of,
    nearest_plan,
    queue_pairs,
)
from epctl.model.buffers import EpBufferRequest
from epctl.model.ep import plan_ep
from epctl.model.ep_types import EpRequest
from epctl.model.hardware import hardware
from epctl.model.inputs import Flags, Node, Number, resolve
from epctl.model.refusal import RefusalError
from epctl.model.rules import RULES
from epctl.model.storage import plan_workspace

RULE = RULES["deepep-2.5"]


def node_of(name: str = "h200-ndr400", **flags: Any) -> Node:  # noqa: ANN401
    return resolve(Flags(**flags), hardware(name), None, RULE)


def request_of(node: Node, nodes: int, mode: str, **changes: Any) -> EpRequest:  # noqa: ANN401
    base: dict[str, Any] = {
        "num_experts": 256,
        "num_topk": 8,
        "num_nodes": nodes,
        "gpus_per_node": node.gpus_per_node.value,
        "mode": mode,
        "nvlink_gbs": node.nvlink_gbs.value,
        "rdma_gbs": node.rdma_gbs.value,
        "device_sms": node.device_sms.value,
    }
    return EpRequest(**{**base, **changes})


def buffer_of(request: EpRequest, tokens: int = 4096) -> EpBufferRequest:
    return EpBufferRequest(
        num_nodes=request.num_nodes,
        gpus_per_node=request.gpus_per_node,
        mode=request.mode,
        num_max_tokens_per_rank=tokens,
        hidden=7168,
        num_topk=request.num_topk,
        fp8_dispatch=True,
    )


def named(entries: tuple[Budget, ...]) -> dict[str, Budget]:
    return {entry.name: entry for entry in entries}


@pytest.mark.parametrize(
    ("name", "nodes", "mode", "load", "pairs"),
    [
        ("h200-ndr400", 4, "hybrid", Load(), 129 * 5),
        ("h200-ndr400", 4, "hybrid", Load(full_mesh=True), 129 * 33),
        ("h200-ndr400", 4, "direct", Load(), 17 * 33),
        ("h200-ndr400", 4, "direct", Load(counters=True), 17 * 33 * 3),
        ("b200-xdr800", 4, "hybrid", Load(), 65 * 5),
        ("h200-p5en-efa", 4, "direct", Load(), 17 * 33),
        ("h200-ndr400", 1, "hybrid", Load(), 0),
        ("h200x2", 1, "direct", Load(), 0),
    ],
)
def test_queue_pairs(name: str, nodes: int, mode: str, load: Load, pairs: int) -> None:
    node = node_of(name)
    plan = plan_ep(request_of(node, nodes, mode), RULE)
    assert queue_pairs(plan, node, allocated_contexts(plan, node), load) == pairs


def test_gpus_that_share_a_device_add_up() -> None:
    node = msgspec.structs.replace(node_of(), nics_per_gpu=Number(0.5, "test"))
    request = request_of(node, 4, "direct")
    plan = plan_ep(request, RULE)
    assert queue_pairs(plan, node, 17, Load()) == 17 * 33 * 2
    assert "2 GPUs a device" in named(budgets(plan, node, request, 0))["queue_pairs"].text


def test_what_fits() -> None:
    node = node_of()
    request = request_of(node, 4, "hybrid")
    plan = plan_ep(request, RULE)
    size = buffer_bytes_of(buffer_of(request), "staged")
    found = named(budgets(plan, node, request, size))
    assert list(found) == ["queue_pairs", "memory", "window", "sms", "kernel_limits"]
    assert all(entry.fits for entry in found.values())
    assert found["memory"].used.value == size + plan_workspace("ep").allocated_bytes
    assert found["memory"].limit == node.memory_bytes
    assert found["queue_pairs"].limit == node.max_qp
    assert (found["sms"].used.value, found["sms"].limit.value) == (plan.num_sms, 130)
    assert all(entry.used.source and entry.limit.source and entry.text for entry in found.values())


def test_each_budget_can_break() -> None:
    node = node_of(max_qp=600, memory_bytes=1 << 30, device_sms=4)
    request = request_of(node, 64, "hybrid", num_experts=512)
    plan = plan_ep(request, RULE)
    found = named(budgets(plan, node, request, 5 << 30, 1025))
    assert [name for name, entry in found.items() if not entry.fits] == list(found)
    assert "hybrid_scaleout_over_32" in found["kernel_limits"].text
    assert not named(budgets(plan, node, request, 0, 1))["contexts"].fits
    with pytest.raises(RefusalError):
        budgets(plan, node, request, 0, 0)


def test_all_sms_may_go_where_nothing_overlaps() -> None:
    node = node_of(device_sms=64)
    for overlap in (True, False):
        request = request_of(node, 1, "direct", prefer_overlap=overlap, sm_write_gbs=1.0)
        entry = named(budgets(plan_ep(request, RULE), node, request, 0))["sms"]
        assert entry.used.value == 64
        assert entry.fits is not overlap


def test_several_nodes_without_rdma_device_do_not_fit() -> None:
    node = node_of("h200x2")
    request = request_of(node, 2, "direct", rdma_gbs=50.0)
    assert not named(budgets(plan_ep(request, RULE), node, request, 0))["queue_pairs"].fits


@pytest.mark.parametrize(
    ("name", "nodes", "mode", "tokens", "flags", "load", "constraint", "changes"),
    [
        ("h200-ndr400", 4, "hybrid", 4096, {}, Load(), (), ()),
        ("h200-ndr400", 4, "direct", 4096, {"max_qp": 100}, Load(), ("queue_pairs",), (Change("contexts", 17, 3),)),
        ("h200-ndr400", 4, "direct", 4096, {"max_qp": 40}, Load(), ("queue_pairs",), None),
        ("gb200-nvl72-ndr400", 2, "hybrid", 64, {}, Load(), ("kernel_limits",), (Change("mode", "hybrid", "direct"),)),
        ("h200x2", 2, "direct", 4096, {}, Load(), ("rdma_bandwidth_missing",), (Change("nodes", 2, 1),)),
    ],
)
def test_nearest(
    name: str,
    nodes: int,
    mode: str,
    tokens: int,
    flags: Any,  # noqa: ANN401
    load: Load,
    constraint: Any,  # noqa: ANN401
    changes: Any,  # noqa: ANN401
) -> None:
    node = node_of(name, **flags)
    experts = 288 if name.startswith("gb200") else 256
    request = request_of(node, nodes, mode, num_experts=experts)
    found = nearest_plan(request, node, RULE, buffer_of(request, tokens), None, load)
    assert found is not None
    plan, moved = found
    assert moved.constraints == constraint
    if changes is not None:
        assert moved.changes == changes
    assert max(plan.num_qps.slow_atomics, plan.num_qps.fast_atomics) <= moved.num_contexts
    assert str(moved) == moved.text
    assert all(word in moved.text for word in constraint)


def test_fewer_tokens_where_memory_is_short() -> None:
    node = node_of()
    request = request_of(node, 32, "hybrid")
    buffer, load = buffer_of(request, 8192), Load(reserved_bytes=120 << 30)
    found = nearest_plan(request, node, RULE, buffer, None, load)
    assert found is not None
    moved = found[1]
    assert [change.name for change in moved.changes] == ["tokens"]
    more = msgspec.structs.replace(moved.buffer, num_max_tokens_per_rank=moved.buffer.num_max_tokens_per_rank + 1)
    for room, fits in ((moved.buffer, True), (more, False)):
        size = buffer_bytes_of(room, "staged")
        assert named(budgets(found[0], node, request, size, None, load))["memory"].fits is fits


def test_nothing_is_near_where_memory_is_taken() -> None:
    node = node_of()
    request = request_of(node, 4, "hybrid")
    assert nearest_plan(request, node, RULE, buffer_of(request), None, Load(reserved_bytes=1 << 40)) is None


def test_a_given_mean_keeps_its_node_count() -> None:
    node = node_of("h200x2")
    request = request_of(node, 2, "direct", distinct_ranks=2.0, distinct_nodes=1.5)
    assert nearest_plan(request, node, RULE, buffer_of(request)) is None


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(("h200-ndr400", "h200-p5en-efa", "b200-xdr800", "h200x2")),
    st.sampled_from(("deepep-2.5", "epctl")),
    st.integers(1, 64),
    st.sampled_from(("direct", "hybrid")),
    st.integers(1, 32768),
    st.integers(0, 160),
    st.integers(16, 1 << 17),
    st.sampled_from((64, 256, 384, 1024)),
)
def test_the_nearest_plan_fits(
    name: str, rules: str, nodes: int, mode: str, tokens: int, reserved_gib: int, max_qp: int, experts: int
) -> None:
    rule, load = RULES[rules], Load(reserved_bytes=reserved_gib << 30)
    node = resolve(Flags(max_qp=max_qp), hardware(name), None, rule)
    request = request_of(node, nodes, mode, num_experts=experts)
    buffer = buffer_of(request, tokens)
    found = nearest_plan(request, node, rule, buffer, None, load)
    if found is None:
        return
    plan, moved = found
    size = buffer_bytes_of(moved.buffer, rule.layout)
    assert all(entry.fits for entry in budgets(plan, node, moved.request, size, None, load))
    assert moved.buffer.num_max_tokens_per_rank <= tokens
    assert bool(moved.constraints) == bool(moved.changes)
    if not moved.changes:
        assert (moved.request, moved.buffer) == (request, buffer)
