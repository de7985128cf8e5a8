"""The command line as a user meets it: output, exit codes, and errors of three lines."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest

from epctl.core import snapshot as snapshots
from epctl.core.snapshot import Schema
from epctl.probes import load
from epctl.probes.readers import TOOLS
from tests.support.cli import Run, three_lines
from tests.support.nodes import ib_node

READERS = Path(__file__).parent.parent / "data" / "readers"


EXPECTED_EXIT = {"hgx-h100-ib": 0, "hgx-h200-roce-degraded": 1, "p5-efa": 0, "gb200-nvl": 0, "laptop": 1}


@pytest.mark.parametrize(("sample", "code"), EXPECTED_EXIT.items())
def test_samples_exit_as_documented_and_say_that_they_are_samples(run: Run, sample: str, code: int) -> None:
    ran = run("doctor", "--sample", sample)
    assert ran.code == code, ran.out
    assert f"SAMPLE {sample}" in ran.out
    found = json.loads(run("doctor", "--sample", sample, "--format", "json").out)
    assert found["source"] == "sample"
    assert found["schema"] == {"name": "epctl.doctor", "version": 1}


def test_sample_list_names_them_all(run: Run) -> None:
    ran = run("doctor", "--sample", "list")
    assert ran.code == 0
    assert {line.split()[0] for line in ran.out.splitlines()} >= {*EXPECTED_EXIT, "h200x2-vm"}


def failed(run: Run, sample: str) -> dict[str, dict[str, object]]:
    findings = json.loads(run("doctor", "--sample", sample, "--format", "json").out)["findings"]
    return {entry["id"]: entry for entry in findings if entry["status"] == "failed"}


def test_the_degraded_node_is_found_out_with_its_three_faults_by_name(run: Run) -> None:
    found = failed(run, "hgx-h200-roce-degraded")
    assert {"NVLINK-INACTIVE", "NIC-ACTIVE-RATE", "ROCE-MTU-SMALL"} <= set(found)
    assert found["NVLINK-INACTIVE"]["severity"] == "fail"


def test_the_recorded_two_gpu_machine_is_what_is_known_of_it(run: Run) -> None:
    report = json.loads(run("doctor", "--sample", "h200x2-vm", "--format", "json").out)
    assert [(gpu["nvlinks_active"], gpu["nvlinks"], gpu["nvlink_gbs"]) for gpu in report["capabilities"]["gpus"]] == [
        (18, 18, 478.116)
    ] * 2
    assert report["capabilities"]["gpus"][0]["rdma_nominal_gbps"]["absent"] == "not_found"
    ladder = {rung["rung"]: rung for rung in report["ladder"]}
    assert ladder["load/store over NVLink"]["state"] == "yes"
    assert "NCCL_NVLS_ENABLE=0" in ladder["multimem (NVLink SHARP)"]["gate"]
    found = {entry["id"]: entry for entry in report["findings"] if entry["status"] == "failed"}
    assert "NCCL 2.28.9" in found["NCCL-TOO-OLD"]["evidence"][0]
    assert "needs 2.32.3" in found["NCCL-TOO-OLD"]["evidence"][0]
    assert "nvcc 13.0.88" in found["PROFILE-CUDA-TOOLKIT"]["evidence"][0]
    assert {entry["id"] for entry in found.values() if entry["severity"] == "fail"} == {
        "NCCL-TOO-OLD",
        "PROFILE-CUDA-TOOLKIT",
        "JIT-LIBDW",
    }


def test_the_laptop_has_the_one_finding_that_matters(run: Run) -> None:
    assert set(failed(run, "laptop")) == {"NODE-NO-GPU"}


def test_healthy_samples_have_no_failed_check_of_severity_fail(run: Run) -> None:
    for sample in ("hgx-h100-ib", "p5-efa", "gb200-nvl"):
        assert [entry["id"] for entry in failed(run, sample).values() if entry["severity"] == "fail"] == []


def test_json_goes_through_a_pipe_clean() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "epctl", "doctor", "--sample", "laptop", "--format", "json"],
        capture_output=True,
        check=False,
    )
    assert json.loads(done.stdout)["host"]
    assert done.stderr == b""
    assert done.returncode == 1


@pytest.mark.parametrize("format", ["text", "json", "junit", "prometheus", "markdown", "nagios"])
def test_every_format_goes_to_a_file(run: Run, tmp_path: Path, format: str) -> None:  # noqa: A002
    ran = run("doctor", "--sample", "hgx-h100-ib", "--format", format, "--output", tmp_path / "x")
    assert (ran.code, ran.out) == (0, "")
    assert "hgx" in (tmp_path / "x").read_text() or "gpu" in (tmp_path / "x").read_text().lower()


@pytest.mark.parametrize(
    "argv",
    [
        ("doctor", "--sample", "nosuch"),
        ("doctor", "--from", "/nonexistent/x.tar.gz"),
        ("doctor", "--from", "/dev/null"),
        ("doctor", "--sample", "laptop", "--from", "x"),
        ("doctor", "--sample", "laptop", "--format", "yaml"),
        ("doctor", "--sample", "laptop", "--profile", "nosuch"),
        ("doctor", "--sample", "laptop", "--only", "NO-SUCH-CHECK"),
        ("doctor", "--explain", "GPU-MIG-OFF"),
        ("doctor", "--sample", "laptop", "--output", "/nonexistent/folder/x"),
        ("doctor", "--python", "/nonexistent/python"),
        ("probe", "nosuch"),
        ("probe", "ibstat", "--file", "/nonexistent/file"),
        ("probe", "nccl_log"),
        ("schema", "nosuch"),
        ("capture", "--sample", "laptop", "-o", "/nonexistent/folder/x.tar.gz"),
        ("capture", "--sample", "laptop", "-o", "/tmp"),
    ],
    ids=" ".join,
)
def test_bad_input_gives_what_why_and_what_to_do(run: Run, argv: tuple[str, ...]) -> None:
    three_lines(run(*argv), 4 if argv[0] == "capture" and argv[-1] != "/tmp" else 2)


@pytest.mark.parametrize("argv", [("doctor", "--nosuch"), ("nosuch",), ("doctor", "--nodes", "0")], ids=" ".join)
def test_wrong_usage_exits_with_2(run: Run, argv: tuple[str, ...]) -> None:
    assert run(*argv).code == 2


def test_strict_turns_warnings_into_3(run: Run) -> None:
    assert run("doctor", "--sample", "hgx-h200-roce-degraded", "--only", "CPU-NUMA-BALANCING", "--strict").code in (
        0,
        3,
    )


def test_only_and_skip_take_ids_and_areas(run: Run) -> None:
    def ids(*argv: str) -> set[str]:
        return {
            entry["id"]
            for entry in json.loads(run("doctor", "--sample", "hgx-h100-ib", "--format", "json", *argv).out)["findings"]
        }

    assert ids("--only", "GPU-MIG-ON") == {"GPU-MIG-ON"}
    assert "GPU-MIG-ON" not in ids("--only", "gpu", "--skip", "GPU-MIG-ON")
    assert not {"GPU-MIG-ON", "GPU-XID-FATAL"} & ids("--skip", "gpu")


def test_list_has_at_least_110_conditions_and_explain_knows_each(run: Run) -> None:
    listed = json.loads(run("doctor", "--list", "--format", "json").out)
    assert len(listed["checks"]) >= 110
    text = run("doctor", "--list").out
    for one in listed["checks"]:
        assert one["id"] in text
    shown = run("doctor", "--explain", "gpu-mig-on")
    assert shown.code == 0
    assert "GPU-MIG-ON" in shown.out
    assert "https://" in shown.out


def test_fix_script_is_written_and_runs_nothing(run: Run, tmp_path: Path) -> None:
    run("doctor", "--sample", "hgx-h200-roce-degraded", "--fix-script", tmp_path / "fix.sh")
    text = (tmp_path / "fix.sh").read_text()
    assert "NVLINK-INACTIVE" in text
    assert subprocess.run(["sh", tmp_path / "fix.sh"], capture_output=True, check=True).stdout == b""


def test_capture_of_a_bundle_replays_to_the_same_findings(run: Run, tmp_path: Path) -> None:
    ran = run("capture", "--sample", "hgx-h200-roce-degraded", "--redact", "-o", tmp_path / "x.tar.gz")
    assert ran.code == 0
    before = json.loads(run("doctor", "--sample", "hgx-h200-roce-degraded", "--format", "json").out)
    after = json.loads(run("doctor", "--from", tmp_path / "x.tar.gz", "--format", "json").out)
    assert after["source"] == "recorded"

    def state(report: dict[str, list[dict[str, str]]]) -> dict[str, tuple[str, str]]:
        return {entry["id"]: (entry["status"], entry["severity"]) for entry in report["findings"]}

    assert state(after) == state(before)
    with tarfile.open(tmp_path / "x.tar.gz") as archive:
        archive.extractall(tmp_path / "folder", filter="data")
    folder = json.loads(run("doctor", "--from", tmp_path / "folder", "--format", "json").out)
    assert state(folder) == state(before)


def test_a_snapshot_file_is_replayed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_bytes(snapshots.encode(ib_node()))
    found = json.loads(run("doctor", "--from", tmp_path / "s.json", "--format", "json").out)
    assert (found["source"], found["host"]) == ("recorded", "gpu-node-01")


def test_a_folder_of_raw_outputs_is_replayed(run: Run, tmp_path: Path) -> None:
    shutil.copy(READERS / "nvlink_status" / "v100_some_inactive.txt", tmp_path / "nvlink_status.txt")
    shutil.copy(READERS / "topo" / "h100_topo_mp_14nic.txt", tmp_path / "topo.txt")
    node = load.from_path(tmp_path)
    assert isinstance(node.gpu.gpus, tuple)
    assert [len(gpu.links) for gpu in node.gpu.gpus if isinstance(gpu.links, tuple)] == [6] * 4
    ran = run("doctor", "--from", tmp_path, "--format", "json")
    found = {entry["id"]: entry for entry in json.loads(ran.out)["findings"]}
    assert found["NVLINK-INACTIVE"]["status"] == "failed"
    assert ran.code == 1


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "not a snapshot"),
        (b"\x1f\x8b garbage", "refused"),
        (b"{}", "not a snapshot"),
        (b'{"schema": {"name": "other", "version": 1}}', "not a snapshot"),
        (b'{"schema": {"name": "epctl.snapshot", "version": 1}, "host": 5}', "damaged"),
        (b"[" * 100_000, "not a snapshot"),
    ],
)
def test_what_is_no_snapshot_is_refused(run: Run, tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "x").write_bytes(content)
    ran = run("doctor", "--from", tmp_path / "x")
    three_lines(ran)
    assert word in ran.err


def test_a_newer_snapshot_says_to_upgrade(run: Run, tmp_path: Path) -> None:
    newer = msgspec.structs.replace(ib_node(), schema=Schema("epctl.snapshot", 99))
    (tmp_path / "x").write_bytes(snapshots.encode(newer))
    ran = run("doctor", "--from", tmp_path / "x")
    three_lines(ran)
    assert "newer" in ran.err
    assert "upgrade" in ran.err


def test_probe_prints_status_error_problems_and_facts(run: Run) -> None:
    ran = run("probe", "ibstat", "--file", READERS / "ibstat" / "bnxt_re_two_ports.txt", "--format", "json")
    assert ran.code == 0
    assert {"status", "error", "problems", "facts"} <= set(json.loads(ran.out))
    assert run("probe", "ibstat", "--file", READERS / "ibstat" / "error_no_umad.txt").code == 4
    assert {line.split()[0] for line in run("probe", "list").out.splitlines()} == set(TOOLS)


def test_probe_reads_a_tools_output_out_of_a_sample(run: Run) -> None:
    found = json.loads(run("probe", "nvlink_status", "--sample", "hgx-h100-ib", "--format", "json").out)
    assert len(found["facts"]["gpus"]) == 8


@pytest.mark.parametrize("name", ["snapshot", "doctor", "bundle", "plan"])
def test_schema_is_json_schema(run: Run, name: str) -> None:
    found = json.loads(run("schema", name).out)
    assert "$defs" in found or "properties" in found


def test_version_and_help(run: Run) -> None:
    assert re.fullmatch(r"epctl \d+\.\d+\.\d+\n", run("--version").out)
    help_text = run("--help").out
    for command in ("doctor", "capture", "plan", "probe", "schema"):
        assert command in help_text


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; import epctl.cli; print(*(name for name in ('torch', 'pynvml', 'rich', 'numpy', 'msgspec') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("argv", "what", "fix"),
    [
        (("plan", "--nope"), "no such option: --nope", "see epctl plan --help"),
        (("nope",), "no such command 'nope'", "see epctl --help"),
        (("bench", "--ranks", "x"), "'--ranks'", "see epctl bench --help"),
        (("schema",), "'NAME'", "see epctl schema --help"),
    ],
)
def test_a_command_line_that_cannot_be_read_gets_three_lines(argv: tuple[str, ...], what: str, fix: str) -> None:
    done = subprocess.run([sys.executable, "-m", "epctl", *argv], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    first, why, do = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert what in first
    assert why.startswith("  why: ")
    assert do == f"  do:  {fix.replace('epctl', 'python -m epctl')}"


def test_the_help_of_all_commands_fits_without_being_cut(run: Run) -> None:
    for ran in (run("--help"), run("topo", "--help")):
        commands = ran.out.partition("Commands:")[2]
        assert len(commands.splitlines()) > 2
        assert "..." not in commands
        assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("doctor", "--explain", "GPU-MIG-ON"), "epctl.check"),
        (("doctor", "--explain", "deepep-2.5"), "epctl.profile"),
        (("capture", "--sample", "laptop", "-o", "laptop.tar.gz"), "epctl.capture"),
    ],
)
def test_json_names_its_schema(run: Run, tmp_path: Path, argv: tuple[str, ...], name: str) -> None:
    ran = run(*(tmp_path / word if word.endswith(".tar.gz") else word for word in argv), "--format", "json")
    assert json.loads(ran.out)["schema"] == {"name": name, "version": 1}
