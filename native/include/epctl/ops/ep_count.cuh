// Where each token's row lies at each rank: counted by the sender before anything is written.
#pragma once

#include "epctl/ops/ep_common.cuh"

namespace epctl::ep {

// A few tokens are counted by every block: cheaper than telling each other.
constexpr uint32_t kCountedByAll = 512;
constexpr uint32_t kSelections = 8;

// Tokens that this block counts, and those of them that it sends: begin + first, then every step-th.
struct Span {
    uint32_t begin, end, first, step;
    bool shared;  // all blocks count the same tokens
};

__device__ __forceinline__ Span span_of_block(uint32_t num_tokens) {
    if (num_tokens <= kCountedByAll) return Span{0, num_tokens, blockIdx.x, gridDim.x, true};
    const uint32_t each = (num_tokens + gridDim.x - 1) / gridDim.x;
    const uint32_t begin = min(num_tokens, blockIdx.x * each);
    return Span{begin, min(num_tokens, begin + each), begin, 1, false};
}

// In shared memory, for batches of 32 tokens: who goes to each rank, and the row of the batch's first one there.
struct Batches {
    uint32_t* goes;   // [batch][rank]
    uint32_t* first;  // [batch][rank]
    uint32_t num;
};

// Fills `goes`, and counts the experts' entries into `histogram` where that is not null. All threads.
__device__ __forceinline__ void count_span(const EpShape& shape, const void* indices, const Span& span,
                                           uint32_t num_ranks, const Batches& batches, uint32_t* histogram) {
    const Divider rank_of(shape.experts_per_rank);
#pragma unroll 1
    for (uint32_t batch = warp_idx(); batch < batches.num; batch += kWarps) {
        const uint32_t token = span.begin + batch * kWarpThreads + lane_idx();
        uint32_t low = 0, middle = 0, high = 0;  // one bit for each of 72 ranks
#pragma unroll 1
        for (uint32_t from = 0; from < shape.num_topk; from += kSelections) {
            uint32_t experts[kSelections];  // all loads first: each takes most of a microsecond
#pragma unroll
            for (uint32_t i = 0; i < kSelections; ++i)
                experts[i] = token < span.end && from + i < shape.num_topk
                                 ? load_index(indices, shape.wide_indices,
                                              static_cast<uint64_t>(token) * shape.num_topk + from + i)
                                 : kAll;
#pragma unroll
            for (uint32_t i = 0; i < kSelections; ++i) {
                if (experts[i] >= shape.num_experts) continue;
                if (histogram != nullptr) atomicAdd(histogram + experts[i], 1);
                const uint32_t rank = rank_of(experts[i]);
                const uint32_t bit = 1u << rank % 32;
                low |= rank < 32 ? bit : 0;
                middle |= rank >= 32 && rank < 64 ? bit : 0;
                high |= rank >= 64 ? bit : 0;
            }
        }
#pragma unroll 1
        for (uint32_t rank = 0; rank < num_ranks; ++rank) {
            const uint32_t bits = rank < 32 ? low : rank < 64 ? middle : high;
            const uint32_t goes = __ballot_sync(kAll, bits >> rank % 32 & 1);
            if (lane_idx() == 0) batches.goes[batch * num_ranks + rank] = goes;
        }
    }
}

// Fills `first` from the counts of all blocks and all ranks; block 0 tells the ranks how much comes. False when
// somebody does not come. All threads, after a barrier of the block; another one must follow.
__device__ __forceinline__ bool place_span(const DispatchArgs& args, const Span& span, const Batches& batches,
                                           uint64_t epoch) {
    const uint32_t num_ranks = args.peers.num_ranks, me = args.peers.rank;
    const uint32_t world = args.limits.rank - me;
    const uint32_t columns = total_columns(num_ranks);
    const uint64_t parity = epoch & 1;
    bool ok = true;
#pragma unroll 1
    for (uint32_t rank = warp_idx(); rank < num_ranks; rank += kWarps) {
        uint32_t total = 0;
#pragma unroll 1
        for (uint32_t from = 0; from < batches.num; from += kWarpThreads) {
            const uint32_t batch = from + lane_idx();
            const uint32_t count = batch < batches.num ? __popc(batches.goes[batch * num_ranks + rank]) : 0;
            const uint32_t sum = warp_scan(count);
            if (batch < batches.num) batches.first[batch * num_ranks + rank] = total + sum - count;
            total += __shfl_sync(kAll, sum, kWarpThreads - 1);
        }
        uint32_t before = 0;
        if (!span.shared) {
            uint64_t* const words = args.chunk_words + (parity * num_ranks + rank) * kEpMaxBlocks;
            if (lane_idx() == 0) store_relaxed(words + blockIdx.x, word_of(epoch, total));
            const uint32_t num_waited = blockIdx.x == 0 ? gridDim.x : blockIdx.x;
            uint32_t sum = 0;
#pragma unroll 1
            for (uint32_t block = lane_idx(); block < num_waited; block += kWarpThreads)
                sum += wait_word(args.limits, words + block, epoch, args.limits.rank, Stage::kDispatchChunk, ok);
            sum = warp_sum(sum);
            before = blockIdx.x == 0 ? 0 : sum;
            total = sum;
        }
        if (blockIdx.x == 0)
#pragma unroll 1
            for (uint32_t peer = lane_idx(); peer < num_ranks; peer += kWarpThreads)
                store_relaxed(
                    at<uint64_t>(args.peers, peer, args.at.totals) + (parity * num_ranks + me) * columns + rank,
                    word_of(epoch, total));
        // Words of all sources, also of those behind: who has sent them has begun this call, and its rows may be
        // written.
        const uint64_t* const totals = at<uint64_t>(args.peers, me, args.at.totals) + parity * num_ranks * columns;
        uint32_t sources = 0;
#pragma unroll 1
        for (uint32_t source = lane_idx(); source < num_ranks; source += kWarpThreads) {
            const bool tells = args.waited_ns != nullptr && blockIdx.x == 0 && rank == 0;
            const uint32_t count = wait_word(args.limits, totals + source * columns + rank, epoch, world + source,
                                             Stage::kDispatchCount, ok, tells ? args.waited_ns + source : nullptr);
            sources += source < me ? count : 0;
        }
        const uint32_t base = before + warp_sum(sources);
#pragma unroll 1
        for (uint32_t batch = lane_idx(); batch < batches.num; batch += kWarpThreads)
            batches.first[batch * num_ranks + rank] += base;
        __syncwarp();
    }
    return ok;
}

// The same for a cached call: `first` from the routes of the call that counted. All threads, as above.
__device__ __forceinline__ void recall_span(const DispatchArgs& args, const Span& span, const Batches& batches) {
    const uint32_t num_ranks = args.peers.num_ranks, num_topk = args.shape.num_topk;
#pragma unroll 1
    for (uint32_t cell = threadIdx.x; cell < batches.num * num_ranks; cell += kThreads) {
        const uint32_t goes = batches.goes[cell];
        if (goes == 0) continue;
        const uint64_t token = span.begin + cell / num_ranks * kWarpThreads + __ffs(static_cast<int>(goes)) - 1;
#pragma unroll 1
        for (uint32_t k = 0; k < num_topk; ++k) {
            const int32_t route = args.routes[token * num_topk + k];
            if (route >= 0 && static_cast<uint32_t>(route) >> kRowBits == cell % num_ranks)
                batches.first[cell] = static_cast<uint32_t>(route) & kRowMask;
        }
    }
}

}  // namespace epctl::ep
