"""Explanations of a job's log: each one is found in lines as NCCL prints them, and a job that went well has none."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from epctl.core.check import evaluate, registered
from epctl.core.context import Context
from epctl.core.profile import chosen
from epctl.core.snapshot import Snapshot
from epctl.core.views import job as view
from epctl.probes.job import job
from epctl.probes.readers._nccl_log_kinds import _KINDS
from tests.support.cases import Case, run, verify
from tests.support.logs import VERSION, channels, given, healthy, info, init, start, warn
from tests.support.nodes import efa_node, gb200_node, ib_node, laptop, roce_node

FIXTURES = Path(__file__).parents[2] / "data" / "readers" / "nccl_log"
OWN = {key for key, one in registered().items() if one.area == "job"}
WELL = given(*healthy())


def fixture(name: str) -> Snapshot:
    return msgspec.structs.replace(laptop(), job=job(FIXTURES / f"{name}.txt"))


def after(*lines: str) -> Snapshot:
    """A job that began well and then printed `lines`."""
    return given(*healthy(*lines))


def completion(status: int, vendor_err: int = 129, name: str = "") -> str:
    told = f"{name}({status})" if name else str(status)
    return warn(
        f"NET/IB: Got completion from peer 10.0.0.2<4711> with status={told} opcode=0 len=0 vendor err {vendor_err} (Send) "
        "localGid ::ffff:10.1.0.1 remoteGids::ffff:10.1.0.2 hca mlx5_3"
    )


def cuda(code: int, text: str, where: str = "init.cc:263") -> Snapshot:
    return after(warn(f"Cuda failure {code} '{text}'", where=where))


def modify_qp(error: str) -> Snapshot:
    return after(warn(f"Call to ibv_modify_qp failed with {error}, on dev mlx5_3:1, curr state INIT, next state RTR"))


WATCHDOG = (
    "[rank1]:[E101 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600020 milliseconds before timing out."
)
HANDED_UP = (
    "torch.distributed.DistBackendError: NCCL error in: x.cpp:93, unhandled system error (run with NCCL_DEBUG=INFO)"
)
SOCKETS = (*start("Socket", devices="[0]eth0:10.0.0.1<0>"), *channels("NET/Socket/0"))
NO_RO = given(*start(devices="[0]mlx5_0:1/IB"), *channels())

CASES = [
    Case("JOB-FIRST-ERROR", after(completion(12), warn("socketProgress: Connection closed by remote peer n2<9>")), WELL,
         "first: ib_completion_error"),
    Case("JOB-FIRST-ERROR", after(warn("socketProgress: Connection closed by remote peer n2<9>"), completion(12)), WELL,
         "first: ib_completion_error"),
    Case("JOB-OTHER-ERRORS", after(warn("a line that nobody ever saw 0x12")), WELL, "nobody ever saw"),
    Case("JOB-CAUSE-NOT-LOGGED", after(HANDED_UP), after(completion(12), HANDED_UP), "unhandled system error"),
    Case("JOB-INIT-UNFINISHED", given(*start()), WELL, "n1: ranks 0 began and did not finish, of 2 ranks"),
    Case("JOB-INIT-UNFINISHED", given(*start(), init(0, "n1", "COMPLETE")), WELL, "n2: ranks 1"),
    Case("JOB-INIT-UNFINISHED", given(init(0, "n1", "START", 4), init(2, "n1", "START", 4)), WELL, "waited for: ranks 1, 3"),
    Case("JOB-INIT-UNFINISHED", fixture("h100_2node_ib_sharp"), WELL, "ranks 14", severity="info"),
    Case("JOB-WATCHDOG-TIMEOUT", after(WATCHDOG), WELL, "SeqNum=7"),
    Case("JOB-PEER-GONE", after(warn("socketProgress: Connection closed by remote peer n2.lan<4>")),
         after(info("[Service thread] Connection closed by localRank 1")), "peer n2.lan", fix_says="on n1, n2.lan"),
    Case("JOB-BOOTSTRAP", after(warn("socketStartConnect: Connect to 10.0.0.2<4> failed : Connection refused")), WELL,
         "n1 uses eth0:10.0.0.1", fix_says="ENV-SOCKET-IFNAME"),
    Case("JOB-BOOTSTRAP", after(warn("socketPollConnect: Connect to 10.0.0.2<4> failed : Connection timed out")), WELL, "firewall"),
    Case("JOB-BOOTSTRAP", after(warn("socketStartConnect: Connect to 10.0.0.2<4> failed : No route to host")), WELL, "no route"),
    Case("JOB-BOOTSTRAP", given(warn("Bootstrap : no socket interface found")), WELL, "NCCL_SOCKET_IFNAME"),
    Case("JOB-BOOTSTRAP", given(*start(), info("socketPollConnect: connect returned Connection refused, retrying (1/34)")),
         after(info("socketPollConnect: connect returned Connection refused, retrying (1/34)")), "still trying"),
    Case("JOB-NCCL-VERSIONS", after(warn("Mismatched NCCL version detected : rank 0 version 23203 rank 1 version 22807")), WELL,
         "ranks 0, 1"),
    Case("JOB-NCCL-VERSIONS", after(info("NCCL version 2.28.9+cuda13.0", "n2")), WELL, "2.28.9", severity="warn"),
    Case("JOB-ENV-CONFLICT", after(info("NCCL_ALGO set by environment to RING."), info("NCCL_ALGO set by environment to TREE.", "n2")),
         WELL, "NCCL_ALGO: RING, TREE"),
    Case("JOB-ENV-CONFLICT", after(info("NCCL_IB_HCA set to mlx5_0"), info("NCCL_IB_HCA set to mlx5_1", "n2")), WELL, "NCCL_IB_HCA",
         severity="info"),
    *(
        Case("JOB-SETTINGS", after(info(f"{name} set by environment to {value}.")), WELL, f"{name}={value}", severity=severity,
             fix_says=confirm)
        for name, value, severity, confirm in (
            ("NCCL_IB_DISABLE", "1", "warn", "ENV-IB-DISABLED"),
            ("NCCL_P2P_DISABLE", "1", "warn", "SYMMEM-P2P-WIN-OFF"),
            ("NCCL_CUMEM_ENABLE", "0", "warn", "SYMMEM-CUMEM-OFF"),
            ("NCCL_NVLS_ENABLE", "0", "info", ""),
            ("NCCL_IB_GID_INDEX", "3", "info", "ROCE-GID-FORCED-WRONG"),
        )
    ),
    Case("JOB-SETTINGS", fixture("no_libibverbs_socket_fallback"),
         given(*start(version="2.20.5"), info("NCCL_IB_GID_INDEX set by environment to 3."), info("NCCL_IB_DISABLE set to 0")),
         "NCCL_P2P_DISABLE=1"),
    Case("JOB-DUPLICATE-GPU", after(warn("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 18000")), WELL, "ranks 1, 0"),
    Case("JOB-SHM-FAILED", after(warn("Error: failed to extend /dev/shm/nccl-6Jq1Wx to 9637892 bytes")), WELL, "/dev/shm"),
    Case("JOB-OPEN-FILES", after(warn("Call to socket failed : Too many open files")), WELL, "EMFILE"),
    Case("JOB-USAGE", after(warn("AllReduce : invalid argument, root 9 is out of range")), WELL, "root 9"),
    Case("JOB-SOCKETS", fixture("no_libibverbs_socket_fallback"), fixture("dgx1_nccl27_maxwidth"), "libibverbs could not be opened",
         fix_says="RDMA-PROVIDER-MISSING"),
    Case("JOB-SOCKETS", given(info("NCCL_IB_DISABLE set by environment to 1."), *SOCKETS), fixture("h200_vm_2gpu_socket"),
         "NCCL_IB_DISABLE=1", fix_says="Unset NCCL_IB_DISABLE"),
    Case("JOB-SOCKETS", given(info("NCCL_NET set by environment to Socket."), *SOCKETS), WELL, "NCCL_NET=Socket"),
    Case("JOB-SOCKETS", given(info("NET/IB : No device found."), *SOCKETS), WELL, "found no RDMA device", severity="warn",
         profiles=("epctl",)),
    Case("JOB-SOCKETS", given(*SOCKETS, info("Using network IB", "n3")), WELL, "on some ranks, IB on others"),
    Case("JOB-GDR-OFF", given(*start(), *channels("NET/IB/0")), WELL, "channels go NET/IB, none GDRDMA", severity="fail"),
    Case("JOB-GDR-OFF", given(*start(), info("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")),
         given(*start(), info("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'")), "mlx5_0", profiles=("nccl-genk",),
         severity="fail"),
    Case("JOB-GDR-OFF", given(*start(), *channels("NET/IB/0")), fixture("efa_p5en_ofi"), "GDRDMA", profiles=("epctl",)),
    Case("JOB-RELAXED-ORDERING-OFF", NO_RO, WELL, "lists mlx5_0 without the mark [RO]"),
    Case("JOB-RELAXED-ORDERING-OFF", NO_RO, given(*start(version="2.8.4", devices="[0]mlx5_0:1/IB"), *channels()), VERSION),
    Case("JOB-GIN-UNAVAILABLE", given(*start(), info("Could not initialize any GIN plugin"), *channels()), WELL, "any GIN plugin"),
    Case("JOB-GIN-UNAVAILABLE", given(*start(), info("GIN/Plugin: Loaded gin plugin X type 0"), *channels()), WELL, "type 0"),
    Case("JOB-GIN-UNAVAILABLE", given(*start(), info("Could not initialize any GIN plugin")), given(*start()), "any GIN plugin",
         severity="info", profiles=("epctl",)),
    Case("JOB-GIN-FAILED", after(warn("GIN: DevComm setup failed on all available backends")), WELL, "DevComm"),
    Case("JOB-SYMMETRIC-MEMORY-OFF", after(info("Symmetric memory is not supported. cuMemEnable 0, globalGinSupport 0")),
         after(info("cuMem host allocation is not supported")), "cuMemEnable 0"),
    Case("JOB-MNNVL-OFF", after(info("MNNVL is present but not working on some ranks")), WELL, "MNNVL"),
    Case("JOB-NIC-INCOMPATIBLE",
         after(warn("NET/IB : Remote mlx5_2:1/RoCE device is incompatible with the local [0]mlx5_0:1/IB/SHARP")), WELL, "mlx5_2"),
    Case("JOB-LIBFABRIC-FAILED", after(warn("NET/OFI Unable to register memory. RC: -12")), WELL, "RC: -12"),
    Case("JOB-IB-RETRY-EXCEEDED", fixture("roce_bond_completion_error"), WELL, "mlx5_bond_6, peer 198.51.100.182: status 12",
         fix_says="on trn-0007, 198.51.100.182"),
    Case("JOB-IB-RETRY-EXCEEDED", after(completion(12, name="IBV_WC_RETRY_EXC_ERR")), after(completion(13)), "status 12"),
    *(
        Case("JOB-IB-ACCESS", after(completion(status, 81)), after(completion(12)), f"status {status}", fix_says="PCI-ACS-ON")
        for status in (4, 10, 11)
    ),
    Case("JOB-IB-RNR", after(completion(13)), WELL, "RNR_RETRY_EXC_ERR"),
    Case("JOB-IB-OTHER-STATUS", after(completion(21)), after(completion(5, 249)), "GENERAL_ERR"),
    Case("JOB-IB-FLUSHED", after(completion(5, 249)), fixture("roce_bond_completion_error"), "vendor error 249"),
    Case("JOB-IB-FLUSHED", after(completion(5, 244)), WELL, "vendor error 244", severity="warn"),
    Case("JOB-IB-EVENT", after(warn("NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)")), WELL, "device mlx5_3"),
    Case("JOB-QP-TIMEOUT", modify_qp("110 Connection timed out"), modify_qp("19 No such device"),
         "device mlx5_3: ibv_modify_qp, errno 110"),
    Case("JOB-QP-NO-DEVICE", modify_qp("error No such device"), WELL, "ENODEV", fix_says="NIC-OTHER-NETNS"),
    Case("JOB-QP-INVALID", modify_qp("22 Invalid argument"), WELL, "EINVAL"),
    Case("JOB-QP-FAILED", modify_qp("101 Network is unreachable"), modify_qp("22 Invalid argument"), "ENETUNREACH"),
    Case("JOB-MR-MEMLOCK", after(warn("Call to ibv_reg_mr failed with error Cannot allocate memory")), WELL, "ENOMEM",
         fix_says="LIM-MEMLOCK"),
    Case("JOB-MR-MEMLOCK", after(warn("Call to ibv_create_cq failed with error Cannot allocate memory")), WELL, "ibv_create_cq"),
    Case("JOB-MR-BAD-ADDRESS", after(warn("Call to ibv_reg_mr_iova2 failed with error Bad address")), WELL, "EFAULT"),
    Case("JOB-MR-DMABUF", after(warn("Call to ibv_reg_dmabuf_mr failed with error Operation not supported")), WELL, "EOPNOTSUPP"),
    Case("JOB-MR-FAILED", after(warn("Call to ibv_reg_mr failed with error Invalid argument")), WELL, "EINVAL"),
    Case("JOB-VERBS-CALL", after(warn("Call to ibv_open_device failed")), WELL, "ibv_open_device"),
    Case("JOB-CUDA-NOT-READY", cuda(802, "system not yet initialized"), cuda(700, "an illegal memory access"), "CUDA error 802",
         fix_says="FM-NOT-RUNNING"),
    Case("JOB-CUDA-LIBRARIES", cuda(803, "system has unsupported display driver / cuda driver combination"), WELL, "803"),
    Case("JOB-CUDA-LIBRARIES", cuda(804, "forward compatibility was attempted on non supported HW"), WELL, "COMPAT_NOT_SUPPORTED"),
    Case("JOB-CUDA-DRIVER-OLD", cuda(35, "CUDA driver version is insufficient for CUDA runtime version"), WELL, "35"),
    Case("JOB-CUDA-KERNEL-FAULT", cuda(700, "an illegal memory access was encountered"), WELL, "700 ILLEGAL_ADDRESS"),
    Case("JOB-CUDA-GPU-FAULT", cuda(220, "uncorrectable NVLink error detected during the execution"), WELL, "220"),
    Case("JOB-CUDA-OUT-OF-MEMORY", cuda(2, "out of memory"), WELL, "OUT_OF_MEMORY"),
    Case("JOB-CUDA-OUT-OF-MEMORY", after(warn("Failed to CUDA calloc 4194304 bytes")), WELL, "4194304"),
    Case("JOB-CUDA-NO-DEVICE", cuda(101, "invalid device ordinal"), WELL, "101"),
    Case("JOB-CUDA-NO-PEER-ACCESS", cuda(217, "peer access is not supported between these two devices"), WELL, "217",
         fix_says="GPU-P2P-PARTIAL"),
    Case("JOB-CUDA-OTHER", cuda(304, "OS call failed or operation not supported"), cuda(2, "out of memory"), "304"),
    Case("JOB-NVLS-FAILED", after(warn("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the "
                                       "operation cannot be performed in the present state'.")), WELL, "CUDA error 401"),
    *(
        Case("JOB-NVLS-FAILED", cuda(code, text, "transport/nvls.cc:254"), cuda(2, "out of memory", "transport/nvls.cc:254"),
             f"CUDA error {code}", fix_says="NVLS-BIND-401")
        for code, text in ((1, "invalid argument"), (800, "operation not permitted"))
    ),
    Case("JOB-CUMEM-FAILED", after(warn("cuMemCreate failed : CUDA error 800 'operation not permitted'")), WELL, "800 NOT_PERMITTED"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_condition_is_found_and_its_absence_passes(case: Case) -> None:
    verify(case)


def test_every_check_of_the_area_has_a_case() -> None:
    assert {case.id for case in CASES} == OWN


@pytest.mark.parametrize("one", sorted(OWN))
def test_a_job_that_went_well_passes_every_check(one: str) -> None:
    found = run(one, WELL, num_nodes=2)
    assert found.status == "passed", found


@pytest.mark.parametrize("one", sorted(OWN))
@pytest.mark.parametrize("name", ["h100_2node_ib_sharp", "efa_p5en_ofi", "h200_vm_2gpu_socket", "dgx1_nccl27_maxwidth"])
def test_recorded_jobs_that_went_well_have_no_failure(one: str, name: str) -> None:
    found = run(one, fixture(name))
    assert (found.status, found.severity) not in {("failed", "fail"), ("failed", "warn")}, found
    assert found.status != "unknown", found


@pytest.mark.parametrize("one", sorted(OWN))
def test_without_a_log_it_is_skipped(one: str) -> None:
    for node in (laptop(), ib_node(), roce_node(), efa_node(), gb200_node()):
        found = run(one, node)
        assert (found.status, found.evidence) == ("skipped", ("no log was given (--nccl-log FILE)",))


@pytest.mark.parametrize("one", sorted(OWN))
def test_a_log_without_its_middle_passes_nothing_on_missing_lines(one: str) -> None:
    found = run(one, given(*healthy(), left_out=9_000_000))
    says_no = any(line.startswith("no ") for line in found.evidence)
    assert found.status == "unknown" or not says_no, found


NOTES_ONLY = (
    "JOB-SETTINGS",
    "JOB-ENV-CONFLICT",
    "JOB-GIN-UNAVAILABLE",
    "JOB-SYMMETRIC-MEMORY-OFF",
    "JOB-MNNVL-OFF",
    "JOB-SOCKETS",
)


@pytest.mark.parametrize("one", NOTES_ONLY)
def test_a_log_of_warnings_only_says_nothing_of_settings_and_notes(one: str) -> None:
    assert run(one, given("NCCL version 2.32.3+cuda13.0", completion(12))).status == "unknown"


@pytest.mark.parametrize("one", ["JOB-GDR-OFF", "JOB-RELAXED-ORDERING-OFF"])
def test_what_concerns_rdma_is_skipped_for_a_job_over_sockets(one: str) -> None:
    found = run(one, given(*SOCKETS))
    assert (found.status, found.evidence) == ("skipped", ("the job ran over sockets",))


def test_a_job_whose_nodes_the_log_does_not_tell_is_not_judged_for_its_sockets() -> None:
    one_process = given(info("Using network Socket"), init(3, "n1", "START", 8), init(3, "n1", "COMPLETE", 8))
    assert run("JOB-SOCKETS", one_process).status == "unknown"


def test_gin_is_no_matter_for_an_old_nccl() -> None:
    found = run("JOB-GIN-UNAVAILABLE", fixture("roce_bond_completion_error"), num_nodes=8)
    assert (found.status, found.evidence) == ("skipped", ("NCCL 2.26.2+cuda12.2 has no GIN",))


def test_lines_of_level_info_are_warnings_at_most() -> None:
    line = "Call to ibv_create_cq failed with error Cannot allocate memory"
    assert run("JOB-MR-MEMLOCK", after(info(line))).severity == "warn"
    assert run("JOB-MR-MEMLOCK", after(warn(line))).severity == "fail"


def test_an_abort_at_the_end_of_a_job_is_no_error() -> None:
    node = after(info("comm 0x50 rank 0 nranks 2 cudaDev 0 busId 18000 - Abort COMPLETE"))
    assert {run(one, node).status for one in OWN} == {"passed"}


@pytest.mark.parametrize("kind", [kind.kind for kind in _KINDS if kind.weight == "error"])
def test_no_error_that_the_reader_knows_goes_unexplained(kind: str) -> None:
    """Whatever its number, an error fails a check, but for the two that are harmless by themselves."""
    if kind in ("aborted", view.FALLBACK):
        return
    words = " ".join(next(found.needles for found in _KINDS if found.kind == kind)[0])
    node = given(*healthy(warn(words)))
    assert [event.kind for event in view.errors(node.job)] == [kind]
    failed = {one for one in OWN if run(one, node).status == "failed"}
    assert failed - {"JOB-FIRST-ERROR", "JOB-OTHER-ERRORS"}, words


def test_every_check_of_a_node_that_is_named_exists() -> None:
    for one in OWN:
        declared = registered()[one]
        named = re.findall(r"--only ([A-Z0-9-]+)", " ".join((*declared.commands, declared.fix)))
        assert set(named) <= set(registered()), one


def test_hosts_in_commands_are_plain_names() -> None:
    node = after(completion(12).replace("n1:", "n1;reboot:"))
    found = run("JOB-IB-RETRY-EXCEEDED", node)
    assert "reboot" not in found.fix
    assert found.commands[0].startswith("epctl doctor --only ")


def test_a_check_never_breaks_on_an_area_that_is_half_filled() -> None:
    node = msgspec.structs.replace(laptop(), job=msgspec.structs.replace(laptop().job, log="job.log"))
    for one in OWN:
        found = evaluate(registered()[one], Context(node, chosen(("deepep-2.5",)), 2))
        assert found.status in ("unknown", "skipped"), found
        assert "please report" not in " ".join(found.evidence)
