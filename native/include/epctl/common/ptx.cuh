// The instructions that CUDA C++ has no words for, but for copies (bulk.cuh). tests/simt has the same functions for a
// CPU, and runs the kernels there.
#pragma once

#include <cstdint>

namespace epctl {

__device__ __forceinline__ uint64_t now_ns() {
    uint64_t value;
    // Unlike clock64, the same for all SMs, and in units that do not depend on the clock rate.
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

__device__ __forceinline__ uint32_t lanes_below() {
    uint32_t mask;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
    return mask;
}

// ---- Words that other threads, this GPU's or another's, read and write meanwhile.

__device__ __forceinline__ uint64_t load_acquire(const uint64_t* from) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* from) {
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

// Of words that this GPU alone writes.
__device__ __forceinline__ uint32_t load_relaxed_gpu(const uint32_t* from) {
    uint32_t value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ void store_relaxed(uint64_t* to, uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ __forceinline__ void store_release(uint64_t* to, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ __forceinline__ void store_release(uint32_t* to, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ void add_release(uint64_t* to, uint64_t value) {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// ---- Lines: 16 bytes of each lane of a whole warp, side by side. A line of 128 bytes is one store, and one load: over
// NVLink, and in memory, it stays whole.

struct Pair {
    uint64_t one, other;
};

__device__ __forceinline__ void store_lines(uint8_t* to_lane, const Pair& words) {
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(to_lane), "l"(words.one), "l"(words.other)
                 : "memory");
}

__device__ __forceinline__ Pair load_lines(const uint8_t* from_lane) {
    Pair words;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(words.one), "=l"(words.other)
                 : "l"(from_lane)
                 : "memory");
    return words;
}

// ---- Within a block.

// A barrier of `kThreads` threads, whole warps; `kBarrier` from 1 on. Who only arrives does not wait for it.
template <uint32_t kBarrier, uint32_t kThreads>
__device__ __forceinline__ void meet_in_block() {
    asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

template <uint32_t kBarrier, uint32_t kThreads>
__device__ __forceinline__ void arrive_in_block() {
    asm volatile("bar.arrive %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

__device__ __forceinline__ uint8_t* dynamic_shared() {
    extern __shared__ __align__(128) uint8_t memory[];
    return memory;
}

}  // namespace epctl
