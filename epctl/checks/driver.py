"""Driver and CUDA: is there a driver, do its parts belong together, does it carry what is installed?"""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, Fact, known, value_or
from epctl.core.views.needs import GPU, gpu_functions
from epctl.core.views.versions import below, major

NVML_NOT_LOADED, NVML_NO_LIBRARY, NVML_MISMATCH = 9, 12, 18
CUDA_MISMATCH, CUDA_COMPAT_UNSUPPORTED = 803, 804
"""CUDA_ERROR_SYSTEM_DRIVER_MISMATCH and CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (cuda.h)."""

NONE_THERE = ("not_found", "tool_missing", "unsupported")
"""Reasons of an absent version that say: this part is not installed. There is nothing to compare then."""

FIRST_DRIVER = 300
"""Driver branches that know CUDA's present GPUs are numbered above this; a lower number is no driver version."""


@check(
    "NODE-NO-DRIVER",
    area="driver",
    severity="fail",
    title="The machine has an NVIDIA GPU, but no working driver",
    why="Without the kernel module and NVML nothing can reach the GPUs.",
    fix="Install the NVIDIA driver (open kernel modules) for this kernel when no job runs, load it, and look at the kernel log if it "
    "does not load.",
    commands=("sudo modprobe nvidia", "nvidia-smi"),
    reference="https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
    needs=(GPU,),
)
def node_no_driver(context: Context) -> Iterator[Seen]:
    driver = context.node.gpu.driver
    version, code = driver.kernel_version, driver.nvml_code
    if isinstance(version, str) and code == NVML_NO_LIBRARY:
        yield bad(
            f"kernel module {version} is loaded, but NVML's library is not found (nvmlInit returns 12)",
            fix="On a drained node install the user-space part of the same driver; for a container, start it with GPUs "
            "(--gpus all) and NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
            commands=("nvidia-smi",),
        )
    elif isinstance(code, int) and code not in (0, NVML_NOT_LOADED, NVML_NO_LIBRARY, NVML_MISMATCH):
        yield bad(
            f"nvmlInit returns {code} ({driver.nvml_message or 'no message'}), "
            f"{f'with kernel module {version} loaded' if isinstance(version, str) else 'kernel module unknown'}",
            fix="Look at the kernel log for what the driver says, then reload the driver or reboot when no job runs.",
            commands=("sudo dmesg | grep -iE 'nvrm|nvidia'",),
        )
    elif isinstance(version, str) and isinstance(code, Absent) and code.absent in ("timed_out", "failed"):
        yield unread("nvmlInit", code)
    elif isinstance(version, str):
        yield good(f"kernel module {version} is loaded (/proc/driver/nvidia/version)")
    elif code in (0, NVML_MISMATCH):
        yield good(f"a driver answers NVML (nvmlInit returns {code})")
    elif version.absent != "not_found":
        yield unread("/proc/driver/nvidia/version", version)
    elif isinstance(code, Absent):
        yield unread("nvmlInit", code)
    else:
        yield bad(
            f"no /proc/driver/nvidia/version, and nvmlInit returns {code} ({driver.nvml_message or 'no message'}); "
            f"{_bound(context)}"
        )


def _bound(context: Context) -> str:
    functions = value_or(context.node.pcie.functions, ())
    addresses = gpu_functions(context.node) if functions else ()
    drivers = {entry.driver for entry in functions if entry.pci in addresses and isinstance(entry.driver, str)}
    return f"GPUs on the PCI bus: {', '.join(addresses) or 'unknown'}" + (
        f" (bound to {', '.join(sorted(drivers))})" if drivers else ""
    )


