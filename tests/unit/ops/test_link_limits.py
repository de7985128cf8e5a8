from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.op import Hardware, Limit, Request
from epctl.model.hardware import measured
from epctl.ops import link
from epctl.ops.link import cases, limits
from tests.support.worlds import layout

H200 = Hardware("NVIDIA H200", 132, 478.116, "driver", 4800.0, "data sheet")
MOVES = (*cases.WRITES, *cases.READS)
HOP_US = 0.635


def test_the_table_says_what_the_plan_counts_on() -> None:
    found, planned = limits.table(), measured()
    assert found.link_gbs == planned.link_gbs
    assert found.hbm_peak_gbs == planned.hbm_peak_gbs
    assert found.hbm_copy_gbs == planned.hbm_gbs.value
    assert limits.interpolated(found.rates["bulk-write"], 64) == planned.sm_write_limit_gbs.value
    assert found.rates["bulk-read"][0][1] == planned.sm_read_limit_gbs.value
    assert found.rates["pull-add"][-1][1] == planned.pull_add_limit_gbs.value
    assert found.rates["copy-engine"][0][1] == planned.copy_limit_gbs.value
    assert found.round_trip_us == pytest.approx(2 * float(planned.nvlink_hop_us.value))


@pytest.mark.parametrize(
    ("kind", "sms", "blocks", "gbs"),
    [
        ("bulk-write", 8, 1, 339),
        ("bulk-write", 20, 1, 343.5),
        ("bulk-write", 64, 1, 356),
        ("bulk-write", cases.ALL_SMS, 1, 362),
        ("bulk-read", 8, 1, 322),
        ("pull-add", cases.ALL_SMS, 1, 331),
        ("pull-add", cases.ALL_SMS, 4, 366),
        ("copy-engine", cases.ALL_SMS, 1, 386),
    ],
)
def test_predictions_on_an_h200(kind: str, sms: int, blocks: int, gbs: float) -> None:
    case = cases.move(kind, 256 << 20, sms=sms, blocks_per_sm=blocks)
    assert limits.predict(case, H200) == pytest.approx(case.whole("bytes") / gbs / 1e3 + HOP_US)


def test_other_links_are_taken_at_the_same_share() -> None:
    case = cases.move("bulk-write", 256 << 20)
    half = Hardware("other", 132, 478.116 / 2, "driver", 4800.0, "data sheet")
    one, other = limits.predict(case, H200), limits.predict(case, half)
    assert one is not None
    assert other is not None
    assert other - HOP_US == pytest.approx(2 * (one - HOP_US))
    bound = limits.limit(case, half)
    assert bound is not None
    assert bound.value == pytest.approx(181)
    assert "x 0.5" in bound.source


def test_one_way_is_held_to_the_links_alone() -> None:
    case = cases.move("bulk-write", 256 << 20, one_way=(0, 1))
    assert limits.limit(case, H200) == Limit(478.116, "gbs", "nominal NVLink", "driver")


def test_nothing_is_said_where_nobody_knows() -> None:
    unknown = Hardware()
    for kind in MOVES:
        case = cases.move(kind, 256 << 20)
        assert (limits.limit(case, unknown), limits.predict(case, unknown)) == (None, None)
    for kind in cases.LOCAL:
        assert limits.limit(cases.local(kind, 1 << 20), unknown) is None
    few = cases.move("vector-write", 1 << 20, sms=24)
    assert limits.predict(few, H200) is None
    assert limits.limit(few, H200) is not None


def test_traffic_of_the_busiest_rank() -> None:
    size = 2 * cases.ROW_BYTES
    both = limits.traffic(cases.move("bulk-write", size))
    assert (both.nvlink_out_bytes, both.nvlink_in_bytes, both.hbm_bytes) == (size, size, 2 * size)
    write = limits.traffic(cases.move("copy-engine", size, one_way=(0, 1)))
    assert (write.nvlink_out_bytes, write.nvlink_in_bytes) == (size, 0)
    read = limits.traffic(cases.move("pull-add", size, one_way=(0, 1)))
    assert (read.nvlink_out_bytes, read.nvlink_in_bytes, read.hbm_bytes) == (0, size, 2 * size)
    assert limits.traffic(cases.local("hbm-copy", size)).hbm_bytes == 2 * size
    assert limits.traffic(cases.local("sm-read", size)).busiest_bytes() == size


def test_a_copy_within_memory_reads_and_writes() -> None:
    case = cases.local("hbm-copy", 256 << 20)
    bound = limits.limit(case, H200)
    assert bound is not None
    assert bound.value == 3600
    assert bound.us(limits.traffic(case)) == pytest.approx(case.whole("bytes") / 1800 / 1e3)


@given(st.sampled_from(MOVES), st.integers(1, 1024), st.integers(1, 4096))
def test_no_prediction_beats_the_limit(kind: str, sms: int, num_rows: int) -> None:
    case = cases.move(kind, num_rows * cases.ROW_BYTES, sms=sms)
    predicted, bound = limits.predict(case, H200), limits.limit(case, H200)
    assert bound is not None
    assert predicted is None or predicted >= bound.us(limits.traffic(case))


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(1, 500)), min_size=1, max_size=8, unique_by=lambda p: p[0]))
def test_interpolation_goes_through_its_points_and_never_leaves_them(points: list[tuple[int, float]]) -> None:
    ordered = tuple(sorted(points))
    rates = [gbs for _, gbs in ordered]
    for sms, gbs in ordered:
        assert limits.interpolated(ordered, sms) == pytest.approx(gbs)
    for sms in (0, 0.5, 77, 250.5, 10_000):
        assert min(rates) - 1e-6 <= limits.interpolated(ordered, sms) <= max(rates) + 1e-6


def test_the_op_answers_with_these() -> None:
    case, where = cases.move("bulk-write", 256 << 20), layout(2, tier="gpu")
    assert link.OP.limit(case, where, H200) == limits.limit(case, H200)
    assert link.OP.predict(case, where, H200) == limits.predict(case, H200)
    assert link.OP.traffic(case, where) == limits.traffic(case)
    assert Request().mode == "all"
