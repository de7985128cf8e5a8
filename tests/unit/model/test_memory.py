"""Buffers, storage, channels, Engram, buckets, load balancing: monotone, inverse, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.model.bucket import plan_bucket
from epctl.model.buffers import EpBufferRequest, plan_ep_buffer, token_bytes
from epctl.model.channels import plan_direct_warps, plan_hybrid_channels
from epctl.model.engram import engram_storage, plan_engram
from epctl.model.fit import largest_tokens, plan_write_once
from epctl.model.lb import plan_lb
from epctl.model.limits import KERNEL_LIMITS
from epctl.model.refusal import RefusalError
from epctl.model.storage import ALLOCATION_BYTES, WORKSPACE_PARTS, plan_bucket_storage, plan_pp_storage, plan_workspace


@st.composite
def buffers(draw: st.DrawFn) -> EpBufferRequest:
    return EpBufferRequest(
        num_nodes=draw(st.integers(1, 8)),
        gpus_per_node=draw(st.integers(1, 8)),
        mode=draw(st.sampled_from(("direct", "hybrid"))),
        num_max_tokens_per_rank=draw(st.integers(1, 8192)),
        hidden=draw(st.integers(1, 32)) * 256,
        num_topk=draw(st.integers(0, 16)),
        fp8_dispatch=draw(st.booleans()),
        multiple_reduction=draw(st.booleans()),
    )


def total(request: EpBufferRequest, layout: str) -> int:
    if layout == "staged":
        return plan_ep_buffer(request).total_bytes
    return plan_write_once(request).buffer_bytes + plan_workspace("ep").allocated_bytes


LAYOUTS = st.sampled_from(("staged", "write_once"))


@given(buffers(), LAYOUTS, st.sampled_from(("num_max_tokens_per_rank", "hidden", "num_topk")))
def test_bytes_grow_with_tokens_hidden_and_topk(request: EpBufferRequest, layout: str, field: str) -> None:
    if field == "num_topk" and request.num_topk == 0:
        request = msgspec.structs.replace(request, num_topk=1)
    step = 256 if field == "hidden" else 1
    more = msgspec.structs.replace(request, **{field: getattr(request, field) + step})
    assert total(more, layout) >= total(request, layout)


@given(buffers())
def test_buffer_is_the_larger_of_its_uses(request: EpBufferRequest) -> None:
    plan = plan_ep_buffer(request)
    assert plan.dispatch_bytes == sum(plan.dispatch_slots.values()) * plan.dispatch_token_bytes
    assert plan.combine_bytes == sum(plan.combine_slots.values()) * plan.combine_token_bytes
    larger = max(plan.dispatch_bytes, plan.combine_bytes)
    assert 0 <= plan.buffer_bytes - larger < ALLOCATION_BYTES
    assert plan.buffer_bytes % ALLOCATION_BYTES == 0
    assert set(plan.kernel_limits_broken) <= set(KERNEL_LIMITS)


@given(buffers(), LAYOUTS, st.integers(64, 1 << 18))
def test_largest_tokens_is_the_largest_that_fits(request: EpBufferRequest, layout: Any, mebibytes: int) -> None:  # noqa: ANN401
    memory = mebibytes << 20
    one = msgspec.structs.replace(request, num_max_tokens_per_rank=1)
    if total(one, layout) > memory:
        with pytest.raises(RefusalError) as caught:
            largest_tokens(memory, request, layout=layout)
        assert caught.value.code == "memory_too_small"
        return
    tokens = largest_tokens(memory, request, layout=layout)
    assert total(msgspec.structs.replace(request, num_max_tokens_per_rank=tokens), layout) <= memory
    assert total(msgspec.structs.replace(request, num_max_tokens_per_rank=tokens + 1), layout) > memory


def test_row_of_the_deepseek_v3_model() -> None:
    """7,168 values, 224 scale packs, 100 bytes of metadata: 8,192 bytes a slot, as DeepEP's users see it."""
    assert token_bytes(7168, 1, 224, 8, metadata=True) == 8192
    assert token_bytes(7168, 2, 0, 8, metadata=False, mbarrier=True) == 14400 + 32