@check(
    "DRV-NVML-MISMATCH",
    area="driver",
    severity="fail",
    title="Driver libraries and the loaded kernel module are of different versions",
    why="NVML and CUDA refuse to start when the libraries on disk are not those of the kernel module in memory.",
    fix="Drain the node and reboot it (or unload and load all nvidia modules); keep NVIDIA packages out of unattended upgrades.",
    commands=("cat /proc/driver/nvidia/version", "ldconfig -p | grep -E 'libcuda.so.1|libnvidia-ml.so.1'"),
    reference="https://github.com/pando85/homelab/issues/4110 https://github.com/lyulyul/shine-cluster/issues/30",
    needs=(GPU,),
)
def drv_nvml_mismatch(context: Context) -> Iterator[Seen]:
    driver = context.node.gpu.driver
    if driver.nvml_code == NVML_MISMATCH:
        yield bad(f"nvmlInit returns 18 ({driver.nvml_message or 'driver/library version mismatch'})")
    elif isinstance(driver.nvml_code, Absent):
        yield unread("nvmlInit", driver.nvml_code)
    elif driver.nvml_code == 0:
        yield good("nvmlInit returns 0: its library fits the kernel module")
    if isinstance(driver.kernel_version, Absent):
        if driver.kernel_version.absent not in NONE_THERE:
            yield unread("/proc/driver/nvidia/version", driver.kernel_version)
        return
    for path, version in (
        (driver.libnvidia_ml, driver.libnvidia_ml_version),
        (driver.libcuda, driver.libcuda_version),
    ):
        yield from _same_release(driver.kernel_version, path, version)


def _same_release(kernel: str, path: Fact[str], version: Fact[str]) -> Iterator[Seen]:
    """A library of the compat package is meant to be newer, a stub or a loader's link (libcuda.so.1.1) carries no driver
    version: they are not compared."""
    if isinstance(path, Absent):
        if path.absent not in NONE_THERE:
            yield unread("path of a driver library", path)
    elif "/compat/" in path or "/stubs/" in path:
        return
    elif isinstance(version, Absent):
        yield unread(f"version of {path}", version)
    elif (major(version) or 0) < FIRST_DRIVER:
        return
    elif below(version, kernel) is not False or below(kernel, version) is not False:
        yield bad(f"{path} is {version}, the loaded kernel module is {kernel} (/proc/driver/nvidia/version)")
    else:
        yield good(f"{path} and the kernel module are {kernel}")


@check(
    "DRV-FWD-COMPAT",
    area="driver",
    severity="fail",
    title="CUDA picks a forward-compatibility library that this driver or GPU does not accept",
    why="A libcuda of the compat package is found first; CUDA then ends with error 803 or 804 although the host's driver is fine.",
    fix="Take the compat folder out of LD_LIBRARY_PATH and ld.so.conf.d; or drain the node and upgrade the host's driver to the branch "
    "that the image needs.",
    commands=("ldconfig -p | grep libcuda.so.1", "echo $LD_LIBRARY_PATH"),
    reference="https://github.com/gpustack/gpustack/issues/1254 "
    "https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html",
    needs=(GPU,),
)
def drv_fwd_compat(context: Context) -> Iterator[Seen]:
    driver, code = context.node.gpu.driver, context.node.active.cu_init
    path = value_or(driver.libcuda, "")
    kernel = value_or(driver.kernel_version, "unknown")
    where = f"libcuda is {path or 'unknown'}, the kernel module {kernel}"
    if code in (CUDA_MISMATCH, CUDA_COMPAT_UNSUPPORTED):
        yield bad(f"cuInit(0) returns {code}; {where}")
    elif code == 0:
        yield good(f"cuInit(0) returns 0; {where}")
    elif isinstance(driver.libcuda, Absent):
        if driver.libcuda.absent not in NONE_THERE:
            yield unread("path of libcuda.so.1", driver.libcuda)
    elif "/compat/" not in path:
        yield good(f"{where}: no forward-compatibility library")
    elif isinstance(code, Absent):
        yield bad(f"{where}; whether CUDA accepts that was not tried ({code})", severity="warn")
    else:
        yield bad(f"{where}; cuInit(0) returns {code}", severity="warn")


