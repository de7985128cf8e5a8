// The one way in which kernels wait for another rank. No kernel spins in any other way, so that none can hang for ever.
#pragma once

#include <cstdint>

#include "epctl/common/ptx.cuh"
#include "epctl/common/wait_record.h"

namespace epctl {

// Also asked by kernels that read what an earlier one of their stream has written: it may have ended without.
__device__ __forceinline__ bool has_given_up(const WaitLimits& limits) {
    return load_relaxed_gpu(limits.given_up) != 0;
}

__device__ __forceinline__ uint64_t timeout_ns(const WaitLimits& limits) {
    constexpr uint64_t kNsPerMs = 1000000;
    return limits.timeout_ms * kNsPerMs;
}

// What is waited for: the flag of `peer` that reaches `expected` in `stage`.
struct Awaited {
    const uint64_t* flag;
    uint64_t expected;
    uint32_t peer;
    Stage stage;
    uint64_t progress;
};

// Not inlined: it runs once, and its registers are not to count for the loop that waits. By value: a reference would
// put the caller's variables on the stack.
__device__ __noinline__ void record_timeout(WaitRecord* record, uint32_t* given_up, uint32_t rank, uint32_t peer,
                                            Stage stage, uint64_t expected, uint64_t progress, uint64_t seen,
                                            uint64_t waited_ns) {
    // The first one tells the cause; who waits for somebody that gave up tells only a consequence.
    if (atomicExch(given_up, 1) != 0) return;
    record->waiter = rank;
    record->peer = peer;
    record->stage = static_cast<uint32_t>(stage);
    record->expected = expected;
    record->seen = seen;
    record->progress = progress;
    record->waited_ns = waited_ns;
    record->block = blockIdx.x;
    record->thread = threadIdx.x;
    store_release(&record->state, kRecordComplete);
}

// The primitive: `read` gives the value that is to reach `expected`. True when it has. False when the time is up, or
// when another wait of this rank has given up: the kernel must end without touching what it waited for. Values only
// grow, and are compared with wrap-around.
template <class Read>
__device__ __forceinline__ bool wait_until(const WaitLimits& limits, uint64_t expected, uint32_t peer, Stage stage,
                                           uint64_t progress, Read read) {
    // The timer is slower than the flag: one that comes soon does not cost it.
    constexpr uint32_t kSpinsPerLook = 64;
    uint64_t begin = 0;
    for (;;) {
        uint64_t seen = 0;
#pragma unroll 1
        for (uint32_t spin = 0; spin < kSpinsPerLook; ++spin) {
            seen = read();
            if (static_cast<int64_t>(seen - expected) >= 0) return true;
        }
        const uint64_t now = now_ns();
        if (begin == 0) begin = now;
        if (now - begin >= timeout_ns(limits)) {
            record_timeout(limits.record, limits.given_up, limits.rank, peer, stage, expected, progress, seen,
                           now - begin);
            return false;
        }
        if (has_given_up(limits)) return false;
    }
}

// The same for a whole warp that reads together: all lanes go on, or give up, at the same time. `read` gives every lane
// the same value.
template <class Read>
__device__ __forceinline__ bool wait_until_warp(const WaitLimits& limits, uint64_t expected, uint32_t peer, Stage stage,
                                                uint64_t progress, Read read) {
    constexpr uint32_t kWholeWarp = 0xffffffffu;
    constexpr uint32_t kSpinsPerLook = 32;
    uint64_t begin = 0;
    for (;;) {
        uint64_t seen = 0;
#pragma unroll 1
        for (uint32_t spin = 0; spin < kSpinsPerLook; ++spin) {
            seen = read();
            if (static_cast<int64_t>(seen - expected) >= 0) return true;
        }
        const uint64_t now = __shfl_sync(kWholeWarp, now_ns(), 0);
        if (begin == 0) begin = now;
        if (now - begin >= timeout_ns(limits)) {
            record_timeout(limits.record, limits.given_up, limits.rank, peer, stage, expected, progress, seen,
                           now - begin);
            return false;
        }
        if (__shfl_sync(kWholeWarp, has_given_up(limits), 0)) return false;
    }
}

// Tells how long each lane of a warp has waited, `before_ns` among it: they go on together, so that the time afterwards
// is that of the slowest.
struct Stopwatch {
    uint64_t* waited_ns;  // null: nobody asks
    uint64_t begin;

    __device__ __forceinline__ explicit Stopwatch(uint64_t* place, uint64_t before_ns = 0)
        : waited_ns(place), begin(place != nullptr ? now_ns() - before_ns : 0) {}
    // Inside of the wait, with what was seen.
    __device__ __forceinline__ uint64_t look(uint64_t seen, uint64_t expected) const {
        if (waited_ns != nullptr && static_cast<int64_t>(seen - expected) >= 0) *waited_ns = now_ns() - begin;
        return seen;
    }
};

// The same for a flag in memory; what the peer wrote before it is visible afterwards. `waited_ns`: where to tell how
// long it took, or null.
__device__ __forceinline__ bool wait_for(const WaitLimits& limits, const Awaited& what, uint64_t* waited_ns = nullptr,
                                         uint64_t before_ns = 0) {
    const Stopwatch watch(waited_ns, before_ns);
    // An acquire empties the SM's L1 cache, under the feet of the block's other warps: once, when it counts.
    if (!wait_until(limits, what.expected, what.peer, what.stage, what.progress,
                    [&] { return watch.look(load_relaxed(what.flag), what.expected); }))
        return false;
    load_acquire(what.flag);
    return true;
}

}  // namespace epctl
