// What the expert-parallel kernels share.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "epctl/common/bulk.cuh"
#include "epctl/common/wait.cuh"
#include "epctl/ops/ep_args.h"

namespace epctl::ep {

constexpr uint32_t kThreads = 512;
constexpr uint32_t kWarps = kThreads / kWarpThreads;
constexpr uint32_t kAll = 0xffffffffu;
constexpr uint32_t kRowBits = 24;  // of a route; the rank is above
constexpr uint32_t kRowMask = (1u << kRowBits) - 1;

__device__ __forceinline__ uint32_t lane_idx() {
    return threadIdx.x % kWarpThreads;
}

__device__ __forceinline__ uint32_t warp_idx() {
    return threadIdx.x / kWarpThreads;
}

__device__ __forceinline__ uint32_t warp_sum(uint32_t value) {
    return __reduce_add_sync(kAll, value);
}

// Inclusive sum over the lanes.
__device__ __forceinline__ uint32_t warp_scan(uint32_t value) {
#pragma unroll
    for (uint32_t step = 1; step < kWarpThreads; step *= 2) {
        const uint32_t below = __shfl_up_sync(kAll, value, step);
        if (lane_idx() >= step) value += below;
    }
    return value;
}

__device__ __forceinline__ uint32_t load_index(const void* indices, uint32_t wide, uint64_t at) {
    // Negative ones, and those that take more than 32 bits, are no expert.
    if (!wide) return static_cast<uint32_t>(static_cast<const int32_t*>(indices)[at]);
    const uint64_t index = static_cast<uint64_t>(static_cast<const int64_t*>(indices)[at]);
    return index >> 32 == 0 ? static_cast<uint32_t>(index) : kAll;
}

__device__ __forceinline__ uint64_t word_of(uint64_t epoch, uint32_t value) {
    return epoch << 32 | value;
}

// The value of a word that comes with the epoch; false in `ok` when it does not come. `waited_ns`: as in wait_for.
__device__ __forceinline__ uint32_t wait_word(const WaitLimits& limits, const uint64_t* word, uint64_t epoch,
                                              uint32_t peer, Stage stage, bool& ok, uint64_t* waited_ns = nullptr) {
    const Stopwatch watch(waited_ns);
    uint64_t seen = 0;
    const bool came = wait_until(limits, word_of(epoch, 0), peer, stage, epoch,
                                 [&] { return seen = watch.look(load_relaxed(word), word_of(epoch, 0)); });
    ok = ok && came;
    return static_cast<uint32_t>(seen);
}

// What a block adds to a counter so that all blocks of the grid add one unit.
__device__ __forceinline__ uint64_t share_of_block() {
    const uint64_t share = kEpArrivalUnit / gridDim.x;
    return blockIdx.x == 0 ? kEpArrivalUnit - share * (gridDim.x - 1) : share;
}

constexpr uint32_t kCountingBarrier = 2;

// True in one thread of the grid, which may count the call when its block ends: all threads of all blocks have read the
// call's number, `epoch`, by then. All threads, early, where nothing waits for the answer.
__device__ __forceinline__ bool counts_call(uint32_t* ticket, uint64_t epoch) {
    if (warp_idx() != kWarps - 1) {
        arrive_in_block<kCountingBarrier, kThreads>();
        return false;
    }
    meet_in_block<kCountingBarrier, kThreads>();
    // The sum makes the atomic wait for the load.
    return lane_idx() == 0 && atomicInc(ticket + (epoch >> 63), gridDim.x - 1) == gridDim.x - 1;
}

// True in the block that ends last; the ticket is 0 again then.
__device__ __forceinline__ bool last_block(uint32_t* ticket) {
    __threadfence();
    const bool last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
    return last;
}

template <class T>
__device__ __forceinline__ T* at(const Peers& peers, uint32_t rank, uint64_t offset) {
    return reinterpret_cast<T*>(peers.base[rank] + offset);
}

// Division by a number that stays the same, without a division: exact where value × by is below 2^20.
struct Divider {
    uint32_t factor;
    __device__ explicit Divider(uint32_t by) : factor(((1u << 20) + by - 1) / by) {}
    __device__ uint32_t operator()(uint32_t value) const { return value * factor >> 20; }
};

// Experts by experts of a rank.
static_assert(kEpMaxExperts * kEpMaxExperts <= 1u << 20);

// Eight BF16 numbers of a vector, added in float32.
__device__ __forceinline__ void add_vector(float (&sums)[8], const uint4& v) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
        sums[2 * i] += __uint_as_float(words[i] << 16);
        sums[2 * i + 1] += __uint_as_float(words[i] & 0xffff0000u);
    }
}

__device__ __forceinline__ uint32_t round_pair(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ uint4 round_vector(const float (&sums)[8]) {
    return make_uint4(round_pair(sums[0], sums[1]), round_pair(sums[2], sums[3]), round_pair(sums[4], sums[5]),
                      round_pair(sums[6], sums[7]));
}

// Of any call: a rank that is one call ahead must not write where others still read what another number of experts has
// left, so that places depend on nothing but the call's parity.
__device__ __forceinline__ uint32_t max_local_experts(uint32_t num_ranks) {
    return (kEpMaxExperts + num_ranks - 1) / num_ranks;
}

__device__ __forceinline__ uint32_t total_columns(uint32_t num_ranks) {
    return num_ranks + max_local_experts(num_ranks);
}

__device__ __forceinline__ uint32_t align_up(uint32_t value, uint32_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

// The counts of 32 of my experts for the handle and the host, by one warp; `count` of the lane's `expert`. The number
// of entries before them, aligned, becomes that behind them.
template <class Args>
__device__ __forceinline__ uint32_t tell_counts(const Args& args, uint32_t expert, uint32_t count,
                                                uint32_t num_entries) {
    const uint32_t aligned = align_up(count, args.expert_alignment);
    const uint32_t sum = num_entries + warp_scan(aligned);
    if (expert < args.shape.experts_per_rank) {
        args.expert_tokens[expert] = static_cast<int32_t>(count);
        args.expert_sums[expert] = static_cast<int32_t>(args.expanded ? sum - aligned + count : sum);
        if (args.statistics != nullptr) atomicAdd(args.statistics + expert, static_cast<int32_t>(count));
        if (args.host_counts != nullptr) args.host_counts[3 + expert] = aligned;
    }
    return __shfl_sync(kAll, sum, kWarpThreads - 1);
}

// Then the totals, and that all of it is there.
template <class Args>
__device__ __forceinline__ void tell_host(const Args& args, uint32_t num_tokens, uint32_t num_entries) {
    if (args.host_counts == nullptr) return;
    __threadfence_system();
    __syncwarp();
    if (lane_idx() != 0) return;
    args.host_counts[1] = num_tokens;
    args.host_counts[2] = num_entries;
    store_release(reinterpret_cast<uint64_t*>(args.host_counts), static_cast<uint64_t>(args.host_call));
}

}  // namespace epctl::ep