@check(
    "DRV-UVM-MISSING",
    area="driver",
    severity="fail",
    title="NVIDIA's unified memory driver is not available",
    why="NCCL from 2.23 on builds CUDA memory pools on it; its start or a graph capture fails, while plain CUDA calls may work.",
    fix="When no job runs load nvidia-uvm and create its device node; pass it to the container; in a vGPU guest enable UVM in the "
    "profile.",
    commands=("sudo modprobe nvidia-uvm", "sudo nvidia-modprobe -u -c=0"),
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    needs=(GPU,),
)
def drv_uvm_missing(context: Context) -> Iterator[Seen]:
    nccl = value_or(context.node.software.nccl_effective, "")
    if nccl and below(nccl, "2.23"):
        yield good(f"NCCL {nccl} does without unified memory (needed from 2.23 on)")
        return
    nodes, modules = context.node.host.nvidia_nodes, context.node.host.modules
    if context.node.active.cu_init == 0 and not _uvm_before(context):
        yield good("cuInit works: the first CUDA call after boot loads nvidia_uvm, which was not there before it")
        return
    untried = _untried(context)
    if untried is not None:
        yield unread("whether CUDA loads nvidia_uvm, which is not there before the first CUDA call after boot", untried)
        return
    if isinstance(nodes, Absent):
        yield unread("/dev/nvidia*", nodes)
    else:
        node = next((entry for entry in nodes if entry.path == "/dev/nvidia-uvm"), None)
        if node is None:
            yield bad("/dev/nvidia-uvm does not exist")
        elif node.read_write is False:
            yield bad(
                "/dev/nvidia-uvm may not be read and written by this user",
                fix="Give the user or the container access to /dev/nvidia-uvm.",
                commands=("ls -l /dev/nvidia-uvm",),
            )
        elif isinstance(node.read_write, Absent):
            yield unread("access to /dev/nvidia-uvm", node.read_write)
        else:
            yield good("/dev/nvidia-uvm is there and may be used")
    if isinstance(modules, Absent):
        yield unread("/proc/modules", modules)
    elif any(module.name == "nvidia_uvm" for module in modules):
        yield good("module nvidia_uvm is loaded (/proc/modules)")
    else:
        yield bad("module nvidia_uvm is not loaded (/proc/modules)")


def _untried(context: Context) -> Absent | None:
    """On a host CUDA itself loads the module and makes its node (nvidia-modprobe), and no CUDA call was made by epctl. In a
    container it cannot."""
    host = context.node.host
    readable = isinstance(host.nvidia_nodes, tuple) and isinstance(host.modules, tuple)
    code = context.node.active.cu_init
    if isinstance(code, Absent) and readable and host.container == "none" and not _uvm_before(context):
        return code
    return None


def _uvm_before(context: Context) -> bool:
    """Any trace of UVM in what was read while the first CUDA call of the active probe may not have been made yet."""
    node = context.node.host
    return any(entry.path == "/dev/nvidia-uvm" for entry in value_or(node.nvidia_nodes, ())) or any(
        module.name == "nvidia_uvm" for module in value_or(node.modules, ())
    )


@check(
    "DRV-TOO-OLD",
    area="driver",
    severity="fail",
    title="The driver is older than the CUDA major of PyTorch",
    why="The first CUDA call ends with 'driver version is insufficient' (35), although nvidia-smi shows the GPUs.",
    fix="Install the wheels of the CUDA major that the driver has; or drain the node and upgrade the driver to the branch of that CUDA "
    "major.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/519",
    needs=(GPU,),
)
def drv_too_old(context: Context) -> Iterator[Seen]:
    torch = context.node.software.torch_cuda
    if isinstance(torch, Absent) and torch.absent in NONE_THERE:
        return
    wanted = major(known(torch, "CUDA version of PyTorch"))
    active, nvml = context.node.active.cu_driver_version, context.node.gpu.driver.cuda_version
    code, origin = (active, "cuDriverGetVersion") if isinstance(active, int) and active > 0 else (nvml, "NVML")
    have = known(code, "CUDA version of the driver")
    text = f"the driver supports CUDA {have // 1000}.{have % 1000 // 10} ({origin}), PyTorch is built for CUDA {torch}"
    if wanted is None:
        yield unread("CUDA version of PyTorch", Absent("unparsable", line=str(torch)))
    elif have // 1000 < wanted:
        yield bad(text)
    else:
        yield good(text)
