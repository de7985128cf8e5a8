"""Limits of the DeepEP 2.5.0 kernels and host code that its own planner does not look at: a plan past one of them cannot be launched."""

from __future__ import annotations

from functools import lru_cache

from epctl.model.traffic import Domain

_DISPATCH = "deepinfer-ep 2.5.0, impls/ep/hybrid_dispatch.cuh"
_COMPILED = "deepinfer-ep 2.5.0, common/compiled.cuh"
_WORKSPACE = "deepinfer-ep 2.5.0, layout/ep/workspace.cuh"

KERNEL_LIMITS: dict[str, tuple[str, str]] = {
    "needs_sm90": (
        "the kernels need compute capability 9.0: they copy in bulk (TMA)",
        "compute capability that the profiles of DeepEP and of epctl ask for",
    ),
    "needs_gdaki": (
        "between nodes there is GDAKI alone, which takes mlx5 devices; on EFA it takes Amazon's fork (EFA-GDA)",
        "deepinfer-ep 2.5.0 compiles the GDAKI device path alone (profile deepep-2.5)",
    ),
    "ranks_over_1024": ("a communicator has at most 1,024 ranks", f"{_COMPILED}, kNumMaxRanks"),
    "experts_over_2048": ("the workspace counts at most 2,048 experts", f"{_WORKSPACE}, kNumMaxExperts"),
    "local_experts_over_512": ("a rank holds at most 512 experts", f"{_WORKSPACE}, kNumMaxExpertsPerRank"),
    "topk_over_32": (
        "a warp handles one selection a lane: top-k is at most 32",
        "deepinfer-ep 2.5.0, impls/ep/dispatch.cuh",
    ),
    "hybrid_scaleout_over_32": ("two-level kernels take at most 32 nodes, one a lane", _DISPATCH),
    "hybrid_scaleup_over_64": ("two-level kernels take at most 64 GPUs a node, one a bit of a mask", _DISPATCH),
    "hybrid_scaleup_plus_local_experts_over_128": (
        "GPUs a node plus experts a rank must fit 128 notify threads",
        _DISPATCH,
    ),
    "hybrid_sms_over_160": (
        "two-level kernels run on at most 160 SMs",
        "deepinfer-ep 2.5.0, csrc/buffers/ep.hpp, kNumMaxSMs",
    ),
    "hidden_not_256_multiple": (
        "combine handles 256 BF16 values a warp step: hidden must divide by 256",
        "impls/ep/combine.cuh",
    ),
    "slots_over_int32": (
        "slots of one peer are counted in 32 bits",
        "deepinfer-ep 2.5.0, layout/ep/token.cuh, BufferLayout",
    ),
    "direct_threads_below_ranks": (
        "direct dispatch needs a thread a rank, and has 32 for each token row that fits shared memory",
        "deepinfer-ep 2.5.0, impls/ep/dispatch.cuh",
    ),
    "no_channel_fits": (
        "shared memory holds no two token rows, so no channel",
        "deepinfer-ep 2.5.0, csrc/buffers/ep.hpp",
    ),
    "qps_over_1024": ("a communicator has at most 1,024 QPs", f"{_COMPILED}, kNumMaxQPs"),
    "engram_layers_over_128": (
        "the workspace counts requests of at most 128 layers",
        "deepinfer-ep 2.5.0, layout/engram/workspace.cuh",
    ),
    "engram_peer_contexts_over_2048": (
        "peers times QPs are at most 2,048",
        "deepinfer-ep 2.5.0, layout/engram/workspace.cuh",
    ),
}
"""Code → what the limit is, and its source."""


OF_HARDWARE = ("needs_sm90", "needs_gdaki")
"""Limits that no other plan on the same hardware keeps, but (needs_gdaki) one within a node."""


def hardware_limits(num_nodes: int, compute_capability: float, *, gdaki: bool, gdaki_alone: bool) -> tuple[str, ...]:
    """Codes of OF_HARDWARE that are broken. compute_capability: 0 where not known. gdaki_alone: the
    kernels know no other way between nodes."""
    broken = {"needs_sm90": 0 < compute_capability < 9.0, "needs_gdaki": gdaki_alone and num_nodes > 1 and not gdaki}
    return tuple(code for code, over in broken.items() if over)


@lru_cache(maxsize=4096)
def broken_limits(domain: Domain, num_experts: int, num_topk: int, num_sms: int) -> tuple[str, ...]:
    """Codes of KERNEL_LIMITS that a plan breaks, in their order."""
    local_experts = num_experts // domain.num_ranks
    two_level = domain.two_level
    broken = {
        "ranks_over_1024": domain.num_ranks > 1024,
        "experts_over_2048": num_experts > 2048,
        "local_experts_over_512": local_experts > 512,
        "topk_over_32": num_topk > 32,
        "hybrid_scaleout_over_32": two_level and domain.scaleout_ranks > 32,
        "hybrid_scaleup_over_64": two_level and domain.scaleup_ranks > 64,
        "hybrid_scaleup_plus_local_experts_over_128": two_level and domain.scaleup_ranks + local_experts > 128,
        "hybrid_sms_over_160": two_level and num_sms > 160,
    }
    return tuple(code for code, over in broken.items() if over)
