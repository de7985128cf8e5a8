"""Checks of what takes NCCL's symmetric memory away."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Need, Seen, bad, check, good
from epctl.core.context import Context
from epctl.core.views import gin, needs
from epctl.core.views.settings import is_off, is_on, setting, told


def _symmetric(context: Context) -> str:
    if not needs.has_gpu(context.node):
        return "no NVIDIA GPU in this machine"
    asks = context.wants("symmetric_memory") or gin.wanted(context)
    return "" if asks else "no library in use here asks for symmetric memory"


SYMMETRIC = Need("symmetric_memory", _symmetric)


@check(
    "SYMMEM-CUMEM-OFF",
    area="nccl",
    severity="fail",
    title="cuMem allocations are off, so NCCL has no symmetric memory",
    why="NCCL's device API stands on cuMem allocations; without them device communicators and windows cannot be made.",
    fix="Unset NCCL_CUMEM_ENABLE (or set it to 1) for EP processes; serving frameworks and old recipes set it to 0.",
    commands=("unset NCCL_CUMEM_ENABLE",),
    reference="https://github.com/vllm-project/vllm/pull/24532 https://github.com/vllm-project/vllm/issues/5091",
    needs=(SYMMETRIC,),
)
def symmem_cumem_off(context: Context) -> Iterator[Seen]:
    if is_off(context, "NCCL_CUMEM_ENABLE"):
        yield bad(told(context, "NCCL_CUMEM_ENABLE"))
        return
    yield good("NCCL_CUMEM_ENABLE does not switch cuMem off")


@check(
    "SYMMEM-P2P-WIN-OFF",
    area="nccl",
    severity="fail",
    title="A debugging variable takes symmetric memory away",
    why="Symmetric memory needs CUDA P2P inside the NVLink domain and window support; with either off, device communicators fail.",
    fix="Unset NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and NCCL_WIN_ENABLE.",
    commands=("unset NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_WIN_ENABLE",),
    reference="https://github.com/NVIDIA/nccl/blob/master/src/init.cc",
    needs=(SYMMETRIC,),
)
def symmem_p2p_win_off(context: Context) -> Iterator[Seen]:
    wrong = []
    if is_on(context, "NCCL_P2P_DISABLE"):
        wrong.append("NCCL_P2P_DISABLE")
    level = setting(context, "NCCL_P2P_LEVEL")
    if level is not None and level.strip().upper() in ("LOC", "0"):
        wrong.append("NCCL_P2P_LEVEL")
    if is_off(context, "NCCL_WIN_ENABLE"):
        wrong.append("NCCL_WIN_ENABLE")
    for name in wrong:
        yield bad(told(context, name))
    if not wrong:
        yield good("NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and NCCL_WIN_ENABLE leave P2P and windows on")
