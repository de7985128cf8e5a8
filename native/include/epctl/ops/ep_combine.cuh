// Combine: each token's home pulls its partial rows from where they were made, and adds them once.
#pragma once

#include "epctl/ops/ep_common.cuh"

namespace epctl::ep {

// A word of an announcement: the call's number above, an offset in units of 16 bytes below.
constexpr uint32_t kOffsetBits = 40;

__device__ __forceinline__ uint64_t* announcement(const CombineArgs& args, uint32_t at_rank, uint32_t source,
                                                  uint64_t epoch) {
    return at<uint64_t>(args.peers, at_rank, args.at.announced) + ((epoch & 1) * args.peers.num_ranks + source) * 2;
}

// Tells all ranks where my rows lie, and that they are ready. One block.
__device__ __forceinline__ void announce(const CombineArgs& args, uint64_t epoch) {
    const uint32_t peer = threadIdx.x;
    if (peer >= args.peers.num_ranks) return;
    uint64_t* const words = announcement(args, peer, args.peers.rank, epoch);
    store_release(words + 1, epoch << kOffsetBits | args.weights_offset / kVectorBytes);
    store_release(words, epoch << kOffsetBits | args.x_offset / kVectorBytes);
}

// offsets[2 r], offsets[2 r + 1]: where the rows and the weights of rank r lie. All threads.
__device__ __forceinline__ bool wait_announced(const CombineArgs& args, uint64_t epoch, uint64_t* offsets) {
    constexpr uint64_t kMask = (1ull << kOffsetBits) - 1;
    const uint32_t peer = threadIdx.x;
    if (peer >= args.peers.num_ranks) return true;
    const uint64_t begin = args.waited_ns != nullptr ? now_ns() : 0;
    const uint64_t* const words = announcement(args, args.peers.rank, peer, epoch);
    const uint32_t world = args.limits.rank - args.peers.rank + peer;
    if (!wait_for(args.limits, Awaited{words, epoch << kOffsetBits, world, Stage::kCombineReady, epoch})) return false;
    offsets[2 * peer] = (load_relaxed(words) & kMask) * kVectorBytes;
    offsets[2 * peer + 1] = (load_relaxed(words + 1) & kMask) * kVectorBytes;
    if (args.waited_ns != nullptr && blockIdx.x == 0) args.waited_ns[peer] = now_ns() - begin;
    return true;
}

// My rows have been read by all: they may be overwritten. One block.
__device__ __forceinline__ void wait_pulled(const CombineArgs& args, uint64_t epoch) {
    const uint32_t peer = threadIdx.x;
    if (peer >= args.peers.num_ranks) return;
    const uint64_t* const pulled = at<uint64_t>(args.peers, args.peers.rank, args.at.pulled);
    wait_for(args.limits, Awaited{pulled + peer, epoch * kEpArrivalUnit, args.limits.rank - args.peers.rank + peer,
                                  Stage::kCombineDone, epoch});
}

constexpr uint32_t kUnroll = 4;
constexpr uint32_t kSegmentVectors = kUnroll * kWarpThreads;

// Vectors `from + i × 32` of a row, i < kUnroll; nothing past the row's end.
__device__ __forceinline__ void load_segment(uint4 (&loaded)[kUnroll], const uint8_t* row, uint32_t from,
                                             uint32_t num_vectors) {
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) {
        const uint32_t vector = from + i * kWarpThreads;
        if (vector < num_vectors) loaded[i] = load_vector(reinterpret_cast<const uint4*>(row) + vector);
    }
}

__device__ __forceinline__ void add_segment(float (&sums)[kUnroll][8], const uint4 (&loaded)[kUnroll]) {
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) add_vector(sums[i], loaded[i]);
}

