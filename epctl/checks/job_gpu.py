"""The log of a failed job: CUDA errors, NVLink SHARP, and memory that ranks of one node share."""

from __future__ import annotations

from epctl.checks._job import explains
from epctl.core.views.job import Sort

CUDA = ("cuda_failure", "unhandled_cuda_error")
OUT_OF_MEMORY = 2
_KERNEL_FAULTS = (700, 702, 715, 719)
_GPU_FAULTS = (46, 214, 220, 999)
_NOT_READY, _LIBRARIES, _OLD, _DEVICE, _PEER = (802,), (803, 804), (35,), (100, 101), (217,)
_KNOWN = (OUT_OF_MEMORY, *_KERNEL_FAULTS, *_GPU_FAULTS, *_NOT_READY, *_LIBRARIES, *_OLD, *_DEVICE, *_PEER)
_CUDA_ERRORS = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"

not_ready = explains(
    "JOB-CUDA-NOT-READY",
    Sort(CUDA, codes=_NOT_READY),
    severity="fail",
    title="CUDA was not ready (error 802): the NVLink fabric is not set up",
    why="On NVSwitch machines CUDA starts only when the fabric manager has programmed the switches.",
    fix="On a drained node start the fabric manager of the driver's exact version and wait until all GPUs are registered.",
    confirm=("FM-NOT-RUNNING", "FM-VERSION-SKEW", "FABRIC-STATE-INCOMPLETE", "FM-NVLSM-MISSING"),
    nothing="CUDA error 802",
    reference="https://github.com/pytorch/pytorch/issues/35710 https://github.com/wilicc/gpu-burn/issues/92",
)

libraries = explains(
    "JOB-CUDA-LIBRARIES",
    Sort(CUDA, codes=_LIBRARIES),
    severity="fail",
    title="CUDA's driver library does not fit the kernel driver (error 803 or 804)",
    why="The process loaded a libcuda of another driver: a forward-compatibility copy in the image, or one left by a half-done update.",
    fix="Take the compat folder off the loader path, or drain the host and bring its driver to the branch that the image needs, and "
    "reboot after driver updates.",
    confirm=("DRV-FWD-COMPAT", "DRV-NVML-MISMATCH"),
    nothing="CUDA error 803 or 804",
    reference="https://github.com/gpustack/gpustack/issues/1254",
)

driver_old = explains(
    "JOB-CUDA-DRIVER-OLD",
    Sort(CUDA, codes=_OLD),
    severity="fail",
    title="The driver is too old for the CUDA of the program (error 35)",
    why="PyTorch or NCCL was built for a newer CUDA than this driver serves.",
    fix="Install the wheels of an older CUDA major version, or drain the node and upgrade its driver.",
    confirm=("DRV-TOO-OLD", "CUDA-MAJOR-MIX"),
    nothing="CUDA error 35",
    reference="https://github.com/deepseek-ai/DeepEP/issues/519",
)

kernel_fault = explains(
    "JOB-CUDA-KERNEL-FAULT",
    Sort(CUDA, codes=_KERNEL_FAULTS),
    severity="fail",
    title="A kernel on the GPU failed (illegal address, launch failure)",
    why="CUDA reports it at the next call, so NCCL is often only the messenger: any kernel of the process may have done it, and a "
    "broken GPU or NVLink can.",
    fix="Run the program once with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer; if the kernel log has an Xid other than 13 or "
    "31 at that time, look at the GPU first.",
    confirm=("GPU-XID-FATAL", "GPU-XID-NVLINK5", "GPU-ECC-SRAM", "IBGDA-REGKEY"),
    commands=("sudo dmesg --ctime | grep -i xid | tail -20",),
    nothing="CUDA error 700, 702, 715 or 719",
    reference=f"{_CUDA_ERRORS} https://docs.nvidia.com/deploy/xid-errors/",
)

gpu_fault = explains(
    "JOB-CUDA-GPU-FAULT",
    Sort(CUDA, codes=_GPU_FAULTS),
    severity="fail",
    title="A GPU failed or cannot be used (error 46, 214, 220 or 999)",
    why="Uncorrectable memory or NVLink errors and a busy or lost device come from the hardware or the driver, not from NCCL.",
    fix="Read the Xid messages of the kernel log; drain the node, reset the GPU, replace it when the error returns.",
    confirm=("GPU-XID-FATAL", "GPU-XID-NVLINK5", "GPU-ROW-REMAP-FAILED", "NVLINK-INACTIVE", "CTR-NVML-UNKNOWN"),
    commands=("sudo dmesg --ctime | grep -i xid | tail -20",),
    nothing="CUDA error 46, 214, 220 or 999",
    reference=f"{_CUDA_ERRORS} https://docs.nvidia.com/deploy/xid-errors/",
)