@pytest.mark.parametrize(
    ("changes", "code", "hint"),
    [
        ({"hidden": 100}, "hidden_not_32_byte_multiple", "256"),
        ({"hidden": 7000, "fp8_dispatch": True}, "hidden_not_32_byte_multiple", "7168"),
        ({"hidden": 3}, "scales_larger_than_payload", "256"),
        ({"hidden": 0}, "non_positive_argument", "1"),
        ({"num_topk": -1}, "non_positive_argument", "1"),
        ({"num_max_tokens_per_rank": 10**15}, "absurd_argument", "1099511627776"),
        ({"gpus_per_node": 0}, "no_ranks", "8"),
        ({"mode": "auto"}, "unknown_mode", "hybrid"),
    ],
)
def test_buffers_that_cannot_be_are_refused(changes: dict[str, Any], code: str, hint: str) -> None:
    base = {
        "num_nodes": 2,
        "gpus_per_node": 8,
        "mode": "hybrid",
        "num_max_tokens_per_rank": 128,
        "hidden": 7168,
        "num_topk": 8,
    }
    for plan in (plan_ep_buffer, plan_write_once, lambda request: largest_tokens(1 << 40, request)):
        if "num_max_tokens_per_rank" in changes and plan not in (plan_ep_buffer, plan_write_once):
            continue
        with pytest.raises(RefusalError) as caught:
            plan(EpBufferRequest(**{**base, **changes}))
        assert caught.value.code == code
        assert hint in caught.value.todo


def test_kernel_limits_of_buffers() -> None:
    wide = EpBufferRequest(
        num_nodes=1, gpus_per_node=2, mode="direct", num_max_tokens_per_rank=1 << 31, hidden=4000, num_topk=33
    )
    assert plan_ep_buffer(wide).kernel_limits_broken == ("topk_over_32", "hidden_not_256_multiple", "slots_over_int32")


def test_workspaces_are_the_sum_of_their_parts() -> None:
    assert plan_workspace("ep").bytes == 15_831_168
    for name in WORKSPACE_PARTS:
        plan = plan_workspace(name)
        assert plan.bytes % 64 == 0
        assert plan.allocated_bytes % ALLOCATION_BYTES == 0
        assert plan.allocated_bytes >= plan.bytes
    with pytest.raises(RefusalError):
        plan_workspace("heap")


@given(st.integers(1, 1 << 30), st.integers(1, 64))
def test_pipeline_storage_holds_four_of_each(size: int, inflight: int) -> None:
    assert (
        0 <= plan_pp_storage(size, inflight).storage_bytes - 4 * size * inflight < ALLOCATION_BYTES + 4 * 64 * inflight
    )


def test_bucket_tensors_start_at_allocation_boundaries() -> None:
    assert plan_bucket_storage([1, ALLOCATION_BYTES, ALLOCATION_BYTES + 1]).storage_bytes == 4 * ALLOCATION_BYTES
    with pytest.raises(RefusalError):
        plan_bucket_storage([])


@given(
    st.integers(1, 64), st.integers(1, 32), st.integers(0, 64), st.integers(1, 16), st.integers(1, 160), st.booleans()
)
def test_channels_fit_shared_memory(ranks: int, hidden: int, packs: int, topk: int, sms: int, overlap: bool) -> None:
    smem = 232_448
    plan = plan_hybrid_channels(ranks, 256, hidden * 512, 2, packs, topk, sms, prefer_overlap=overlap)
    row = token_bytes(hidden * 512, 2, packs, topk, metadata=True, mbarrier=True)
    assert plan.num_channels == sms * plan.channels_per_sm
    assert plan.channels_per_sm <= (8 if overlap else 4)
    assert 2 * plan.channels_per_sm * row <= smem
    assert ("no_channel_fits" in plan.kernel_limits_broken) == (plan.channels_per_sm == 0)


def test_direct_warps_and_the_thread_limit() -> None:
    plan = plan_direct_warps(64, 256, 7168, 2, 0, 8)
    assert (plan.dispatch_warps, plan.num_threads, plan.kernel_limits_broken) == (15, 608, ())
    assert plan_direct_warps(1024, 1024, 7168, 2, 0, 8).kernel_limits_broken == ("direct_threads_below_ranks",)
    assert plan_direct_warps(8, 64, 1024, 1, 8, 8).dispatch_warps == 28


