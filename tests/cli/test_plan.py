"""`epctl plan` as a user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from epctl.model.hardware import hardware_names
from tests.support.cli import Run, three_lines
from tests.support.plan_command import MODEL, planned


def test_a_family_that_cannot_be_is_said_so_beside_the_plan(run: Run) -> None:
    found = planned(run, *MODEL, "--gpus-per-node", "1")
    assert found["bucket"]["status"] == "error"
    assert found["bucket"]["error_code"] == "single_rank_collective"
    assert found["ep"]["status"] == "ok"


BAD = {
    "experts over ranks": (*MODEL, "--nodes", "3"),
    "topk over experts": ("--experts", "16", "--topk", "17"),
    "no topk": ("--experts", "256"),
    "no experts": ("--topk", "8"),
    "topk 0": ("--experts", "256", "--topk", "0"),
    "experts 0": ("--experts", "0", "--topk", "1"),
    "experts negative": ("--experts", "-8", "--topk", "1"),
    "experts absurd": ("--experts", "999999999", "--topk", "8"),
    "experts no number": ("--experts", "many", "--topk", "8"),
    "experts too long": ("--experts", "9" * 5000, "--topk", "8"),
    "tokens 0": (*MODEL, "--tokens", "0"),
    "tokens absurd": (*MODEL, "--tokens", "99999999999"),
    "hidden 0": (*MODEL, "--hidden", "0"),
    "hidden odd": (*MODEL, "--hidden", "100"),
    "nodes 0": (*MODEL, "--nodes", "0"),
    "nodes absurd": (*MODEL, "--nodes", "9" * 30),
    "gpus 0": (*MODEL, "--gpus-per-node", "0"),
    "gpus that kernels cannot": ("--experts", "2048", "--topk", "8", "--gpus-per-node", "2048"),
    "nvlink 0": (*MODEL, "--nvlink-gbs", "0"),
    "nvlink negative": (*MODEL, "--nvlink-gbs", "-1"),
    "nvlink nan": (*MODEL, "--nvlink-gbs", "nan"),
    "nvlink infinite": (*MODEL, "--nvlink-gbs", "inf"),
    "nvlink absurd": (*MODEL, "--nvlink-gbs", "4e12"),
    "rdma 0": (*MODEL, "--nodes", "2", "--rdma-gbs", "0"),
    "sms 1": (*MODEL, "--sms-on-device", "1"),
    "sms absurd": (*MODEL, "--sms-on-device", "1000000"),
    "sm rate 0": (*MODEL, "--sm-read-gbs", "0"),
    "memory negative": (*MODEL, "--memory-bytes", "-1"),
    "reserved negative": (*MODEL, "--reserved-bytes", "-1"),
    "contexts 0": (*MODEL, "--contexts", "0"),
    "max qp 0": (*MODEL, "--max-qp", "0"),
    "unknown mode": (*MODEL, "--mode", "turbo"),
    "unknown dtype": (*MODEL, "--dtype", "int4"),
    "unknown atomics": (*MODEL, "--atomics", "medium"),
    "unknown rules": (*MODEL, "--rules", "deepep"),
    "unknown hardware": (*MODEL, "--hardware", "h200"),
    "unknown gate": (*MODEL, "--gate", "softmax"),
    "gate of other experts": (*MODEL, "--gate", "group_limited_7_top4"),
    "unknown preset": (*MODEL, "--preset", "train"),
    "unknown family": (*MODEL, "--what", "moe"),
    "unknown format": (*MODEL, "--format", "xml"),
    "unknown op": ("--what", "bucket", "--op", "gather"),
    "unknown sample": (*MODEL, "--sample", "dgx"),
    "missing file": (*MODEL, "--from", "/nonexistent"),
    "two nodes": (*MODEL, "--sample", "hgx-h100-ib", "--from", "/etc/hostname"),
    "missing trace": (*MODEL, "--gate", "/nonexistent.npz"),
    "missing calibration": (*MODEL, "--calibration", "/nonexistent.json", "--rules", "epctl"),
    "cp": (*MODEL, "--cp", "3"),
    "acceptance": (*MODEL, "--steps-per-second", "50", "--acceptance", "2"),
    "sweep key": (*MODEL, "--sweep", "token=1"),
    "sweep value": (*MODEL, "--sweep", "tokens=1,x"),
    "sweep empty": (*MODEL, "--sweep", "tokens="),
    "sweep twice": (*MODEL, "--sweep", "tokens=1", "--sweep", "tokens=2"),
    "sweep absurd": (
        *MODEL,
        *(word for key in ("tokens", "nodes", "hidden") for word in ("--sweep", f"{key}={'1,' * 200}")),
    ),
    "sweep of nothing that can be": (*MODEL, "--sweep", "nodes=3,5"),
    "sweep as settings": (*MODEL, "--sweep", "tokens=1,2", "--format", "env"),
    "settings of another family": ("--what", "lb", "--format", "env"),
    "tensor sizes": ("--what", "pp", "--tensor-bytes", "big"),
    "against": (*MODEL, "--against", "nccl"),
    "laptop": (*MODEL, "--sample", "laptop"),
    "rack": (*MODEL, "--sample", "gb200-nvl"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_error_with_a_value_that_would_do(run: Run, name: str) -> None:
    ran = run("plan", *BAD[name])
    three_lines(ran)
    assert len(ran.err) < 2000


def test_a_wrong_value_is_named_with_one_that_would_do(run: Run) -> None:
    err = run("plan", *MODEL, "--nodes", "3").err
    assert "256" in err
    assert "24" in err
    assert "--experts 264" in err
    assert "h200-ndr400" in run("plan", *MODEL, "--hardware", "h200").err
    assert "tokens=4096" in run("plan", *MODEL, "--sweep", "token=1").err


def test_gpus_past_the_kernels_in_a_mode_asked_for_give_the_plan_and_an_error(run: Run) -> None:
    ran = run("plan", "--experts", "512", "--topk", "8", "--nodes", "64", "--mode", "hybrid", "--format", "json")
    assert ran.code == 2
    assert json.loads(ran.out)["ep"]["kernel_limits_broken"] == ["hybrid_scaleout_over_32"]
    assert "give --nodes 32, or --mode direct" in ran.err
    auto = run("plan", "--experts", "512", "--topk", "8", "--nodes", "64", "--format", "json", "--max-qp", "1000000")
    assert json.loads(auto.out)["ep"]["mode"] == "direct"


def test_text_shows_what_was_asked_for_within_80_columns(run: Run) -> None:
    ran = run("plan", *MODEL, "--hardware", "h200-ndr400", "--nodes", "4", "--gate", "group_limited_8_top4")
    assert ran.code == 0
    for line in ran.out.splitlines():
        assert len(line) <= 80 or re.fullmatch(r" +\S+", line), line
    for title in ("How SMs and QPs come about", "Time of dispatch", "What if", "Budgets", "Gate", "Published results"):
        assert title in ran.out
    for title in ("Advice", "Other families", "Where each number comes from"):
        assert title in ran.out
    assert re.search(r"^> \+  RDMA ", ran.out, re.M)
    assert re.search(r"^> dispatch_write|^> combine_write", ran.out, re.M)
    assert re.search(r"^  \+4 SMs .*\n  half the RDMA rate .*\n  one more node ", ran.out, re.M)
    assert ran.out.endswith("FITS: every budget holds it\n")
    assert "\033" not in ran.out


def test_colours_are_for_terminals_alone(run: Run, tmp_path: Path) -> None:
    ran = run("plan", *MODEL, "--output", tmp_path / "plan.txt")
    assert (ran.code, ran.out) == (0, "")
    assert (tmp_path / "plan.txt").read_text("utf-8") == run("plan", *MODEL).out


def test_a_plan_that_does_not_fit_names_the_constraint_and_the_nearest(run: Run) -> None:
    ran = run("plan", *MODEL, "--nodes", "16", "--tokens", "65536", "--reserved-bytes", "130000000000")
    assert ran.code == 1
    assert "DOES NOT FIT" in ran.out
    assert re.search(r"^! memory", ran.out, re.M)
    assert re.search(r"nearest plan that fits: 16 nodes, hybrid, \d+ tokens a rank", ran.out)
    found = planned(run, *MODEL, "--nodes", "16", "--max-qp", "1000")
    assert (found["fits"], found["ep"]["budgets_broken"]) == (False, ["queue_pairs"])
    near = found["ep"]["nearest"]
    again = planned(run, *MODEL, "--nodes", "16", "--max-qp", "1000", "--contexts", str(near["num_contexts"]))
    assert again["fits"]


def test_a_hidden_size_that_combine_cannot_take_does_not_fit(run: Run) -> None:
    ran = run("plan", *MODEL, "--hidden", "7200")
    assert ran.code == 1
    assert "hidden 7200 -> 7424" in ran.out
    assert run("plan", *MODEL, "--hidden", "7424").code == 0


def test_every_number_says_where_it_comes_from(run: Run) -> None:
    inputs = planned(run, *MODEL, "--sample", "hgx-h100-ib", "--rdma-gbs", "25", "--preset", "decode")["inputs"]
    assert inputs["experts"]["source"] == "flag --experts"
    assert inputs["rdma_gbs"] == {"value": 25.0, "source": "flag --rdma-gbs"}
    assert inputs["nvlink_gbs"]["source"].startswith("snapshot hgx-h100-ib: 18 active links x 26.562 GB/s x 0.9")
    assert inputs["tokens"]["value"] == 128
    assert inputs["tokens"]["source"].startswith("preset decode: ")
    assert inputs["hidden"]["source"] == "default"
    assert inputs["sm_read_gbs"]["source"].startswith("rules deepep-2.5: ")
    assert all(entry["source"] for entry in inputs.values())
    profile = planned(run, *MODEL, "--hardware", "b200-xdr800")["inputs"]
    assert profile["rdma_gbs"]["source"].startswith("hardware b200-xdr800: ")


def test_the_two_gpu_machine(run: Run) -> None:
    found = planned(run, *MODEL, "--sample", "h200x2-vm", "--tokens", "8192", "--no-overlap")
    assert (found["sample"], found["fabric"]) == ("h200x2-vm", "")
    assert found["inputs"]["nvlink_gbs"]["value"] == pytest.approx(430.3044)
    assert found["ep"]["num_sms"] == 64
    assert found["ep"]["times"]["dispatch"]["us"] == pytest.approx(269.5, rel=0.06)
    assert found["ep"]["times"]["combine"]["us"] == pytest.approx(472.7, rel=0.06)
    assert found["ep"]["floor"] is False
    assert "SAMPLE h200x2-vm" in run("plan", *MODEL, "--sample", "h200x2-vm").out


@pytest.mark.parametrize(
    ("sample", "more", "fabric"),
    [("hgx-h100-ib", (), "rdma"), ("p5-efa", (), "efa"), ("gb200-nvl", ("--gpus-per-node", "64"), "rdma")],
)
def test_samples_of_other_nodes(run: Run, sample: str, more: tuple[str, ...], fabric: str) -> None:
    found = planned(run, *MODEL, "--sample", sample, "--nodes", "2", *more)
    assert found["fabric"] == fabric
    assert found["inputs"]["rdma_gbs"]["source"].startswith(f"snapshot {sample}: ")


def test_own_rules_say_that_their_times_are_floors(run: Run) -> None:
    ran = run("plan", *MODEL, "--rules", "epctl", "--hardware", "h200x2")
    assert ran.code == 0
    assert "These times are floors" in ran.out
    found = planned(run, *MODEL, "--rules", "epctl")
    assert found["ep"]["floor"]
    assert found["notes"]
    assert found["ep"]["buffer_bytes"] == found["ep"]["buffer_write_once"]["buffer_bytes"]


def test_calibration_belongs_to_our_rules(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"sm_read_gbs": 30, "sm_write_gbs": 20.5, "source": "bench here"}', "utf-8")
    found = planned(run, *MODEL, "--rules", "epctl", "--calibration", file)
    assert found["inputs"]["sm_write_gbs"]["value"] == 20.5
    assert found["inputs"]["sm_write_gbs"]["source"].endswith("bench here")
    assert found["ep"]["num_sms"] > planned(run, *MODEL, "--rules", "epctl")["ep"]["num_sms"]
    three_lines(run("plan", *MODEL, "--calibration", file))
    file.write_text('{"sm_read_gbs": "fast"}', "utf-8")
    three_lines(run("plan", *MODEL, "--rules", "epctl", "--calibration", file))
    file.write_text('{"sm_read_gbs": 0, "sm_write_gbs": 1}', "utf-8")
    three_lines(run("plan", *MODEL, "--rules", "epctl", "--calibration", file))


def test_a_trace_gives_means_and_loads(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "gate.csv"
    trace.write_text("e0,e1\n0,1\n0,255\n0,32\n0,64\n", "utf-8")
    found = planned(run, "--experts", "256", "--gate", trace)
    gate = found["ep"]["gate"]
    assert found["inputs"]["topk"]["value"] == 2
    assert gate["kind"].startswith("measured")
    assert gate["ranks"]["mean"] == 1.75
    assert found["ep"]["expected_distinct_ranks"] == 1.75
    assert gate["ranks"]["load"]["step_max_mean"] == pytest.approx(4 / 7 * 8)
    assert found["ep"]["times"]["dispatch"]["us_slow_rank"] > found["ep"]["times"]["dispatch"]["us"]


@pytest.mark.parametrize("text", ["", "a,b\n", "0,1\n2\n", "0,0\n", "0,256\n", "0,-2\n", "0,1.5\n", "0,1\nx,y\n"])
def test_a_trace_of_the_wrong_shape_is_refused(run: Run, tmp_path: Path, text: str) -> None:
    trace = tmp_path / "gate.csv"
    trace.write_text(text, "utf-8")
    three_lines(run("plan", "--experts", "256", "--topk", "2", "--gate", trace))


def test_a_trace_of_another_topk_is_refused(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "gate.csv"
    trace.write_text("0,1\n", "utf-8")
    ran = run("plan", *MODEL, "--gate", trace)
    three_lines(ran)
    assert "give --topk 2" in ran.err


def test_layout_and_decode_throughput_show_their_accounting(run: Run) -> None:
    argv = (
        *MODEL,
        "--nodes",
        "2",
        "--redundant-experts",
        "20",
        "--cp",
        "2",
        "--steps-per-second",
        "50",
        "--draft-length",
        "5",
    )
    found = planned(run, *argv)["ep"]
    assert found["layout"]["total_experts"] == 288
    assert found["experts_per_rank"] == 18
    assert found["decode_rate"]["tokens_per_step"] == 384
    assert found["decode_rate"]["tokens_per_second_per_gpu"] == 9600
    text = run("plan", *argv).out
    assert "rounded up to a multiple of 16" in text
    assert "full credit" in text


def test_markdown_has_every_section(run: Run) -> None:
    out = run("plan", *MODEL, "--format", "markdown").out
    titles = re.findall(r"^## (.*)$", out, re.M)
    assert "Budgets" in titles
    assert "Advice" in titles
    tables = re.findall(r"(?:^\|.*\n)+", out, re.M)
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_settings_are_shell_with_reasons(run: Run) -> None:
    one = run("plan", *MODEL, "--format", "env")
    assert one.code == 0
    assert "export EP_DISABLE_GIN=1" in one.out
    assert "num_sms=16, num_qps=9" in one.out
    two = run("plan", *MODEL, "--nodes", "4", "--redundant-experts", "32", "--format", "env").out
    assert "unset EP_DISABLE_GIN" in two
    assert "export NCCL_GIN_TYPE=3" in two
    assert "--deepep-v2-mode hybrid --ep-num-redundant-experts 32" in two
    assert "VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE=1" in two
    efa = run("plan", *MODEL, "--nodes", "2", "--hardware", "h100-p5-efa", "--format", "env").out
    assert "export NCCL_GIN_TYPE=5" in efa
    for text in (one.out, two, efa):
        for line in text.splitlines():
            assert re.fullmatch(r"|#.*|export [A-Z0-9_]+=\S+|unset [A-Z0-9_]+", line), line


def test_without_deep_ep_against_says_so_and_plans(run: Run) -> None:
    ran = run("plan", *MODEL, "--against", "deep_ep")
    assert ran.code == 0
    assert "not asked: deep_ep is not installed" in ran.out.replace("\n", " ")
    assert planned(run, *MODEL, "--against", "deep_ep")["against"]["reason"]


def test_an_answer_of_deep_ep_stands_beside_ours(run: Run, tmp_path: Path) -> None:
    python = tmp_path / "python"
    answer = {"package": "deepinfer-ep 2.5.0", "values": {"num_ranks": 8, "num_sms": 20, "num_qps": 9}}
    python.write_text(f"#!/bin/sh\necho noise\necho 'epctl-answer {json.dumps(answer)}'\n", "utf-8")
    python.chmod(0o755)
    ran = run("plan", *MODEL, "--against", "deep_ep", "--python", python)
    assert ran.code == 0
    assert re.search(r"^! num_sms +20 +16 +differs$", ran.out, re.M)
    assert re.search(r"^  num_qps +9 +9 +same$", ran.out, re.M)
    python.write_text("#!/bin/sh\necho boom >&2\nexit 3\n", "utf-8")
    assert (
        "ended with code 3: boom"
        in planned(run, *MODEL, "--against", "deep_ep", "--python", python)["against"]["reason"]
    )


def test_profiles_are_listed(run: Run) -> None:
    names = [line.split()[0] for line in run("plan", "--hardware", "list").out.splitlines()]
    assert tuple(names) == hardware_names()
    assert set(json.loads(run("plan", "--hardware", "list", "--format", "json").out)["hardware"]) == set(names)


@pytest.mark.parametrize("name", hardware_names())
def test_every_profile_plans(run: Run, name: str) -> None:
    ran = run("plan", "--experts", "288", "--topk", "8", "--hardware", name)
    assert ran.code == (1 if name == "a100-hdr200" else 0), ran
    assert f"node: {name}" in ran.out
