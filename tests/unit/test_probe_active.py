"""Active probes: stages that were finished count, whatever happens after them."""

# The fake driver has the signatures of the real one.
# ruff: noqa: ARG002

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.fact import Absent
from epctl.core.snapshot.software import GinTrial, GpuAttributes, PeerAccess, VerbsProbe
from epctl.probes import source as sources
from epctl.probes.active import active
from epctl.probes.collectors import active_cuda, active_import, active_nvcc, active_pidfd, active_verbs
from epctl.probes.source import COLLECTORS, LiveSource
from tests.support.damage import damaged_source
from tests.support.fake_source import FakeSource
from tests.support.probing import odd_document, reason, survives

CUDA = vars(active_cuda)["cuda"]
"""The driver's module as the collector holds it: it imports it without a package."""


def attributes(ordinal: int) -> dict[str, Any]:
    flags = dict.fromkeys(("posix_handles", "gdr_with_vmm", "dma_buf", "fabric_handles", "multicast"), True)
    return {"ordinal": ordinal, "uuid": f"GPU-{ordinal}", "num_sms": 132, **flags}


STAGES: list[dict[str, Any]] = [
    {"begin": "init"},
    {"stage": "init", "code": 0},
    {"stage": "version", "version": 13000},
    {"stage": "devices", "devices": [attributes(0), attributes(1)]},
    {"stage": "posix", "code": 0},
    {"stage": "fabric", "code": 800},
    {"stage": "access", "pairs": [[0, 1, True], [1, 0, False]]},
    {"begin": "copy 1 to 0"},
    {"stage": "copy", "a": 0, "b": 1, "ok": True},
    {"begin": "copy 0 to 1"},
    {"stage": "copy", "a": 1, "b": 0, "ok": {"error": 217, "detail": "cuMemcpyPeer"}},
    {"stage": "end"},
]
DOCUMENTS: dict[str, Any] = {
    "active_cuda": {"stages": STAGES, "ended": "", "detail": ""},
    "active_verbs": {
        "stages": [
            {"stage": "list", "devices": ["mlx5_0"]},
            {"stage": "open", "device": "mlx5_0", "errno": 0, "opened": True},
            {"stage": "dmabuf", "device": "mlx5_0", "errno": 9},
            {"stage": "devx", "device": "mlx5_0", "errno": 1},
            {"begin": "gpu memory"},
        ],
        "ended": "timed_out",
        "detail": "no answer",
    },
    "active_nvcc": {"ok": False, "message": "probe.cu(1): error: x"},
    "active_pidfd": {"errno": 1},
    "active_import": {"error_line": "ImportError: undefined symbol: ncclDevCommCreate"},
    "active_gin": {
        "stages": [
            {"stage": "trial", "name": "proxy", "outcome": "ok", "round_ns": 31000},
            {"stage": "end", "tried": 1},
        ],
        "ended": "",
        "detail": "",
    },
}


def of(stages: list[dict[str, Any]], ended: str = "", detail: str = "") -> Any:  # noqa: ANN401 - an ActiveArea
    return active(FakeSource(documents={"active_cuda": {"stages": stages, "ended": ended, "detail": detail}}))


def test_everything_answered() -> None:
    area = active(FakeSource(documents=DOCUMENTS))
    assert (area.cu_init, area.cu_driver_version, area.cumem_export, area.cumem_fabric) == (0, 13000, 0, 800)
    assert isinstance(area.devices, tuple)
    assert area.devices[1] == GpuAttributes(1, "GPU-1", 132, True, True, True, True, True)
    assert area.peers == (
        PeerAccess(0, 1, True, True),
        PeerAccess(1, 0, False, Absent("failed", "217: cuMemcpyPeer")),
    )
    assert (area.nvcc_compile, area.nvcc_compile_message) == (False, "probe.cu(1): error: x")
    late = Absent("timed_out", "in the stage gpu memory: no answer")
    assert area.verbs == (VerbsProbe("mlx5_0", True, 9, late, 1),)
    assert area.pidfd_getfd == 1
    assert area.deep_ep_import == "ImportError: undefined symbol: ncclDevCommCreate"
    assert area.gin == (GinTrial("proxy", "ok", round_ns=31000),)


