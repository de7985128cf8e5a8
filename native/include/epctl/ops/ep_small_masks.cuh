// Which tokens of few come, and of which experts: what one block tells all ranks, and how the others learn it.
#pragma once

#include "epctl/ops/ep_details.cuh"

namespace epctl::ep {

__device__ __forceinline__ uint32_t num_batches_of(const EpShape& shape) {
    return (shape.max_tokens + kWarpThreads - 1) / kWarpThreads;
}

// ---- By one block, the first.

// In shared memory, clear.
struct Books {
    uint32_t* goes;      // [rank][kSmallBatches]: which of 32 tokens go there
    uint32_t* selected;  // [experts]: how often by this rank
    uint32_t* counts;    // [experts_per_rank]: how often mine by all ranks
};

__device__ __forceinline__ void look_at_selections(const SmallDispatchArgs& args, const Books& books) {
    constexpr uint32_t kLoads = 4;
    static_assert(kSmallTokens * kEpMaxTopk * kEpMaxTopk <= 1u << 20);
    const Divider token_of(args.shape.num_topk), rank_of(args.shape.experts_per_rank);
    const uint32_t num_entries = args.shape.num_tokens * args.shape.num_topk;
#pragma unroll 1
    for (uint32_t from = threadIdx.x; from < num_entries; from += kLoads * kThreads) {
        uint32_t experts[kLoads];  // all loads first
#pragma unroll
        for (uint32_t i = 0; i < kLoads; ++i)
            experts[i] = from + i * kThreads < num_entries
                             ? load_index(args.topk_indices, args.shape.wide_indices, from + i * kThreads)
                             : kAll;
#pragma unroll
        for (uint32_t i = 0; i < kLoads; ++i) {
            if (experts[i] >= args.shape.num_experts) continue;
            const uint32_t token = token_of(from + i * kThreads);
            atomicOr(books.goes + rank_of(experts[i]) * kSmallBatches + token / kWarpThreads,
                     1u << token % kWarpThreads);
            atomicAdd(books.selected + experts[i], 1);
        }
    }
}

// Tells all ranks which tokens come, and opens the gate for rows; then what is selected of their experts.
__device__ __forceinline__ void tell_selections(const SmallDispatchArgs& args, const Books& books, uint64_t epoch) {
    const uint32_t num_ranks = args.peers.num_ranks, each = args.shape.experts_per_rank, me = args.peers.rank;
    const uint32_t num_batches = num_batches_of(args.shape);
    const uint64_t source = (epoch & 1) * num_ranks + me;
#pragma unroll 1
    for (uint32_t cell = threadIdx.x; cell < num_ranks * num_batches; cell += kThreads) {
        const uint32_t rank = cell / num_batches, batch = cell % num_batches;
        store_relaxed(at<uint64_t>(args.peers, rank, args.small.masks) + source * kSmallBatches + batch,
                      word_of(epoch, books.goes[rank * kSmallBatches + batch]));
    }
    __syncwarp();
    // Those of the first warp are out, and the others with them.
    if (threadIdx.x == 0) store_relaxed(&args.state->small_gate, epoch);
    const Divider rank_of(each);
#pragma unroll 1
    for (uint32_t expert = threadIdx.x; expert < args.shape.num_experts; expert += kThreads) {
        const uint32_t rank = rank_of(expert);
        store_relaxed(at<uint64_t>(args.peers, rank, args.small.experts) + source * max_local_experts(num_ranks) +
                          expert - rank * each,
                      word_of(epoch, books.selected[expert]));
    }
}

// Adds up what all ranks select of my experts.
__device__ __forceinline__ bool add_selections(const SmallDispatchArgs& args, const Books& books, uint64_t epoch) {
    const uint32_t num_ranks = args.peers.num_ranks, me = args.peers.rank, each = args.shape.experts_per_rank;
    const uint32_t columns = max_local_experts(num_ranks);
    const uint64_t* const words = at<uint64_t>(args.peers, me, args.small.experts) + (epoch & 1) * num_ranks * columns;
    bool ok = true;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < num_ranks * each; i += kThreads) {
        const uint32_t source = i / each, expert = i - source * each;
        atomicAdd(books.counts + expert, wait_word(args.limits, words + source * columns + expert, epoch,
                                                   args.limits.rank - me + source, Stage::kDispatchCount, ok));
    }
    return __syncthreads_and(ok) != 0;
}

// ---- By all blocks.

// What comes, by cells: [source][batch].
struct Coming {
    uint32_t* goes;   // which of 32 tokens
    uint32_t* first;  // row of the first of them
    uint32_t num_batches, num_cells;
    uint32_t num_rows;
};

