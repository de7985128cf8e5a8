// Behind a dispatch: rows of tokens become rows of (token, expert), grouped by expert, in the order of their sources.
#pragma once

#include "epctl/ops/ep_sums.cuh"

namespace epctl::ep {

__device__ __forceinline__ uint32_t group_begin(const ExpandArgs& args, uint32_t expert) {
    return expert == 0 ? 0 : align_up(args.expert_sums[expert - 1], args.expert_alignment);
}

// In place[]: entries of each expert in this block's rows. All threads; barriers of the block around it.
__device__ __forceinline__ void count_rows(const ExpandArgs& args, uint32_t begin, uint32_t end, uint32_t* place) {
    const uint64_t num_topk = args.shape.num_topk;
#pragma unroll 1
    for (uint64_t entry = begin * num_topk + threadIdx.x; entry < end * num_topk; entry += kThreads) {
        const uint32_t expert = load_index(args.indices, args.shape.wide_indices, entry);
        if (expert < args.shape.experts_per_rank) atomicAdd(place + expert, 1);
    }
}

// From counts in place[] to the first row of each expert for this block.
__device__ __forceinline__ bool first_rows(const ExpandArgs& args, uint64_t epoch, uint32_t* place) {
    const uint32_t each = args.shape.experts_per_rank;
    bool ok = true;
#pragma unroll 1
    for (uint32_t expert = threadIdx.x; expert < each; expert += kThreads)
        store_relaxed(args.chunk_words + ((epoch & 1) * each + expert) * kEpMaxBlocks + blockIdx.x,
                      word_of(epoch, place[expert]));
    __syncthreads();
#pragma unroll 1
    for (uint32_t expert = warp_idx(); expert < each; expert += kWarps) {
        const uint64_t* const words = args.chunk_words + ((epoch & 1) * each + expert) * kEpMaxBlocks;
        uint32_t sum = 0;
#pragma unroll 1
        for (uint32_t block = lane_idx(); block < blockIdx.x; block += kWarpThreads)
            sum += wait_word(args.limits, words + block, epoch, args.limits.rank, Stage::kDispatchChunk, ok);
        sum = warp_sum(sum);
        if (lane_idx() == 0) place[expert] = group_begin(args, expert) + sum;
    }
    return ok;
}

// One warp goes through the entries in their order, 32 at a time, and gives each its row.
__device__ __forceinline__ void place_entries(const ExpandArgs& args, uint32_t begin, uint32_t end, uint32_t* place) {
    const uint64_t num_topk = args.shape.num_topk, last = end * num_topk;
#pragma unroll 1
    for (uint64_t from = begin * num_topk; from < last; from += kWarpThreads) {
        const uint64_t entry = from + lane_idx();
        uint32_t expert = kAll;
        if (entry < last) expert = load_index(args.indices, args.shape.wide_indices, entry);
        if (expert >= args.shape.experts_per_rank) expert = kAll;
        const uint32_t same = __match_any_sync(kAll, expert);
        const bool leads = expert != kAll && (same & lanes_below()) == 0;
        int32_t row = -1;
        if (expert != kAll) row = static_cast<int32_t>(place[expert] + __popc(same & lanes_below()));
        __syncwarp();
        if (leads) place[expert] += __popc(same);
        __syncwarp();
        if (row >= static_cast<int32_t>(args.num_rows_limit)) row = -1;
        if (entry < last) args.out_metadata[entry / num_topk * (num_topk + 2) + 2 + entry % num_topk] = row;
    }
}

__device__ __forceinline__ void put_scales(const ExpandArgs& args, uint32_t row, const uint8_t* from) {
    const uint32_t num_words = args.shape.scale_bytes / 4;
#pragma unroll 1
    for (uint32_t i = lane_idx(); i < num_words; i += kWarpThreads) {
        const uint32_t value = from != nullptr ? reinterpret_cast<const uint32_t*>(from)[i] : 0;
        const uint64_t to = args.column_scales ? static_cast<uint64_t>(i) * args.scale_stride + row
                                               : static_cast<uint64_t>(row) * num_words + i;
        static_cast<uint32_t*>(args.out_scales)[to] = value;
    }
}

// A row of this rank to all its experts. One warp.
__device__ __forceinline__ void spread_row(const ExpandArgs& args, uint32_t row) {
    const uint32_t lane = lane_idx(), num_topk = args.shape.num_topk;
    const uint32_t num_vectors = args.shape.row_bytes / kVectorBytes;
    const int32_t* const metadata = args.out_metadata + static_cast<uint64_t>(row) * (num_topk + 2);
    const int32_t placed = lane < num_topk ? metadata[2 + lane] : -1;
    const uint32_t lanes = __ballot_sync(kAll, placed >= 0);
    const uint8_t* const from =
        static_cast<const uint8_t*>(args.rows) + static_cast<uint64_t>(row) * args.shape.row_bytes;
#pragma unroll 1
    for (uint32_t begin = 0; begin < num_vectors; begin += kSegmentVectors) {
        const uint32_t vector = begin + lane;
        uint4 loaded[kUnroll] = {};
        load_segment(loaded, from, vector, num_vectors);
#pragma unroll 1
        for (uint32_t left = lanes; left != 0; left &= left - 1) {
            const int32_t to = __shfl_sync(kAll, placed, __ffs(static_cast<int>(left)) - 1);
            store_vectors(static_cast<uint8_t*>(args.out_rows) + static_cast<uint64_t>(to) * args.shape.row_bytes,
                          vector, num_vectors, loaded);
        }
    }
    if (placed >= 0 && args.weights != nullptr)
        args.out_weights[placed] = args.weights[static_cast<uint64_t>(row) * num_topk + lane];
    if (args.shape.scale_bytes == 0) return;
#pragma unroll 1
    for (uint32_t left = lanes; left != 0; left &= left - 1)
        put_scales(args, __shfl_sync(kAll, placed, __ffs(static_cast<int>(left)) - 1),
                   static_cast<const uint8_t*>(args.scales) + static_cast<uint64_t>(row) * args.shape.scale_bytes);
}

// Rows between an expert's last token and the next expert. One warp for each row, over the grid.
__device__ __forceinline__ void clear_padding(const ExpandArgs& args) {
    const uint32_t num_vectors = args.shape.row_bytes / kVectorBytes;
#pragma unroll 1
    for (uint32_t expert = blockIdx.x; expert < args.shape.experts_per_rank; expert += gridDim.x) {
        const uint32_t begin = args.expert_sums[expert];
        const uint32_t end = min(args.num_rows_limit, align_up(begin, args.expert_alignment));
#pragma unroll 1
        for (uint32_t row = begin + warp_idx(); row < end; row += kWarps) {
            uint4* const out = reinterpret_cast<uint4*>(static_cast<uint8_t*>(args.out_rows) +
                                                        static_cast<uint64_t>(row) * args.shape.row_bytes);
#pragma unroll 1
            for (uint32_t vector = lane_idx(); vector < num_vectors; vector += kWarpThreads)
                store_vector(out + vector, make_uint4(0, 0, 0, 0));
            if (args.shape.scale_bytes != 0) put_scales(args, row, nullptr);
            if (args.out_weights != nullptr && lane_idx() == 0) args.out_weights[row] = 0.0f;
        }
    }
}

__device__ __forceinline__ void expand(const ExpandArgs& args, uint32_t* place) {
    const uint64_t epoch = args.state->expand_epoch + 1;
    const uint32_t num_rows = args.tokens_per_rank[args.num_ranks - 1];
    const uint32_t each = (num_rows + gridDim.x - 1) / gridDim.x;
    const uint32_t begin = min(num_rows, blockIdx.x * each), end = min(num_rows, begin + each);
#pragma unroll 1
    for (uint32_t expert = threadIdx.x; expert < args.shape.experts_per_rank; expert += kThreads) place[expert] = 0;
    __syncthreads();
    count_rows(args, begin, end, place);
    __syncthreads();
    const bool ok = first_rows(args, epoch, place);
    if (__syncthreads_and(ok) == 0) return;
    if (warp_idx() == 0) place_entries(args, begin, end, place);
#pragma unroll 1
    for (uint32_t row = begin + threadIdx.x; row < end; row += kThreads)
#pragma unroll 1
        for (uint32_t i = 0; i < 2; ++i)
            args.out_metadata[static_cast<uint64_t>(row) * (args.shape.num_topk + 2) + i] =
                args.metadata[static_cast<uint64_t>(row) * (args.shape.num_topk + 2) + i];
    __syncthreads();
#pragma unroll 1
    for (uint32_t row = begin + warp_idx(); row < end; row += kWarps) spread_row(args, row);
    if (args.zero_padding) clear_padding(args);
    __syncthreads();
    if (threadIdx.x == 0 && last_block(&args.state->expand_ticket)) args.state->expand_epoch = epoch;
}

}  // namespace epctl::ep
