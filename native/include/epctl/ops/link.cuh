// Moving rows between the memories of two GPUs (or within one) by the SMs: bulk copies, vectors, and pull-and-add.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "epctl/common/bulk.cuh"
#include "epctl/common/wait.cuh"
#include "epctl/ops/link_args.h"

namespace epctl::link {

__device__ __forceinline__ uint64_t grid_thread() {
    return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ uint64_t grid_threads() {
    return static_cast<uint64_t>(gridDim.x) * blockDim.x;
}

// Calls `each(idx, loaded)` for all vectors of the grid-stride loop, with kUnroll loads in flight: over a link, one
// load takes a microsecond, and only what is in flight hides it.
template <uint32_t kUnroll, class Load, class Each>
__device__ __forceinline__ void stream(uint64_t num_vectors, Load load, Each each) {
    const uint64_t step = grid_threads();
    uint64_t idx = grid_thread();
    for (; idx + (kUnroll - 1) * step < num_vectors; idx += kUnroll * step) {
        decltype(load(idx)) loaded[kUnroll];
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) loaded[i] = load(idx + i * step);
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) each(idx + i * step, loaded[i]);
    }
    for (; idx < num_vectors; idx += step) each(idx, load(idx));
}

// Shared memory of a block: a ring of kStages rows for each warp that drives copies. As many warps drive as fit.
template <uint32_t kRowBytes, uint32_t kBlockThreads>
struct Ring {
    static constexpr uint32_t kStages = 2;
    static constexpr uint32_t kMaxBytes = 220 * 1024;  // of the 227 KiB that a block may have on sm_90 and sm_100
    static constexpr uint32_t kAlign = 128;
    static constexpr uint32_t kSlotBytes = (kRowBytes + kAlign - 1) / kAlign * kAlign;
    static constexpr uint32_t kFitting = kMaxBytes / (kStages * kSlotBytes);
    static constexpr uint32_t kWarps =
        kBlockThreads / kWarpThreads < kFitting ? kBlockThreads / kWarpThreads : kFitting;
    static constexpr uint32_t kBytes = kWarps * kStages * kSlotBytes;
    static_assert(kRowBytes % kVectorBytes == 0, "bulk copies move multiples of 16 bytes");
    static_assert(kWarps >= 1, "two rows do not fit in shared memory");
};

}  // namespace epctl::link
