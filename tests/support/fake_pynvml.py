"""A pynvml module without a driver: two H200 of a virtual machine, whose answers a test may replace by errors."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable
from typing import Any

H200_LINKS = 18
NOT_SUPPORTED, INVALID_ARGUMENT = 3, 2


class NVMLError(Exception):
    """As pynvml's: `value` is NVML's return code."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return {3: "Not Supported", 4: "Insufficient Permissions", 15: "GPU is lost"}.get(
            self.value, f"code {self.value}"
        )


class _PciInfo(ctypes.Structure):
    _fields_ = (("busId", ctypes.c_char * 32),)


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("bar1Total", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint),)


class _ConfCompute(ctypes.Structure):
    _fields_ = (("ccFeature", ctypes.c_uint),)


class FabricV3(ctypes.Structure):
    """c_nvmlGpuFabricInfo_v3_t of nvidia-ml-py."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint32),
        ("state", ctypes.c_uint),
        ("healthMask", ctypes.c_uint32),
        ("healthSummary", ctypes.c_uint8),
    )


class FabricV2(ctypes.Structure):
    """c_nvmlGpuFabricInfo_v2_t."""

    _fields_ = FabricV3._fields_[:-1]


class FabricV1(ctypes.Structure):
    """c_nvmlGpuFabricInfo_t."""

    _fields_ = FabricV3._fields_[1:-2]


class SramStatus(ctypes.Structure):
    """The first members of c_nvmlEccSramErrorStatus_v1_t."""

    _fields_ = tuple(
        (name, ctypes.c_ulonglong)
        for name in (
            "aggregateUncParity",
            "aggregateUncSecDed",
            "aggregateCor",
            "volatileUncParity",
            "volatileUncSecDed",
        )
    )


class _Value(ctypes.Union):
    _fields_ = (("dVal", ctypes.c_double), ("uiVal", ctypes.c_uint), ("ullVal", ctypes.c_ulonglong))


class _FieldValue(ctypes.Structure):
    _fields_ = (("nvmlReturn", ctypes.c_uint), ("valueType", ctypes.c_uint), ("value", _Value))


FIELDS: dict[int, int] = {161: 0, 162: 0, 163: 0, 164: 26562, 230: 0}
"""Field id → value on a Hopper GPU; every other one is not supported."""


def raising(code: int) -> Callable[..., Any]:
    """A call that ends with an NVML return code."""

    def call(*_: Any) -> Any:  # noqa: ANN401
        raise NVMLError(code)

    return call


def giving(value: Any) -> Callable[..., Any]:  # noqa: ANN401
    """A call that always gives `value`."""

    def call(*_: Any) -> Any:  # noqa: ANN401
        return value

    return call


def field_values(fields: dict[int, int]) -> Callable[..., Any]:
    """nvmlDeviceGetFieldValues that knows `fields`."""

    def call(_handle: Any, wanted: list[tuple[int, int]]) -> Any:  # noqa: ANN401
        values = (_FieldValue * len(wanted))()
        for value, (field, _scope) in zip(values, wanted, strict=True):
            value.nvmlReturn = 0 if field in fields else NOT_SUPPORTED
            value.valueType = 3
            value.value.ullVal = fields.get(field, 0)
        return values

    return call


def link_states(num_links: int, down: frozenset[int] = frozenset()) -> Callable[..., Any]:
    """nvmlDeviceGetNvLinkState of a GPU with that many links."""

    def call(_handle: Any, link: int) -> int:  # noqa: ANN401
        if link >= num_links:
            raise NVMLError(INVALID_ARGUMENT)
        return 0 if link in down else 1

    return call


def _filled(**values: Any) -> Callable[..., int]:  # noqa: ANN401
    def call(_handle: Any, pointer: Any) -> int:  # noqa: ANN401
        for name, value in values.items():
            if hasattr(pointer._obj, name):
                setattr(pointer._obj, name, value)
        return 0

    return call


def fabric(uuid: bytes = bytes(16), **values: int) -> Callable[..., int]:
    """nvmlDeviceGetGpuFabricInfoV: registered, success, unless told otherwise."""
    told = {"status": 0, "cliqueId": 0, "state": 3, "healthMask": 0, "healthSummary": 0, **values}
    return _filled(clusterUuid=(ctypes.c_uint8 * 16)(*uuid), **told)


def fake_pynvml(num_gpus: int = 2, **replaced: Any) -> types.ModuleType:  # noqa: ANN401
    """The module. `replaced`: attributes by name; None takes one away."""
    gib = 1024**3
    answers: dict[str, Any] = {
        "NVMLError": NVMLError,
        "c_nvmlGpuFabricInfo_v3_t": FabricV3,
        "c_nvmlGpuFabricInfo_v2_t": FabricV2,
        "c_nvmlGpuFabricInfo_t": FabricV1,
        "c_nvmlEccSramErrorStatus_v1_t": SramStatus,
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"580.159.04",
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
        "nvmlSystemGetConfComputeState": lambda: _ConfCompute(0),
        "nvmlDeviceGetCount": lambda: num_gpus,
        "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
        "nvmlDeviceGetName": giving(b"NVIDIA H200"),
        "nvmlDeviceGetUUID": lambda h: f"GPU-0000000{h[-1]}-0000-4000-8000-000000000000",
        "nvmlDeviceGetSerial": giving("1650000000000"),
        "nvmlDeviceGetPciInfo": lambda h: _PciInfo(f"00000000:00:0{6 + int(h[-1])}.0".encode()),
        "nvmlDeviceGetCudaComputeCapability": giving((9, 0)),
        "nvmlDeviceGetArchitecture": giving(9),
        "nvmlDeviceGetMemoryInfo": giving(_Memory(140 * gib, 139 * gib)),
        "nvmlDeviceGetBAR1MemoryInfo": giving(_Memory(bar1Total=256 * gib)),
        "nvmlDeviceGetCurrPcieLinkGeneration": giving(5),
        "nvmlDeviceGetMaxPcieLinkGeneration": giving(5),
        "nvmlDeviceGetCurrPcieLinkWidth": giving(16),
        "nvmlDeviceGetMaxPcieLinkWidth": giving(16),
        "nvmlDeviceGetClockInfo": lambda _, clock: {1: 345, 2: 3201}[clock],
        "nvmlDeviceGetMaxClockInfo": giving(1980),
        "nvmlDeviceGetUtilizationRates": giving(_Utilization(0)),
        "nvmlDeviceGetTemperature": giving(38),
        "nvmlDeviceGetPowerUsage": giving(104_627),
        "nvmlDeviceGetPersistenceMode": giving(1),
        "nvmlDeviceGetMigMode": giving([0, 0]),
        "nvmlDeviceGetComputeMode": giving(0),
        "nvmlDeviceGetEccMode": giving([1, 1]),
        "nvmlDeviceGetMemoryErrorCounter": giving(0),
        "nvmlDeviceGetRemappedRows": giving((0, 0, 0, 0)),
        "nvmlDeviceGetCurrentClocksEventReasons": giving(1),
        "nvmlDeviceGetSramEccErrorStatus": _filled(aggregateCor=5785),
        "nvmlDeviceGetGpuFabricInfoV": fabric(),
        "nvmlDeviceGetFieldValues": field_values(FIELDS),
        "nvmlDeviceGetNvLinkState": link_states(H200_LINKS),
        "nvmlDeviceGetNvLinkVersion": giving(6),
        "nvmlDeviceGetNvLinkRemoteDeviceType": giving(2),
        "nvmlDeviceGetNvLinkRemotePciInfo": giving(_PciInfo(b"FFFFFFFF:FF:FF.0")),
        "nvmlDeviceGetNvLinkErrorCounter": giving(7),
        "nvmlDeviceGetP2PStatus": giving(0),
    }
    module = types.ModuleType("pynvml")
    for name, value in {**answers, **replaced}.items():
        if value is not None:
            setattr(module, name, value)
    return module
