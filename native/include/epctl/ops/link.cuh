// Moving rows between the memories of two GPUs (or within one) by the SMs: bulk copies, vectors, and pull-and-add.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "epctl/common/wait.cuh"
#include "epctl/ops/link_args.h"

namespace epctl::link {

constexpr uint32_t kVectorBytes = 16;
constexpr uint32_t kWarpThreads = 32;

// ---- 16-byte vectors. Rows pass once: keeping them in L1 would only push out others.

__device__ __forceinline__ uint4 load_vector(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

__device__ __forceinline__ void store_vector(uint4* to, const uint4& v) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

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

// ---- Bulk copies (TMA without a descriptor): memory → shared memory → memory. The SM only issues them.

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_init_fence() {
    // Makes the barriers known to the unit that does bulk copies.
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
    // Of this block's own copies, not of another rank: they always end, or the GPU reports an error.
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra.uni ready;\n"
        "bra.uni again;\n"
        "ready:\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

__device__ __forceinline__ void bulk_load(void* to_shared, const void* from, uint32_t bytes, uint64_t* barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to_shared)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

__device__ __forceinline__ void bulk_store(void* to, const void* from_shared, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from_shared)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// All but the newest kPending stores have read their shared memory, so that it can be filled again.
template <int kPending>
__device__ __forceinline__ void bulk_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// All stores are done, as far as this SM can tell: their data may be announced to others after a fence.
__device__ __forceinline__ void bulk_stores_done() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
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
