"""Predictions against published rows of the same configuration, and how rows are found.

Nothing but RDMA's share (from V2's multi-node rows) was taken from these tables. Errors are (predicted - published) / published.
"""

from __future__ import annotations

import statistics

import msgspec
import pytest

from epctl.model.inputs import Node
from epctl.model.reference import Published, matching, predicted, published
from epctl.model.timing import stage_times
from epctl.model.timing_types import StageTime, Workload
from tests.support.planning import h800, node_of, plan_of

ROWS = {row.id: row for row in published()}
BLACKWELL = {"SM100": "b200-ndr400", "B200": "b200-ndr400", "GB200": "gb200-nvl72-ndr400"}


def rows(generation: str, kernel: str, *, current: bool = True, api: str = "") -> list[Published]:
    return [
        row
        for row in ROWS.values()
        if (row.generation, row.kernel, row.api) == (generation, kernel, api) and row.current == current
    ]


def node_for(row: Published) -> Node:
    gpu = row.hardware.split(",")[0]
    return h800() if gpu == "H800" else node_of(BLACKWELL.get(gpu, "h100-ndr400"))


def times_for(row: Published, *, by_rdma_alone: bool = False) -> tuple[StageTime, StageTime]:
    """The row's set-up by the staged rules. `by_rdma_alone`: V1's low-latency kernels used no NVLink before June 2025."""
    node, low_latency = node_for(row), row.kernel == "low-latency"
    nodes, gpus = (row.ep, 1) if by_rdma_alone else (row.nodes, row.ep // row.nodes)
    experts = row.ep * 8 if row.generation == "hybrid-ep branch" else 256
    mode = "direct" if low_latency else "hybrid"
    plan = plan_of(node, nodes, gpus, mode, "deepep-2", num_sms=row.num_sms, num_experts=experts)
    dtype = "bf16" if row.dtype == "bf16" else "fp8"
    work = Workload(tokens=row.tokens, hidden=row.hidden, dtype=dtype, sends="selection" if low_latency else "rank")  # type: ignore[arg-type]
    return stage_times(plan, work, node)


def error(row: Published, *, by_rdma_alone: bool = False) -> float:
    value = predicted(row, times_for(row, by_rdma_alone=by_rdma_alone))
    assert value is not None
    return value / row.value - 1


def ids(row: Published) -> str:
    return f"{row.id}-{row.op}-ep{row.ep}"


@pytest.mark.parametrize("row", rows("V1", "normal"), ids=ids)
def test_v1_normal_kernels(row: Published) -> None:
    """-3 to +13 %; within 4 % except on 2 nodes (+9, +13 %), where NVLink binds and the model lets both levels overlap fully."""
    assert abs(error(row)) < (0.14 if row.ep == 16 else 0.05)


@pytest.mark.parametrize("row", rows("V1", "low-latency"), ids=ids)
def test_v1_low_latency_kernels(row: Published) -> None:
    """-9 to +8 %."""
    assert abs(error(row)) < 0.10


@pytest.mark.parametrize("row", rows("V1", "low-latency", current=False), ids=ids)
def test_v1_low_latency_kernels_over_rdma_alone(row: Published) -> None:
    """Superseded revisions: combine -4 to +3 %, dispatch +7 to +15 %: hops and fixed costs are too large for it."""
    assert abs(error(row, by_rdma_alone=True)) < (0.16 if row.op == "dispatch" else 0.05)


@pytest.mark.parametrize("row", rows("V2", "unified (ElasticBuffer)"), ids=ids)
def test_v2_kernels(row: Published) -> None:
    """-6 to +9 %. The multi-node rows gave RDMA's share; those within a node (SM100, -2 to +8 %) gave nothing."""
    assert abs(error(row)) < 0.10


@pytest.mark.parametrize(
    "row", rows("V1", "normal") + rows("V1", "low-latency") + rows("V2", "unified (ElasticBuffer)"), ids=ids
)
def test_published_times_are_within_the_range(row: Published) -> None:
    times = times_for(row)
    time = times[0 if row.op == "dispatch" else 1]
    value = predicted(row, times)
    assert value is not None
    main = row.value if row.unit == "us" else time.main_us * value / row.value
    total = main if row.unit == "us" else main + time.us - time.main_us
    assert time.us_low <= total <= time.us_high


def kernels(least_sms: int) -> list[Published]:
    found = rows("hybrid-ep branch", "HybridEP", api="kernel only")
    return [row for row in found if (row.num_sms or 0) >= least_sms]


def test_hybrid_ep_kernels_over_nvlink() -> None:
    """Another design, so only a rough test: BF16 dispatch and combine -9 to +17 % with 16 and 32 SMs on B200 and GB200, 8 to 36 ranks."""
    errors = [error(row) for row in kernels(16) if row.link == "nvlink" and row.dtype != "fp8"]
    assert len(errors) == 22
    assert min(errors) > -0.10
    assert max(errors) < 0.18
    assert abs(statistics.median(errors)) < 0.03


def test_hybrid_ep_fp8_is_an_upper_bound() -> None:
    """Its FP8 dispatch falls off with the ranks, which the model does not know: -6 to +134 %, worst with 16 SMs and 36 ranks."""
    errors = [error(row) for row in kernels(16) if row.link == "nvlink" and row.dtype == "fp8"]
    assert min(errors) > -0.07
    assert max(errors) < 1.35


def test_hybrid_ep_kernels_over_rdma() -> None:
    """From 8 SMs on: -1 to +12 % at 32 and 64 ranks, +12 to +39 % at 16, where half of the tokens stay in the node and its NVLink part is
    slower than the model's."""
    for row in kernels(8):
        if row.link == "rdma":
            assert -0.02 < error(row) < (0.40 if row.ep == 16 else 0.13)


def test_what_is_counted_another_way_is_not_predicted() -> None:
    for row in ROWS.values():
        if row.api == "torch" or row.kernel in ("DeepEP", "PCIe (no NVLink)"):
            times = times_for(ROWS["r001"])
            assert predicted(row, times) is None
    assert predicted(ROWS["r003"], times_for(ROWS["r001"])) is None, "no scale-out within one node"
    assert predicted(ROWS["r001"], ()) is None


def test_every_row_is_read_with_its_source() -> None:
    assert len(ROWS) == 271
    for row in ROWS.values():
        assert row.source
        assert row.link in ("nvlink", "rdma")
        assert row.nodes >= 1
        assert row.ep % row.nodes == 0
    assert ROWS["r001"].source == "deepseek-ai/DeepEP, docs/legacy.md, dd758ca (2026-07-14), normal kernels"
    assert (ROWS["r087"].nodes, ROWS["r093"].nodes, ROWS["r097"].nodes) == (2, 1, 2)


def test_matching_rows_are_of_the_same_set_up() -> None:
    node = h800()
    plan = plan_of(node, 2, 8, "hybrid")
    found = matching(plan, Workload(tokens=4096), node)
    assert {"r003", "r004"} <= {row.id for row in found}
    assert {(row.ep, row.nodes, row.tokens, row.hidden, row.topk, row.current) for row in found} == {
        (16, 2, 4096, 7168, 8, True)
    }
    assert all(row.op == "combine" or row.dtype == "fp8" for row in found)
    assert next(row for row in found if row.id == "r003").differs == ()
    older = matching(plan, Workload(tokens=4096), node, superseded=True)
    assert set(found) < set(older)
    assert "r023" in {row.id for row in older}


def test_no_row_where_none_is_published() -> None:
    node = node_of("h200-ndr400")
    for work, plan in (
        (Workload(tokens=4095), plan_of(node, 2, 8, "hybrid")),
        (Workload(tokens=4096, hidden=4096), plan_of(node, 2, 8, "hybrid")),
        (Workload(tokens=4096), plan_of(node, 16, 1, "hybrid")),
        (Workload(tokens=4096), plan_of(node, 128, 2, "hybrid")),
    ):
        assert matching(plan, work, node) == ()


def test_differences_are_told() -> None:
    node = node_of("h200-ndr400")
    plan = plan_of(node, 1, 8, "direct")
    found = {row.id: row.differs for row in matching(plan, Workload(tokens=128), node)}
    assert found["r009"] == (
        "GPU: H800, not h200-ndr400",
        "kernel: V1 low-latency sends once a selection, this plan once a rank",
    )
    big = {row.id: row.differs for row in matching(plan, Workload(tokens=8192), node)}
    assert big["r093"][0] == "GPU: only SM100 is told"
    assert big["r093"][1] == f"SMs: 64, not {plan.num_sms}"


def test_rows_can_be_encoded() -> None:
    assert msgspec.json.decode(msgspec.json.encode(published()))[0]["id"] == "r001"
