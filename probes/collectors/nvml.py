"""Prints what NVML says of this machine, as one JSON document. Run as a script, in a process of its own.

Every call has its own entry: {"v": value}, or {"e": NVML return code, "s": words}. Code -1 stands for an error that is not
NVML's. When the time is up, what was read until then is printed, with "partial": true.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

BUDGET_S = 16.0
"""Less than the limit of the probe that starts this script: eight GPUs without persistence take seconds to wake up."""
MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of NVML 13: NVLink 6 has 36 links, NVLink 4 and 5 have 18."""
NO_PACKAGE = -2
INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST, VERSION_MISMATCH = 2, 3, 13, 15, 25

# Numbers of NVML's interface (nvml.h): older and newer versions of the Python package lack some of the names.
P2P = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3}
ERROR_COUNTERS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc_data": 4}
ERROR_FIELDS = {"replay": 161, "recovery": 162, "crc": 163}
"""Hopper: one counter for all CRC errors, by link."""
NVLINK5_COUNTERS = (
    "malformed_packet_errors buffer_overrun_errors rx_errors rx_remote_errors rx_general_errors"
    " local_link_integrity_errors tx_discards link_recovery_successful_events link_recovery_failed_events"
    " total_link_recovery_events"
)
"""Named as `nvidia-smi nvlink -e` prints them, in lower case with underscores; their fields are 206 and the next ones."""
NVLINK5_FIELDS = {
    **{name: 206 + i for i, name in enumerate(NVLINK5_COUNTERS.split())},
    "effective_errors": 219,
    "symbol_errors": 221,
}
NVLINK4 = 6
"""NVML_NVLINK_VERSION_4_0"""
GET_SPEED = 164
SPEED_MBPS = (*range(84, 90), *range(132, 138))
SPEED_MBPS_COMMON = 90
RECOVERY_ACTION = 230

Entry = dict[str, Any]


def failure(error: Exception) -> Entry:
    """Entry of a call that raised."""
    code = getattr(error, "value", None)
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - the words of an error come from the library, too
        words = type(error).__name__
    if isinstance(code, int):
        return {"e": code, "s": words}
    missing = isinstance(error, AttributeError) or type(error).__name__ == "NVMLLibraryMismatchError"
    return {"e": FUNCTION_NOT_FOUND if missing else -1, "s": words or type(error).__name__}


def plain(value: Any) -> Any:  # noqa: ANN401
    """`value` as JSON can hold it."""
    if isinstance(value, bytes):
        return value.split(b"\0")[0].decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value


def ask(nvml: Any, function: str, *args: Any, give: Callable[[Any], Any] = plain) -> Entry:  # noqa: ANN401
    """Entry of one call."""
    try:
        return {"v": give(getattr(nvml, function)(*args))}
    except Exception as error:  # noqa: BLE001 - the error of one call may not hide the others
        return failure(error)


def bus_id(struct: Any) -> Any:  # noqa: ANN401
    return plain(struct.busId)


def members(*names: str) -> Callable[[Any], Entry]:
    """Takes the named members out of a struct."""
    return lambda struct: {name: plain(getattr(struct, name)) for name in names}


CALLS: tuple[tuple[str, str, tuple[int, ...], Callable[[Any], Any]], ...] = (
    ("name", "nvmlDeviceGetName", (), plain),
    ("uuid", "nvmlDeviceGetUUID", (), plain),
    ("serial", "nvmlDeviceGetSerial", (), plain),
    ("compute_capability", "nvmlDeviceGetCudaComputeCapability", (), plain),
    ("architecture", "nvmlDeviceGetArchitecture", (), plain),
    ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", (), plain),
    ("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", (), plain),
    ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", (), plain),
    ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", (), plain),
    ("power_mw", "nvmlDeviceGetPowerUsage", (), plain),
    ("persistence", "nvmlDeviceGetPersistenceMode", (), plain),
    ("mig", "nvmlDeviceGetMigMode", (), plain),
    ("compute_mode", "nvmlDeviceGetComputeMode", (), plain),
    ("ecc", "nvmlDeviceGetEccMode", (), plain),
    ("remapped_rows", "nvmlDeviceGetRemappedRows", (), plain),
    ("pci", "nvmlDeviceGetPciInfo", (), bus_id),
    ("memory", "nvmlDeviceGetMemoryInfo", (), members("total", "free")),
    ("bar1", "nvmlDeviceGetBAR1MemoryInfo", (), members("bar1Total")),
    ("sm_clock", "nvmlDeviceGetClockInfo", (1,), plain),
    ("sm_clock_max", "nvmlDeviceGetMaxClockInfo", (1,), plain),
    ("memory_clock", "nvmlDeviceGetClockInfo", (2,), plain),
    ("utilization", "nvmlDeviceGetUtilizationRates", (), members("gpu")),
    ("temperature", "nvmlDeviceGetTemperature", (0,), plain),
    # error type (0 corrected, 1 uncorrected), counter (0 volatile, 1 aggregate), place (2 DRAM, 7 SRAM)
    ("ecc_sram_uncorrected_volatile", "nvmlDeviceGetMemoryErrorCounter", (1, 0, 7), plain),
    ("ecc_sram_uncorrected_aggregate", "nvmlDeviceGetMemoryErrorCounter", (1, 1, 7), plain),
    ("ecc_sram_corrected_aggregate", "nvmlDeviceGetMemoryErrorCounter", (0, 1, 7), plain),
    ("ecc_dram_uncorrected_volatile", "nvmlDeviceGetMemoryErrorCounter", (1, 0, 2), plain),
)
SRAM = ("aggregateUncParity", "aggregateUncSecDed", "aggregateCor", "volatileUncParity", "volatileUncSecDed")


