// Combine of few tokens: partial rows are pushed home in lines that carry their own numbers, and added there.
#pragma once

#include "epctl/ops/ep_small.cuh"

namespace epctl::ep {

constexpr uint32_t kReturnUnroll = 3;  // groups of one unit of work: sums take four times the registers of rows

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

__device__ __forceinline__ void add_groups(Sums& sums, const Pair (&words)[kReturnUnroll]) {
    // Behind the end of a row is whatever was in the registers, which nobody stores.
#pragma unroll
    for (uint32_t i = 0; i < kReturnUnroll; ++i) {
        add_word(sums.one[i], words[i].one);
        add_word(sums.other[i], words[i].other);
    }
}

__device__ __forceinline__ void round_groups(Pair (&words)[kReturnUnroll], const Sums& sums, uint64_t epoch) {
#pragma unroll
    for (uint32_t i = 0; i < kReturnUnroll; ++i) {
        words[i].one = round_word(sums.one[i]);
        words[i].other = cut_of_lane().numbered ? epoch : round_word(sums.other[i]);
    }
}

__device__ __forceinline__ const uint64_t* row_at(const void* rows, uint32_t row, const Slots& slots) {
    return static_cast<const uint64_t*>(rows) + static_cast<uint64_t>(row) * slots.row_words;
}

// In lane k, where the k-th selection of a received row lies among the expanded rows; negative where it is not mine.
__device__ __forceinline__ int32_t placed_of(const SmallCombineArgs& args, uint32_t row) {
    const uint32_t num_topk = args.shape.num_topk, lane = lane_idx();
    return lane < num_topk ? args.metadata[static_cast<uint64_t>(row) * (num_topk + 2) + 2 + lane] : -1;
}

// The sum of the expanded rows of a received row, rounded.
__device__ __forceinline__ void sum_expanded(const SmallCombineArgs& args, const Slots& slots, uint32_t row,
                                             const Part& part, uint64_t epoch, Pair (&words)[kReturnUnroll]) {
    const int32_t placed = placed_of(args, row);
    Sums sums;
    clear(sums);
#pragma unroll 1
    for (uint32_t left = __ballot_sync(kAll, placed >= 0); left != 0; left &= left - 1) {
        const int32_t one = __shfl_sync(kAll, placed, __ffs(static_cast<int>(left)) - 1);
        cut_row(words, row_at(args.x, one, slots), part, epoch);
        add_groups(sums, words);
    }
    round_groups(words, sums, epoch);
}

__device__ __forceinline__ uint64_t own_weight(const SmallCombineArgs& args, uint32_t row, uint32_t k) {
    const uint32_t num_topk = args.shape.num_topk;
    int64_t entry = static_cast<int64_t>(row) * num_topk + k;
    if (args.expanded) entry = args.metadata[static_cast<uint64_t>(row) * (num_topk + 2) + 2 + k];
    return args.weights != nullptr && entry >= 0 ? __float_as_uint(args.weights[entry]) : 0;
}

// A unit of a received row to the rank that it came from; nothing behind the last row, whose number `num_rows` may
// still be on its way from memory, as all that is loaded here. One warp.
__device__ __forceinline__ void return_unit(const SmallCombineArgs& args, const Slots& slots, uint32_t row,
                                            uint32_t unit, const uint32_t& num_rows, uint64_t epoch) {
    const uint32_t me = args.peers.rank, num_topk = args.shape.num_topk;
    const bool of_row = unit < slots.row_units;
    const Part part = part_of(slots, unit, kReturnUnroll);
    Pair words[kReturnUnroll];
    if (of_row && !args.expanded) cut_row(words, row_at(args.x, row, slots), part, epoch);
    const uint32_t source = args.metadata[static_cast<uint64_t>(row) * (num_topk + 2)];
    if (row >= num_rows) return;
    const uint32_t home = source / args.shape.max_tokens, token = source - home * args.shape.max_tokens;
    if (home == me) return;
    uint8_t* const slot =
        slot_at(args.peers, home, args.small.returned, args.small.num_tokens, epoch, me, token, slots.bytes);
    if (of_row) {
        if (args.expanded) sum_expanded(args, slots, row, part, epoch, words);
        store_groups(slot, part, words);
    } else if (args.weights != nullptr) {
        store_group(slot + slots.row_groups * kGroupBytes,
                    cut_selections(num_topk, epoch, [&](uint32_t k) { return own_weight(args, row, k); }));
    }
}

// What is loaded about a token of mine, before anything of it is needed.
struct Looked {
    uint32_t expert;  // in lane k, of its k-th selection
    int32_t own_row;  // where this rank has received it, if it has
};

__device__ __forceinline__ Looked look_up(const SmallCombineArgs& args, uint32_t token) {
    Looked looked{kAll, -1};
    if (token >= args.shape.num_tokens) return looked;
    looked.own_row = args.own_rows[token];
    if (lane_idx() < args.shape.num_topk)
        looked.expert = load_index(args.topk_indices, args.shape.wide_indices,
                                   static_cast<uint64_t>(token) * args.shape.num_topk + lane_idx());
    return looked;
}

// In lane k, the rank of the k-th selection of a token of mine; leads: the last one of that rank.
struct Home {
    uint32_t rank;
    bool leads;
};

__device__ __forceinline__ Home home_of(const SmallCombineArgs& args, uint32_t expert) {
    Home home{kAll, false};
    if (expert < args.shape.num_experts) home.rank = expert / args.shape.experts_per_rank;
    const uint32_t same = __match_any_sync(kAll, home.rank);
    home.leads = home.rank != kAll && same >> lane_idx() == 1;
    return home;
}

// Weights of a token: every column from the rank that owns it, 0 where nothing was selected. One warp.
__device__ __forceinline__ bool combine_weights(const SmallCombineArgs& args, const Slots& slots, uint32_t token,
                                                const Home& home, uint32_t leaders, int32_t own_row, uint64_t epoch) {
    const uint32_t me = args.peers.rank, num_topk = args.shape.num_topk, lane = lane_idx();
    float* const out = args.out_weights + static_cast<uint64_t>(token) * num_topk;
    if (lane < num_topk && home.rank == kAll) out[lane] = 0.0f;
    Pair words[1];
#pragma unroll 1
    for (uint32_t left = leaders; left != 0; left &= left - 1) {
        const uint32_t rank = __shfl_sync(kAll, home.rank, __ffs(static_cast<int>(left)) - 1);
        const uint8_t* const slot =
            slot_at(args.peers, me, args.small.returned, args.small.num_tokens, epoch, rank, token, slots.bytes);
        const uint32_t owned = __ballot_sync(kAll, home.rank == rank);
        if (rank == me)
            words[0] = cut_selections(num_topk, epoch, [&](uint32_t k) { return own_weight(args, own_row, k); });
        else if (!wait_groups(args.limits, slot + slots.row_groups * kGroupBytes, 1, epoch,
                              args.limits.rank - me + rank, Stage::kCombineRows, words))
            return false;
        paste_selections(num_topk, words[0], [&](uint32_t k, uint64_t word) {
            if (owned >> k & 1) out[k] = __uint_as_float(static_cast<uint32_t>(word));
        });
    }
    return true;
}

// A unit of a token's sum. One warp; false when a rank does not send.
__device__ __forceinline__ bool combine_unit(const SmallCombineArgs& args, const Slots& slots, uint32_t token,
                                             uint32_t unit, const Looked& looked, uint64_t epoch) {
    const uint32_t me = args.peers.rank;
    const Home home = home_of(args, looked.expert);
    const uint32_t leaders = __ballot_sync(kAll, home.leads);
    if (unit >= slots.row_units)
        return args.out_weights == nullptr || combine_weights(args, slots, token, home, leaders, looked.own_row, epoch);
    const Part part = part_of(slots, unit, kReturnUnroll);
    Pair words[kReturnUnroll], own[kReturnUnroll];
    // First what is here already: it is on its way while others are waited for.
    if (__any_sync(kAll, home.rank == me)) {
        if (args.expanded)
            sum_expanded(args, slots, looked.own_row, part, epoch, own);
        else
            cut_row(own, row_at(args.x, looked.own_row, slots), part, epoch);
    }
    Sums sums;
    clear(sums);
#pragma unroll 1
    for (uint32_t i = 0; i < 2; ++i) {
        const void* const bias = i == 0 ? args.bias0 : args.bias1;
        if (bias == nullptr) continue;
        cut_row(words, row_at(bias, token, slots), part, epoch);
        add_groups(sums, words);
    }
#pragma unroll 1
    for (uint32_t left = leaders; left != 0; left &= left - 1) {
        const uint32_t rank = __shfl_sync(kAll, home.rank, __ffs(static_cast<int>(left)) - 1);
        const uint8_t* const slot =
            slot_at(args.peers, me, args.small.returned, args.small.num_tokens, epoch, rank, token, slots.bytes);
        if (rank == me) {
            add_groups(sums, own);
            continue;
        }
        if (!wait_groups(args.limits, slot + part.group * kGroupBytes, part.num, epoch, args.limits.rank - me + rank,
                         Stage::kCombineRows, words)) {
            return false;
        }
        add_groups(sums, words);
    }
    round_groups(words, sums, epoch);
    paste_row(static_cast<uint64_t*>(args.out) + static_cast<uint64_t>(token) * slots.row_words, part, words);
    return true;
}

// Nobody is more than one call ahead, also of ranks that have nothing to send: the lines of two calls are kept.
__device__ __forceinline__ void tell_here(const SmallCombineArgs& args, uint64_t epoch) {
    if (threadIdx.x < args.peers.num_ranks)
        store_relaxed(at<uint64_t>(args.peers, threadIdx.x, args.small.here) + args.peers.rank, epoch);
}

__device__ __forceinline__ void wait_here(const SmallCombineArgs& args, uint64_t epoch, uint64_t* waited_ns) {
    const uint32_t me = args.peers.rank, peer = threadIdx.x;
    if (peer >= args.peers.num_ranks) return;
    wait_for(args.limits,
             Awaited{at<uint64_t>(args.peers, me, args.small.here) + peer, epoch, args.limits.rank - me + peer,
                     Stage::kCombineReady, epoch},
             waited_ns != nullptr ? waited_ns + peer : nullptr);
}

__device__ __forceinline__ void small_combine(const SmallCombineArgs& args) {
    const Slots slots = slots_of(args.shape.row_bytes, 0, kReturnUnroll);
    const uint64_t returned = args.state->small_returned + 1;
    const uint64_t combined = args.state->small_combined + 1;
    const bool counting = counts_call(&args.state->small_ticket, returned | combined);
    const uint32_t worker = blockIdx.x * kWarps + warp_idx(), num_workers = gridDim.x * kWarps;
    // Read with the rest, and used where the rest has arrived: what the dispatch was to write may not be there.
    const bool stops = has_given_up(args.limits);
    // Where this warp's first token went: on its way while rows are sent.
    Looked looked = look_up(args, args.receives ? worker / slots.num_units : args.shape.num_tokens);
    if (args.sends) {
        if (blockIdx.x == 0) tell_here(args, returned);
        // A call that is asked for its waits waits here, too, where it learns who begins late.
        if (blockIdx.x == 0 && args.waited_ns != nullptr) wait_here(args, returned, args.waited_ns);
        const uint32_t told = args.tokens_per_rank[args.peers.num_ranks - 1], num_rows = stops ? 0 : told;
        const uint32_t num_units = args.num_rows * slots.num_units;
        // Rows lie in the order of their sources. Those behind mine first: mine stay here, and would only delay them.
        const uint32_t turned = args.num_rows / args.peers.num_ranks * (args.peers.rank + 1);
#pragma unroll 1
        for (uint32_t unit = worker; unit < num_units; unit += num_workers) {
            const uint32_t row = (unit / slots.num_units + turned) % args.num_rows;
            if (unit != worker && row >= num_rows) continue;  // known by now
            return_unit(args, slots, row, unit % slots.num_units, num_rows, returned);
        }
    }
    if (stops) return;
    if (args.receives) {
        const uint32_t num_units = args.shape.num_tokens * slots.num_units;
#pragma unroll 1
        for (uint32_t unit = worker; unit < num_units; unit += num_workers) {
            const Looked next = look_up(args, (unit + num_workers) / slots.num_units);
            if (!combine_unit(args, slots, unit / slots.num_units, unit % slots.num_units, looked, combined)) return;
            looked = next;
        }
        __syncthreads();
        if (blockIdx.x == 0) wait_here(args, combined, nullptr);
    }
    __syncthreads();
    if (counting) {
        if (args.sends) args.state->small_returned = returned;
        if (args.receives) args.state->small_combined = combined;
    }
}

}  // namespace epctl::ep
