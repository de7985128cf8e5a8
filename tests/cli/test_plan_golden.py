"""`epctl plan` gives the golden cases' numbers, whatever the way to ask for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cli import Run, json_error
from tests.support.golden import CASES, accepted, differences
from tests.support.plan_command import MODEL, planned

FLAGS = {
    "num_experts": "--experts",
    "num_topk": "--topk",
    "num_nodes": "--nodes",
    "device_sms": "--sms-on-device",
    "rdma_ranks": "--nodes",
    "nvlink_ranks": "--gpus-per-node",
    "num_max_tokens_per_rank": "--tokens",
    "num_max_tokens": "--tokens",
    "num_layers": "--layers",
    "num_entries_per_token": "--entries-per-token",
    "rdma_peers": "--nodes",
    "max_tensor_bytes": "--tensor-bytes",
}
"""Inputs of golden cases whose flags have other names."""


def flags_of(given: dict[str, Any]) -> list[str]:
    """A golden case's input as flags."""
    words: list[str] = []
    for name, value in given.items():
        if name in ("prefer_overlap", "fp8_dispatch", "multiple_reduction"):
            word = {"prefer_overlap": "overlap", "multiple_reduction": "multiple-reduction"}.get(name)
            words += [f"--{'' if value else 'no-'}{word}"] if word else ["--dtype", "fp8" if value else "bf16"]
        elif name == "fast_atomics":
            words += ["--atomics", "fast" if value else "slow"]
        else:
            words += [FLAGS.get(name, "--" + name.replace("_", "-")), str(value)]
    return words


@pytest.mark.parametrize("case_id", [name for name, case in CASES.items() if case["family"] == "ep"])
def test_golden_dispatch_and_combine(run: Run, case_id: str) -> None:
    case = CASES[case_id]
    given, expected = case["input"], case["expect"]
    argv = ["plan", *flags_of(given), "--format", "json"]
    if expected["status"] == "error":
        return json_error(run(*argv), expected["error_code"])
    found = json.loads(run(*argv).out)["ep"]
    expected = accepted(found, expected, given["mode"])
    july = accepted(found["july_2026_release"], expected["july_2026_release"], given["mode"])
    assert differences(found, {**expected, "july_2026_release": july}, case_id) == []
    return None


@pytest.mark.parametrize(
    "case_id",
    [name for name, case in CASES.items() if case["family"] in ("lb", "bucket", "engram_config", "pp_storage")],
)
def test_golden_families(run: Run, case_id: str) -> None:
    case = CASES[case_id]
    family = {"engram_config": "engram", "pp_storage": "pp"}.get(case["family"], case["family"])
    argv = ["plan", "--what", family, *flags_of(case["input"]), "--format", "json"]
    if case["expect"]["status"] == "error":
        return json_error(run(*argv), case["expect"]["error_code"])
    found = json.loads(run(*argv).out)
    assert set(found) & {"ep", "lb", "bucket", "engram", "pp"} == {family}
    assert differences(found[family], case["expect"], case_id) == []
    return None


@pytest.mark.parametrize("case_id", [name for name, case in CASES.items() if case["family"] == "engram_storage"])
def test_golden_engram_storage(run: Run, case_id: str) -> None:
    given, expected = CASES[case_id]["input"], CASES[case_id]["expect"]
    words = ["--entries", "+".join(map(str, given["entries_per_layer"])), "--hidden", str(given["hidden"])]
    words += ["--dtype", "bf16" if given["elem_size"] == 2 else "fp8", "--tokens", str(given["num_max_tokens"])]
    words += ["--entries-per-token", str(given["num_entries_per_token"]), "--nodes", str(given["rdma_ranks"])]
    argv = ["plan", "--what", "engram", *words, "--format", "json"]
    if expected["status"] == "error":
        return json_error(run(*argv), expected["error_code"])
    assert differences(json.loads(run(*argv).out)["engram"], expected, case_id) == []
    return None


@pytest.mark.parametrize(
    "case_id",
    [name for name, case in CASES.items() if case["family"] == "ep_buffer" and case["input"]["num_topk"] > 0],
)
def test_golden_buffers(run: Run, case_id: str) -> None:
    given, expected = CASES[case_id]["input"], CASES[case_id]["expect"]
    ranks = given["num_nodes"] * given["gpus_per_node"]
    experts = -(-max(ranks, given["num_topk"]) // ranks) * ranks
    argv = ["plan", "--experts", str(experts), *flags_of(given), "--format", "json"]
    if expected["status"] == "error":
        return json_error(run(*argv), expected["error_code"])
    assert differences(json.loads(run(*argv).out)["ep"]["buffer"], expected, case_id) == []
    return None


@pytest.mark.parametrize("case_id", ["routing-001", "routing-010", "routing-021"])
def test_golden_gates(run: Run, case_id: str) -> None:
    given, expected = CASES[case_id]["input"], CASES[case_id]["expect"]
    law = "" if given["score_law"] == "any" else f":{given['score_law']}"
    words = ["--experts", str(given["experts"]), "--topk", str(given["topk"]), "--gate", given["routing"] + law]
    found = planned(run, *words, "--gpus-per-node", str(given["groups_hit_of"]), "--seed", "1")["ep"]["gate"]["ranks"]
    both = (found["standard_error"] ** 2 + expected["standard_error"] ** 2) ** 0.5
    assert found["closed_form"] == pytest.approx(expected["closed_form"], rel=1e-9)
    assert found["closed_form_kind"] == expected["closed_form_kind"]
    assert abs(found["mean"] - expected["mean"]) < 5 * both


def test_every_family_is_an_object_of_the_default_plan(run: Run) -> None:
    found = planned(run, *MODEL)
    assert found["schema"] == {"name": "epctl.plan", "version": 1}
    assert {name: found[name]["status"] for name in ("ep", "lb", "bucket", "engram", "pp")} == dict.fromkeys(
        ("ep", "lb", "bucket", "engram", "pp"), "ok"
    )
    golden = {case["input"]["buffer"]: case["expect"] for case in CASES.values() if case["family"] == "workspace"}
    for name, expected in golden.items():
        assert differences(found[name]["workspace"], expected, name) == []
