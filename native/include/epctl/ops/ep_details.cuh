// What goes along with the rows of a dispatch: indices, weights, scales and sources, for 32 tokens and one rank at a
// time, so that what is written lies side by side.
#pragma once

#include "epctl/ops/ep_count.cuh"

namespace epctl::ep {

constexpr uint32_t kSharedRows = 4;

// Position of the bit of rank n among the set bits, n from 0.
__device__ __forceinline__ uint32_t nth_bit(uint32_t mask, uint32_t n) {
    uint32_t position = 0;
#pragma unroll
    for (uint32_t width = 16; width != 0; width /= 2) {
        const uint32_t below = __popc(mask & ((1u << width) - 1));
        if (n >= below) {
            n -= below;
            mask >>= width;
            position += width;
        }
    }
    return position;
}

// Calls each(row, column) for all of num_rows × num_columns, side by side in the lanes; `token_of_row` is shuffled from
// lane `row` and given as the third argument.
template <class Each>
__device__ __forceinline__ void for_cells(uint32_t num_rows, uint32_t num_columns, uint32_t token_of_row, Each each) {
    static_assert(kWarpThreads * (kEpMaxHidden / 128) * (kEpMaxHidden / 128) <= 1u << 20);  // columns: scales at most
    const Divider row_of(num_columns);
    const uint32_t num_cells = num_rows * num_columns;
#pragma unroll 4
    for (uint32_t from = 0; from < num_cells; from += kWarpThreads) {
        const uint32_t cell = min(from + lane_idx(), num_cells - 1);
        const uint32_t row = row_of(cell);
        const uint32_t token = __shfl_sync(kAll, token_of_row, row);
        if (from + lane_idx() < num_cells) each(row, cell - row * num_columns, token);
    }
}

__device__ __forceinline__ void send_scales(const DispatchArgs& args, uint32_t rank, uint32_t first, uint32_t num_rows,
                                            uint32_t token_of_row) {
    const uint64_t num_bytes = args.shape.scale_bytes;
    uint8_t* const to = at<uint8_t>(args.peers, rank, args.at.scales) + first * num_bytes;
    const uint8_t* const from = static_cast<const uint8_t*>(args.scales);
    if (num_bytes % kVectorBytes == 0) {
        for_cells(num_rows, num_bytes / kVectorBytes, token_of_row, [&](uint32_t row, uint32_t column, uint32_t token) {
            store_vector(reinterpret_cast<uint4*>(to + row * num_bytes) + column,
                         load_vector(reinterpret_cast<const uint4*>(from + token * num_bytes) + column));
        });
    } else {
        for_cells(num_rows, num_bytes / 4, token_of_row, [&](uint32_t row, uint32_t column, uint32_t token) {
            reinterpret_cast<uint32_t*>(to + row * num_bytes)[column] =
                reinterpret_cast<const uint32_t*>(from + token * num_bytes)[column];
        });
    }
}

// The details of some rows of one batch for one rank: `begin` … of its `num_rows`, whose first is row `first`. One
// warp.
__device__ __forceinline__ void send_batch(const DispatchArgs& args, uint32_t batch_token, uint32_t rank, uint32_t goes,
                                           uint32_t first, uint32_t begin, uint32_t num_rows) {
    const uint32_t num_topk = args.shape.num_topk;
    const uint32_t token_of_row = batch_token + nth_bit(goes, min(begin + lane_idx(), begin + num_rows - 1));
    first += begin;
    const uint32_t low = rank * args.shape.experts_per_rank;
    if (args.shape.scale_bytes != 0) send_scales(args, rank, first, num_rows, token_of_row);
    int64_t* const wide = at<int64_t>(args.peers, rank, args.at.indices) + static_cast<uint64_t>(first) * num_topk;
    int32_t* const narrow = reinterpret_cast<int32_t*>(at<int32_t>(args.peers, rank, args.at.indices)) +
                            static_cast<uint64_t>(first) * num_topk;
    float* const weights = at<float>(args.peers, rank, args.at.weights) + static_cast<uint64_t>(first) * num_topk;
    for_cells(num_rows, num_topk, token_of_row, [&](uint32_t row, uint32_t k, uint32_t token) {
        const uint64_t entry = static_cast<uint64_t>(token) * num_topk + k;
        const uint32_t local = load_index(args.topk_indices, args.shape.wide_indices, entry) - low;
        const bool mine = local < args.shape.experts_per_rank;
        const int32_t told = mine ? static_cast<int32_t>(local) : -1;
        if (args.shape.wide_indices)
            wide[row * num_topk + k] = told;
        else
            narrow[row * num_topk + k] = told;
        if (args.topk_weights != nullptr) weights[row * num_topk + k] = mine ? args.topk_weights[entry] : 0.0f;
    });
    int32_t* const metadata =
        at<int32_t>(args.peers, rank, args.at.metadata) + static_cast<uint64_t>(first) * (num_topk + 2);
    const uint32_t global = args.peers.rank * args.shape.max_tokens;
    for_cells(num_rows, num_topk + 2, token_of_row, [&](uint32_t row, uint32_t column, uint32_t token) {
        metadata[row * (num_topk + 2) + column] = column == 0 ? static_cast<int32_t>(global + token) : -1;
    });
}

// All that is this warp's: of this block's tokens, or, where all blocks know all tokens, a few rows at a time of all.
__device__ __forceinline__ void send_details(const DispatchArgs& args, const Span& span, const Batches& batches,
                                             uint32_t helper, uint32_t num_helpers) {
    const uint32_t num_ranks = args.peers.num_ranks;
    const uint32_t part_rows = span.shared ? kSharedRows : kWarpThreads, num_parts = kWarpThreads / part_rows;
    const uint32_t num_jobs = batches.num * num_ranks * num_parts;
    const uint32_t begin = span.shared ? blockIdx.x + helper * gridDim.x : helper;
    const uint32_t step = span.shared ? num_helpers * gridDim.x : num_helpers;
#pragma unroll 1
    for (uint32_t job = begin; job < num_jobs; job += step) {
        const uint32_t cell = job / num_parts, from = job % num_parts * part_rows;
        const uint32_t goes = batches.goes[cell], num_rows = __popc(goes);
        if (from >= num_rows) continue;
        send_batch(args, span.begin + cell / num_ranks * kWarpThreads, cell % num_ranks, goes, batches.first[cell],
                   from, min(part_rows, num_rows - from));
    }
}

}  // namespace epctl::ep
