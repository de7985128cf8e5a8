"""CUDA: are the GPUs of a generation that the libraries serve, do all parts belong to one CUDA major?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from epctl.checks.driver import NONE_THERE
from epctl.core.check import Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.views import pcie
from epctl.core.views.needs import GPU, NVML
from epctl.core.views.versions import below, major

GIN_FLOOR = "7.0"
"""Lowest compute capability with GIN (NVIDIA/nccl src/plugin/gin.cc)."""

_PACKAGE = re.compile(r"nvidia-(?:nccl|nvshmem)-cu(\d{2})")
_FOLDER = re.compile(r"cu(?:da)?[-_]?(1[1-9])(?!\d)")


@check(
    "CUDA-ARCH-UNSUPPORTED",
    area="driver",
    severity="fail",
    title="A GPU is of a generation that the EP library has no kernels for",
    why="The library's kernels use features of newer GPUs (TMA, clusters), and GIN itself asks for compute capability 7.0.",
    fix="Use GPUs of at least that generation, or another all-to-all backend.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/481 https://github.com/deepseek-ai/DeepEP/issues/429 "
    "https://github.com/NVIDIA/nccl/blob/master/src/plugin/gin.cc",
    needs=(NVML,),
)
def cuda_arch_unsupported(context: Context) -> Iterator[Seen]:
    floors = [(profile.title, floor) for profile, floor in context.floors("compute_capability")]
    floors += [
        (f"GIN, for {profile.title},", GIN_FLOOR)
        for profile in context.wants("gin")
        if "compute_capability" not in profile.floors
    ]
    for gpu in pcie.gpus(context.node):
        for title, floor in floors:
            have = known(gpu.compute_capability, f"compute capability of GPU {gpu.index}")
            text = f"GPU {gpu.index}: compute capability {have} ({value_or(gpu.name, 'name unknown')}), {title} needs {floor}"
            yield bad(text) if below(have, floor) else good(text)


@check(
    "CUDA-MAJOR-MIX",
    area="driver",
    severity="fail",
    title="CUDA majors are mixed among compiler, PyTorch, NCCL and NVSHMEM",
    why="Builds stop in CUDA or NVSHMEM headers, or a library of the other major is linked and fails when it is loaded.",
    fix="Install the -cu variant that belongs to torch.version.cuda, and point CUDA_HOME to a toolkit of that major.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/476",
    needs=(GPU,),
)
def cuda_major_mix(context: Context) -> Iterator[Seen]:
    software = context.node.software
    found: list[tuple[str, int]] = []
    for what, fact in (("PyTorch", software.torch_cuda), ("nvcc", software.toolchain.nvcc_version)):
        if isinstance(fact, Absent):
            if fact.absent not in NONE_THERE:
                yield unread(f"CUDA version of {what}", fact)
        elif (number := major(fact)) is not None:
            found.append((f"{what} (CUDA {fact})", number))
    for name, version in context.distributions.items():
        if hit := _PACKAGE.fullmatch(name):
            found.append((f"{name} {version}", int(hit.group(1))))
    root = context.env.get("NVSHMEM_DIR", "") if isinstance(context.node.env.variables, tuple) else ""
    if hit := _FOLDER.search(root):
        found.append((f"NVSHMEM_DIR={root}", int(hit.group(1))))
    if len(found) < 2:
        return
    first, wanted = found[0]
    others = [what for what, number in found if number != wanted]
    compiles = context.wants("jit") or context.wants("nvshmem")
    only_nvcc = all(what.startswith("nvcc ") for what in others)
    if others:
        yield bad(
            f"{first} is of CUDA {wanted}, but {', '.join(others)} not",
            severity="warn" if only_nvcc and not compiles else None,
        )
    else:
        yield good(f"all of CUDA {wanted}: {', '.join(what for what, _ in found)}")


@check(
    "CUDA-VMM-GDR-ATTR",
    area="driver",
    severity="fail",
    title="A GPU does not offer GPUDirect RDMA for cuMem allocations",
    why="NCCL offers GIN only when every rank has it, and symmetric memory of the EP libraries is allocated that way.",
    fix="Use a supported GPU or full passthrough; in a VM enable GPUDirect in the GPU's profile; update the driver (drain the node "
    "first).",
    reference="https://github.com/NVIDIA/nccl/blob/master/src/init.cc https://pypi.org/project/deepinfer-ep/2.5.0/",
    needs=(GPU,),
)
def cuda_vmm_gdr_attr(context: Context) -> Iterator[Seen]:
    needed = context.num_nodes > 1 or context.profile("deepep-2.5") is not None
    for device in known(context.node.active.devices, "CUDA device attributes"):
        name = f"CUDA device {device.ordinal}: GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"
        if isinstance(device.gdr_with_vmm, Absent):
            yield unread(name, device.gdr_with_vmm)
        elif device.gdr_with_vmm:
            yield good(f"{name} = 1")
        else:
            yield bad(f"{name} = 0", severity=None if needed else "warn")