__device__ __forceinline__ uint32_t wait_cell(const SmallDispatchArgs& args, const Coming& coming, uint32_t cell,
                                              uint64_t epoch, bool& ok) {
    const uint32_t source = cell / coming.num_batches, batch = cell % coming.num_batches, me = args.peers.rank;
    const uint64_t* const words =
        at<uint64_t>(args.peers, me, args.small.masks) + (epoch & 1) * args.peers.num_ranks * kSmallBatches;
    // By a block that has waited for nobody before; the first has.
    const bool tells = args.waited_ns != nullptr && blockIdx.x == 1 && threadIdx.x == cell % kThreads && batch == 0;
    return wait_word(args.limits, words + source * kSmallBatches + batch, epoch, args.limits.rank - me + source,
                     Stage::kDispatchCount, ok, tells ? args.waited_ns + source : nullptr);
}

// By one warp, of cells that all its lanes see.
__device__ __forceinline__ void place_cells(Coming& coming) {
    coming.num_rows = 0;
#pragma unroll 1
    for (uint32_t from = 0; from < coming.num_cells; from += kWarpThreads) {
        const uint32_t cell = from + lane_idx();
        const uint32_t count = cell < coming.num_cells ? __popc(coming.goes[cell]) : 0;
        const uint32_t sum = coming.num_rows + warp_scan(count);
        if (cell < coming.num_cells) coming.first[cell] = sum - count;
        coming.num_rows = __shfl_sync(kAll, sum, kWarpThreads - 1);
    }
}

// Learns which tokens come, and where each lies. All threads. False when something does not come, or an earlier wait
// has given up (`stops`): what came then may be another call's. The same for a warp, and for the block where it waits
// as one.
__device__ __forceinline__ bool learn_masks(const SmallDispatchArgs& args, Coming& coming, bool stops, uint64_t epoch) {
    __shared__ uint32_t goes[kMaxPeers * kSmallBatches], first[kMaxPeers * kSmallBatches], num_rows;
    coming = Coming{goes, first, num_batches_of(args.shape), args.peers.num_ranks * num_batches_of(args.shape), 0};
    // Few cells: each warp for itself, and none waits for another one of its block.
    const bool alone = coming.num_cells <= kWarpThreads;
    if (alone) {
        coming.goes += warp_idx() * kWarpThreads;
        coming.first += warp_idx() * kWarpThreads;
    }
    bool ok = !stops;
#pragma unroll 1
    for (uint32_t cell = alone ? lane_idx() : threadIdx.x; cell < coming.num_cells; cell += kThreads)
        coming.goes[cell] = wait_cell(args, coming, cell, epoch, ok);
    if (alone ? !__all_sync(kAll, ok) : __syncthreads_and(ok) == 0) return false;
    if (alone || warp_idx() == 0) place_cells(coming);
    __syncwarp();
    if (alone) return true;
    if (threadIdx.x == 0) num_rows = coming.num_rows;
    __syncthreads();
    coming.num_rows = num_rows;
    return true;
}

// The last cell that begins at the row or before: the one that it is in.
__device__ __forceinline__ uint32_t cell_of_row(const Coming& coming, uint32_t row) {
    uint32_t low = 0, high = coming.num_cells;
#pragma unroll 1
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (coming.first[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// ---- By the first block again.

__device__ __forceinline__ void keep_small_books(const SmallDispatchArgs& args, const Coming& coming,
                                                 const Books& books) {
    const uint32_t num_ranks = args.peers.num_ranks, each = args.shape.experts_per_rank;
#pragma unroll 1
    for (uint32_t source = threadIdx.x; source < num_ranks; source += kThreads)
        args.tokens_per_rank[source] =
            source + 1 < num_ranks ? coming.first[(source + 1) * coming.num_batches] : coming.num_rows;
    if (warp_idx() != 0) return;
    uint32_t num_entries = 0;
#pragma unroll 1
    for (uint32_t from = 0; from < each; from += kWarpThreads) {
        const uint32_t expert = from + lane_idx();
        const uint32_t count = expert < each ? books.counts[expert] : 0;
        num_entries = tell_counts(args, expert, count, num_entries);
    }
    tell_host(args, coming.num_rows, num_entries);
}

// False when something does not come.
__device__ __forceinline__ bool small_books(const SmallDispatchArgs& args, bool stops, uint64_t sent,
                                            uint64_t received) {
    __shared__ uint32_t goes[kMaxPeers * kSmallBatches], selected[kEpMaxExperts], counts[kEpMaxExperts];
    const Books books{goes, selected, counts};
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < args.peers.num_ranks * kSmallBatches; i += kThreads) goes[i] = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < args.shape.num_experts; i += kThreads) selected[i] = counts[i] = 0;
    __syncthreads();
    if (args.sends) {
        look_at_selections(args, books);
        __syncthreads();
        tell_selections(args, books, sent);
    }
    Coming coming;
    if (!args.receives) return true;
    if (!add_selections(args, books, received) || !learn_masks(args, coming, stops, received)) return false;
    keep_small_books(args, coming, books);
    return true;
}

}  // namespace epctl::ep
