"""Clocks of a GPU, why they are held down, and who else uses it, before and after timing."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from msgspec import Struct

SLOWED = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that hold clocks down against what was set (NVML reference,
nvmlClocksEventReasons); 0x1 idle, 0x2 application clocks and 0x100 display clocks are as somebody wanted them."""
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t
T = TypeVar("T")


class Clocks(Struct, frozen=True):
    """Of one GPU at one moment; None for what NVML does not tell."""

    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    memory_mhz: int | None = None
    reasons: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    utilization_percent: int | None = None
    num_processes: int | None = None
    """That have a compute context on it, ours among them."""
    missing: str = ""
    """Why nothing could be read."""

    def slowed(self) -> tuple[str, ...]:
        """What holds the clocks down."""
        return tuple(word for bit, word in SLOWED.items() if (self.reasons or 0) & bit)


def read(uuid: str) -> Clocks:
    """Of the GPU with that NVML identity (`GPU-…`); never raises."""
    try:
        import pynvml
    except ImportError as error:
        return Clocks(missing=f"nvidia-ml-py cannot be imported: {error}")
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        return Clocks(missing=str(error))
    return _read(pynvml, handle)


def _read(nvml: ModuleType, handle: Any) -> Clocks:  # noqa: ANN401
    def ask(call: Callable[[], T]) -> T | None:
        try:
            return call()
        except (nvml.NVMLError, AttributeError):
            return None

    power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return Clocks(
        sm_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK))),
        sm_max_mhz=ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, _SM_CLOCK))),
        memory_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, _MEMORY_CLOCK))),
        reasons=ask(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))),
        temperature_c=ask(lambda: int(nvml.nvmlDeviceGetTemperature(handle, 0))),
        power_w=None if power is None else power / 1e3,
        utilization_percent=ask(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        num_processes=ask(lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle))),
    )


class RankClocks(Struct, frozen=True):
    """Before and after the timing of one rank."""

    rank: int
    uuid: str
    before: Clocks
    after: Clocks


def warnings(every: list[RankClocks]) -> tuple[str, ...]:
    """What makes figures doubtful, in words."""
    told = []
    for one in every:
        ranks_here = sum(other.uuid == one.uuid for other in every)
        running = one.before.num_processes
        if running is not None and running > ranks_here:
            others = running - ranks_here
            told.append(
                f"rank {one.rank}'s GPU is busy: {others} other {'process has' if others == 1 else 'processes have'} a context on it"
            )
        for name, clocks in (("before", one.before), ("after", one.after)):
            if clocks.slowed():
                told.append(f"rank {one.rank}'s clocks are held down {name} timing: {', '.join(clocks.slowed())}")
        if one.before.missing:
            told.append(f"rank {one.rank}'s clocks could not be read: {one.before.missing}")
    return tuple(told)
