from __future__ import annotations

import csv

from msgspec import structs

from epctl.bench.record import SCHEMA, Record, Row
from epctl.bench.statistics import Rule
from epctl.bench.verdict import Verdict
from epctl.commands import bench_output, selftest_output
from epctl.core.op import Limit, Request, Told, Traffic
from epctl.core.op_extras import Opinion
from epctl.ops.link import cases
from tests.support.worlds import layout

LIMIT = Limit(362.0, "gbs", "bulk-write, both ways", "2 x H200")
CASE = cases.move("bulk-write", 256 << 20, sms=64)
ROW = Row(
    "link",
    CASE.name,
    CASE.params,
    ok=True,
    verdict=Verdict("at-limit", "98% of the limit"),
    samples_us=(754.0,) * 6,
    median_us=754.0,
    low_us=753.0,
    high_us=755.5,
    traffic=Traffic(nvlink_out_bytes=CASE.whole("bytes")),
    gbs=356.0,
    limit=LIMIT,
    limit_us=741.5,
    limit_share=0.9834,
    predicted_us=754.6,
    settled=True,
)
SLOW = structs.replace(ROW, case="slow-one", settled=False, verdict=Verdict("slower", "1.30 x the predicted time"))
FAILED = Row("gin", "put/8", {}, ok=False, verdict=Verdict("failed"), message="rank 1: " + "no \x1b[2Jway " * 20)


def record(*rows: Row, complete: bool = True) -> Record:
    where = layout(2, tier="gpu", gpu_name="NVIDIA H200", num_links_per_gpu=18, link_gbs=26.562)
    warnings = ("rank 0's clocks are held down after timing: power cap",)
    return Record(SCHEMA, "epctl bench", "0", "now", where, (), Request(), Rule(), {}, {}, (), warnings, rows, complete)


def test_a_row_shows_measured_planned_limit_and_verdict() -> None:
    line = bench_output.line(ROW)
    assert line == "bulk-write/both/268427264/64-sms    754.00   356.0   754.60   98%  at-limit\n"
    assert bench_output.line(SLOW).split() == ["slow-one", "754.00~", "356.0", "754.60", "98%", "slower"]


def test_columns_stand_below_their_names() -> None:
    head, line = bench_output.HEAD, bench_output.line(ROW)
    for name, value in (("GB/s", "356.0"), ("plan µs", "754.60"), ("limit", "98%")):
        assert head.index(name) + len(name) == line.index(value) + len(value)
    assert head.index("verdict") == line.index("at-limit")


def test_a_failure_is_told_below_in_80_columns_and_cannot_steer() -> None:
    lines = bench_output.line(FAILED).splitlines()
    assert lines[0].split() == ["put/8", "FAILED"]
    assert len(lines) > 2
    assert all(len(line) <= 80 and "\x1b" not in line for line in lines)


def test_the_end_counts_and_warns() -> None:
    text = bench_output.closing(record(ROW, SLOW, FAILED))
    assert "3 cases: 1 at-limit, 1 slower, 1 failed" in text
    assert "~ the median's 95 % interval" in text
    assert "limit: bulk-write, both ways 362 GB/s (2 x H200)" in text
    assert "warning: rank 0's clocks are held down after timing: power cap" in text
    assert "warning: link slow-one is slower: 1.30 x the predicted time" in text
    assert "INCOMPLETE" not in text
    assert "INCOMPLETE" in bench_output.closing(record(ROW, complete=False))


def test_the_network_says_who_carried_what_and_what_others_measure() -> None:
    told = (Told(carried_by=("mlx5_0",)), Told(carried_by=("mlx5_1", "mlx5_2")), Told())
    moved = Row("gin", "put/8", {}, ok=True, verdict=Verdict("unrated"), traffic=Traffic(rdma_out_bytes=8), told=told)
    silent = structs.replace(moved, told=(Told(), Told()))
    opinion = Opinion("ib_write_bw", "mlx5_0 → mlx5_1", 400.0, 392.13, 391.0)
    whole = structs.replace(record(moved, moved, silent), opinions=(opinion,), absent={"ep": "no \x1b[2Jway"})
    text = bench_output.closing(whole)
    assert "gin: sent by rank 0 over mlx5_0, rank 1 over mlx5_1 and mlx5_2 (2 cases;" in text
    assert "gin: no port's counter tells who carried 1 of the rows" in text
    assert "second opinion: mlx5_0 → mlx5_1: nominal 400, usable 392.1, ib_write_bw" in text
    assert "not run: ep: no " in text
    assert "call " not in text  # who carried it makes no table of calls
    assert "\x1b" not in text
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith(("limit", "warning")))
    emulated = structs.replace(whole, layout=structs.replace(whole.layout, emulated=True), rows=(silent,))
    assert "counter" not in bench_output.closing(emulated)  # no port carries what is played
    assert "mlx5_0 mlx5_1 mlx5_2" in bench_output.csv_text(whole)


def test_ops_head_their_rows() -> None:
    rows = [ROW, SLOW, FAILED]
    assert [bench_output.heading(rows[: idx + 1]) for idx in range(3)] == ["link\n", "", "gin\n"]


def test_the_matrix_of_pairs() -> None:
    def pair(source: int, target: int, gbs: float) -> Row:
        case = cases.move("bulk-write", 256 << 20, one_way=(source, target))
        return structs.replace(ROW, case=case.name, params=case.params, gbs=gbs)

    rows = (pair(0, 1, 391.2), pair(1, 0, 12.34), ROW)
    assert bench_output.matrix(rows).splitlines()[1:] == [
        "            0      1",
        "     0      -  391.2",
        "     1   12.3      -",
    ]
    assert bench_output.matrix((ROW,)) == ""


def test_csv_and_markdown_hold_all_rows() -> None:
    whole = record(ROW, SLOW, FAILED)
    lines = bench_output.csv_text(whole).splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert [(row["case"], row["ok"], row["verdict"]) for row in rows] == [
        (ROW.case, "True", "at-limit"),
        ("slow-one", "True", "slower"),
        ("put/8", "False", "failed"),
    ]
    assert float(rows[0]["limit_share"]) == 0.9834
    text = bench_output.markdown(whole)
    assert (
        "| link `bulk-write/both/268427264/64-sms` | 754.00 | 753.00 to 755.50 | 356.0 | 754.60 | 98% | at-limit |"
        in text
    )
    assert "- NVLink     18 links a GPU x 26.562 GB/s = 478 GB/s each way" in text
    assert "\x1b" not in text


def test_a_failed_self_test_tells_its_command_on_one_line() -> None:
    from epctl.bench.selftest import Checked, Proof
    from epctl.bench.together import RankFailure

    command = "epctl selftest --op link --case " + "x" * 90
    case = Checked("link", "x", False, 0.1, (RankFailure(1, "7 of 9 bytes differ " * 8),), command)
    lines = selftest_output.case_line(case).splitlines()
    assert lines[0] == "FAILED  link x"
    assert lines[-1] == f"        repeat: {command}"
    assert all(len(line) <= 80 for line in lines[:-1])
    blind = selftest_output.proof_line(Proof("link", "signal", "x", False, "the checks passed it", command))
    assert blind.startswith("UNPROVED link: one signal dropped on purpose\n")
    assert "says means nothing" not in blind
    assert "means nothing" in blind.replace("\n        ", " ")
