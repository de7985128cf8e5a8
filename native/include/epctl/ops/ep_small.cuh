// Dispatch of few tokens. A row travels in lines that carry their own numbers: it is sent before anybody knows where it
// will lie. The receiver learns meanwhile which tokens come, and puts each row in its place.
#pragma once

#include "epctl/ops/ep_lines.cuh"
#include "epctl/ops/ep_small_masks.cuh"

namespace epctl::ep {

// Groups of one unit of work: 256 rows of 14,336 B, and their details, are one unit for each warp of 132 SMs.
constexpr uint32_t kSmallUnroll = 5;

// A selection travels as the expert below, and its weight above.
__device__ __forceinline__ uint64_t selection_of(const SmallDispatchArgs& args, uint64_t entry) {
    const uint32_t expert = load_index(args.topk_indices, args.shape.wide_indices, entry);
    const uint64_t weight = args.topk_weights != nullptr ? __float_as_uint(args.topk_weights[entry]) : 0;
    return weight << 32 | expert;
}

// As the receiver has it: experts count from its first, and what is not its own is no selection, without weight.
__device__ __forceinline__ void put_selection(const SmallDispatchArgs& args, uint64_t entry, uint64_t selection) {
    const uint32_t each = args.shape.experts_per_rank;
    const uint32_t local = static_cast<uint32_t>(selection) - args.peers.rank * each;
    const bool mine = local < each;
    const int32_t index = mine ? static_cast<int32_t>(local) : -1;
    if (args.shape.wide_indices)
        static_cast<int64_t*>(args.out_indices)[entry] = index;
    else
        static_cast<int32_t*>(args.out_indices)[entry] = index;
    if (args.out_weights != nullptr)
        args.out_weights[entry] = mine ? __uint_as_float(static_cast<uint32_t>(selection >> 32)) : 0.0f;
}

// ---- Sending.

// A unit of a token's row to all its ranks but this one. One warp.
__device__ __forceinline__ bool send_unit(const SmallDispatchArgs& args, const Slots& slots, uint32_t token,
                                          uint32_t unit, uint64_t epoch) {
    const uint32_t me = args.peers.rank, lane = lane_idx(), num_topk = args.shape.num_topk;
    const uint64_t entries = static_cast<uint64_t>(token) * num_topk;
    const bool of_row = unit < slots.row_units;
    const Part part = part_of(slots, unit, kSmallUnroll);
    Pair words[kSmallUnroll];
    uint32_t expert = kAll;
    if (lane < num_topk) expert = load_index(args.topk_indices, args.shape.wide_indices, entries + lane);
    if (of_row)
        cut_row(words, static_cast<const uint64_t*>(args.x) + static_cast<uint64_t>(token) * slots.row_words, part,
                epoch);
    const uint32_t rank = expert < args.shape.num_experts ? expert / args.shape.experts_per_rank : kAll;
    const uint32_t same = __match_any_sync(kAll, rank);
    const bool leads = rank != kAll && rank != me && same >> lane == 1;
    // The link is a queue: what says where rows go must not stand behind them.
    if (!wait_until_warp(args.limits, epoch, args.limits.rank, Stage::kDispatchChunk, epoch,
                         [&] { return __shfl_sync(kAll, load_relaxed(&args.state->small_gate), 0); }))
        return false;
#pragma unroll 1
    for (uint32_t leaders = __ballot_sync(kAll, leads); leaders != 0; leaders &= leaders - 1) {
        const uint32_t to_rank = __shfl_sync(kAll, rank, __ffs(static_cast<int>(leaders)) - 1);
        uint8_t* const slot = slot_at(args.peers, to_rank, args.small.lines, args.small.num_tokens, epoch, me, token,
                                      args.small.line_bytes);
        if (of_row) {
            store_groups(slot, part, words);
            continue;
        }
        uint8_t* to = slot + slots.row_groups * kGroupBytes;
#pragma unroll 1
        for (uint32_t done = 0; done < slots.num_scales; done += 2 * kGroupWords, to += kGroupBytes)
            store_group(to, cut_halves(static_cast<const uint32_t*>(args.scales) +
                                           static_cast<uint64_t>(token) * slots.num_scales + done,
                                       slots.num_scales - done, epoch));
        store_group(to, cut_selections(num_topk, epoch, [&](uint32_t k) { return selection_of(args, entries + k); }));
    }
    return true;
}

// ---- Receiving.

// Where a received row comes from.
struct Origin {
    uint32_t source, token, peer;
    const uint8_t* slot;
};

__device__ __forceinline__ Origin origin_of(const SmallDispatchArgs& args, const Coming& coming, uint32_t row,
                                            uint64_t epoch) {
    const uint32_t me = args.peers.rank, cell = cell_of_row(coming, row);
    Origin origin;
    origin.source = cell / coming.num_batches;
    origin.token = (cell - origin.source * coming.num_batches) * kWarpThreads +
                   nth_bit(coming.goes[cell], row - coming.first[cell]);
    origin.peer = args.limits.rank - me + origin.source;
    origin.slot = slot_at(args.peers, me, args.small.lines, args.small.num_tokens, epoch, origin.source, origin.token,
                          args.small.line_bytes);
    return origin;
}

// Scales, selections and the source of a received row. One warp.
__device__ __forceinline__ bool receive_details(const SmallDispatchArgs& args, const Slots& slots, const Origin& origin,
                                                uint32_t row, uint64_t epoch) {
    const uint32_t num_topk = args.shape.num_topk, lane = lane_idx();
    const bool own = origin.source == args.peers.rank;
    const uint8_t* from = origin.slot + slots.row_groups * kGroupBytes;
    Pair words[1];
#pragma unroll 1
    for (uint32_t done = 0; done < slots.num_scales; done += 2 * kGroupWords, from += kGroupBytes) {
        if (own)
            words[0] = cut_halves(static_cast<const uint32_t*>(args.scales) +
                                      static_cast<uint64_t>(origin.token) * slots.num_scales + done,
                                  slots.num_scales - done, epoch);
        else if (!wait_groups(args.limits, from, 1, epoch, origin.peer, Stage::kDispatchRows, words))
            return false;
        paste_halves(static_cast<uint32_t*>(args.out_scales) + static_cast<uint64_t>(row) * slots.num_scales + done,
                     slots.num_scales - done, words[0]);
    }
    const uint64_t entries = static_cast<uint64_t>(origin.token) * num_topk;
    if (own)
        words[0] = cut_selections(num_topk, epoch, [&](uint32_t k) { return selection_of(args, entries + k); });
    else if (!wait_groups(args.limits, from, 1, epoch, origin.peer, Stage::kDispatchRows, words))
        return false;
    paste_selections(num_topk, words[0], [&](uint32_t k, uint64_t word) {
        put_selection(args, static_cast<uint64_t>(row) * num_topk + k, word);
    });
    if (lane < num_topk + 2)
        args.out_metadata[static_cast<uint64_t>(row) * (num_topk + 2) + lane] =
            lane == 0 ? static_cast<int32_t>(origin.source * args.shape.max_tokens + origin.token) : -1;
    if (own && lane == 0) args.own_rows[origin.token] = static_cast<int32_t>(row);
    return true;
}

// A unit of a received row into its place. One warp.
__device__ __forceinline__ bool receive_unit(const SmallDispatchArgs& args, const Slots& slots, const Coming& coming,
                                             uint32_t row, uint32_t unit, uint64_t epoch) {
    const Origin origin = origin_of(args, coming, row, epoch);
    if (unit >= slots.row_units) return receive_details(args, slots, origin, row, epoch);
    const Part part = part_of(slots, unit, kSmallUnroll);
    Pair words[kSmallUnroll];
    if (origin.source == args.peers.rank)
        cut_row(words, static_cast<const uint64_t*>(args.x) + static_cast<uint64_t>(origin.token) * slots.row_words,
                part, epoch);
    else if (!wait_groups(args.limits, origin.slot + part.group * kGroupBytes, part.num, epoch, origin.peer,
                          Stage::kDispatchRows, words))
        return false;
    paste_row(static_cast<uint64_t*>(args.out_rows) + static_cast<uint64_t>(row) * slots.row_words, part, words);
    return true;
}

// Rows, by all blocks but the first. False when something does not come.
__device__ __forceinline__ bool small_rows(const SmallDispatchArgs& args, bool stops, uint64_t sent,
                                           uint64_t received) {
    const Slots slots = slots_of(args.shape.row_bytes, args.shape.scale_bytes, kSmallUnroll);
    const uint32_t worker = (blockIdx.x - 1) * kWarps + warp_idx(), num_workers = (gridDim.x - 1) * kWarps;
    if (args.sends) {
        const uint32_t num_units = args.shape.num_tokens * slots.num_units;
#pragma unroll 1
        for (uint32_t unit = worker; unit < num_units; unit += num_workers)
            if (!send_unit(args, slots, unit / slots.num_units, unit % slots.num_units, sent)) break;
    }
    Coming coming;
    if (!args.receives) return true;
    if (!learn_masks(args, coming, stops, received)) return false;
    const uint32_t num_units = coming.num_rows * slots.num_units;
#pragma unroll 1
    for (uint32_t unit = worker; unit < num_units; unit += num_workers)
        if (!receive_unit(args, slots, coming, unit / slots.num_units, unit % slots.num_units, received)) return false;
    return true;
}

__device__ __forceinline__ void small_dispatch(const SmallDispatchArgs& args) {
    const uint64_t sent = args.state->small_sent + 1;
    const uint64_t received = args.state->small_received + 1;
    const bool counting = counts_call(&args.state->small_ticket, sent | received);
    // Asked with the rest, and needed when the rest has arrived.
    const bool stops = has_given_up(args.limits);
    // The first block keeps the books: the others wait for what it does first.
    const bool ok =
        blockIdx.x == 0 ? small_books(args, stops, sent, received) : small_rows(args, stops, sent, received);
    if (__syncthreads_and(ok) == 0 || !counting) return;
    if (args.sends) args.state->small_sent = sent;
    if (args.receives) args.state->small_received = received;
}

}  // namespace epctl::ep