def collect(document: Entry) -> None:
    """Fills `document`, which is whole JSON at any moment."""
    try:
        import pynvml
    except Exception as error:  # noqa: BLE001 - a broken package is as good as none
        document["init"] = {"e": NO_PACKAGE, "s": f"the Python package nvidia-ml-py cannot be used: {error}"}
    else:
        document["init"] = ask(pynvml, "nvmlInit", give=lambda _: 0)
        if "v" in document["init"]:
            read(pynvml, document)
    document["partial"] = False


def read(nvml: Any, document: Entry) -> None:  # noqa: ANN401
    document["system"] = {
        "driver_version": ask(nvml, "nvmlSystemGetDriverVersion"),
        "cuda_version": ask(nvml, "nvmlSystemGetCudaDriverVersion"),
        "confidential_computing": ask(nvml, "nvmlSystemGetConfComputeState", give=members("ccFeature")),
    }
    document["count"] = ask(nvml, "nvmlDeviceGetCount")
    gpus: list[Entry] = []
    document["gpus"] = gpus
    handles: list[Any] = []
    for index in range(document["count"].get("v", 0)):
        got = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        handles.append(got.pop("v", None))
        gpus.append({"index": index, "handle": got or {"v": True}})
        if handles[-1] is not None:
            read_gpu(nvml, handles[-1], gpus[-1])
    document["p2p"] = p2p(nvml, handles)


def read_gpu(nvml: Any, handle: Any, entry: Entry) -> None:  # noqa: ANN401
    """All that is asked of one GPU, into `entry`."""
    for key, function, args, give in CALLS:
        entry[key] = ask(nvml, function, handle, *args, give=give)
        if entry[key].get("e") == GPU_IS_LOST:
            return
    reasons = ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if "e" in reasons:  # the name before driver 535
        older = ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        reasons = older if "v" in older else reasons
    entry["clock_event_reasons"] = reasons
    entry["sram"] = struct(nvml, "c_nvmlEccSramErrorStatus_v1_t", "nvmlDeviceGetSramEccErrorStatus", handle, SRAM)
    entry["recovery_action"] = fields(nvml, handle, {"action": (RECOVERY_ACTION, 0)})["action"]
    entry["fabric"] = fabric(nvml, handle)
    entry["links"] = links(nvml, handle)


def struct(nvml: Any, kind: str, function: str, handle: Any, names: tuple[str, ...]) -> Entry:  # noqa: ANN401
    """Entry of a call that fills a struct of its caller."""
    try:
        filled = getattr(nvml, kind)()
        getattr(nvml, function)(handle, ctypes.byref(filled))
        return {"v": {name: plain(getattr(filled, name)) for name in names}}
    except Exception as error:  # noqa: BLE001 - see ask
        return failure(error)


def fabric(nvml: Any, handle: Any) -> Entry:  # noqa: ANN401
    """The GPU's place in the NVLink fabric, by the newest version of the call that package and driver know."""
    base = ("clusterUuid", "status", "cliqueId", "state")
    tries = (
        ("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV", (*base, "healthMask", "healthSummary")),
        ("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV", (*base, "healthMask")),
        ("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo", base),
    )
    answer: Entry = {}
    for kind, function, names in tries:
        answer = struct(nvml, kind, function, handle, names)
        if "v" in answer:
            answer["v"]["clusterUuid"] = uuid_hex(answer["v"]["clusterUuid"])
            return answer
        if answer["e"] not in (INVALID_ARGUMENT, FUNCTION_NOT_FOUND, VERSION_MISMATCH):
            return answer
    return answer


