"""Expert parallelism on real GPUs, through the command line: every mode bit by bit, and, on two, what it says about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support import gpus

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
LIMIT_S = 540
STRESS_S = 120


def epctl(*argv: str) -> Any:  # noqa: ANN401 - JSON
    command = (sys.executable, "-m", "epctl", *argv, "--ranks", "2", "--format", "json")
    environ = {**os.environ, **gpus.two_ranks_or_skip()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environ)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}\n{done.stdout[-4000:]}"
    return json.loads(done.stdout)


def test_selftest_is_green_and_proved() -> None:
    found = epctl("selftest", "--op", "ep", "--tier", "gpu")
    assert found["ok"], [case for case in found["cases"] if not case["ok"]]
    assert [(proof["kind"], proof["noticed"]) for proof in found["proofs"]] == [("byte", True), ("signal", True)]
    assert found["layout"]["scale_up"] == 2
    if found["layout"]["num_gpus"] == 2:
        assert found["cautions"] == []
    kinds = {case["case"].split("/")[0] for case in found["cases"]}
    assert {"bf16-rows", "fp8-expand128", "ue8m0-expand1", "burst24", "two-buffers24", "graph1000"} <= kinds
    assert len(found["cases"]) == found["num_cases"] > 300


def test_random_shapes() -> None:
    found = epctl("selftest", "--op", "ep", "--tier", "gpu", "--stress", "--seed", "1", "--budget", str(STRESS_S))
    assert found["ok"], [case for case in found["cases"] if not case["ok"]]
    print(f"\n{len(found['cases'])} of {found['num_cases']} random shapes in {STRESS_S} s")
    assert len(found["cases"]) > 100


def test_bench_measures_every_stage_beside_nccl() -> None:
    gpus.torch_or_skip(2)
    found = epctl("bench", "--mode", "low-latency", "--against", "nccl", "--waits", "--samples", "20")
    rows = {row["case"]: row for row in found["rows"]}
    for name, row in rows.items():
        assert row["ok"], row["message"]
        print(f"{name}: {row['median_us']:.1f} us, {row['ratios']}")
    for stage in ("dispatch/fp8/128", "cached/bf16/128", "combine/bf16/128"):
        row = rows[stage]
        assert row["predicted_us"] > 0
        assert 0 < row["limit_share"] < 1
        assert row["ratios"]["nccl"] > 1
        assert row["told"][0]["num_sms"] > 0
        assert len(row["told"][1]["waited_us"]) == 2
    assert rows["dispatch/fp8/128/graph"]["median_us"] <= 1.1 * rows["dispatch/fp8/128"]["median_us"]


def test_products_hide_communication() -> None:
    gpus.torch_or_skip(2)
    found = epctl("bench", "--tokens", "4096", "--dtype", "bf16", "--sms", "24", "--overlap", "--case", "*overlap")
    for row in found["rows"]:
        print(f"{row['case']}: {row['hidden_share']:.0%} hidden")
        assert row["ok"], row["message"]
        assert row["hidden_share"] > 0.3
