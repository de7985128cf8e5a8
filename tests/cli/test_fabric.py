"""`epctl fabric` as it is typed."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from epctl.commands import fabric as command
from epctl.core.errors import EpctlError
from tests.support.cli import Ran, Run, json_error, three_lines

FIGURES = ("rdma_bytes", "spine_bytes", "nvlink_bytes", "hops", "largest_link_bytes")
STATISTICS = {"mean", "min", "max", "p50", "p99"}


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `epctl fabric ARGS` in this process."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    app.command("fabric")(command.fabric)

    def call(*argv: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["epctl", "fabric", *map(str, argv)])
        code = 0
        try:
            app(standalone_mode=False)
        except EpctlError as error:
            sys.stderr.write(f"{error}\n")
            code = error.exit_code
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return call


def traffic(ran: Ran) -> dict[tuple[str, str], dict[str, Any]]:
    assert (ran.code, ran.err) == (0, "")
    return {(row["phase"], row["traffic"]): row for row in json.loads(ran.out)["traffic"]}


def test_json_has_the_figures_of_every_traffic_apart(fabric: Run) -> None:
    ran = fabric("--layout", "pd", "--format", "json")
    found = traffic(ran)
    assert list(found) == [
        ("prefill", "dispatch"),
        ("prefill", "combine"),
        ("kv", "kv"),
        ("decode", "dispatch"),
        ("decode", "combine"),
    ]
    assert json.loads(ran.out)["schema"] == {"name": "epctl.fabric", "version": 1}
    for row in found.values():
        assert all(isinstance(row[name], int) for name in FIGURES)
    assert found["kv", "kv"]["rdma_bytes"] == 184_393_728


def test_several_seeds_give_objects(fabric: Run) -> None:
    found = traffic(fabric("--layout", "pd+af", "--wiring", "tor", "--seeds", "20", "--format", "json"))
    for row in found.values():
        for name in FIGURES:
            assert set(row[name]) == STATISTICS
            assert row[name]["min"] <= row[name]["p50"] <= row[name]["p99"] <= row[name]["max"]
    assert found["decode", "a2f"]["largest_link_bytes"]["min"] < found["decode", "a2f"]["largest_link_bytes"]["max"]


def test_a_seed_of_several_is_the_seed_alone(fabric: Run) -> None:
    base = ("--layout", "pd", "--wiring", "tor", "--format", "json", "--phase", "kv,decode")
    alone = [traffic(fabric(*base, "--seed", seed)) for seed in ("3", "4", "5")]
    both = traffic(fabric(*base, "--seed", "3", "--seeds", "3"))
    for kind, row in both.items():
        for name in FIGURES:
            values = [one[kind][name] for one in alone]
            assert (row[name]["min"], row[name]["max"]) == (min(values), max(values))
            assert abs(row[name]["mean"] - sum(values) / 3) < 1e-6


def test_every_flag_of_the_contract_is_taken(fabric: Run) -> None:
    ran = fabric(
        *("--nodes", "8", "--gpus-per-node", "4", "--spines", "2", "--wiring", "tor", "--layout", "pd"),
        *("--traffic", "kv,dispatch,combine,a2f,f2a", "--transfer", "relay", "--batch", "3", "--lengths", "5,6,7"),
        *("--experts", "160", "--topk", "6", "--model", "deepseek-v3", "--seed", "2", "--seeds", "2"),
        *("--format", "json"),
    )
    inputs = json.loads(ran.out)["inputs"]
    assert (inputs["experts"], inputs["topk"], inputs["lengths"], inputs["batch"]) == (160, 6, [5, 6, 7], 3)
    assert traffic(ran)["kv", "kv"]["rdma_bytes"]["mean"] == 18 * 70_272


def test_the_page_can_be_drawn_from_the_json(fabric: Run) -> None:
    found = json.loads(fabric("--layout", "pd", "--format", "json").out)
    links = {link["link"]: link for link in found["links"]}
    assert len(found["nodes"]) == 4
    assert len(links) == 32 + 32 + 32
    assert found["nodes"][2]["roles"] == ["decode attention", "decode experts"]
    for row in found["traffic"]:
        unit = row["unit_bytes"]
        assert row["flows_left_out"] == 0
        nics = sum(load["up_bytes"] for load in row["loads"] if links[load["link"]]["kind"] == "nic")
        ups = sum(load["up_bytes"] for load in row["loads"] if links[load["link"]]["kind"] == "uplink")
        nvlinks = sum(load["up_bytes"] for load in row["loads"] if links[load["link"]]["kind"] == "nvlink")
        assert (nics, ups, nvlinks) == (row["rdma_bytes"], row["spine_bytes"], row["nvlink_bytes"])
        outside = [load for load in row["loads"] if links[load["link"]]["kind"] != "nvlink"]
        assert row["largest_link_bytes"] == max(max(load["up_bytes"], load["down_bytes"]) for load in outside)
        assert sum(flow["bytes"] for flow in row["flow_rows"]) == row["rdma_bytes"] + row["nvlink_bytes"]
        assert all(flow["bytes"] % unit == 0 and set(flow["path"]) <= set(links) for flow in row["flow_rows"])


def test_text_fits_80_columns_and_says_what_it_means(fabric: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    for more in ((), ("--seeds", "5", "--what-if", "--together", "phases,micro-batches"), ("--show", "links")):
        ran = fabric("--layout", "pd+af", "--wiring", "tor", *more)
        assert ran.code == 0
        assert max(map(len, ran.out.splitlines())) <= 80, ran.out
        assert "\033" not in ran.out
    rail, tor = fabric("--layout", "pd").out, fabric("--layout", "pd", "--wiring", "tor").out
    assert "KV stay below one leaf" in rail
    assert "Rail wiring does not keep decode dispatch and decode combine off the spines" in rail
    assert "With ToR wiring every byte" in tor
    relay = fabric("--layout", "pd", "--wiring", "tor", "--transfer", "relay").out.replace("\n  ", " ")
    assert "does not avoid the spines here, but lowers their bytes" in relay


def test_csv_of_traffic_links_and_flows_agree(fabric: Run) -> None:
    def rows(*more: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(fabric("--layout", "pd", "--format", "csv", *more).out)))

    totals = {(row["phase"], row["traffic"]): row for row in rows()}
    links, flows = rows("--show", "links"), rows("--show", "flows")
    for kind, row in totals.items():
        mine = [link for link in links if (link["phase"], link["traffic"]) == kind and link["kind"] == "nic"]
        assert sum(int(link["up_bytes"]) for link in mine) == int(row["rdma_bytes"])
        sent = [int(f["bytes"]) for f in flows if (f["phase"], f["traffic"]) == kind and f["port"]]
        assert sum(sent) == int(row["rdma_bytes"])
    assert "rdma_bytes.p99" in rows("--seeds", "3")[0]


def test_compare_puts_two_wirings_and_two_transfers_side_by_side(fabric: Run) -> None:
    found = json.loads(fabric("compare", "rail", "tor", "--layout", "pd", "--format", "json").out)
    assert found["schema"]["name"] == "epctl.fabric.compare"
    by_metric = {(row["phase"], row["traffic"], row["metric"]): row for row in found["differences"]}
    kv = by_metric["kv", "kv", "spine_bytes"]
    assert (kv["a"], kv["b"], "ratio" in kv) == (0, 184_393_728, False)
    assert by_metric["decode", "dispatch", "rdma_bytes"]["ratio"] == 1
    assert [report["fabric"]["wiring"] for report in found["reports"]] == ["rail", "tor"]
    text = " ".join(fabric("compare", "direct", "relay", "--layout", "pd", "--wiring", "tor").out.split())
    assert "fewer bytes cross them with relay." in text
    assert text.count("The fullest link with relay, as a multiple of that with direct: ") == 1
    lines = fabric("compare", "qps=1", "qps=4", "--format", "csv").out.splitlines()
    assert lines[0] == "phase,traffic,metric,qps=1,qps=4,ratio"


def test_what_is_the_same_for_several_traffics_is_said_once(fabric: Run) -> None:
    text = " ".join(fabric("compare", "rail", "tor", "--phase", "decode").out.split())
    assert "decode dispatch and decode combine need spines with both, and 16 % more bytes cross them with tor." in text


def test_figures_of_the_last_column_stand_below_each_other_too(fabric: Run) -> None:
    lines = fabric("--layout", "pd", "--seeds", "5").out.splitlines()
    first = lines.index("Over 5 seeds") + 1
    table = lines[first : lines.index("", first)]
    assert len(table) > 5
    assert {len(line) for line in table} == {len(table[0])}


def test_errors_of_writing_are_json_too(fabric: Run, tmp_path: Path) -> None:
    json_error(fabric("--phase", "decode", "--format", "json", "-o", tmp_path / "a" / "b"), "input_invalid")


def test_compare_takes_files(fabric: Run, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.toml", tmp_path / "broken.toml"
    whole.write_text("nodes = 4\n", "utf-8")
    broken.write_text('nodes = 4\nlost = ["leaf0-spine0"]\n', "utf-8")
    found = json.loads(fabric("compare", whole, broken, "--format", "json").out)
    assert [report["fabric"]["uplinks"] for report in found["reports"]] == [32, 31]
    assert found["names"] == [str(whole), str(broken)]


def test_a_lost_leaf_is_told(fabric: Run) -> None:
    three_lines(fabric("--lost", "leaf3"))
    ran = fabric("--lost", "leaf3", "--planes", "2")
    assert ran.code == 0
    assert "Lost: leaf3" in ran.out


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("--spines", "3"), "lanes_not_whole"),
        (("--spines", "0"), "topology_invalid"),
        (("--experts", "100"), "experts_not_placeable"),
        (("--nodes", "x"), "value_invalid"),
        (("--traffic", "kv"), "no_traffic"),
        (("--lengths", "1,2,x"), "lengths_invalid"),
        (("compare", "rail"), "input_invalid"),
        (("serve",), "input_invalid"),
        (("compare", "rail", "ring"), "value_invalid"),
        (("--topology", "/nonexistent.toml"), "input_invalid"),
    ],
)
def test_bad_input_is_an_error_of_three_lines(fabric: Run, argv: tuple[str, ...], code: str) -> None:
    three_lines(fabric(*argv))
    json_error(fabric(*argv, "--format", "json"), code)


def test_a_file_of_10_megabytes_is_refused(fabric: Run, tmp_path: Path) -> None:
    file = tmp_path / "big.toml"
    file.write_bytes(b"# padding\n" * (1 << 20))
    ran = fabric("--topology", file)
    three_lines(ran)
    assert "too large" in ran.err


def test_names_out_of_a_file_do_not_steer_a_terminal(fabric: Run, tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text(
        'nodes = 2\ngpus_per_node = 1\nleaf = [{name = "a\\u001b[31m", gpus = [0]}, {name = "b", gpus = [1]}]\n'
        'link = [{leaf = "a\\u001b[31m", spine = "s"}, {leaf = "b", spine = "s"}]\n',
        "utf-8",
    )
    for more in (
        ("--show", "links"),
        ("--show", "flows"),
        ("--format", "csv", "--show", "links"),
        ("--format", "json"),
    ):
        ran = fabric("--topology", file, *more)
        assert ran.code == 0
        assert "\033" not in ran.out


def test_a_trace_is_read_as_for_plan(fabric: Run, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("e0,e1\n0,200\n8,9\n", "utf-8")
    found = traffic(
        fabric("--gate", file, "--phase", "decode", "--traffic", "dispatch", "--batch", "2", "--format", "json")
    )
    # Experts 0 and 200 are on GPUs 0 and 25, 8 and 9 on GPU 1, which has the second token.
    assert found["decode", "dispatch"]["sends"] == 1


def test_models_are_listed(fabric: Run) -> None:
    assert "qwen3-30b-a3b" in fabric("--model", "list").out
    assert json.loads(fabric("--model", "list", "--format", "json").out)["models"]["deepseek-v3"]["num_experts"] == 256