out_of_memory = explains(
    "JOB-CUDA-OUT-OF-MEMORY",
    Sort((*CUDA, "cumem_failed", "nvls_failed"), codes=(OUT_OF_MEMORY,)),
    Sort(("out_of_memory",)),
    severity="fail",
    title="There was no memory left for communication buffers",
    why="The framework took the GPU's memory before NCCL, NVSHMEM or the EP buffers asked for theirs; leftover processes do the same.",
    fix="Build the EP buffers before the KV cache, lower the framework's share of memory or the buffers' size, end leftover processes.",
    confirm=("NVSHMEM-HEAP-OOM",),
    commands=("nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv",),
    nothing="failed allocation",
    reference="https://github.com/deepseek-ai/DeepEP/issues/157 https://github.com/sgl-project/sglang/issues/29942",
)

no_device = explains(
    "JOB-CUDA-NO-DEVICE",
    Sort(CUDA, codes=_DEVICE),
    severity="fail",
    title="A rank asked for a GPU that it cannot see (error 100 or 101)",
    why="The local rank does not fit the GPUs that the container or CUDA_VISIBLE_DEVICES leaves over; importing a peer's memory also "
    "needs the peer's GPU to be visible.",
    fix="Give every process all GPUs of the node and choose by local rank; check the device plugin's limits.",
    confirm=("GPU-COUNT-SHORT", "CTR-CVD-PER-RANK", "CTR-GPU-ISOLATED"),
    commands=("nvidia-smi -L",),
    nothing="CUDA error 100 or 101",
    reference="https://github.com/NVIDIA/nccl/issues/1647",
)

no_peer_access = explains(
    "JOB-CUDA-NO-PEER-ACCESS",
    Sort(CUDA, codes=_PEER),
    severity="fail",
    title="GPUs of one node cannot reach each other (error 217)",
    why="Kernels inside a node write into the peers' memory; here the driver does not allow it for at least one pair.",
    fix="Use GPUs that NVLink or one PCIe switch joins; on a drained node turn MIG and confidential computing off, and ACS off on bare "
    "metal.",
    confirm=("GPU-P2P-PARTIAL", "GPU-MIG-ON", "GPU-CC-MODE", "NVLINK-PAIRWISE-ONLY"),
    commands=("nvidia-smi topo -p2p r",),
    nothing="CUDA error 217",
    reference="https://github.com/deepseek-ai/DeepEP/issues/584",
)

other_cuda = explains(
    "JOB-CUDA-OTHER",
    Sort(("cuda_failure",), apart_from=_KNOWN),
    severity="fail",
    title="A CUDA call failed",
    why="NCCL stops at the first CUDA error; the number tells what it was.",
    fix="Look the number up in CUDA's list of errors. Error 1 or 801 in memory calls comes with virtual machines and old drivers.",
    confirm=("DRV-TOO-OLD", "GPU-XID-FATAL"),
    nothing="other CUDA error",
    reference=_CUDA_ERRORS,
)

nvls = explains(
    "JOB-NVLS-FAILED",
    Sort(("nvls_failed",), apart_from=(OUT_OF_MEMORY,)),
    severity="fail",
    title="NVLink SHARP (multicast) could not be set up",
    why="Multicast memory is bound by the NVSwitches: 401 and 1 mean that the fabric manager or its partition does not serve it, 800 "
    "that the process has no right to the fabric (IMEX channel), 801 that driver or virtual machine lacks it.",
    fix="Set NCCL_NVLS_ENABLE=0 for the moment: the job runs, with slower all-reduces. For 401 and 1 drain the node, then restart the "
    "fabric manager and reset the GPUs (both end every job on it); for 800 create or pass the IMEX channel.",
    confirm=("NVLS-BIND-401", "FM-NOT-RUNNING", "FABRIC-STATE-INCOMPLETE", "IMEX-CHANNEL-MISSING"),
    nothing="failed NVLS or multicast call",
    reference="https://github.com/NVIDIA/nccl/issues/1672 https://github.com/pytorch/pytorch/issues/177472",
)

cumem = explains(
    "JOB-CUMEM-FAILED",
    Sort(("cumem_failed",), apart_from=(OUT_OF_MEMORY,)),
    severity="fail",
    title="cuMem memory could not be made or shared",
    why="Ranks exchange cuMem handles: 800 (not permitted) is a missing IMEX channel or a forbidden way to pass descriptors, 101 a peer "
    "GPU that this container does not see, 1 a platform without that type of handle.",
    fix="Pass the IMEX channel on NVL72 systems; allow pidfd_getfd (SYS_PTRACE) and make all GPUs of the node visible. "
    "NCCL_CUMEM_ENABLE=0 shows whether this is it, but rules out symmetric memory and GIN.",
    confirm=("IMEX-CHANNEL-MISSING", "CTR-UNPRIV-GB200", "CTR-GPU-ISOLATED", "LIM-PTRACE"),
    nothing="failed cuMem call",
    reference="https://github.com/NVIDIA/nvbandwidth/issues/39 https://github.com/NVIDIA/nccl/issues/1925",
)
