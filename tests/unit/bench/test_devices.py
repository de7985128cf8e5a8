from __future__ import annotations

import sys
from types import ModuleType

import pytest

from epctl.bench import devices
from epctl.core.errors import EpctlError
from tests.support.fake_pynvml import fake_pynvml, raising


def metadata() -> ModuleType:
    from importlib import metadata

    return metadata


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Two GPUs, and PyTorch for CUDA."""
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml())
    monkeypatch.setattr(devices, "find_spec", lambda _: object())
    monkeypatch.setattr(metadata(), "version", lambda _: "2.13.0+cu130")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


def test_all_gpus(machine: pytest.MonkeyPatch) -> None:
    assert devices.visible() == devices.Devices(2)
    assert devices.required(devices.visible(), "epctl bench") == 2


@pytest.mark.parametrize(
    ("spec", "count"),
    [("0", 1), ("1,0", 2), ("0,7,1", 1), ("GPU-00000001-0000", 1), ("", 0), ("-1", 0), ("9", 0), (" 0 , 1 ", 2)],
)
def test_cuda_visible_devices(machine: pytest.MonkeyPatch, spec: str, count: int) -> None:
    machine.setenv("CUDA_VISIBLE_DEVICES", spec)
    found = devices.visible()
    assert found.num_gpus == count
    assert found.missing == ("" if count else "CUDA_VISIBLE_DEVICES hides every GPU")


def test_what_is_missing_is_named(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(metadata(), "version", lambda _: "2.13.0+cpu")
    assert devices.visible().missing == "PyTorch is built without CUDA (2.13.0+cpu)"
    machine.setattr(devices, "find_spec", lambda _: None)
    assert devices.visible().missing == "PyTorch is not installed"
    machine.setitem(sys.modules, "pynvml", fake_pynvml(num_gpus=0))
    assert devices.visible().missing == "NVML sees no GPU"
    machine.setitem(sys.modules, "pynvml", fake_pynvml(nvmlInit=raising(15)))
    assert devices.visible().missing == "NVML: GPU is lost"


def test_the_error_names_the_way_without_a_gpu(machine: pytest.MonkeyPatch) -> None:
    machine.setitem(sys.modules, "pynvml", fake_pynvml(num_gpus=0))
    with pytest.raises(EpctlError, match="epctl bench needs a GPU") as caught:
        devices.required(devices.visible(), "epctl bench")
    assert caught.value.exit_code == 4
    assert "NVML sees no GPU" in caught.value.why
    assert "--device cpu" in caught.value.todo