@given(
    st.integers(1, 16),
    st.integers(1, 65536),
    st.integers(1, 64),
    st.integers(1, 128),
    st.booleans(),
    st.integers(1, 64),
)
def test_engram_queues_hold_what_they_say(
    layers: int, tokens: int, entries: int, peers: int, fast: bool, reads: int
) -> None:
    requests = layers * tokens * entries
    plan = plan_engram(layers, tokens, entries, peers, fast_atomics=fast, max_reads_per_qp=reads)
    assert plan.num_qps >= 1
    assert plan.slots_at_num_qps * plan.num_qps * peers >= requests
    assert 1024 <= plan.qp_depth <= 32768
    if plan.restrict_rd_atomic:
        assert plan.slots_per_qp > 32768 == plan.qp_depth
        assert (plan.usable_depth, plan.depth_covers_slots_after_reserve) == (msgspec.UNSET, msgspec.UNSET)
    else:
        assert plan.qp_depth >= plan.slots_per_qp == plan.slots_at_num_qps
        assert plan.depth_covers_slots_after_reserve == (plan.qp_depth - 256 >= plan.slots_per_qp)
    assert plan.fits_1024_qps == ("qps_over_1024" not in plan.kernel_limits_broken)


def test_engram_refusals() -> None:
    with pytest.raises(RefusalError) as caught:
        plan_engram(128, 65536, 256, 8, fast_atomics=True)
    assert caught.value.code == "request_count_overflow"
    assert "65535" in caught.value.todo
    assert plan_engram(128, 65535, 256, 8, fast_atomics=True).qp_depth == 32768
    with pytest.raises(RefusalError) as caught:
        engram_storage([100], 100, 1, 128, 1, 1)
    assert (caught.value.code, "128" in caught.value.todo) == ("entry_not_64_byte_multiple", True)
    with pytest.raises(RefusalError):
        engram_storage([], 128, 1, 128, 1, 1)


@given(
    st.sampled_from(("reduce_scatter", "all_reduce")),
    st.integers(1, 64),
    st.integers(1, 72),
    st.floats(1, 1000),
    st.floats(1, 200),
)
def test_bucket_plans(op: str, nodes: int, gpus: int, nvlink: float, rdma: float) -> None:
    if nodes == gpus == 1:
        with pytest.raises(RefusalError) as caught:
            plan_bucket(op, nodes, gpus, nvlink, rdma)
        assert caught.value.code == "single_rank_collective"
        return
    plan = plan_bucket(op, nodes, gpus, nvlink, rdma)
    assert plan.num_sms % 2 == 0
    assert plan.num_sms >= max(4, plan.sm_demand)
    assert plan.domain == ("nvlink" if nodes == 1 else "rdma" if gpus == 1 else "hybrid")
    faster = plan_bucket(op, nodes, gpus, nvlink * 2, rdma * 2)
    assert math.isclose(faster.rate_gbs, plan.rate_gbs * 2)
    assert faster.num_sms >= plan.num_sms


def test_bucket_refusals_look_at_the_link_in_use() -> None:
    assert plan_bucket("all_reduce", 1, 8, 405.0, 0.0).domain == "nvlink"
    assert plan_bucket("all_reduce", 8, 1, 0.0, 50.0).domain == "rdma"
    for arguments, code in (
        (("all_reduce", 2, 8, 405.0, 0.0), "rdma_bandwidth_missing"),
        (("all_reduce", 2, 8, 0.0, 50.0), "nvlink_bandwidth_missing"),
        (("all_to_all", 2, 8, 405.0, 50.0), "unknown_op"),
        (("all_gather", 0, 8, 405.0, 50.0), "no_ranks"),
    ):
        with pytest.raises(RefusalError) as caught:
            plan_bucket(*arguments)
        assert caught.value.code == code


@given(st.floats(0.1, 5000.0))
def test_load_balancing_fills_nvlink(nvlink: float) -> None:
    plan = plan_lb(nvlink)
    assert plan.num_sms % 2 == 0
    assert plan.sm_demand <= plan.num_sms < plan.sm_demand + 2
    assert plan.over_device == (plan.num_sms > 132)
