"""Whether kernels can run on this machine, and what is missing when they cannot; without loading PyTorch or CUDA."""

from __future__ import annotations

import os
from importlib.util import find_spec

from msgspec import Struct

from epctl.core.errors import EpctlError


class Devices(Struct, frozen=True):
    """GPUs that ranks may use."""

    num_gpus: int
    missing: str = ""
    """Why there are none, or why none can be used; '' when they can."""
    fix: str = ""


def visible() -> Devices:
    """Of this process; never raises."""
    count, why = _count()
    if not count:
        return Devices(0, why, "run where there is a GPU; epctl doctor names what its driver lacks")
    hidden = _hidden(os.environ.get("CUDA_VISIBLE_DEVICES"), count)
    if hidden == 0:
        return Devices(0, "CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES")
    if find_spec("torch") is None:
        return Devices(0, "PyTorch is not installed", "pip install 'epctl[gpu]'")
    local = _torch_version().partition("+")[2]
    if local.startswith("cpu"):
        return Devices(0, f"PyTorch is built without CUDA ({_torch_version()})", "install PyTorch for CUDA")
    return Devices(hidden)


def _count() -> tuple[int, str]:
    try:
        import pynvml
    except ImportError as error:
        return 0, f"nvidia-ml-py cannot be imported: {error}"
    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return 0, f"NVML: {error}"
    return count, "" if count else "NVML sees no GPU"


def _hidden(spec: str | None, count: int) -> int:
    """How many GPUs CUDA shows: entries before the first one that is not valid count (CUDA programming guide, environment
    variables). Names of GPUs are believed."""
    if spec is None:
        return count
    shown = 0
    for entry in spec.split(","):
        word = entry.strip()
        number = int(word) if word.isascii() and word.isdigit() else None
        if not word.startswith(("GPU-", "MIG-")) and (number is None or number >= count):
            break
        shown += 1
    return shown


def _torch_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def required(devices: Devices, what: str, instead: str = "--device cpu") -> int:
    """The number of GPUs. Raises EpctlError, exit code 4, that says what is missing and names the option for the CPU tier."""
    if devices.num_gpus:
        return devices.num_gpus
    raise EpctlError(
        f"{what} needs a GPU, and none can be used here",
        devices.missing,
        f"{devices.fix}; {instead} runs the same ops in plain PyTorch, which shows that they work and no speed",
        exit_code=4,
    )
