"""The link op on two real GPUs, through the command line: right to the bit, and as fast as its table says."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support import gpus

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
LIMIT_S = 540
WITHIN = 0.97
"""Of the documented figures."""
DOCUMENTED = (
    "copy-engine/both/*",
    "bulk-write/both/*",
    "bulk-read/both/*",
    "pull-add/both/*",
    "vector-*/both/*",
    "hbm-copy/*",
)


def epctl(*argv: str, code: int = 0) -> Any:  # noqa: ANN401 - JSON
    command = (sys.executable, "-m", "epctl", *argv, "--format", "json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == code, f"{done.returncode}: {done.stderr}\n{done.stdout[-4000:]}"
    return json.loads(done.stdout)


@pytest.fixture(autouse=True)
def two_gpus() -> None:
    gpus.torch_or_skip(2)


def test_selftest_is_green_and_proved() -> None:
    found = epctl("selftest", "--op", "link", "--tier", "gpu", "--ranks", "2")
    assert found["ok"], [case for case in found["cases"] if not case["ok"]]
    assert [(proof["kind"], proof["noticed"]) for proof in found["proofs"]] == [("byte", True), ("signal", True)]
    assert found["cautions"] == []
    assert (found["layout"]["scale_out"], found["layout"]["scale_up"], found["layout"]["num_gpus"]) == (1, 2, 2)


def test_documented_figures_are_met_within_three_percent() -> None:
    patterns = [word for pattern in DOCUMENTED for word in ("--case", pattern)]
    found = epctl("bench", "--op", "link", "--mode", "high-throughput", *patterns)
    if "H200" not in found["layout"]["gpu_name"]:
        pytest.skip(f"the figures are of an H200, this is a {found['layout']['gpu_name']}")
    told, low = [], []
    for row in found["rows"]:
        if row["predicted_us"] is not None:
            share = row["predicted_us"] / row["median_us"]
            told.append(f"  {row['case']}: {row['gbs']:.0f} GB/s, {share:.1%} of the documented figure")
            low += [told[-1]] if share < WITHIN else []
    print("", *told, *found["warnings"], sep="\n")
    assert len(told) >= 10
    assert not low, "\n".join(low)


def test_round_trip() -> None:
    found = epctl("bench", "--op", "link", "--case", "round-trip/*")
    row = found["rows"][0]
    print(f"\n{row['case']}: {row['median_us']:.2f} µs")
    assert 0.5 < row["median_us"] < 2.5


def test_local_memory_calibrates_the_plan(tmp_path: Any) -> None:  # noqa: ANN401
    path = tmp_path / "calibration.json"
    epctl("bench", "--op", "link", "--ranks", "1", "--case", "sm-*", "--calibration", str(path))
    found = json.loads(path.read_text("utf-8"))
    print(f"\none SM reads {found['sm_read_gbs']:.1f} and writes {found['sm_write_gbs']:.1f} GB/s")
    assert 10 < found["sm_read_gbs"] < 300
    assert 10 < found["sm_write_gbs"] < 300