// The sum of the rows that the bits of `lanes` name, in ascending order: row_of(lane) gives the address, in all lanes.
template <class RowOf>
__device__ __forceinline__ void add_rows(float (&sums)[kUnroll][8], uint32_t lanes, uint32_t from, uint32_t num_vectors,
                                         RowOf row_of) {
    // Two rows are in flight: over the link, each takes a microsecond.
    uint4 next[kUnroll] = {};
    if (lanes != 0) load_segment(next, row_of(__ffs(static_cast<int>(lanes)) - 1), from, num_vectors);
    while (lanes != 0) {
        uint4 now[kUnroll];
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) now[i] = next[i];
        lanes &= lanes - 1;
        if (lanes != 0) load_segment(next, row_of(__ffs(static_cast<int>(lanes)) - 1), from, num_vectors);
        add_segment(sums, now);
    }
}

__device__ __forceinline__ void store_vectors(uint8_t* row, uint32_t from, uint32_t num_vectors,
                                              const uint4 (&vectors)[kUnroll]) {
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) {
        const uint32_t vector = from + i * kWarpThreads;
        if (vector < num_vectors) store_vector(reinterpret_cast<uint4*>(row) + vector, vectors[i]);
    }
}

__device__ __forceinline__ void store_segment(uint8_t* row, uint32_t from, uint32_t num_vectors,
                                              const float (&sums)[kUnroll][8]) {
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) {
        const uint32_t vector = from + i * kWarpThreads;
        if (vector < num_vectors) store_vector(reinterpret_cast<uint4*>(row) + vector, round_vector(sums[i]));
    }
}

__device__ __forceinline__ void add_bias(float (&sums)[kUnroll][8], const void* bias, uint64_t offset, uint32_t from,
                                         uint32_t num_vectors) {
    if (bias == nullptr) return;
    uint4 loaded[kUnroll] = {};
    load_segment(loaded, static_cast<const uint8_t*>(bias) + offset, from, num_vectors);
    add_segment(sums, loaded);
}

// In lane k, where the k-th selection of a token lies.
struct Source {
    uint32_t rank;
    uint32_t row;
    bool counts;  // a row is pulled for it
};

__device__ __forceinline__ Source source_of(const CombineArgs& args, uint32_t token) {
    const uint32_t lane = lane_idx(), num_topk = args.shape.num_topk;
    const uint64_t entry = static_cast<uint64_t>(token) * num_topk + lane;
    Source source{kAll, 0, false};
    int32_t route = -1;
    uint32_t expert = kAll;
    if (lane < num_topk) {
        route = args.routes[entry];
        expert = load_index(args.topk_indices, args.shape.wide_indices, entry);
    }
    if (expert < args.shape.num_experts) source.rank = expert / args.shape.experts_per_rank;
    const uint32_t same = __match_any_sync(kAll, source.rank);
    const int32_t led = __shfl_sync(kAll, route, 31 - __clz(static_cast<int>(same)));
    source.row = static_cast<uint32_t>(led) & kRowMask;
    source.counts = route >= 0;
    if (args.expanded_rows && source.rank != kAll) {
        // The row of this very selection, as its rank has placed it.
        const int32_t* const metadata = at<const int32_t>(args.peers, source.rank, args.at.metadata);
        source.row = static_cast<uint32_t>(metadata[static_cast<uint64_t>(source.row) * (num_topk + 2) + 2 + lane]);
        source.counts = true;
    }
    return source;
}

