"""`epctl doctor --nccl-log FILE`, from the command line to the report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from epctl.core.snapshot import Snapshot, encode
from tests.support.nodes import ib_node, laptop

FIXTURES = Path(__file__).parent.parent / "data" / "readers" / "nccl_log"


def doctor(tmp_path: Path, node: Snapshot, *options: str) -> subprocess.CompletedProcess[str]:
    recorded = tmp_path / "node.json"
    recorded.write_bytes(encode(node))
    start = "from epctl.cli import main; main()"
    command = [sys.executable, "-c", start, "doctor", "--from", str(recorded), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def findings(report: str) -> dict[str, Any]:
    return {finding["id"]: finding for finding in json.loads(report)["findings"]}


@pytest.mark.parametrize("node", [laptop, ib_node])
def test_the_log_is_explained_wherever_it_is_read(tmp_path: Path, node: Any) -> None:  # noqa: ANN401
    log = str(FIXTURES / "roce_bond_completion_error.txt")
    done = doctor(tmp_path, node(), "--nccl-log", log, "--only", "job", "--format", "json")
    assert done.returncode == 1, done.stderr
    found = findings(done.stdout)
    assert found["JOB-IB-RETRY-EXCEEDED"]["status"] == "failed"
    assert "on trn-0007, 198.51.100.182" in found["JOB-IB-RETRY-EXCEEDED"]["fix"]
    assert found["JOB-IB-FLUSHED"]["status"] == "passed"


def test_a_job_that_went_well_is_no_failure_and_without_a_log_all_is_skipped(tmp_path: Path) -> None:
    log = str(FIXTURES / "efa_p5en_ofi.txt")
    assert doctor(tmp_path, laptop(), "--nccl-log", log, "--only", "job").returncode == 0
    found = findings(doctor(tmp_path, ib_node(), "--only", "job", "--format", "json").stdout)
    assert {finding["status"] for finding in found.values()} == {"skipped"}


def test_the_text_report_begins_with_the_log(tmp_path: Path) -> None:
    log = str(FIXTURES / "no_libibverbs_socket_fallback.txt")
    done = doctor(tmp_path, ib_node(), "--nccl-log", log)
    assert done.returncode == 1, done.stderr
    assert "Log of the failed job" in done.stdout
    assert done.stdout.index("FAIL JOB-SOCKETS") > 0
    assert "libibverbs could not be opened" in done.stdout


def test_a_file_that_is_no_log_is_an_error_of_three_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("step 1 loss 2.3\n")
    done = doctor(tmp_path, laptop(), "--nccl-log", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "is no log of NCCL" in done.stderr
    assert "Traceback" not in done.stderr
