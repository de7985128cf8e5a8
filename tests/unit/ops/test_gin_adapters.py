"""Which adapter carried a run, and ib_write_bw as a second opinion: its call, its output, its limits."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from epctl.commands import bench_network
from epctl.core.context import Context
from epctl.core.op_extras import Opinion
from epctl.core.snapshot import Snapshot
from epctl.core.views import nics
from epctl.ops.gin import carriers, perftest
from tests.support.nodes import edit, efa_node, ib_node, laptop, roce_node

IB, ROCE = ib_node(), roce_node()
TABLE = """
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]
 1048576    2000             393.12             {rate} \t\t   0.046734
---------------------------------------------------------------------------------------
"""


def fake(tmp_path: Path, body: str) -> str:
    """A tool of that name. The client has the host as its last argument."""
    path = tmp_path / "ib_write_bw"
    path.write_text(f"#!{sys.executable}\nimport sys, time\nis_client = sys.argv[-1] == '127.0.0.1'\n{body}\n")
    path.chmod(0o755)
    return str(path)


def two(node: Snapshot) -> tuple[nics.Nic, nics.Nic]:
    first, second, *_ = nics.fabric(Context(node))
    return first, second


@pytest.mark.parametrize(
    ("unit", "rate", "gbps"),
    [
        ("Gb/sec", "392.05", 392.05),
        ("MB/sec", "1000", 8.388608),
        ("MiB/sec", "1000", 8.388608),
        ("furlongs", "1", None),
    ],
)
def test_rates_in_all_units(unit: str, rate: str, gbps: float | None) -> None:
    assert perftest.parse(TABLE.format(unit=unit, rate=rate)) == (None if gbps is None else pytest.approx(gbps))


@given(st.text())
def test_any_output_is_a_rate_or_none(text: str) -> None:
    assert perftest.parse(text) is None
    told = perftest.parse(TABLE.format(unit="Gb/sec", rate="7") + text)
    assert told is None or isinstance(told, float)


def test_the_calls() -> None:
    server, _ = two(IB)
    argv = perftest.command("/usr/bin/ib_write_bw", server, 4000)
    assert argv[:7] == ("/usr/bin/ib_write_bw", "-d", "mlx5_0", "-i", "1", "-p", "4000")
    assert "-x" not in argv, "InfiniBand has no GID to choose"
    roce, _ = two(ROCE)
    chosen = perftest.gid_index(roce)
    assert perftest.command("t", roce, 1)[-2:] == ("-x", str(chosen))
    entry = next(gid for gid in nics.gids(roce) if gid.index == chosen)
    assert entry.type == "RoCE v2"


def test_headers_cost_more_on_ethernet_and_with_small_packets() -> None:
    assert perftest.usable_share(two(IB)[0]) == pytest.approx(4096 / 4122)
    assert perftest.usable_share(two(edit(ROCE, "rdma.devices.*.ports.*.active_mtu", 4096))[0]) == 4096 / 4178
    assert perftest.usable_share(two(edit(ROCE, "rdma.devices.*.ports.*.active_mtu", 1024))[0]) == 1024 / 1106


def test_nominal_usable_and_measured_side_by_side(tmp_path: Path) -> None:
    tool = fake(tmp_path, f"print({TABLE.format(unit='Gb/sec', rate='391.0')!r})")
    found = perftest.measure(tool, *two(IB), IB)
    assert (found.nominal_gbps, found.measured_gbps, found.problem) == (400.0, 391.0, "")
    assert bench_network.opinion(found) == "mlx5_1 → mlx5_0: nominal 400, usable 397.5, ib_write_bw 391.0 Gb/s"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("time.sleep(60)", "gave no answer within 1 s"),
        ("sys.exit('Unable to init the socket connection')", "code 1: Unable to init the socket"),
        ("if is_client: time.sleep(60)\nsys.exit('server: no such device')", "gave no answer"),
        ("print('nothing')", "printed no rate"),
    ],
)
def test_a_tool_that_fails_or_hangs_is_told_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, problem: str
) -> None:
    monkeypatch.setattr(perftest, "SERVER_S", 0.05)
    begin = time.monotonic()
    found = perftest.measure(fake(tmp_path, body), *two(IB), IB, 1.0)
    assert time.monotonic() - begin < 8
    assert found.measured_gbps is None
    assert problem in found.problem
    assert found.problem in bench_network.opinion(found)


def test_every_port_is_measured_once_where_the_tool_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = fake(tmp_path, f"print({TABLE.format(unit='Gb/sec', rate='9')!r})")
    monkeypatch.setattr("shutil.which", lambda _: tool)
    monkeypatch.setattr(perftest, "SERVER_S", 0.02)
    found = perftest.second_opinions(IB)
    labels = [nic.label for nic in nics.fabric(Context(IB)) if nic.active]
    assert [one.link for one in found] == [
        f"{to} → {at}" for at, to in zip(labels, labels[1:] + labels[:1], strict=True)
    ]
    assert {one.measured_gbps for one in found} == {9.0}
    late = perftest.second_opinions(IB, budget_s=0.0)
    assert {one.measured_gbps for one in late} == {None}
    assert all("0 s were over" in one.problem for one in late)
    assert perftest.second_opinions(laptop()) == perftest.second_opinions(efa_node()) == ()
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert perftest.second_opinions(IB) == ()


def test_the_busy_port_carried_it(tmp_path: Path) -> None:
    def port(device: str, words: str, number: int = 1) -> None:
        folder = tmp_path / device / "ports" / str(number) / "counters"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "port_xmit_data").write_text(words)

    for device in ("mlx5_0", "mlx5_1", "mlx5_2"):
        port(device, "1000\n")
    port("mlx5_2", "junk", 2)
    before = carriers.read(tmp_path)
    assert before == {"mlx5_0": 4000, "mlx5_1": 4000, "mlx5_2": 4000}
    port("mlx5_1", "260000")
    port("mlx5_0", "1010")
    port("mlx5_2", "100000")
    assert carriers.carried(before, carriers.read(tmp_path), 1 << 20) == ("mlx5_1", "mlx5_2")
    assert carriers.carried(before, carriers.read(tmp_path), 0) == ()
    assert carriers.read(tmp_path / "missing") == {}


def test_an_opinion_reads_well() -> None:
    whole = Opinion("ib_write_bw", "a → b", 400.0, 392.13, 391.0)
    assert bench_network.opinion(whole) == "a → b: nominal 400, usable 392.1, ib_write_bw 391.0 Gb/s"
    failed = structs.replace(whole, measured_gbps=None, problem="ib_write_bw printed no rate")
    assert bench_network.opinion(failed) == "a → b: nominal 400, usable 392.1 Gb/s; ib_write_bw printed no rate"
