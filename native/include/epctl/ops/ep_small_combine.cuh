// Combine of few tokens: partial rows are pushed home in lines that carry their own numbers, and added there.
#pragma once

#include "epctl/ops/ep_small.cuh"

namespace epctl::ep {

constexpr uint32_t kReturnUnroll = 2;  // groups of one unit of work: sums take four times the registers of rows

// Four BF16 numbers of a word, added in float32.
__device__ __forceinline__ void add_word(float (&sums)[4], uint64_t word) {
    const uint32_t low = static_cast<uint32_t>(word), high = static_cast<uint32_t>(word >> 32);
    sums[0] += __uint_as_float(low << 16);
    sums[1] += __uint_as_float(low & 0xffff0000u);
    sums[2] += __uint_as_float(high << 16);
    sums[3] += __uint_as_float(high & 0xffff0000u);
}

__device__ __forceinline__ uint64_t round_word(const float (&sums)[4]) {
    return round_pair(sums[0], sums[1]) | static_cast<uint64_t>(round_pair(sums[2], sums[3])) << 32;
}

// Sums of what a lane holds of the groups of a unit.
struct Sums {
    float one[kReturnUnroll][4], other[kReturnUnroll][4];
};

__device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
    for (uint32_t i = 0; i < kReturnUnroll; ++i)
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) sums.one[i][j] = sums.other[i][j] = 0.0f;
}

__device__ __forceinline__ void add_groups(Sums& sums, const Pair (&words)[kReturnUnroll], uint32_t num) {
#pragma unroll
    for (uint32_t i = 0; i < kReturnUnroll; ++i) {
        if (i >= num) continue;
        add_word(sums.one[i], words[i].one);
        if (!cut_of_lane().numbered) add_word(sums.other[i], words[i].other);
    }
}

__device__ __forceinline__ void cut_groups(Pair (&words)[kReturnUnroll], const void* rows, uint32_t row,
                                           const Slots& slots, uint32_t group, uint32_t num, uint64_t epoch) {
    const uint64_t* const from = static_cast<const uint64_t*>(rows) + static_cast<uint64_t>(row) * slots.row_words;
#pragma unroll
    for (uint32_t i = 0; i < kReturnUnroll; ++i)
        if (i < num) words[i] = cut_row(from, slots.row_words, group + i, epoch);
}

__device__ __forceinline__ void round_groups(Pair (&words)[kReturnUnroll], const Sums& sums, uint64_t epoch) {
#pragma unroll
    for (uint32_t i = 0; i < kReturnUnroll; ++i) {
        words[i].one = round_word(sums.one[i]);
        words[i].other = cut_of_lane().numbered ? epoch : round_word(sums.other[i]);
    }
}

// What this rank contributes for its received row `row`: the row itself, or the sum of its expanded rows, rounded.
__device__ __forceinline__ void own_groups(const SmallCombineArgs& args, const Slots& slots, uint32_t row,
                                           uint32_t group, uint32_t num, uint64_t epoch, Pair (&words)[kReturnUnroll]) {
    if (!args.expanded) {
        cut_groups(words, args.x, row, slots, group, num, epoch);
        return;
    }
    const uint32_t num_topk = args.shape.num_topk;
    Sums sums;
    clear(sums);
    for (uint32_t k = 0; k < num_topk; ++k) {
        const int32_t placed = args.metadata[static_cast<uint64_t>(row) * (num_topk + 2) + 2 + k];
        if (placed < 0) continue;
        cut_groups(words, args.x, placed, slots, group, num, epoch);
        add_groups(sums, words, num);
    }
    round_groups(words, sums, epoch);
}

__device__ __forceinline__ uint32_t own_weight(const SmallCombineArgs& args, uint32_t row, uint32_t k) {
    const uint32_t num_topk = args.shape.num_topk;
    if (args.weights == nullptr) return 0;
    if (!args.expanded) return __float_as_uint(args.weights[static_cast<uint64_t>(row) * num_topk + k]);
    const int32_t placed = args.metadata[static_cast<uint64_t>(row) * (num_topk + 2) + 2 + k];
    return placed >= 0 ? __float_as_uint(args.weights[placed]) : 0;
}

