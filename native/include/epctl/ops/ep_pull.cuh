// Combine where every expanded row travels: each token's home pulls the rows of its selections from where they were
// made.
#pragma once

#include "epctl/ops/ep_sums.cuh"

namespace epctl::ep {

// A word of an announcement: the call's number above, an offset in units of 16 bytes below.
constexpr uint32_t kOffsetBits = 40;

__device__ __forceinline__ uint64_t* announcement(const PullArgs& args, uint32_t at_rank, uint32_t pulled,
                                                  uint64_t epoch) {
    return at<uint64_t>(args.peers, at_rank, args.at.announced) + ((epoch & 1) * args.peers.num_ranks + pulled) * 2;
}

// Tells all ranks where my rows lie, and that they are ready. One block.
__device__ __forceinline__ void announce(const PullArgs& args, uint64_t epoch) {
    const uint32_t peer = threadIdx.x;
    if (peer >= args.peers.num_ranks) return;
    uint64_t* const words = announcement(args, peer, args.peers.rank, epoch);
    store_relaxed(words + 1, epoch << kOffsetBits | args.weights_offset / kVectorBytes);
    store_release(words, epoch << kOffsetBits | args.x_offset / kVectorBytes);
}

// offsets[2 r], offsets[2 r + 1]: where the rows and the weights of rank r lie. All threads.
__device__ __forceinline__ bool wait_announced(const PullArgs& args, uint64_t epoch, uint64_t* offsets) {
    constexpr uint64_t kMask = (1ull << kOffsetBits) - 1;
    const uint32_t peer = threadIdx.x;
    if (peer >= args.peers.num_ranks) return true;
    const uint64_t* const words = announcement(args, args.peers.rank, peer, epoch);
    const uint32_t world = args.limits.rank - args.peers.rank + peer;
    if (!wait_for(args.limits, Awaited{words, epoch << kOffsetBits, world, Stage::kCombineReady, epoch},
                  args.waited_ns != nullptr && blockIdx.x == 0 ? args.waited_ns + peer : nullptr))
        return false;
    offsets[2 * peer] = (load_relaxed(words) & kMask) * kVectorBytes;
    offsets[2 * peer + 1] = (load_relaxed(words + 1) & kMask) * kVectorBytes;
    return true;
}

// My rows have been read by all: they may be overwritten. One block.
__device__ __forceinline__ void wait_pulled(const PullArgs& args, uint64_t epoch) {
    const uint32_t peer = threadIdx.x;
    if (peer >= args.peers.num_ranks) return;
    const uint64_t* const pulled = at<uint64_t>(args.peers, args.peers.rank, args.at.pulled);
    wait_for(args.limits, Awaited{pulled + peer, epoch * kEpArrivalUnit, args.limits.rank - args.peers.rank + peer,
                                  Stage::kCombineDone, epoch});
}

// In lane k, where the k-th selection of a token lies.
struct Pulled {
    uint32_t rank;
    uint32_t row;
    bool counts;  // a row is pulled for it
};

__device__ __forceinline__ Pulled pulled_of(const PullArgs& args, uint32_t token) {
    const uint32_t lane = lane_idx(), num_topk = args.shape.num_topk;
    const uint64_t entry = static_cast<uint64_t>(token) * num_topk + lane;
    Pulled pulled{kAll, 0, false};
    int32_t route = -1;
    uint32_t expert = kAll;
    if (lane < num_topk) {
        route = args.routes[entry];
        expert = load_index(args.topk_indices, args.shape.wide_indices, entry);
    }
    if (expert < args.shape.num_experts) pulled.rank = expert / args.shape.experts_per_rank;
    const uint32_t same = __match_any_sync(kAll, pulled.rank);
    const int32_t led = __shfl_sync(kAll, route, 31 - __clz(static_cast<int>(same)));
    pulled.row = static_cast<uint32_t>(led) & kRowMask;
    if (pulled.rank != kAll) {
        // The row of this very selection, as its rank has placed it.
        const int32_t* const metadata = at<const int32_t>(args.peers, pulled.rank, args.at.metadata);
        pulled.row = static_cast<uint32_t>(metadata[static_cast<uint64_t>(pulled.row) * (num_topk + 2) + 2 + lane]);
        pulled.counts = true;
    }
    return pulled;
}

__device__ __forceinline__ void pull_rows(const PullArgs& args, const uint64_t* offsets) {
    const uint32_t me = args.peers.rank, num_topk = args.shape.num_topk;
    const uint32_t num_vectors = args.shape.row_bytes / kVectorBytes;
    const uint32_t num_segments = (num_vectors + kSegmentVectors - 1) / kSegmentVectors;
    const uint32_t num_units = args.shape.num_tokens * num_segments;
#pragma unroll 1
    for (uint32_t unit = blockIdx.x * kWarps + warp_idx(); unit < num_units; unit += gridDim.x * kWarps) {
        const uint32_t token = unit / num_segments, segment = unit % num_segments;
        const uint32_t from = segment * kSegmentVectors + lane_idx();
        const uint64_t row_offset = static_cast<uint64_t>(token) * args.shape.row_bytes;
        const Pulled pulled = pulled_of(args, token);
        float sums[kUnroll][8] = {};
        add_bias(sums, args.bias0, row_offset, from, num_vectors);
        add_bias(sums, args.bias1, row_offset, from, num_vectors);
        add_rows(sums, __ballot_sync(kAll, pulled.counts), from, num_vectors, [&](uint32_t lane) {
            const uint32_t rank = __shfl_sync(kAll, pulled.rank, lane), row = __shfl_sync(kAll, pulled.row, lane);
            const uint8_t* const rows =
                rank == me ? static_cast<const uint8_t*>(args.local_x) : args.peers.base[rank] + offsets[2 * rank];
            return rows + static_cast<uint64_t>(row) * args.shape.row_bytes;
        });
        store_segment(static_cast<uint8_t*>(args.out) + row_offset, from, num_vectors, sums);
        if (args.out_weights == nullptr || segment != 0 || lane_idx() >= num_topk) continue;
        float weight = 0.0f;
        if (pulled.rank != kAll) {
            const float* const weights = pulled.rank == me
                                             ? args.local_weights
                                             : at<const float>(args.peers, pulled.rank, offsets[2 * pulled.rank + 1]);
            weight = weights[pulled.row];
        }
        args.out_weights[static_cast<uint64_t>(token) * num_topk + lane_idx()] = weight;
    }
}

}  // namespace epctl::ep