def test_a_start_that_fails() -> None:
    area = of([{"begin": "init"}, {"stage": "init", "code": 802}])
    assert area.cu_init == 802
    assert area.devices == Absent("failed", "cuInit gave 802")
    assert area.peers == Absent("failed", "cuInit gave 802")


def test_a_start_that_hangs() -> None:
    area = of([{"begin": "init"}], "timed_out", "python gave no answer within 80 s")
    assert reason(area.cu_init) == "timed_out"
    assert "stage init" in str(area.cu_init)
    assert reason(area.devices) == "timed_out"


def test_a_copy_that_hangs_keeps_the_copies_before() -> None:
    area = of(STAGES[:10], "timed_out", "no answer")
    assert area.peers[0] == PeerAccess(0, 1, True, True)
    assert area.peers[1].copied == Absent("timed_out", "in the stage copy 0 to 1: no answer")
    assert area.cumem_fabric == 800


def test_no_libcuda_and_one_gpu() -> None:
    area = of([{"stage": "init", "code": {"error": "not_found", "detail": "libcuda.so.1"}}])
    assert reason(area.cu_init) == reason(area.devices) == reason(area.cumem_export) == "not_found"
    alone = [*STAGES[:3], {"stage": "devices", "devices": [attributes(0)]}]
    assert of(alone).peers == ()
    without = {**attributes(0), "fabric_handles": False}
    assert reason(of([*STAGES[:3], {"stage": "devices", "devices": [without]}]).cumem_fabric) == "unsupported"


def test_a_call_that_fails_inside_of_a_stage() -> None:
    area = of([*STAGES[:2], {"stage": "version", "code": 3, "failed": "cuDriverGetVersion"}])
    assert area.cu_driver_version == Absent("failed", "cuDriverGetVersion: 3")


def test_no_document_at_all() -> None:
    area = active(FakeSource())
    assert reason(area.cu_init) == reason(area.verbs) == reason(area.nvcc_compile) == "tool_missing"


@given(st.data())
def test_any_damage_gives_an_area(data: st.DataObject) -> None:
    documents = {name: odd_document(value, data) for name, value in DOCUMENTS.items()}
    survives(active=active(damaged_source(FakeSource(documents=documents), data)))


class FakeDriver:
    """Two devices; the bytes that b sends to a can be spoilt."""

    def __init__(self, *, start: int = 0, spoilt: bool = False) -> None:
        self.start = start
        self.spoilt = spoilt
        self.memory: dict[int, bytes] = {}

    def init(self) -> int:
        return self.start

    def version(self) -> int:
        return 13000

    def count(self) -> int:
        return 2

    def device(self, ordinal: int) -> int:
        return ordinal

    def uuid(self, device: int) -> str:
        return f"GPU-{device}"

    def attribute(self, device: int, number: int) -> Any:  # noqa: ANN401
        return 132 if number == 16 else {"error": "unsupported", "detail": "old"} if number == 128 else 1

    def export(self, ordinal: int, kind: int, num_bytes: int) -> int:
        return 0

    def can_access(self, a: int, b: int) -> bool:
        return True

    def retain(self, ordinal: int) -> int:
        if ordinal == 1 and self.start == -1:
            raise CUDA.CudaError("cuDevicePrimaryCtxRetain", 46)
        return ordinal + 10

    def allocate(self, context: int, num_bytes: int) -> int:
        return context * 1000

    def enable_peer(self, context: int, peer: int) -> None:
        return None

    def write(self, context: int, address: int, content: bytes) -> None:
        self.memory[address] = content

    def copy_peer(self, target: int, target_context: int, origin: int, origin_context: int, num_bytes: int) -> None:
        if not self.spoilt:
            self.memory[target] = self.memory[origin]

    def read(self, context: int, address: int, num_bytes: int) -> bytes:
        return self.memory[address]

    def free(self, context: int, address: int) -> None:
        return None

    def release(self, ordinal: int) -> None:
        return None