// A unit of a received row to the rank that it came from. One warp; false behind the last row, whose number `num_rows`
// may still be on its way from memory, as all that is loaded here.
__device__ __forceinline__ bool return_unit(const SmallCombineArgs& args, const Slots& slots, uint32_t row,
                                            uint32_t unit, const uint32_t& num_rows, uint64_t epoch) {
    const uint32_t me = args.peers.rank, num_topk = args.shape.num_topk;
    const uint32_t group = unit * kReturnUnroll,
                   num = min(kReturnUnroll, slots.row_groups - min(group, slots.row_groups));
    Pair words[kReturnUnroll];
    if (!args.expanded && unit < slots.row_units) own_groups(args, slots, row, group, num, epoch, words);
    const uint32_t source = args.metadata[static_cast<uint64_t>(row) * (num_topk + 2)];
    if (row >= num_rows) return false;
    const uint32_t home = source / args.shape.max_tokens, token = source % args.shape.max_tokens;
    if (home == me) return true;
    uint8_t* const slot =
        slot_at(args.peers, home, args.small.returned, args.small.num_tokens, epoch, me, token, slots.bytes);
    if (unit < slots.row_units) {
        if (args.expanded) own_groups(args, slots, row, group, num, epoch, words);
#pragma unroll
        for (uint32_t i = 0; i < kReturnUnroll; ++i)
            if (i < num) store_group(slot + (group + i) * kGroupBytes, words[i]);
    } else if (args.weights != nullptr) {
        store_group(slot + slots.row_groups * kGroupBytes,
                    cut_details(num_topk, 0, epoch, [&](uint32_t k) { return own_weight(args, row, k); }));
    }
    return true;
}

__device__ __forceinline__ void add_bias(const SmallCombineArgs& args, const Slots& slots, const void* bias,
                                         uint32_t token, uint32_t group, uint32_t num, Sums& sums) {
    if (bias == nullptr) return;
    Pair words[kReturnUnroll];
    cut_groups(words, bias, token, slots, group, num, 0);
    add_groups(sums, words, num);
}

// In lane k, the rank of the k-th selection of a token of mine; leads: the last one of that rank.
struct Home {
    uint32_t rank;
    bool leads;
};

__device__ __forceinline__ Home home_of(const SmallCombineArgs& args, uint32_t token) {
    const uint32_t lane = lane_idx();
    Home home{kAll, false};
    if (lane < args.shape.num_topk) {
        const uint32_t expert = load_index(args.topk_indices, args.shape.wide_indices,
                                           static_cast<uint64_t>(token) * args.shape.num_topk + lane);
        if (expert < args.shape.num_experts) home.rank = expert / args.shape.experts_per_rank;
    }
    const uint32_t same = __match_any_sync(kAll, home.rank);
    home.leads = home.rank != kAll && same >> lane == 1;
    return home;
}