def uuid_hex(raw: Any) -> str:  # noqa: ANN401
    """32 hex digits of a UUID that is an array of bytes, or text where the package made it a char array."""
    if isinstance(raw, str):
        raw = raw.encode("latin-1", "replace")
    return bytes(raw).ljust(16, b"\0").hex()


def fields(nvml: Any, handle: Any, wanted: dict[str, tuple[int, int]]) -> dict[str, Entry]:  # noqa: ANN401
    """Entries of field values, asked for together: name → (field id, scope)."""
    try:
        values = nvml.nvmlDeviceGetFieldValues(handle, list(wanted.values()))
        return {name: field_entry(value) for name, value in zip(wanted, values, strict=True)}
    except Exception as error:  # noqa: BLE001 - see ask
        return dict.fromkeys(wanted, failure(error))


def field_entry(value: Any) -> Entry:  # noqa: ANN401
    if value.nvmlReturn:
        return {"e": int(value.nvmlReturn), "s": "field value"}
    member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}.get(value.valueType)
    return {"v": getattr(value.value, member)} if member else {"e": -1, "s": f"value of type {value.valueType}"}


def links(nvml: Any, handle: Any) -> list[Entry]:  # noqa: ANN401
    """NVLinks of a GPU: up to the first number that NVML calls invalid, without those that the GPU does not have."""
    found: list[Entry] = []
    for link in range(MAX_LINKS):
        state = ask(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if state.get("e") == INVALID_ARGUMENT:
            break
        if state.get("e") == NOT_SUPPORTED:
            continue
        found.append({"link": link, "state": state})
        if state.get("e") == GPU_IS_LOST:
            break
        found[-1].update(link_details(nvml, handle, link))
    return found


def link_details(nvml: Any, handle: Any, link: int) -> Entry:  # noqa: ANN401
    own = SPEED_MBPS[link] if link < len(SPEED_MBPS) else SPEED_MBPS_COMMON
    speeds = fields(nvml, handle, {"scoped": (GET_SPEED, link), "own": (own, 0)})
    version = ask(nvml, "nvmlDeviceGetNvLinkVersion", handle, link)
    return {
        "version": version,
        "speed_mbps": speeds["scoped"] if "v" in speeds["scoped"] else speeds["own"],
        "remote_type": ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
        "remote_pci": ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link, give=bus_id),
        "errors": link_errors(nvml, handle, link, version.get("v", NVLINK4)),
    }


def link_errors(nvml: Any, handle: Any, link: int, version: int) -> dict[str, Entry]:  # noqa: ANN401
    """The counters that `nvidia-smi nvlink -e` prints for this generation. The older call answers on Hopper, too, but its
    data counters go up there on healthy links: they include what the link corrected."""
    if version < NVLINK4:
        old = {
            name: ask(nvml, "nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)
            for name, counter in ERROR_COUNTERS.items()
        }
        if any("v" in entry for entry in old.values()):
            return old
    hopper = fields(nvml, handle, {name: (field, link) for name, field in ERROR_FIELDS.items()})
    newer = fields(nvml, handle, {name: (field, link) for name, field in NVLINK5_FIELDS.items()})
    return newer if version > NVLINK4 and any("v" in entry for entry in newer.values()) else hopper


def p2p(nvml: Any, handles: list[Any]) -> list[Entry]:  # noqa: ANN401
    """P2P status of every ordered pair of GPUs that have a handle."""
    return [
        {"a": a, "b": b, **{name: ask(nvml, "nvmlDeviceGetP2PStatus", one, other, i) for name, i in P2P.items()}}
        for a, one in enumerate(handles)
        for b, other in enumerate(handles)
        if a != b and one is not None and other is not None
    ]


def printed(document: Entry) -> str:
    """`document` as JSON, also while another thread adds to it."""
    for _ in range(50):
        with contextlib.suppress(RuntimeError):  # changed while it was walked
            return json.dumps(document)
        time.sleep(0.02)
    return json.dumps({"partial": True, "init": {"e": -1, "s": "NVML did not come to rest"}})


def main() -> None:
    """Collects in a thread, so that a call that hangs does not take the rest with it."""
    document: Entry = {"partial": True}
    worker = threading.Thread(target=collect, args=(document,), daemon=True)
    worker.start()
    worker.join(BUDGET_S)
    sys.stdout.write(printed(document) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a call that hangs would keep the interpreter from ending


if __name__ == "__main__":
    main()
