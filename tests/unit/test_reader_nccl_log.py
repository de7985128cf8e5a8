"""Logs of NCCL beyond the recorded ones: launchers' prefixes, other versions, and the lines of failed jobs."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from epctl.probes.readers._nccl_log_net import MAX_NETWORKS
from epctl.probes.readers.nccl_log import read

HEAD = "node1:101:202 [3] "
COMPLETION = (
    "NET/IB: Got completion from peer fe80::1%eth0<4711> with status=IBV_WC_REM_ACCESS_ERR(10) "
    "opcode=IBV_WC_RDMA_WRITE(1) vendor_err=136 localGid fe80::2 remoteGidsfe80::3 hca mlx5_2"
)


def warnings_of(text: str, where: str = "x.cc:1") -> list[dict[str, Any]]:
    got: list[dict[str, Any]] = msgspec.to_builtins(read(f"{HEAD}{where} NCCL WARN {text}\n".encode()).facts.warnings)
    return got


@pytest.mark.parametrize(
    ("text", "kind", "detail"),
    [
        (
            COMPLETION,
            "ib_completion_error",
            {"status": 10, "status_name": "IBV_WC_REM_ACCESS_ERR", "opcode": 1, "vendor_err": 136, "hca": "mlx5_2",
             "peer": "fe80::1%eth0", "local_gid": "fe80::2", "remote_gid": "fe80::3"},
        ),
        (
            "NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, len 0, vendor err 129 (Recv)",
            "ib_completion_error",
            {"status": 12, "status_name": "IBV_WC_RETRY_EXC_ERR", "vendor_err": 129, "request": "Recv", "length": 0},
        ),
        ("NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)", "ib_async_event", {"hca": "mlx5_3"}),
        ("Call to ibv_modify_qp failed with error Connection timed out errno 110", "ibv_modify_qp_failed",
         {"errno": 110, "errno_name": "ETIMEDOUT", "call": "ibv_modify_qp"}),
        ("Call to ibv_modify_qp failed with error No such device", "ibv_modify_qp_failed", {"errno": 19, "errno_name": "ENODEV"}),
        ("Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state INIT", "ibv_modify_qp_failed",
         {"errno": 22, "errno_name": "EINVAL", "hca": "mlx5_0"}),
        ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "ibv_reg_mr_failed", {"errno": 12}),
        ("Call to ibv_reg_dmabuf_mr failed with error Operation not supported", "dmabuf_registration_failed", {"errno": 95}),
        ("Call to ibv_create_cq failed with error Cannot allocate memory", "ibv_call_failed", {"call": "ibv_create_cq"}),
        ("Cuda failure 2 'out of memory'", "cuda_failure", {"cuda_error": 2, "cuda_error_name": "OUT_OF_MEMORY"}),
        ("Cuda failure 'unspecified launch failure'", "cuda_failure", {"cuda_error": 719}),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'cannot'.", "nvls_failed",
         {"cuda_error": 401, "cuda_error_name": "ILLEGAL_STATE", "size": 2097152}),
        ("Error: failed to extend /dev/shm/nccl-6Jq1Wx to 9637892 bytes", "shared_memory_failed", {"size": 9637892}),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 18000", "duplicate_gpu",
         {"ranks": [1, 0], "bus_id": "18000"}),
        ("Mismatched NCCL version detected : rank 0 version 22304 rank 1 version 22807", "version_mismatch",
         {"ranks": [0, 1], "versions": [22304, 22807]}),
        ("Bootstrap : no socket interface found", "no_socket_interface", {}),
        ("socketStartConnect: Connect to 10.0.0.1<45678> failed : Connection refused", "connection_refused",
         {"peer": "10.0.0.1", "peer_port": 45678, "errno": 111}),
        ("socketPollConnect: Connect to 10.0.0.1<45678> failed : Connection timed out", "connection_timed_out", {"errno": 110}),
        ("Call to socket failed : Too many open files", "too_many_open_files", {"errno": 24}),
        ("GIN: DevComm setup failed on all available backends", "gin_failed", {}),
        ("Call to plugin init failed", "other", {}),
        ("something new", "other", {}),
    ],
)  # fmt: skip
def test_each_cause_of_a_failed_job_has_its_kind_and_numbers(text: str, kind: str, detail: dict[str, Any]) -> None:
    (got,) = warnings_of(text)
    assert got["kind"] == kind
    assert {key: got.get(key) for key in detail} == detail


def test_a_cuda_failure_in_the_nvls_transport_is_one_of_nvls() -> None:
    (got,) = warnings_of("Cuda failure 801 'operation not supported'", "transport/nvls.cc:254 (nvlsInit)")
    assert (got["kind"], got["cuda_error"], got["where"]) == ("nvls_failed", 801, "transport/nvls.cc:254")


@pytest.mark.parametrize(
    "prefix", ["0: ", "[default3]:", "[1,0]<stdout>:", "[2026-03-03 12:11:38] ", "\x1b[36m(pid=7)\x1b[0m ", "\t"]
)
def test_prefixes_of_launchers_are_not_part_of_the_host(prefix: str) -> None:
    reading = read(f"{prefix}{HEAD}NCCL INFO Using network IB\r\n".encode())
    assert (reading.status, reading.facts.hosts, reading.facts.network) == ("ok", ["node1"], "IB")


def test_two_records_that_ran_into_one_line_are_both_read() -> None:
    facts = read(b"n1:1:1 [0] NCCL INFO cudaDriverVersion 13000n1:2:2 [1] NCCL INFO Using network IB\n").facts
    assert (facts.hosts, facts.cuda_driver_version, facts.network) == (["n1"], 13000, "IB")


def test_ranks_are_those_of_the_largest_communicator_and_hanging_ones_are_named() -> None:
    line = (
        "n1:{0}:9 [{0}] NCCL INFO ncclComm{4} comm 0x{1} rank {0} nranks {2} cudaDev {0} nvmlDev {0} busId 10018000 "
        "commId 0x{2} - Init {3}\n"
    )
    text = line.format(0, "a", 2, "START", "InitRank") + line.format(0, "b", 1, "START", "Split")
    text += line.format(1, "c", 2, "START", "InitRank") + line.format(0, "a", 2, "COMPLETE", "InitRank")
    facts = read(text.encode()).facts
    assert [(r.rank, r.pci, r.init_complete) for r in facts.ranks] == [
        (0, "0100:18:00.0", True),
        (1, "0100:18:00.0", False),
    ]
    assert (facts.nranks, facts.ranks_unfinished, facts.n_communicators) == (2, [1], 2)


def test_gin_and_symmetric_memory_lines_of_new_versions_are_understood() -> None:
    text = (
        f"{HEAD}NCCL INFO GIN/Plugin: Assigned plugin GIN_IB_GDAKI type 3 to comm\n"
        f"{HEAD}NCCL INFO Symmetric memory is not supported. cuMemEnable 0, globalGinSupport 0\n"
        f"{HEAD}NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n"
        f"{HEAD}NCCL INFO NET/IB : Made virtual device [4] name=mlx5_0+mlx5_1 speed=800000 ndevs=2\n"
    )
    facts = read(text.encode()).facts
    assert (facts.gin_plugin, facts.gin_type, facts.gdr) == ("GIN_IB_GDAKI", 3, False)
    assert [note.kind for note in facts.notes] == ["symmetric_memory_unsupported", "gdr_disabled"]
    assert facts.errors == []
    assert (facts.virtual_devices[0].gbps, facts.virtual_devices[0].ndevs) == (800.0, 2)


def test_watchdog_lines_of_the_program_count_among_the_errors() -> None:
    text = f"{HEAD}NCCL INFO cudaDriverVersion 12040\n[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n"
    assert [(e.kind, e.count) for e in read(text.encode()).facts.errors] == [("watchdog_timeout", 1)]


def test_a_log_that_breaks_off_within_a_record_is_partial() -> None:
    reading = read(f"{HEAD}NCCL INFO cudaDriverVersion 12040\nnode1:101:2".encode())
    assert (reading.status, [p.kind for p in reading.problems]) == ("partial", ["truncated"])
    assert reading.facts.cuda_driver_version == 12040


@pytest.mark.parametrize(
    "raw", [b"<html><body>502</body></html>", b"\x7fELF\x00\x01", b"step 1 loss 2.3\n", b"NCCL INFO"]
)
def test_text_without_a_record_of_nccl_gives_no_facts(raw: bytes) -> None:
    reading = read(raw)
    assert reading.status == "error"
    assert reading.error is not None
    assert reading.error["kind"] == "unparsable"
    assert reading.facts.hosts == []


def test_huge_numbers_do_no_harm() -> None:
    nines = "9" * 5000
    assert (
        read(
            f"{HEAD}NCCL INFO cudaDriverVersion {nines}\n{HEAD}x.cc:1 NCCL WARN Cuda failure {nines}\n".encode()
        ).status
        == "ok"
    )


def test_networks_by_the_ten_thousand_cost_linear_time_and_those_left_out_are_named() -> None:
    raw = b"".join(b"h:1:1 [0] NCCL INFO Using network X%d\n" % i for i in range(60_000))
    begin = time.process_time()
    reading = read(raw)
    assert time.process_time() - begin < 8
    assert (reading.facts.network, len(reading.facts.networks), reading.status) == ("X0", MAX_NETWORKS, "partial")
    assert [(p.kind, p.where, p.line) for p in reading.problems] == [("too_many", "networks", f"X{MAX_NETWORKS}")]


def test_a_network_named_by_every_process_is_listed_once_in_the_order_of_the_log() -> None:
    raw = b"".join(b"h:1:1 [0] NCCL INFO Using network %s\n" % name for name in (b"IB", b"Socket", b"IB") * 500)
    assert (read(raw).status, read(raw).facts.networks) == ("ok", ["IB", "Socket"])


def test_a_group_of_more_nics_than_are_kept_does_not_repeat_them() -> None:
    lines = [f"{HEAD}NCCL INFO NET/OFI NIC group 0 device #{i} 0000:{i:02x}:00.0\n" for i in range(80)] * 2
    (group,) = read("".join(lines).encode()).facts.nic_groups
    assert len(group) == len(set(group)) == 64