__device__ __forceinline__ void pull_rows(const CombineArgs& args, const uint64_t* offsets) {
    const uint32_t me = args.peers.rank, num_topk = args.shape.num_topk;
    const uint32_t num_vectors = args.shape.row_bytes / kVectorBytes;
    const uint32_t num_segments = (num_vectors + kSegmentVectors - 1) / kSegmentVectors;
    const uint32_t num_units = args.shape.num_tokens * num_segments;
    for (uint32_t unit = blockIdx.x * kWarps + warp_idx(); unit < num_units; unit += gridDim.x * kWarps) {
        const uint32_t token = unit / num_segments, segment = unit % num_segments;
        const uint32_t from = segment * kSegmentVectors + lane_idx();
        const uint64_t row_offset = static_cast<uint64_t>(token) * args.shape.row_bytes;
        const Source source = source_of(args, token);
        float sums[kUnroll][8] = {};
        add_bias(sums, args.bias0, row_offset, from, num_vectors);
        add_bias(sums, args.bias1, row_offset, from, num_vectors);
        add_rows(sums, __ballot_sync(kAll, source.counts), from, num_vectors, [&](uint32_t lane) {
            const uint32_t rank = __shfl_sync(kAll, source.rank, lane), row = __shfl_sync(kAll, source.row, lane);
            const uint8_t* const rows =
                rank == me ? static_cast<const uint8_t*>(args.local_x) : args.peers.base[rank] + offsets[2 * rank];
            return rows + static_cast<uint64_t>(row) * args.shape.row_bytes;
        });
        store_segment(static_cast<uint8_t*>(args.out) + row_offset, from, num_vectors, sums);
        if (args.out_weights == nullptr || segment != 0 || lane_idx() >= num_topk) continue;
        float weight = 0.0f;
        if (source.rank != kAll) {
            const float* const weights = source.rank == me
                                             ? args.local_weights
                                             : at<const float>(args.peers, source.rank, offsets[2 * source.rank + 1]);
            weight = args.expanded_rows ? weights[source.row]
                                        : weights[static_cast<uint64_t>(source.row) * num_topk + lane_idx()];
        }
        args.out_weights[static_cast<uint64_t>(token) * num_topk + lane_idx()] = weight;
    }
}

// Rows for others into symmetric memory; those of one token are summed first where x is expanded.
__device__ __forceinline__ void stage_rows(const StageArgs& args) {
    const uint32_t num_topk = args.shape.num_topk, lane = lane_idx();
    const uint32_t num_rows = args.tokens_per_rank[args.num_ranks - 1];
    const uint32_t skip_from =
        args.skipped_rank == 0 || args.skipped_rank >= args.num_ranks ? 0 : args.tokens_per_rank[args.skipped_rank - 1];
    const uint32_t skip_to = args.skipped_rank >= args.num_ranks ? 0 : args.tokens_per_rank[args.skipped_rank];
    const uint32_t num_vectors = args.shape.row_bytes / kVectorBytes;
    const uint32_t num_segments = (num_vectors + kSegmentVectors - 1) / kSegmentVectors;
    const uint64_t num_units = static_cast<uint64_t>(num_rows) * num_segments;
    const uint8_t* const x = static_cast<const uint8_t*>(args.x);
    for (uint64_t unit = blockIdx.x * kWarps + warp_idx(); unit < num_units; unit += gridDim.x * kWarps) {
        const uint32_t row = static_cast<uint32_t>(unit / num_segments), segment = unit % num_segments;
        if (row >= skip_from && row < skip_to) continue;
        const uint32_t from = segment * kSegmentVectors + lane;
        uint8_t* const out = static_cast<uint8_t*>(args.out_rows) + static_cast<uint64_t>(row) * args.shape.row_bytes;
        const bool weighs = args.out_weights != nullptr && segment == 0 && lane < num_topk;
        const uint64_t entry = static_cast<uint64_t>(row) * num_topk + lane;
        if (args.metadata == nullptr) {
            uint4 loaded[kUnroll] = {};
            load_segment(loaded, x + static_cast<uint64_t>(row) * args.shape.row_bytes, from, num_vectors);
            store_vectors(out, from, num_vectors, loaded);
            if (weighs) args.out_weights[entry] = args.weights[entry];
            continue;
        }
        const int32_t placed =
            lane < num_topk ? args.metadata[static_cast<uint64_t>(row) * (num_topk + 2) + 2 + lane] : -1;
        float sums[kUnroll][8] = {};
        add_rows(sums, __ballot_sync(kAll, placed >= 0), from, num_vectors, [&](uint32_t from_lane) {
            return x + static_cast<uint64_t>(__shfl_sync(kAll, placed, from_lane)) * args.shape.row_bytes;
        });
        store_segment(out, from, num_vectors, sums);
        if (weighs) args.out_weights[entry] = placed >= 0 ? args.weights[placed] : 0.0f;
    }
}

}  // namespace epctl::ep