// A unit of a token's sum. One warp; false when a rank does not send.
__device__ __forceinline__ bool combine_unit(const SmallCombineArgs& args, const Slots& slots, uint32_t token,
                                             uint32_t unit, uint64_t epoch) {
    const uint32_t me = args.peers.rank, num_topk = args.shape.num_topk, lane = lane_idx();
    const Home home = home_of(args, token);
    const int32_t own_row = args.own_rows[token];
    const uint32_t leaders = __ballot_sync(kAll, home.leads);
    const uint32_t group = unit * kReturnUnroll,
                   num = min(kReturnUnroll, slots.row_groups - min(group, slots.row_groups));
    Pair words[kReturnUnroll];
    if (unit < slots.row_units) {
        Sums sums;
        clear(sums);
        add_bias(args, slots, args.bias0, token, group, num, sums);
        add_bias(args, slots, args.bias1, token, group, num, sums);
        for (uint32_t left = leaders; left != 0; left &= left - 1) {
            const uint32_t rank = __shfl_sync(kAll, home.rank, __ffs(static_cast<int>(left)) - 1);
            const uint8_t* const slot =
                slot_at(args.peers, me, args.small.returned, args.small.num_tokens, epoch, rank, token, slots.bytes);
            if (rank == me)
                own_groups(args, slots, own_row, group, num, epoch, words);
            else if (!wait_groups(args.limits, slot + group * kGroupBytes, num, epoch, args.limits.rank - me + rank,
                                  Stage::kCombineRows, words))
                return false;
            add_groups(sums, words, num);
        }
        round_groups(words, sums, epoch);
        uint64_t* const out = static_cast<uint64_t*>(args.out) + static_cast<uint64_t>(token) * slots.row_words;
#pragma unroll
        for (uint32_t i = 0; i < kReturnUnroll; ++i)
            if (i < num) paste_row(out, slots.row_words, group + i, words[i]);
        return true;
    }
    if (args.out_weights == nullptr) return true;
    // Every column from the rank that owns it; 0 where nothing was selected.
    if (lane < num_topk && home.rank == kAll) args.out_weights[static_cast<uint64_t>(token) * num_topk + lane] = 0.0f;
    for (uint32_t left = leaders; left != 0; left &= left - 1) {
        const uint32_t rank = __shfl_sync(kAll, home.rank, __ffs(static_cast<int>(left)) - 1);
        const uint8_t* const slot =
            slot_at(args.peers, me, args.small.returned, args.small.num_tokens, epoch, rank, token, slots.bytes);
        const uint32_t owned = __ballot_sync(kAll, home.rank == rank);
        if (rank == me)
            words[0] = cut_details(num_topk, 0, epoch, [&](uint32_t k) { return own_weight(args, own_row, k); });
        else if (!wait_groups(args.limits, slot + slots.row_groups * kGroupBytes, 1, epoch,
                              args.limits.rank - me + rank, Stage::kCombineRows, words))
            return false;
        paste_details(num_topk, 0, words[0], [&](uint32_t k, uint32_t value) {
            if (owned >> k & 1) args.out_weights[static_cast<uint64_t>(token) * num_topk + k] = __uint_as_float(value);
        });
    }
    return true;
}

// Nobody is more than one call ahead, also of ranks that have nothing to send: the lines of two calls are kept.
__device__ __forceinline__ void meet(const SmallCombineArgs& args, uint64_t epoch, bool tells, bool waits) {
    const uint32_t num_ranks = args.peers.num_ranks, me = args.peers.rank, peer = threadIdx.x;
    if (peer >= num_ranks) return;
    if (tells) store_relaxed(at<uint64_t>(args.peers, peer, args.small.here) + me, epoch);
    if (waits)
        wait_for(args.limits, Awaited{at<uint64_t>(args.peers, me, args.small.here) + peer, epoch,
                                      args.limits.rank - me + peer, Stage::kCombineReady, epoch});
}

__device__ __forceinline__ void small_combine(const SmallCombineArgs& args) {
    const Slots slots = slots_of(args.shape.row_bytes, args.shape.num_topk, kReturnUnroll);
    const uint64_t returned = args.state->small_returned + 1;
    const uint64_t combined = args.state->small_combined + 1;
    if (has_given_up(args.limits)) return;
    const bool counting = threadIdx.x == 0 && counts_call(&args.state->small_ticket, returned | combined);
    const uint32_t worker = blockIdx.x * kWarps + warp_idx(), num_workers = gridDim.x * kWarps;
    if (args.sends) {
        if (blockIdx.x == 0) meet(args, returned, true, false);
        const uint32_t num_rows = args.tokens_per_rank[args.peers.num_ranks - 1];
        const uint32_t num_units = args.num_rows * slots.num_units;
        for (uint32_t unit = worker; unit < num_units; unit += num_workers)
            if (!return_unit(args, slots, unit / slots.num_units, unit % slots.num_units, num_rows, returned)) break;
    }
    if (args.receives) {
        const uint32_t num_units = args.shape.num_tokens * slots.num_units;
        for (uint32_t unit = worker; unit < num_units; unit += num_workers)
            if (!combine_unit(args, slots, unit / slots.num_units, unit % slots.num_units, combined)) return;
        __syncthreads();
        if (blockIdx.x == 0) meet(args, combined, false, true);
    }
    __syncthreads();
    if (counting) {
        if (args.sends) args.state->small_returned = returned;
        if (args.receives) args.state->small_combined = combined;
    }
}

}  // namespace epctl::ep