def lines_of(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    monkeypatch.setattr(CUDA, "Driver", lambda: driver)
    active_cuda.main()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_cuda_collector(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    area = of(lines_of(FakeDriver(), monkeypatch, capsys))
    assert area.peers == (PeerAccess(0, 1, True, True), PeerAccess(1, 0, True, True))
    assert area.devices[0].num_sms == 132
    assert area.devices[0].multicast is True
    assert reason(area.devices[0].fabric_handles) == "unsupported"
    assert area.cumem_export == 0


def test_cuda_collector_sees_spoilt_copies(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    area = of(lines_of(FakeDriver(spoilt=True), monkeypatch, capsys))
    assert [pair.copied for pair in area.peers] == [False, False]


def test_cuda_collector_stops_at_a_failed_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(FakeDriver(start=804), monkeypatch, capsys)
    assert lines == [{"begin": "init"}, {"stage": "init", "code": 804}]


def test_no_collector_uses_multicast() -> None:
    code = "".join(path.read_text() for path in COLLECTORS.glob("*.py"))
    assert "cuMulticast" not in code


def test_documents_of_a_collector_that_hangs_or_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "COLLECTORS", tmp_path)
    monkeypatch.setattr(sources, "STAGED", frozenset({"hangs", "dies"}))
    begin = "import sys, time, os\nprint('{\"begin\": \"init\"}', flush=True)\nprint('{\"cut', end='', flush=True)\n"
    (tmp_path / "hangs.py").write_text(begin + "time.sleep(60)\n")
    (tmp_path / "dies.py").write_text(begin + "os.kill(os.getpid(), 11)\n")
    found: Any = LiveSource().document("hangs", 1.0)
    assert found["stages"] == [{"begin": "init"}]
    assert found["ended"] == "timed_out"
    assert LiveSource().document("dies", 5.0) == {
        "stages": [{"begin": "init"}],
        "ended": "failed",
        "detail": "ended by signal 11",
    }


def test_pidfd_between_siblings() -> None:
    done = subprocess.run(
        [sys.executable, str(COLLECTORS / "active_pidfd.py")], capture_output=True, check=True, timeout=30
    )
    assert json.loads(done.stdout)["errno"] in (0, 1, 38)
    assert active_pidfd.PIDFD_GETFD == 438


def test_import_of_what_is_there_broken_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert active_import.attempt("json") == ""
    assert active_import.attempt("no_such_module")["error"] == "not_found"
    (tmp_path / "broken_ep.py").write_text("raise ImportError('undefined symbol: ncclDevCommCreate')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert active_import.attempt("broken_ep") == "ImportError: undefined symbol: ncclDevCommCreate"


def test_nvcc_error_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.write_text(
        "#!/bin/sh\necho 'nvcc warning : old' >&2\necho 'nvcc fatal   : g++ not found, error' >&2\nexit 1\n"
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert active_nvcc.compile_probe() == {"ok": False, "message": "nvcc fatal   : g++ not found, error"}
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    assert active_nvcc.compile_probe()["ok"]["error"] == "tool_missing"
    assert active_nvcc.first_error("") == "nvcc said nothing"


def test_verbs_without_the_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(vars(active_verbs)["rdma"], "VERBS_LIBRARY", "libno-such-verbs.so.1")
    active_verbs.main()
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    area = active(FakeSource(documents={"active_verbs": {"stages": [line], "ended": "", "detail": ""}}))
    assert reason(area.verbs) == "not_found"
