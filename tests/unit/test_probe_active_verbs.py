"""The verbs collector against libraries that play libibverbs, libmlx5 and libcuda; then its lines as facts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.software import VerbsProbe
from epctl.probes.active import active
from epctl.probes.source import COLLECTORS, LiveSource
from tests.support.fake_source import FakeSource
from tests.support.played_rdma import build
from tests.support.probing import reason

NOT_MLX5 = Absent("unsupported", "mlx5dv_is_supported says no")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fake_rdma"))


def facts(document: Any) -> Fact[tuple[VerbsProbe, ...]]:  # noqa: ANN401 - JSON
    return active(FakeSource(documents={"active_verbs": document})).verbs


class Machine:
    """A machine whose libraries are the played ones; runs the collector in its child process."""

    def __init__(self, libraries: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.touched = folder / "touched"
        """There when CUDA was used."""
        self._env = monkeypatch
        self.use(libraries)
        monkeypatch.setenv("FAKE_TOUCHED", str(self.touched))

    def use(self, libraries: Path) -> None:
        self._env.setenv("LD_LIBRARY_PATH", str(libraries))

    def set(self, devices: str, **numbers: int) -> None:
        self._env.setenv("FAKE_DEVICES", devices)
        for name, value in numbers.items():
            self._env.setenv(f"FAKE_{name}", str(value))

    def document(self, devices: str, **numbers: int) -> Any:  # noqa: ANN401 - JSON
        self.set(devices, **numbers)
        return LiveSource().document("active_verbs", 15.0)

    def probes(self, devices: str, **numbers: int) -> tuple[VerbsProbe, ...]:
        """Facts of a run that came to its end."""
        document = self.document(devices, **numbers)
        assert document["ended"] == "", document
        assert document["stages"][-1] == {"stage": "end"}
        found = facts(document)
        assert isinstance(found, tuple)
        return found


@pytest.fixture
def machine(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(built, tmp_path, monkeypatch)


def test_everything_works(machine: Machine) -> None:
    assert machine.probes("mlx5_0,efa_0,mlx5_1") == (
        VerbsProbe("mlx5_0", True, 9, 0, 0),
        VerbsProbe("efa_0", True, 9, 0, NOT_MLX5),
        VerbsProbe("mlx5_1", True, 9, 0, 0),
    )
    assert machine.touched.exists()


@pytest.mark.parametrize("numbers", [{}, {"UAR_mlx5_0": 95}, {"GPU": 95, "DEVX": 1}, {"CUDA_EXPORT": 801, "PD": 12}])
def test_every_handle_is_given_back(machine: Machine, numbers: dict[str, int]) -> None:
    machine.set("mlx5_0,mlx5_1,efa_0", OPEN_mlx5_1=13, **numbers)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(COLLECTORS / "active_verbs.py")],
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == b""


def test_an_adapter_that_claims_and_refuses(machine: Machine) -> None:
    first, second = machine.probes("mlx5_0,mlx5_1", GPU_mlx5_1=95)
    assert (first.dmabuf_errno, first.dmabuf_gpu_errno) == (9, 0)
    assert (second.dmabuf_errno, second.dmabuf_gpu_errno) == (9, 95)


def test_an_adapter_without_dma_buf(machine: Machine) -> None:
    (probe,) = machine.probes("mlx5_0", FD=93, GPU=93)
    assert (probe.dmabuf_errno, probe.dmabuf_gpu_errno, probe.devx_uar_errno) == (93, 93, 0)


@pytest.mark.parametrize(("number", "why"), [(13, "permission"), (1, "permission"), (19, "failed")])
def test_a_device_that_does_not_open(machine: Machine, number: int, why: Any) -> None:  # noqa: ANN401 - a Reason
    shut, fine = machine.probes("mlx5_0,mlx5_1", OPEN_mlx5_0=number)
    absent = Absent(why, f"ibv_open_device: errno {number}")
    assert shut == VerbsProbe("mlx5_0", False, absent, absent, absent)
    assert fine == VerbsProbe("mlx5_1", True, 9, 0, 0)


def test_cuda_is_left_alone_when_no_device_opens(machine: Machine) -> None:
    (probe,) = machine.probes("mlx5_0", OPEN=13)
    assert probe.opened is False
    assert machine.probes("", OPEN=0) == ()
    assert not machine.touched.exists()


def test_a_doorbell_page_that_is_refused(machine: Machine) -> None:
    (probe,) = machine.probes("mlx5_0", UAR=1)
    assert probe.devx_uar_errno == 1


def test_a_doorbell_page_without_blueflame(machine: Machine) -> None:
    (probe,) = machine.probes("mlx5_0", UAR=95, UAR_NC=0)
    assert probe.devx_uar_errno == 0
    (probe,) = machine.probes("mlx5_0", UAR=12, UAR_NC=95)
    assert probe.devx_uar_errno == 12


@pytest.mark.parametrize(("number", "why"), [(1, "permission"), (95, "unsupported"), (22, "failed")])
def test_devx_that_is_refused(machine: Machine, number: int, why: Any) -> None:  # noqa: ANN401 - a Reason
    (probe,) = machine.probes("mlx5_0", DEVX=number)
    assert probe.devx_uar_errno == Absent(why, f"mlx5dv_open_device for DevX: errno {number}")
    assert probe.dmabuf_gpu_errno == 0


def test_a_failure_without_errno_is_no_success(machine: Machine) -> None:
    (probe,) = machine.probes("mlx5_0", GPU=-1, UAR=-1, FD=-1)
    assert probe.dmabuf_errno == probe.dmabuf_gpu_errno == Absent("failed", "ibv_reg_dmabuf_mr failed without errno")
    assert probe.devx_uar_errno == Absent("failed", "mlx5dv_devx_alloc_uar failed without errno")


def test_no_protection_domain(machine: Machine) -> None:
    (probe,) = machine.probes("mlx5_0", PD=12)
    assert probe.dmabuf_errno == probe.dmabuf_gpu_errno == Absent("failed", "ibv_alloc_pd: errno 12")
    assert probe.devx_uar_errno == 0


@pytest.mark.parametrize(
    ("numbers", "absent"),
    [
        ({"CUDA_INIT": 100}, Absent("unsupported", "no CUDA device")),
        ({"CUDA_COUNT": 0}, Absent("unsupported", "no CUDA device")),
        ({"CUDA_INIT": 802}, Absent("failed", "cuInit: 802")),
        ({"CUDA_DMABUF": 0}, Absent("unsupported", "CUDA device 0 has no DMA_BUF_SUPPORTED")),
        ({"CUDA_DMABUF": -1}, Absent("unsupported", "this driver does not know device attribute 124")),
        ({"CUDA_DMABUF": -201}, Absent("failed", "cuDeviceGetAttribute: 201")),
        ({"CUDA_RETAIN": 2}, Absent("failed", "cuDevicePrimaryCtxRetain: 2")),
        ({"CUDA_ALLOC": 2}, Absent("failed", "cuMemAlloc_v2: 2")),
        ({"CUDA_EXPORT": 801}, Absent("failed", "cuMemGetHandleForAddressRange: 801")),
    ],
)
def test_no_gpu_memory_to_register(machine: Machine, numbers: dict[str, int], absent: Absent) -> None:
    assert machine.probes("mlx5_0,mlx5_1", **numbers) == (
        VerbsProbe("mlx5_0", True, 9, absent, 0),
        VerbsProbe("mlx5_1", True, 9, absent, 0),
    )


def test_a_crash_keeps_what_was_found(machine: Machine) -> None:
    document = machine.document("mlx5_0,mlx5_1", GPU_mlx5_1=-2)
    crashed = Absent("failed", "in the stage gpu of mlx5_1: ended by signal 11")
    assert facts(document) == (VerbsProbe("mlx5_0", True, 9, 0, 0), VerbsProbe("mlx5_1", True, 9, crashed, 0))
    document = machine.document("mlx5_0,mlx5_1", OPEN_mlx5_1=-2)
    crashed = Absent("failed", "in the stage open of mlx5_1: ended by signal 11")
    assert facts(document) == (
        VerbsProbe("mlx5_0", True, crashed, crashed, crashed),
        VerbsProbe("mlx5_1", crashed, crashed, crashed, crashed),
    )


def test_a_list_that_fails(machine: Machine) -> None:
    assert facts(machine.document("mlx5_0", LIST=13)) == Absent("permission", "ibv_get_device_list: errno 13")
    assert machine.probes("mlx5_0", LIST=38) == ()


def test_without_libmlx5_or_libcuda(machine: Machine, built: Path, tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "libibverbs.so.1").symlink_to(built / "libibverbs.so.1")
    for name in ("libmlx5.so.1", "libcuda.so.1"):
        (libraries / name).write_text("no library\n")
    machine.use(libraries)
    (probe,) = machine.probes("mlx5_0")
    assert (probe.opened, probe.dmabuf_errno) == (True, 9)
    assert reason(probe.dmabuf_gpu_errno) == reason(probe.devx_uar_errno) == "not_found"


def test_libraries_that_are_too_old(machine: Machine, tmp_path: Path) -> None:
    machine.use(build(tmp_path, "-DOLD"))
    (probe,) = machine.probes("mlx5_0")
    assert probe.opened is True
    for fact in (probe.dmabuf_errno, probe.dmabuf_gpu_errno, probe.devx_uar_errno):
        assert reason(fact) == "unsupported"


def test_lines_that_contradict_or_say_nothing() -> None:
    lines: list[Any] = [
        {"stage": "list", "devices": ["mlx5_0", "mlx5_0", "", "mlx5_1", "mlx5_2"]},
        {"stage": "open", "device": "mlx5_0", "opened": True},
        {"stage": "dmabuf", "device": "mlx5_0", "errno": 9},
        {"stage": "dmabuf", "device": "mlx5_0", "errno": 95},
        {"stage": "gpu", "device": ["mlx5_0"], "errno": 95},
        {"stage": "devx", "device": "mlx5_0", "errno": "0"},
        {"stage": "open", "device": "mlx5_1", "opened": False, "errno": None},
        {"stage": "open", "device": "mlx5_2", "opened": "yes"},
    ]
    found = facts({"stages": lines, "ended": "", "detail": ""})
    assert isinstance(found, tuple)
    assert [probe.device for probe in found] == ["mlx5_0", "mlx5_1", "mlx5_2"]
    assert found[0].dmabuf_errno == 9
    assert reason(found[0].dmabuf_gpu_errno) == "not_probed"
    assert reason(found[0].devx_uar_errno) == reason(found[2].opened) == "unparsable"
    assert found[1].dmabuf_gpu_errno == Absent("failed", "the device could not be opened")
