// Combine: rows are pushed to their tokens' homes, and added there as they arrive. Links carry writes faster than
// reads.
#pragma once

#include "epctl/ops/ep_dispatch.cuh"
#include "epctl/ops/ep_sums.cuh"

namespace epctl::ep {

constexpr uint32_t kNoRow = 0xffffffffu;

// ---- The table: each home tells which of its tokens are which rows of each rank.

// Two of them take turns: a home that is done with a call may write the next table while others still read this one.
__device__ __forceinline__ uint32_t* table_of(const CombineArgs& args, uint32_t at_rank, uint32_t home,
                                              uint64_t epoch) {
    return at<uint32_t>(args.peers, at_rank, args.at.table + (epoch & 1) * args.at.table_bytes) +
           static_cast<uint64_t>(home) * (args.shape.max_tokens + 1);
}

// All threads; the block's part is told when all have written.
__device__ __forceinline__ void tell_table(const CombineArgs& args, uint64_t epoch) {
    const uint32_t num_ranks = args.peers.num_ranks, me = args.peers.rank, num_topk = args.shape.num_topk;
    const uint32_t num_batches = (args.shape.num_tokens + kWarpThreads - 1) / kWarpThreads;
#pragma unroll 1
    for (uint32_t batch = blockIdx.x + warp_idx() * gridDim.x; batch < num_batches; batch += gridDim.x * kWarps) {
        const uint32_t token = batch * kWarpThreads + lane_idx();
        int32_t routes[kEpMaxTopk];
#pragma unroll
        for (uint32_t k = 0; k < kEpMaxTopk; ++k)
            routes[k] = token < args.shape.num_tokens && k < num_topk
                            ? args.routes[static_cast<uint64_t>(token) * num_topk + k]
                            : -1;
        if (token >= args.shape.num_tokens) continue;
#pragma unroll 1
        for (uint32_t rank = 0; rank < num_ranks; ++rank) {
            uint32_t row = kNoRow;
#pragma unroll
            for (uint32_t k = 0; k < kEpMaxTopk; ++k)
                if (routes[k] >= 0 && static_cast<uint32_t>(routes[k]) >> kRowBits == rank)
                    row = static_cast<uint32_t>(routes[k]) & kRowMask;
            table_of(args, rank, me, epoch)[token] = row;
        }
    }
    if (blockIdx.x == 0)
#pragma unroll 1
        for (uint32_t rank = threadIdx.x; rank < num_ranks; rank += kThreads)
            table_of(args, rank, me, epoch)[args.shape.max_tokens] = args.shape.num_tokens;
    __syncthreads();
    if (threadIdx.x < num_ranks)
        add_release(at<uint64_t>(args.peers, threadIdx.x, args.at.told) + me, share_of_block());
}

__device__ __forceinline__ bool wait_told(const CombineArgs& args, uint64_t epoch) {
    const uint32_t me = args.peers.rank, peer = threadIdx.x;
    if (peer >= args.peers.num_ranks) return true;
    const uint64_t* const told = at<uint64_t>(args.peers, me, args.at.told) + peer;
    return wait_for(args.limits,
                    Awaited{told, epoch * kEpArrivalUnit, args.limits.rank - me + peer, Stage::kCombineReady, epoch},
                    args.waited_ns != nullptr && blockIdx.x == 0 ? args.waited_ns + peer : nullptr);
}

// ---- Pushing.

// One row on its way home.
struct Parcel {
    uint32_t home, token, row;
};

// The i-th of this rank's parcels: the homes take turns, token after token. row == kNoRow: there is none.
__device__ __forceinline__ Parcel parcel_of(const CombineArgs& args, uint64_t i, uint64_t epoch) {
    const uint32_t num_ranks = args.peers.num_ranks, me = args.peers.rank, num_homes = num_ranks - 1;
    const uint64_t end = static_cast<uint64_t>(args.shape.max_tokens) * num_homes;
    Parcel parcel{0, 0, kNoRow};
    if (i >= end) return parcel;
    parcel.token = static_cast<uint32_t>(i / num_homes);
    parcel.home = (me + 1 + static_cast<uint32_t>(i % num_homes)) % num_ranks;
    const uint32_t* const table = table_of(args, me, parcel.home, epoch);
    if (parcel.token < table[args.shape.max_tokens]) parcel.row = table[parcel.token];
    return parcel;
}

__device__ __forceinline__ uint64_t partial_idx(const CombineArgs& args, uint32_t source, uint32_t token) {
    return static_cast<uint64_t>(source) * args.shape.max_tokens + token;
}

__device__ __forceinline__ void push_weights(const CombineArgs& args, const Parcel& parcel) {
    const uint32_t num_topk = args.shape.num_topk, lane = lane_idx();
    if (args.weights == nullptr || lane >= num_topk) return;
    const uint64_t entry = static_cast<uint64_t>(parcel.row) * num_topk + lane;
    float weight;
    if (args.expanded) {
        const int32_t placed = args.metadata[static_cast<uint64_t>(parcel.row) * (num_topk + 2) + 2 + lane];
        weight = placed >= 0 ? args.weights[placed] : 0.0f;
    } else {
        weight = args.weights[entry];
    }
    at<float>(args.peers, parcel.home,
              args.at.weights)[partial_idx(args, args.peers.rank, parcel.token) * num_topk + lane] = weight;
}

// The row and its weights are there. The whole warp.
__device__ __forceinline__ void say_landed(const CombineArgs& args, const Parcel& parcel, uint64_t epoch) {
    __syncwarp();
    if (lane_idx() == 0)
        store_release(
            at<uint64_t>(args.peers, parcel.home, args.at.landed) + partial_idx(args, args.peers.rank, parcel.token),
            epoch);
}

__device__ __forceinline__ void load_parcel(const CombineArgs& args, const Ring& ring, uint32_t stage, uint32_t row) {
    if (lane_idx() != 0) return;
    bulk_load(ring.rows + stage * ring.slot_bytes,
              static_cast<const uint8_t*>(args.x) + static_cast<uint64_t>(row) * args.shape.row_bytes,
              args.shape.row_bytes, ring.barriers + stage);
}

// Rows as they are, through shared memory: one is being loaded while another one is stored, and a third one announced.
__device__ __forceinline__ void push_rows(const CombineArgs& args, const Ring& ring, uint64_t epoch) {
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * args.num_warps;
    uint32_t stage = 0, parity = 0, num_stored = 0;
    Parcel before{0, 0, kNoRow}, now{0, 0, kNoRow};
    auto store = [&](const Parcel& next) {
        // `now` is loaded; `next` takes the stage that `before` has left.
        bulk_stores_read<0>();
        __syncwarp();
        const uint32_t other = stage + 1 == ring.num_stages ? 0 : stage + 1;
        if (next.row != kNoRow && ring.num_stages > 1) load_parcel(args, ring, other, next.row);
        push_weights(args, now);
        barrier_wait(ring.barriers + stage, parity);
        if (lane_idx() == 0)
            bulk_store(at<uint8_t>(args.peers, now.home, args.at.partials) +
                           partial_idx(args, args.peers.rank, now.token) * args.shape.row_bytes,
                       ring.rows + stage * ring.slot_bytes, args.shape.row_bytes);
        bulk_stores_done<1>();
        if (num_stored > 0) say_landed(args, before, epoch);
        ++num_stored;
        if (next.row != kNoRow && ring.num_stages == 1) {
            bulk_stores_read<0>();
            __syncwarp();
            load_parcel(args, ring, other, next.row);
        }
        if (other == 0) parity ^= 1;
        stage = other;
        before = now;
        now = next;
    };
    const uint64_t end = static_cast<uint64_t>(args.shape.max_tokens) * (args.peers.num_ranks - 1);
#pragma unroll 1
    for (uint64_t from = blockIdx.x * args.num_warps + warp_idx(); from < end; from += step * kWarpThreads) {
        const Parcel mine = parcel_of(args, from + step * lane_idx(), epoch);
#pragma unroll 1
        for (uint32_t left = __ballot_sync(kAll, mine.row != kNoRow); left != 0; left &= left - 1) {
            const uint32_t lane = __ffs(static_cast<int>(left)) - 1;
            const Parcel next{__shfl_sync(kAll, mine.home, lane), __shfl_sync(kAll, mine.token, lane),
                              __shfl_sync(kAll, mine.row, lane)};
            if (now.row == kNoRow) {
                now = next;
                load_parcel(args, ring, stage, now.row);
            } else {
                store(next);
            }
        }
    }
    if (now.row != kNoRow) store(Parcel{0, 0, kNoRow});
    bulk_stores_done();
    if (num_stored > 0) say_landed(args, before, epoch);
}

// The sum of the expanded rows of row `row`, rounded.
__device__ __forceinline__ void sum_expanded(const CombineArgs& args, uint32_t row, uint32_t from, uint32_t num_vectors,
                                             float (&sums)[kUnroll][8]) {
    const uint32_t lane = lane_idx(), num_topk = args.shape.num_topk;
    const int32_t placed = lane < num_topk ? args.metadata[static_cast<uint64_t>(row) * (num_topk + 2) + 2 + lane] : -1;
    add_rows(sums, __ballot_sync(kAll, placed >= 0), from, num_vectors, [&](uint32_t from_lane) {
        return static_cast<const uint8_t*>(args.x) +
               static_cast<uint64_t>(__shfl_sync(kAll, placed, from_lane)) * args.shape.row_bytes;
    });
}

// Expanded rows: a token's are added before they travel.
__device__ __forceinline__ void push_sums(const CombineArgs& args, uint64_t epoch) {
    const uint32_t num_vectors = args.shape.row_bytes / kVectorBytes;
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * args.num_warps;
    const uint64_t end = static_cast<uint64_t>(args.shape.max_tokens) * (args.peers.num_ranks - 1);
#pragma unroll 1
    for (uint64_t i = blockIdx.x * args.num_warps + warp_idx(); i < end; i += step) {
        const Parcel parcel = parcel_of(args, i, epoch);
        if (parcel.row == kNoRow) continue;
        uint8_t* const out = at<uint8_t>(args.peers, parcel.home, args.at.partials) +
                             partial_idx(args, args.peers.rank, parcel.token) * args.shape.row_bytes;
#pragma unroll 1
        for (uint32_t begin = 0; begin < num_vectors; begin += kSegmentVectors) {
            float sums[kUnroll][8] = {};
            sum_expanded(args, parcel.row, begin + lane_idx(), num_vectors, sums);
            store_segment(out, begin + lane_idx(), num_vectors, sums);
        }
        push_weights(args, parcel);
        say_landed(args, parcel, epoch);
    }
}

// ---- Adding up.

// In lane k, where the k-th selection of a token of mine was made.
struct Source {
    uint32_t rank, row;
    bool leads;  // the last selection of its rank
};

__device__ __forceinline__ Source source_of(const CombineArgs& args, uint32_t token) {
    const uint32_t lane = lane_idx(), num_topk = args.shape.num_topk;
    const uint64_t entry = static_cast<uint64_t>(token) * num_topk + lane;
    Source source{kAll, 0, false};
    uint32_t expert = kAll;
    int32_t route = -1;
    if (lane < num_topk) {
        expert = load_index(args.topk_indices, args.shape.wide_indices, entry);
        route = args.routes[entry];
    }
    if (expert < args.shape.num_experts) source.rank = expert / args.shape.experts_per_rank;
    const uint32_t same = __match_any_sync(kAll, source.rank);
    source.row = static_cast<uint32_t>(__shfl_sync(kAll, route, 31 - __clz(static_cast<int>(same)))) & kRowMask;
    source.leads = route >= 0;
    return source;
}

__device__ __forceinline__ bool wait_landed(const CombineArgs& args, const Source& source, uint32_t token,
                                            uint64_t epoch) {
    bool ok = true;
    if (source.leads && source.rank != args.peers.rank) {
        const uint64_t* const landed = at<uint64_t>(args.peers, args.peers.rank, args.at.landed);
        ok = wait_for(args.limits,
                      Awaited{landed + partial_idx(args, source.rank, token), epoch,
                              args.limits.rank - args.peers.rank + source.rank, Stage::kCombineRows, token});
    }
    ok = __all_sync(kAll, ok);
    __syncwarp();
    return ok;
}

__device__ __forceinline__ void add_segments(const CombineArgs& args, const Source& source, uint32_t token,
                                             uint32_t from, uint32_t num_vectors, float (&sums)[kUnroll][8]) {
    const uint32_t me = args.peers.rank, leaders = __ballot_sync(kAll, source.leads);
    const uint8_t* const partials = at<const uint8_t>(args.peers, me, args.at.partials);
    const uint64_t row_bytes = args.shape.row_bytes;
    auto row_of = [&](uint32_t lane) {
        const uint32_t rank = __shfl_sync(kAll, source.rank, lane), row = __shfl_sync(kAll, source.row, lane);
        return rank == me ? static_cast<const uint8_t*>(args.x) + row * row_bytes
                          : partials + partial_idx(args, rank, token) * row_bytes;
    };
    if (!args.expanded) {
        add_rows(sums, leaders, from, num_vectors, row_of);
        return;
    }
#pragma unroll 1
    for (uint32_t left = leaders; left != 0; left &= left - 1) {
        const uint32_t lane = __ffs(static_cast<int>(left)) - 1;
        uint4 vectors[kUnroll] = {};
        if (__shfl_sync(kAll, source.rank, lane) == me) {
            float own[kUnroll][8] = {};
            sum_expanded(args, __shfl_sync(kAll, source.row, lane), from, num_vectors, own);
#pragma unroll
            for (uint32_t i = 0; i < kUnroll; ++i) vectors[i] = round_vector(own[i]);
        } else {
            load_segment(vectors, row_of(lane), from, num_vectors);
        }
        add_segment(sums, vectors);
    }
}

__device__ __forceinline__ void put_weights(const CombineArgs& args, const Source& source, uint32_t token) {
    const uint32_t lane = lane_idx(), num_topk = args.shape.num_topk, me = args.peers.rank;
    if (args.out_weights == nullptr || lane >= num_topk) return;
    float weight = 0.0f;
    if (source.rank == me && args.expanded) {
        weight = args.weights[args.metadata[static_cast<uint64_t>(source.row) * (num_topk + 2) + 2 + lane]];
    } else if (source.rank == me) {
        weight = args.weights[static_cast<uint64_t>(source.row) * num_topk + lane];
    } else if (source.rank != kAll) {
        weight =
            at<const float>(args.peers, me, args.at.weights)[partial_idx(args, source.rank, token) * num_topk + lane];
    }
    args.out_weights[static_cast<uint64_t>(token) * num_topk + lane] = weight;
}

// Warps from `args.num_warps` on: the first token is given, then they take what is left, in the order of arrival.
__device__ __forceinline__ void add_tokens(const CombineArgs& args, uint64_t epoch) {
    const uint32_t num_vectors = args.shape.row_bytes / kVectorBytes, num_adders = kWarps - args.num_warps;
    const uint32_t num_workers = gridDim.x * num_adders;
    uint32_t next;
#pragma unroll 1
    for (uint32_t token = blockIdx.x + (warp_idx() - args.num_warps) * gridDim.x; token < args.shape.num_tokens;
         token = next) {
        uint32_t claimed = 0;
        if (lane_idx() == 0) claimed = atomicAdd(args.state->combine_next + (epoch & 1), 1);
        next = num_workers + __shfl_sync(kAll, claimed, 0);
        const Source source = source_of(args, token);
        if (!wait_landed(args, source, token, epoch)) return;
        const uint64_t offset = static_cast<uint64_t>(token) * args.shape.row_bytes;
#pragma unroll 1
        for (uint32_t begin = 0; begin < num_vectors; begin += kSegmentVectors) {
            const uint32_t from = begin + lane_idx();
            float sums[kUnroll][8] = {};
            add_bias(sums, args.bias0, offset, from, num_vectors);
            add_bias(sums, args.bias1, offset, from, num_vectors);
            add_segments(args, source, token, from, num_vectors, sums);
            store_segment(static_cast<uint8_t*>(args.out) + offset, from, num_vectors, sums);
        }
        put_weights(args, source, token);
    }
}

}  // namespace epctl::ep
