// Dispatch of few tokens. A row travels in lines that carry their own numbers: it is sent before anybody knows where it
// will lie. The receiver learns meanwhile which tokens come, and puts each row in its place.
#pragma once

#include "epctl/ops/ep_lines.cuh"

namespace epctl::ep {

constexpr uint32_t kSmallUnroll = 4;  // groups of one unit of work

// ---- Details of a dispatched row: scales, then local indices, then weights.

__device__ __forceinline__ uint32_t num_details_of(const EpShape& shape) {
    return shape.scale_bytes / 4 + 2 * shape.num_topk;
}

__device__ __forceinline__ uint32_t detail_of(const SmallDispatchArgs& args, uint32_t token, uint32_t rank,
                                              uint32_t i) {
    const uint32_t num_scales = args.shape.scale_bytes / 4, num_topk = args.shape.num_topk;
    if (i < num_scales) return static_cast<const uint32_t*>(args.scales)[static_cast<uint64_t>(token) * num_scales + i];
    const uint32_t k = (i - num_scales) % num_topk;
    const uint64_t entry = static_cast<uint64_t>(token) * num_topk + k;
    const uint32_t local =
        load_index(args.topk_indices, args.shape.wide_indices, entry) - rank * args.shape.experts_per_rank;
    const bool mine = local < args.shape.experts_per_rank;
    if (i < num_scales + num_topk) return mine ? local : kAll;
    return mine && args.topk_weights != nullptr ? __float_as_uint(args.topk_weights[entry]) : 0;
}

__device__ __forceinline__ void put_detail(const SmallDispatchArgs& args, uint32_t row, uint32_t i, uint32_t value) {
    const uint32_t num_scales = args.shape.scale_bytes / 4, num_topk = args.shape.num_topk;
    if (i < num_scales) {
        static_cast<uint32_t*>(args.out_scales)[static_cast<uint64_t>(row) * num_scales + i] = value;
        return;
    }
    const uint64_t entry = static_cast<uint64_t>(row) * num_topk + (i - num_scales) % num_topk;
    if (i >= num_scales + num_topk) {
        if (args.out_weights != nullptr) args.out_weights[entry] = __uint_as_float(value);
    } else if (args.shape.wide_indices) {
        static_cast<int64_t*>(args.out_indices)[entry] = static_cast<int32_t>(value);
    } else {
        static_cast<int32_t*>(args.out_indices)[entry] = static_cast<int32_t>(value);
    }
}

// ---- Sending.

// A unit of a token's row to all its ranks but this one. One warp.
__device__ __forceinline__ bool send_unit(const SmallDispatchArgs& args, const Slots& slots, uint32_t token,
                                          uint32_t unit, uint64_t epoch) {
    const uint32_t me = args.peers.rank, lane = lane_idx();
    uint32_t expert = kAll, rank = kAll;
    if (lane < args.shape.num_topk)
        expert = load_index(args.topk_indices, args.shape.wide_indices,
                            static_cast<uint64_t>(token) * args.shape.num_topk + lane);
    const uint64_t* const row = static_cast<const uint64_t*>(args.x) + static_cast<uint64_t>(token) * slots.row_words;
    const uint32_t group = unit * kSmallUnroll;
    Pair words[kSmallUnroll];
    if (unit < slots.row_units) {
#pragma unroll
        for (uint32_t i = 0; i < kSmallUnroll; ++i)
            if (group + i < slots.row_groups) words[i] = cut_row(row, slots.row_words, group + i, epoch);
    }
    if (expert < args.shape.num_experts) rank = expert / args.shape.experts_per_rank;
    const uint32_t same = __match_any_sync(kAll, rank);
    const bool leads = rank != kAll && rank != me && same >> lane == 1;
    // The link is a queue: what says where rows go must not stand behind them.
    const bool open = wait_until_warp(args.limits, epoch, args.limits.rank, Stage::kDispatchChunk, epoch,
                                      [&] { return __shfl_sync(kAll, load_relaxed(&args.state->small_gate), 0); });
    if (!open) return false;
    for (uint32_t leaders = __ballot_sync(kAll, leads); leaders != 0; leaders &= leaders - 1) {
        const uint32_t to_rank = __shfl_sync(kAll, rank, __ffs(static_cast<int>(leaders)) - 1);
        uint8_t* const slot = slot_at(args.peers, to_rank, args.small.lines, args.small.num_tokens, epoch, me, token,
                                      args.small.line_bytes);
        if (unit < slots.row_units) {
#pragma unroll
            for (uint32_t i = 0; i < kSmallUnroll; ++i)
                if (group + i < slots.row_groups) store_group(slot + (group + i) * kGroupBytes, words[i]);
        } else {
            const uint32_t num = num_details_of(args.shape);
            for (uint32_t i = 0; i < slots.detail_groups; ++i)
                store_group(slot + (slots.row_groups + i) * kGroupBytes,
                            cut_details(num, i, epoch, [&](uint32_t j) { return detail_of(args, token, to_rank, j); }));
        }
    }
    return true;
}

// Which tokens go to each rank, 32 in a word. Warps of one block.
__device__ __forceinline__ void send_masks(const SmallDispatchArgs& args, uint64_t epoch) {
    const uint32_t num_ranks = args.peers.num_ranks, me = args.peers.rank;
    for (uint32_t batch = warp_idx(); batch < kSmallBatches; batch += kWarps) {
        const uint32_t token = batch * kWarpThreads + lane_idx();
        uint32_t low = 0, middle = 0, high = 0;
        for (uint32_t from = 0; from < args.shape.num_topk; from += kSelections) {
            uint32_t experts[kSelections];  // all loads first
#pragma unroll
            for (uint32_t i = 0; i < kSelections; ++i)
                experts[i] = token < args.shape.num_tokens && from + i < args.shape.num_topk
                                 ? load_index(args.topk_indices, args.shape.wide_indices,
                                              static_cast<uint64_t>(token) * args.shape.num_topk + from + i)
                                 : kAll;
#pragma unroll
            for (uint32_t i = 0; i < kSelections; ++i) {
                if (experts[i] >= args.shape.num_experts) continue;
                const uint32_t rank = experts[i] / args.shape.experts_per_rank, bit = 1u << rank % 32;
                low |= rank < 32 ? bit : 0;
                middle |= rank >= 32 && rank < 64 ? bit : 0;
                high |= rank >= 64 ? bit : 0;
            }
        }
        for (uint32_t rank = 0; rank < num_ranks; ++rank) {
            const uint32_t bits = rank < 32 ? low : rank < 64 ? middle : high;
            const uint32_t goes = __ballot_sync(kAll, bits >> rank % 32 & 1);
            if (lane_idx() == rank % kWarpThreads)
                store_relaxed(at<uint64_t>(args.peers, rank, args.small.masks) +
                                  ((epoch & 1) * num_ranks + me) * kSmallBatches + batch,
                              word_of(epoch, goes));
        }
    }
}

// ---- Receiving.

struct Coming {
    uint32_t* goes;   // [source][batch]
    uint32_t* first;  // [source][batch]: row of the first of them
    uint32_t* num_rows;
};

// Learns which tokens come, and where each lies. All threads; barriers of the block inside.
__device__ __forceinline__ bool learn_masks(const SmallDispatchArgs& args, const Coming& coming, uint64_t epoch) {
    const uint32_t num_ranks = args.peers.num_ranks, me = args.peers.rank, num_cells = num_ranks * kSmallBatches;
    const uint64_t* const words = at<uint64_t>(args.peers, me, args.small.masks) + (epoch & 1) * num_cells;
    bool ok = true;
    const uint64_t begin = args.waited_ns != nullptr ? now_ns() : 0;
    for (uint32_t cell = threadIdx.x; cell < num_cells; cell += kThreads) {
        const uint32_t source = cell / kSmallBatches;
        coming.goes[cell] =
            wait_word(args.limits, words + cell, epoch, args.limits.rank - me + source, Stage::kDispatchCount, ok);
        if (args.waited_ns != nullptr && blockIdx.x == 0 && cell % kSmallBatches == 0)
            args.waited_ns[source] = now_ns() - begin;
    }
    if (__syncthreads_and(ok) == 0) return false;
    if (warp_idx() == 0) {
        uint32_t total = 0;
        for (uint32_t from = 0; from < num_cells; from += kWarpThreads) {
            const uint32_t cell = from + lane_idx();
            const uint32_t count = cell < num_cells ? __popc(coming.goes[cell]) : 0;
            const uint32_t sum = total + warp_scan(count);
            if (cell < num_cells) coming.first[cell] = sum - count;
            total = __shfl_sync(kAll, sum, kWarpThreads - 1);
        }
        if (lane_idx() == 0) *coming.num_rows = total;
    }
    __syncthreads();
    return true;
}

// The last cell that begins at the row or before: the one that it is in.
__device__ __forceinline__ uint32_t cell_of_row(const Coming& coming, uint32_t num_cells, uint32_t row) {
    uint32_t low = 0, high = num_cells;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (coming.first[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// A unit of a received row into its place. One warp.
__device__ __forceinline__ bool receive_unit(const SmallDispatchArgs& args, const Slots& slots, const Coming& coming,
                                             uint32_t row, uint32_t unit, uint64_t epoch) {
    const uint32_t me = args.peers.rank, num_topk = args.shape.num_topk, lane = lane_idx();
    const uint32_t cell = cell_of_row(coming, args.peers.num_ranks * kSmallBatches, row);
    const uint32_t source = cell / kSmallBatches;
    const uint32_t token = cell % kSmallBatches * kWarpThreads + nth_bit(coming.goes[cell], row - coming.first[cell]);
    const uint32_t peer = args.limits.rank - me + source;
    const uint8_t* const slot =
        slot_at(args.peers, me, args.small.lines, args.small.num_tokens, epoch, source, token, args.small.line_bytes);
    const uint32_t group = unit * kSmallUnroll;
    Pair words[kSmallUnroll];
    if (unit < slots.row_units) {
        const uint32_t num = min(kSmallUnroll, slots.row_groups - group);
        const uint64_t* const own =
            static_cast<const uint64_t*>(args.x) + static_cast<uint64_t>(token) * slots.row_words;
        if (source == me) {
#pragma unroll
            for (uint32_t i = 0; i < kSmallUnroll; ++i)
                if (i < num) words[i] = cut_row(own, slots.row_words, group + i, epoch);
        } else if (!wait_groups(args.limits, slot + group * kGroupBytes, num, epoch, peer, Stage::kDispatchRows,
                                words)) {
            return false;
        }
        uint64_t* const out = static_cast<uint64_t*>(args.out_rows) + static_cast<uint64_t>(row) * slots.row_words;
#pragma unroll
        for (uint32_t i = 0; i < kSmallUnroll; ++i)
            if (i < num) paste_row(out, slots.row_words, group + i, words[i]);
        return true;
    }
    const uint32_t num = num_details_of(args.shape);
    if (source != me && !wait_groups(args.limits, slot + slots.row_groups * kGroupBytes, slots.detail_groups, epoch,
                                     peer, Stage::kDispatchRows, words))
        return false;
#pragma unroll
    for (uint32_t i = 0; i < kSmallUnroll; ++i) {
        if (i >= slots.detail_groups) continue;
        if (source == me)
            words[i] = cut_details(num, i, epoch, [&](uint32_t j) { return detail_of(args, token, me, j); });
        paste_details(num, i, words[i], [&](uint32_t j, uint32_t value) { put_detail(args, row, j, value); });
    }
    if (lane < num_topk + 2)
        args.out_metadata[static_cast<uint64_t>(row) * (num_topk + 2) + lane] =
            lane == 0 ? static_cast<int32_t>(source * args.shape.max_tokens + token) : -1;
    if (source == me && lane == 0) args.own_rows[token] = static_cast<int32_t>(row);
    return true;
}

// ---- The books, by one block of their own.

__device__ __forceinline__ void tell_small_experts(const SmallDispatchArgs& args, uint32_t* counts, uint64_t epoch) {
    const uint32_t num_ranks = args.peers.num_ranks, each = args.shape.experts_per_rank;
    for (uint32_t i = threadIdx.x; i < args.shape.num_experts; i += kThreads) counts[i] = 0;
    __syncthreads();
    const uint32_t num_entries = args.shape.num_tokens * args.shape.num_topk;
    for (uint32_t entry = threadIdx.x; entry < num_entries; entry += kThreads) {
        const uint32_t expert = load_index(args.topk_indices, args.shape.wide_indices, entry);
        if (expert < args.shape.num_experts) atomicAdd(counts + expert, 1);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < args.shape.num_experts; i += kThreads)
        store_relaxed(at<uint64_t>(args.peers, i / each, args.small.experts) +
                          ((epoch & 1) * num_ranks + args.peers.rank) * max_local_experts(num_ranks) + i % each,
                      word_of(epoch, counts[i]));
}

__device__ __forceinline__ bool keep_small_books(const SmallDispatchArgs& args, const Coming& coming, uint32_t* counts,
                                                 uint64_t epoch) {
    const uint32_t num_ranks = args.peers.num_ranks, me = args.peers.rank, each = args.shape.experts_per_rank;
    const uint32_t columns = max_local_experts(num_ranks);
    const uint64_t* const words = at<uint64_t>(args.peers, me, args.small.experts) + (epoch & 1) * num_ranks * columns;
    bool ok = true;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < each; i += kThreads) counts[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < num_ranks * each; i += kThreads) {
        const uint32_t peer = args.limits.rank - me + i / each;
        const uint64_t* const word = words + i / each * columns + i % each;
        atomicAdd(counts + i % each, wait_word(args.limits, word, epoch, peer, Stage::kDispatchCount, ok));
    }
    if (__syncthreads_and(ok) == 0) return false;
    for (uint32_t source = threadIdx.x; source < num_ranks; source += kThreads)
        args.tokens_per_rank[source] =
            source + 1 < num_ranks ? coming.first[(source + 1) * kSmallBatches] : *coming.num_rows;
    if (warp_idx() != 0) return true;
    uint32_t num_entries = 0;
    for (uint32_t from = 0; from < each; from += kWarpThreads) {
        const uint32_t expert = from + lane_idx();
        const uint32_t count = expert < each ? counts[expert] : 0;
        const uint32_t aligned = align_up(count, args.expert_alignment);
        const uint32_t sum = num_entries + warp_scan(aligned);
        if (expert < each) {
            args.expert_tokens[expert] = static_cast<int32_t>(count);
            args.expert_sums[expert] = static_cast<int32_t>(args.expanded ? sum - aligned + count : sum);
            if (args.statistics != nullptr) args.statistics[expert] += static_cast<int32_t>(count);
            if (args.host_counts != nullptr) args.host_counts[3 + expert] = aligned;
        }
        num_entries = __shfl_sync(kAll, sum, kWarpThreads - 1);
    }
    if (args.host_counts == nullptr) return true;
    __threadfence_system();
    __syncwarp();
    if (lane_idx() == 0) {
        args.host_counts[1] = *coming.num_rows;
        args.host_counts[2] = num_entries;
        store_release(reinterpret_cast<uint64_t*>(args.host_counts), static_cast<uint64_t>(args.host_call));
    }
    return true;
}

__device__ __forceinline__ void small_dispatch(const SmallDispatchArgs& args) {
    __shared__ uint32_t goes[kMaxPeers * kSmallBatches], first[kMaxPeers * kSmallBatches], num_rows;
    __shared__ uint32_t counts[kEpMaxExperts];
    const Coming coming{goes, first, &num_rows};
    const Slots slots = slots_of(args.shape.row_bytes, num_details_of(args.shape), kSmallUnroll);
    const uint64_t sent = args.state->small_sent + 1;
    const uint64_t received = args.state->small_received + 1;
    if (has_given_up(args.limits)) return;
    const bool counting = threadIdx.x == 0 && counts_call(&args.state->small_ticket, sent | received);
    // The first block: the others wait for what it does first.
    const bool keeps_books = blockIdx.x == 0;
    const uint32_t worker = (blockIdx.x - 1) * kWarps + warp_idx(), num_workers = (gridDim.x - 1) * kWarps;
    if (args.sends) {
        if (keeps_books) {
            send_masks(args, sent);
            __syncthreads();
            if (threadIdx.x == 0) store_relaxed(&args.state->small_gate, sent);
            tell_small_experts(args, counts, sent);
        } else {
            const uint32_t num_units = args.shape.num_tokens * slots.num_units;
            for (uint32_t unit = worker; unit < num_units; unit += num_workers)
                if (!send_unit(args, slots, unit / slots.num_units, unit % slots.num_units, sent)) break;
        }
    }
    if (args.receives) {
        if (!learn_masks(args, coming, received)) return;
        if (keeps_books) {
            if (!keep_small_books(args, coming, counts, received)) return;
        } else {
            const uint32_t num_units = num_rows * slots.num_units;
            for (uint32_t unit = worker; unit < num_units; unit += num_workers)
                if (!receive_unit(args, slots, coming, unit / slots.num_units, unit % slots.num_units, received))
                    return;
        }
    }
    __syncthreads();
    if (counting) {
        if (args.sends) args.state->small_sent = sent;
        if (args.receives) args.state->small_received = received;
    }
}

}  // namespace epctl::ep
