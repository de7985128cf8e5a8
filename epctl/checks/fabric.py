"""NVSwitch fabric: is the fabric manager there and of the right version, did the GPUs register, is the fabric healthy?"""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Gpu
from epctl.core.views import fabric, pcie
from epctl.core.views.needs import GPU, NVSWITCH
from epctl.core.views.versions import parse

SYSTEM_NOT_READY = 802
"""CUDA_ERROR_SYSTEM_NOT_READY (cuda.h)."""
REGISTRATION_S = 120
"""Registration may take this long after boot (huggingface/huggingface_hub#4128)."""
BLACKWELL = 10
"""NVML_DEVICE_ARCH_BLACKWELL: NVLink 5, whose switches need the NVLink subnet manager."""

_STATUS: dict[int, str] = {3: "not supported", 4: "no permission", 15: "GPU is lost", 16: "reset required",
                           23: "insufficient resources", 999: "unknown error"}  # fmt: skip
"""NVML return codes as they occur as a registration status (nvml.h)."""

_MASK_FIELDS: tuple[tuple[int, str], ...] = (
    (0, "degraded bandwidth"),
    (2, "route recovery in progress"),
    (4, "route unhealthy"),
    (6, "access timeout recovery"),
)
"""Two-bit fields of the fabric health mask by their lowest bit; 1 is true, 2 false, 0 not supported (nvml.h)."""
_CONFIGURATION_SHIFT = 8
_CONFIGURATION: dict[int, str] = {2: "wrong system GUID", 3: "wrong chassis serial number", 4: "no partition",
                                  5: "too few NVLinks", 6: "incompatible GPU firmware", 7: "invalid location",
                                  8: "invalid GPU state"}  # fmt: skip
"""Values of the four-bit field `incorrect configuration`; 0 not supported, 1 none (nvml.h)."""


@check(
    "FM-NOT-RUNNING",
    area="gpu",
    severity="fail",
    title="The fabric manager does not run on a machine with NVSwitches",
    why="NVSwitch routing is not set up, and the first CUDA call ends with error 802 although nvidia-smi lists the GPUs.",
    fix="Install the fabric manager of exactly the driver's version; when no job runs enable it at boot and start it.",
    commands=("sudo systemctl enable --now nvidia-fabricmanager", "systemctl status nvidia-fabricmanager"),
    reference="https://github.com/pytorch/pytorch/issues/35710 https://github.com/gpustack/gpustack/issues/4154 "
    "https://github.com/jax-ml/jax/issues/34113 https://github.com/NVIDIA/NVSentinel/issues/883",
    needs=(NVSWITCH,),
)
def fm_not_running(context: Context) -> Iterator[Seen]:
    node = context.node
    state, code = fabric.service(node, fabric.FABRIC_MANAGER), node.active.cu_init
    elsewhere = fabric.managed_elsewhere(node)
    cuda = f"; cuInit(0) returns {code}" if isinstance(code, int) else ""
    if state == "active":
        yield good("nvidia-fabricmanager is active (systemd)")
    elif fabric.runs(node, fabric.FABRIC_MANAGER) is True:
        yield good(f"{fabric.told(node, fabric.FABRIC_MANAGER)}, as in the driver container of the GPU Operator")
    elif elsewhere and fabric.works(node) and code != SYSTEM_NOT_READY:
        yield good(f"{elsewhere}; the GPUs are registered{cuda}")
    elif elsewhere and code != SYSTEM_NOT_READY:
        yield unread("fabric manager", Absent("unsupported", elsewhere))
    elif elsewhere:
        yield bad(
            f"cuInit(0) returns {SYSTEM_NOT_READY} (system not ready); {elsewhere}",
            fix="Look at the fabric manager where it runs (host, or NVLink switch trays), not in this system.",
            commands=("nvidia-smi -q | grep -A 4 Fabric",),
        )
    elif isinstance(state, str):
        yield _not_running(node, cuda)
    elif code == SYSTEM_NOT_READY:
        yield bad(f"cuInit(0) returns {SYSTEM_NOT_READY} (system not ready); nvidia-fabricmanager: {state}")
    else:
        yield unread("state of nvidia-fabricmanager", state)


