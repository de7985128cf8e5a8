"""The collector `nvml` over a fake pynvml: no error of one call hides the answers of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from epctl.probes.collectors import driver_libraries, nvml
from epctl.probes.source import COLLECTORS
from tests.support.fake_pynvml import (
    FabricV1,
    NVMLError,
    fabric,
    fake_pynvml,
    field_values,
    giving,
    link_states,
    raising,
)


def collected(monkeypatch: pytest.MonkeyPatch, module: Any) -> dict[str, Any]:  # noqa: ANN401
    """The document, after a round through JSON."""
    monkeypatch.setitem(sys.modules, "pynvml", module)
    document: dict[str, Any] = {"partial": True}
    nvml.collect(document)
    again: dict[str, Any] = json.loads(json.dumps(document))
    return again


def test_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    document = collected(monkeypatch, fake_pynvml())
    assert document["partial"] is False
    assert document["init"] == {"v": 0}
    assert document["system"]["driver_version"] == {"v": "580.159.04"}
    first, second = document["gpus"]
    assert (first["index"], second["index"]) == (0, 1)
    assert first["name"] == {"v": "NVIDIA H200"}
    assert first["pci"] == {"v": "00000000:00:06.0"}
    assert first["compute_capability"] == {"v": [9, 0]}
    assert first["fabric"]["v"] == {
        "clusterUuid": "0" * 32,
        "status": 0,
        "cliqueId": 0,
        "state": 3,
        "healthMask": 0,
        "healthSummary": 0,
    }
    assert [link["link"] for link in first["links"]] == list(range(18))
    assert first["links"][3]["speed_mbps"] == {"v": 26562}
    assert first["sram"]["v"]["aggregateCor"] == 5785
    assert [(pair["a"], pair["b"]) for pair in document["p2p"]] == [(0, 1), (1, 0)]
    assert document["p2p"][0]["atomics"] == {"v": 0}


def test_hopper_takes_the_counters_that_nvidia_smi_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The older call answers 7 for each: on a healthy H200 it counts what the links corrected."""
    link = collected(monkeypatch, fake_pynvml())["gpus"][0]["links"][0]
    assert link["errors"] == {"replay": {"v": 0}, "recovery": {"v": 0}, "crc": {"v": 0}}


