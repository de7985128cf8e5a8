// Dispatch: every row is written once, straight to its place in the receiver's output.
#pragma once

#include "epctl/ops/ep_count.cuh"

namespace epctl::ep {

constexpr uint32_t kMaxStages = 4;
constexpr uint32_t kClerk = kWarps - 1;  // the warp that keeps the books while others move rows
constexpr uint32_t kSendersBarrier = 1;
constexpr uint32_t kSenderThreads = kClerk * kWarpThreads;

// ---- The books: counts of experts and tokens for the caller.

// Adds this block's histogram to those of the others; the last block tells each owner what comes for its experts.
__device__ __forceinline__ void tell_experts(const DispatchArgs& args, const uint32_t* histogram, bool shared,
                                             uint64_t epoch) {
    const uint32_t num_ranks = args.peers.num_ranks, me = args.peers.rank;
    const uint32_t each = args.shape.experts_per_rank, columns = total_columns(num_ranks);
    if (shared && blockIdx.x != 0) return;
    if (!shared) {
#pragma unroll 1
        for (uint32_t expert = lane_idx(); expert < args.shape.num_experts; expert += kWarpThreads)
            if (histogram[expert] != 0) atomicAdd(args.expert_counts + expert, histogram[expert]);
        __syncwarp();
        uint32_t last = 0;
        if (lane_idx() == 0) last = last_block(&args.state->experts_ticket) ? 1 : 0;
        if (__shfl_sync(kAll, last, 0) == 0) return;
    }
#pragma unroll 1
    for (uint32_t expert = lane_idx(); expert < args.shape.num_experts; expert += kWarpThreads) {
        const uint32_t count = shared ? histogram[expert] : atomicExch(args.expert_counts + expert, 0);
        uint64_t* const totals = at<uint64_t>(args.peers, expert / each, args.at.totals);
        store_relaxed(totals + ((epoch & 1) * num_ranks + me) * columns + num_ranks + expert % each,
                      word_of(epoch, count));
    }
}

// What this rank receives, for the handle and the host. One warp; false when somebody does not tell.
__device__ __forceinline__ bool keep_books(const DispatchArgs& args, uint64_t epoch) {
    const uint32_t num_ranks = args.peers.num_ranks, me = args.peers.rank;
    const uint32_t world = args.limits.rank - me;
    const uint32_t each = args.shape.experts_per_rank, columns = total_columns(num_ranks);
    const uint64_t* const totals = at<uint64_t>(args.peers, me, args.at.totals) + (epoch & 1) * num_ranks * columns;
    bool ok = true;
    uint32_t num_tokens = 0;
#pragma unroll 1
    for (uint32_t from = 0; from < num_ranks; from += kWarpThreads) {
        const uint32_t source = from + lane_idx();
        const uint32_t count = source < num_ranks ? wait_word(args.limits, totals + source * columns + me, epoch,
                                                              world + source, Stage::kDispatchCount, ok)
                                                  : 0;
        const uint32_t sum = num_tokens + warp_scan(count);
        if (source < num_ranks) args.tokens_per_rank[source] = static_cast<int32_t>(sum);
        num_tokens = __shfl_sync(kAll, sum, kWarpThreads - 1);
    }
    uint32_t num_entries = 0;
#pragma unroll 1
    for (uint32_t from = 0; from < each; from += kWarpThreads) {
        const uint32_t expert = from + lane_idx();
        uint32_t count = 0;
#pragma unroll 1
        for (uint32_t source = 0; source < num_ranks && expert < each; ++source)
            count += wait_word(args.limits, totals + source * columns + num_ranks + expert, epoch, world + source,
                               Stage::kDispatchCount, ok);
        num_entries = tell_counts(args, expert, count, num_entries);
    }
    ok = __all_sync(kAll, ok);
    if (ok) tell_host(args, num_tokens, num_entries);
    return ok;
}

// All rows of all sources are there. One warp. In `waited_ns` is how long their counts were waited for.
__device__ __forceinline__ void wait_rows(const Peers& peers, const EpOffsets& offsets, const WaitLimits& limits,
                                          uint64_t* waited_ns, uint64_t epoch) {
    const uint64_t* const arrived = at<uint64_t>(peers, peers.rank, offsets.arrived);
#pragma unroll 1
    for (uint32_t source = lane_idx(); source < peers.num_ranks; source += kWarpThreads) {
        const uint32_t peer = limits.rank - peers.rank + source;
        wait_for(limits, Awaited{arrived + source, epoch * kEpArrivalUnit, peer, Stage::kDispatchRows, epoch},
                 waited_ns != nullptr ? waited_ns + source : nullptr, waited_ns != nullptr ? waited_ns[source] : 0);
    }
}

// ---- The rows.

struct Ring {
    uint8_t* rows;
    uint64_t* barriers;
    uint32_t num_stages, slot_bytes;
};

// A token's way: in lane k, where its k-th selection goes.
struct Way {
    uint32_t rank, row;
    bool leads;  // the last selection that lies on this rank
};

__device__ __forceinline__ Way way_of(const DispatchArgs& args, const Span& span, const Batches& batches,
                                      uint32_t token, uint32_t expert) {
    const uint32_t lane = lane_idx();
    Way way{kAll, 0, false};
    if (expert < args.shape.num_experts) way.rank = expert / args.shape.experts_per_rank;
    const uint32_t same = __match_any_sync(kAll, way.rank);
    way.leads = way.rank != kAll && same >> lane == 1;
    if (way.leads) {
        const uint32_t local = token - span.begin;
        const uint32_t cell = local / kWarpThreads * args.peers.num_ranks + way.rank;
        const uint32_t below = (1u << local % kWarpThreads) - 1;
        way.row = batches.first[cell] + __popc(batches.goes[cell] & below);
    }
    if (lane < args.shape.num_topk && !args.cached)
        args.routes[static_cast<uint64_t>(token) * args.shape.num_topk + lane] =
            way.leads ? static_cast<int32_t>(way.rank << kRowBits | way.row) : -1;
    return way;
}

// In lane k, the k-th selection of the token.
__device__ __forceinline__ uint32_t selection_of(const DispatchArgs& args, uint32_t token, uint32_t end) {
    if (token >= end || lane_idx() >= args.shape.num_topk) return kAll;
    const uint64_t entry = static_cast<uint64_t>(token) * args.shape.num_topk + lane_idx();
    return load_index(args.topk_indices, args.shape.wide_indices, entry);
}

// The tokens of one warp, one after the other: token(0), token(1) … below span.end.
__device__ __forceinline__ uint32_t token_of(const DispatchArgs& args, const Span& span, uint32_t turn) {
    return span.first + (warp_idx() + turn * args.num_warps) * span.step;
}

__device__ __forceinline__ void load_row(const DispatchArgs& args, const Ring& ring, const Span& span, uint32_t turn) {
    const uint32_t token = token_of(args, span, turn);
    if (token >= span.end || lane_idx() != 0) return;
    const uint32_t stage = turn % ring.num_stages;
    bulk_load(ring.rows + stage * ring.slot_bytes,
              static_cast<const uint8_t*>(args.x) + static_cast<uint64_t>(token) * args.shape.row_bytes,
              args.shape.row_bytes, ring.barriers + stage);
}

// Rows that are loaded before it is known where they go. Not all stages: what so many loads keep busy is the memory
// that the counts have to pass, too.
__device__ __forceinline__ uint32_t first_turns(const Ring& ring) {
    return max(1u, ring.num_stages - 1);
}

__device__ __forceinline__ void send_rows(const DispatchArgs& args, const Ring& ring, const Span& span,
                                          const Batches& batches) {
    const uint32_t row_bytes = args.shape.row_bytes;
    uint32_t stage = 0, parity = 0;
    uint32_t token = token_of(args, span, 0);
    uint32_t expert = selection_of(args, token, span.end);
#pragma unroll 1
    for (uint32_t turn = 0; token < span.end; ++turn) {
        const uint32_t next_token = token_of(args, span, turn + 1);
        const uint32_t next_expert = selection_of(args, next_token, span.end);
        const Way way = way_of(args, span, batches, token, expert);
        if (turn > 0) {
            // The row before has left the stage that is filled next.
            bulk_stores_read<0>();
            __syncwarp();
        }
        // With one stage, this turn's own row: only the first was loaded before.
        if (turn > 0 || ring.num_stages > 1) load_row(args, ring, span, turn + ring.num_stages - 1);
        barrier_wait(ring.barriers + stage, parity);
        if (way.leads)
            bulk_store(at<uint8_t>(args.peers, way.rank, args.at.rows) + static_cast<uint64_t>(way.row) * row_bytes,
                       ring.rows + stage * ring.slot_bytes, row_bytes);
        if (++stage == ring.num_stages) {
            stage = 0;
            parity ^= 1;
        }
        token = next_token;
        expert = next_expert;
    }
    bulk_stores_done();
}

// After a failure: no copy may be on its way when the block ends.
__device__ __forceinline__ void drop_rows(const DispatchArgs& args, const Ring& ring, const Span& span) {
#pragma unroll 1
    for (uint32_t turn = 0; turn < first_turns(ring); ++turn)
        if (token_of(args, span, turn) < span.end) barrier_wait(ring.barriers + turn, 0);
}

// Cached calls exchange no counts: who has begun says so. All threads, between barriers of the block.
__device__ __forceinline__ bool wait_ready(const DispatchArgs& args, uint64_t epoch) {
    const uint32_t me = args.peers.rank, peer = threadIdx.x;
    if (peer >= args.peers.num_ranks) return true;
    if (blockIdx.x == 0) store_release(at<uint64_t>(args.peers, peer, args.at.ready) + me, epoch);
    return wait_for(args.limits,
                    Awaited{at<uint64_t>(args.peers, me, args.at.ready) + peer, epoch, args.limits.rank - me + peer,
                            Stage::kDispatchReady, epoch},
                    args.waited_ns != nullptr && blockIdx.x == 0 ? args.waited_ns + peer : nullptr);
}

}  // namespace epctl::ep