def _not_running(node: Snapshot, cuda: str) -> Seen:
    """A fabric that works was set up by somebody: by a fabric manager in a container, or by one that has died since."""
    text = f"{fabric.told(node, fabric.FABRIC_MANAGER)} on a machine with NVSwitches{cuda}"
    code = node.active.cu_init
    if (code == 0 and fabric.works(node)) or (isinstance(code, Absent) and fabric.registered(node)):
        return bad(
            f"{text}; the GPUs are set up all the same",
            severity="warn",
            fix="Find out who set the fabric up: the driver container of the GPU Operator runs its own fabric manager, and then "
            "all is well. One that died no longer handles link errors or multicast: start it when no job runs.",
            commands=("pgrep -a nv-fabricmanage", "systemctl status nvidia-fabricmanager"),
        )
    return bad(text)


@check(
    "FM-VERSION-SKEW",
    area="gpu",
    severity="fail",
    title="Fabric manager and driver are of different versions",
    why="The fabric manager refuses any driver but its own version; after its next start every CUDA call ends with 802.",
    fix="Drain the node, install the fabric manager package with exactly the driver's version (that restarts it, which ends CUDA "
    "jobs), and pin both together.",
    commands=("nv-fabricmanager --version", "cat /proc/driver/nvidia/version"),
    reference="https://github.com/NVIDIA/gpu-operator/issues/544 https://github.com/Azure/azhpc-images/issues/86 "
    "https://github.com/NVIDIA/nvtrust/issues/55",
    needs=(NVSWITCH,),
)
def fm_version_skew(context: Context) -> Iterator[Seen]:
    node = context.node
    installed = node.gpu.driver.fabric_manager_version
    if isinstance(installed, Absent) and installed.absent in ("not_found", "tool_missing"):
        return
    if fabric.managed_elsewhere(node) and fabric.service(node, fabric.FABRIC_MANAGER) != "active":
        return
    version = known(installed, "version of the fabric manager")
    driver = known(node.gpu.driver.kernel_version, "version of the kernel module")
    text = f"fabric manager {version}, kernel module {driver}"
    yield good(text) if (parse(version) or version) == (parse(driver) or driver) else bad(text)


@check(
    "FM-NVLSM-MISSING",
    area="gpu",
    severity="fail",
    title="The NVLink subnet manager is missing beside the fabric manager",
    why="NVLink 5 switches need it: without it the fabric manager stops, GPUs stay In Progress and CUDA gives 802.",
    fix="Install the nvlsm package of the driver's release (with ib_umad), then start the fabric manager by its service. If it "
    "runs, drain the node before restarting it: CUDA jobs are aborted when the fabric manager ends.",
    commands=("sudo modprobe ib_umad", "sudo systemctl start nvidia-fabricmanager"),
    reference="https://github.com/siderolabs/extensions/pull/717 "
    "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
    needs=(NVSWITCH,),
)
def fm_nvlsm_missing(context: Context) -> Iterator[Seen]:
    node = context.node
    if fabric.rack_scale(node) or not any(
        known(gpu.architecture, f"GPU {gpu.index} architecture") >= BLACKWELL for gpu in pcie.gpus(node)
    ):
        return
    program = node.gpu.driver.nvlsm
    manager = fabric.service(node, fabric.FABRIC_MANAGER)
    waiting = [gpu.index for gpu in pcie.gpus(node) if gpu.fabric_state in ("in_progress", "not_started")]
    if isinstance(program, str) or fabric.runs(node, fabric.NVLSM) is True:
        yield good(f"NVLink subnet manager: {program if isinstance(program, str) else 'nvlsm runs'}")
    elif program.absent not in ("not_found", "tool_missing"):
        yield unread("NVLink subnet manager", program)
    elif waiting or manager == "failed":
        yield bad(f"no nvlsm program; nvidia-fabricmanager: {manager}; GPUs not registered: {waiting or 'none'}")
    else:
        yield good("no nvlsm program in this system, but every GPU is registered with the fabric")