def test_ampere_takes_the_older_call(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_pynvml(nvmlDeviceGetNvLinkVersion=giving(5), nvmlDeviceGetNvLinkState=link_states(12))
    link = collected(monkeypatch, module)["gpus"][0]["links"][0]
    assert link["errors"] == {name: {"v": 7} for name in ("replay", "recovery", "crc_flit", "crc_data", "ecc_data")}


def test_nvlink5_takes_its_own_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    told = field_values({164: 50000, 211: 4, 214: 1})
    module = fake_pynvml(nvmlDeviceGetNvLinkVersion=giving(7), nvmlDeviceGetFieldValues=told)
    link = collected(monkeypatch, module)["gpus"][0]["links"][0]
    assert link["errors"]["local_link_integrity_errors"] == {"v": 4}
    assert link["errors"]["link_recovery_failed_events"] == {"v": 1}
    assert link["errors"]["symbol_errors"]["e"] == 3


def test_old_driver_without_scoped_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_pynvml(nvmlDeviceGetFieldValues=field_values({84: 25781, 132: 25000}))
    links = collected(monkeypatch, module)["gpus"][0]["links"]
    assert links[0]["speed_mbps"] == {"v": 25781}
    assert links[6]["speed_mbps"] == {"v": 25000}


CALLS = [
    name for name in vars(fake_pynvml()) if name.startswith("nvmlDeviceGet") and not name.endswith(("Count", "ByIndex"))
]


@pytest.mark.parametrize("call", CALLS)
def test_one_error_hides_nothing_else(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    whole = collected(monkeypatch, fake_pynvml())
    document = collected(monkeypatch, fake_pynvml(2, **{call: raising(999)}))
    assert document["partial"] is False
    assert "v" in document["gpus"][1]["handle"]
    before, after = whole["gpus"][1], document["gpus"][1]
    changed = {key for key in before if before[key] != after.get(key)}
    allowed = {
        "nvmlDeviceGetMemoryErrorCounter": 4,
        "nvmlDeviceGetClockInfo": 2,
        "nvmlDeviceGetFieldValues": 2,
        "nvmlDeviceGetCurrentClocksEventReasons": 1,
    }
    assert len(changed) <= allowed.get(call, 1)
    assert changed or call in ("nvmlDeviceGetP2PStatus", "nvmlDeviceGetNvLinkErrorCounter")
    if call == "nvmlDeviceGetP2PStatus":
        assert document["p2p"][0]["read"] == {"e": 999, "s": "code 999"}


@pytest.mark.parametrize("call", CALLS)
def test_a_function_that_the_package_lacks(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    document = collected(monkeypatch, fake_pynvml(2, **{call: None}))
    assert document["partial"] is False
    assert len(document["gpus"]) == 2


def test_lost_gpu_keeps_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(index: int) -> str:
        if index == 1:
            raise NVMLError(15)
        return f"handle {index}"

    document = collected(monkeypatch, fake_pynvml(3, nvmlDeviceGetHandleByIndex=handle))
    assert [gpu["index"] for gpu in document["gpus"]] == [0, 1, 2]
    assert document["gpus"][1] == {"index": 1, "handle": {"e": 15, "s": "GPU is lost"}}
    assert {(pair["a"], pair["b"]) for pair in document["p2p"]} == {(0, 2), (2, 0)}


def test_gpu_lost_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    document = collected(monkeypatch, fake_pynvml(1, nvmlDeviceGetEccMode=raising(15)))
    assert document["gpus"][0]["name"] == {"v": "NVIDIA H200"}
    assert document["gpus"][0]["ecc"] == {"e": 15, "s": "GPU is lost"}
    assert "links" not in document["gpus"][0]


@pytest.mark.parametrize("code", [9, 12, 18, 999])
def test_init_fails(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    document = collected(monkeypatch, fake_pynvml(nvmlInit=raising(code)))
    assert document == {"partial": False, "init": {"e": code, "s": f"code {code}"}}


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    document = collected(monkeypatch, None)
    assert document["init"]["e"] == nvml.NO_PACKAGE


def test_fabric_falls_back_to_older_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = bytes(range(100, 116))
    module = fake_pynvml(c_nvmlGpuFabricInfo_v3_t=None, nvmlDeviceGetGpuFabricInfoV=fabric(uuid, cliqueId=5))
    told = collected(monkeypatch, module)["gpus"][0]["fabric"]["v"]
    assert told["clusterUuid"] == uuid.hex()
    assert told["cliqueId"] == 5
    assert "healthSummary" not in told

    def oldest(_handle: Any, pointer: Any) -> int:  # noqa: ANN401
        assert isinstance(pointer._obj, FabricV1)
        return fabric(uuid, state=2)(_handle, pointer)

    module = fake_pynvml(nvmlDeviceGetGpuFabricInfoV=raising(25), nvmlDeviceGetGpuFabricInfo=oldest)
    told = collected(monkeypatch, module)["gpus"][0]["fabric"]["v"]
    assert told == {"clusterUuid": uuid.hex(), "status": 0, "cliqueId": 0, "state": 2}

    module = fake_pynvml(nvmlDeviceGetGpuFabricInfoV=raising(3))
    assert collected(monkeypatch, module)["gpus"][0]["fabric"] == {"e": 3, "s": "Not Supported"}


def test_no_nvlink(monkeypatch: pytest.MonkeyPatch) -> None:
    assert collected(monkeypatch, fake_pynvml(nvmlDeviceGetNvLinkState=raising(3)))["gpus"][0]["links"] == []


def test_older_name_of_the_clock_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_pynvml(
        nvmlDeviceGetCurrentClocksEventReasons=None, nvmlDeviceGetCurrentClocksThrottleReasons=giving(0x40)
    )
    assert collected(monkeypatch, module)["gpus"][0]["clock_event_reasons"] == {"v": 0x40}


def test_names_and_structs_of_the_real_package() -> None:
    """Every name that the collector asks for is in nvidia-ml-py, or was in an older one."""
    import pynvml

    for call in CALLS:
        assert hasattr(pynvml, call), call
    for kind in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t", "c_nvmlGpuFabricInfo_t"):
        filled = getattr(pynvml, kind)()
        assert nvml.uuid_hex(filled.clusterUuid) == "0" * 32
    assert set(nvml.SRAM) <= {name for name, *_ in pynvml.c_nvmlEccSramErrorStatus_v1_t._fields_}


def test_a_call_that_hangs_leaves_the_rest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    never = threading.Event()
    module = fake_pynvml(nvmlDeviceGetName=lambda h: never.wait(30) if h.endswith("1") else "NVIDIA H200")
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(nvml, "BUDGET_S", 0.5)
    monkeypatch.setattr(os, "_exit", giving(None))
    nvml.main()
    document = json.loads(capsys.readouterr().out)
    never.set()
    assert document["partial"] is True
    assert document["gpus"][0]["name"] == {"v": "NVIDIA H200"}
    assert document["gpus"][1]["handle"] == {"v": True}


@pytest.mark.parametrize("name", ["nvml", "driver_libraries"])
def test_runs_as_a_script(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(COLLECTORS / f"{name}.py")], capture_output=True, timeout=30, check=True
    )
    assert isinstance(json.loads(done.stdout), dict)


def test_library_that_the_loader_picks() -> None:
    found = driver_libraries.resolved("libc.so.6")
    assert isinstance(found, (str, dict))
    missing = driver_libraries.resolved("libno_such_library_of_ours.so.1")
    assert missing["error"] == "not_found"