@check(
    "FABRIC-STATE-INCOMPLETE",
    area="gpu",
    severity="fail",
    title="A GPU has not registered with the NVLink fabric",
    why="CUDA answers 802 (system not ready) until registration has completed with success.",
    fix="Wait two minutes after boot; then read fabricmanager.log and the NVLink states, drain the node and reset its GPUs.",
    commands=("nvidia-smi -q | grep -A 4 Fabric", "sudo tail -n 50 /var/log/fabricmanager.log"),
    reference="https://github.com/huggingface/huggingface_hub/issues/4128 https://github.com/Azure/azhpc-images/pull/506 "
    "https://github.com/leptonai/gpud/blob/main/pkg/nvidia/nvml/device/fabric_state.go",
    needs=(NVSWITCH,),
)
def fabric_state_incomplete(context: Context) -> Iterator[Seen]:
    node = context.node
    uptime = value_or(node.host.uptime_s, REGISTRATION_S)
    for gpu in pcie.gpus(node):
        if isinstance(gpu.fabric_state, Absent):
            if gpu.fabric_state.absent != "unsupported":
                yield unread(f"GPU {gpu.index} fabric state", gpu.fabric_state)
        elif gpu.fabric_state == "completed":
            yield _registration(gpu)
        elif gpu.fabric_state != "not_supported":
            early = uptime < REGISTRATION_S
            when = f", {uptime} s after boot" if early else ""
            severity: Severity | None = "warn" if early else None
            yield bad(f"GPU {gpu.index}: fabric state {gpu.fabric_state} (NVML){when}", severity=severity)
    if node.active.cu_init == SYSTEM_NOT_READY and fabric.registered(node):
        yield bad(f"cuInit(0) returns {SYSTEM_NOT_READY} although NVML says that every GPU is registered")


def _registration(gpu: Gpu) -> Seen:
    status = gpu.fabric_status
    if isinstance(status, Absent):
        return unread(f"GPU {gpu.index} fabric status", status)
    text = f"GPU {gpu.index}: fabric registration completed with status {status}"
    return bad(f"{text} ({_STATUS.get(status, 'an error')})") if status else good(text)


@check(
    "FABRIC-UNHEALTHY",
    area="gpu",
    severity="fail",
    title="The NVLink fabric of a GPU is not healthy",
    why="Tools may take it for 'no fabric' and fall back to the network without a clear message; performance collapses.",
    fix="Drain the node, then repair or reset the NVLink fabric (logs of the fabric manager or NMX); keep the node out of NVLink "
    "domains until then.",
    commands=("nvidia-smi -q | grep -A 12 Fabric",),
    reference="https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/626 "
    "https://github.com/leptonai/gpud/blob/main/pkg/nvidia/nvml/device/fabric_state.go",
    needs=(GPU, NVSWITCH),
)
def fabric_unhealthy(context: Context) -> Iterator[Seen]:
    for gpu in pcie.gpus(context.node):
        if gpu.fabric_state != "completed":
            continue
        summary, mask = gpu.fabric_health_summary, gpu.fabric_health_mask
        wrong = _troubles(mask) if isinstance(mask, int) else []
        if summary in ("unhealthy", "limited_capacity") or wrong:
            told = f"health {summary}" + (f", mask 0x{mask:x}" if isinstance(mask, int) else "")
            yield bad(f"GPU {gpu.index}: fabric {told}{': ' if wrong else ''}{', '.join(wrong)} (NVML)")
        elif summary == "not_supported" and not mask:
            continue  # this firmware has no health report
        elif isinstance(summary, str) or isinstance(mask, int):
            yield good(f"GPU {gpu.index}: fabric health {summary} (NVML)")
        elif summary.absent != "unsupported":
            yield unread(f"GPU {gpu.index} fabric health", summary)


def _troubles(mask: int) -> list[str]:
    found = [what for shift, what in _MASK_FIELDS if mask >> shift & 0b11 == 1]
    configuration = mask >> _CONFIGURATION_SHIFT & 0b1111
    if configuration > 1:
        found.append(f"incorrect configuration: {_CONFIGURATION.get(configuration, configuration)}")
    return found
