// Expert parallelism over load/store memory: dispatch, expand, stage and combine.
#include "epctl/ops/ep_combine.cuh"
#include "epctl/ops/ep_dispatch.cuh"
#include "epctl/ops/ep_expand.cuh"

using namespace epctl;
using namespace epctl::ep;

extern "C" __global__ void __launch_bounds__(kThreads, 1) epctl_ep_dispatch(const __grid_constant__ DispatchArgs args) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t barriers[kWarps * kMaxStages];
    __shared__ uint32_t histogram[kEpMaxExperts];

    const uint64_t epoch = args.state->dispatch_epoch + 1;
    const Span span = span_of_block(args.shape.num_tokens);
    const uint32_t num_batches = args.cached ? 0 : (span.end - span.begin + kWarpThreads - 1) / kWarpThreads;
    uint32_t* const goes = reinterpret_cast<uint32_t*>(shared);
    const Batches batches{goes, goes + num_batches * args.peers.num_ranks, num_batches};
    const bool moves = warp_idx() < args.num_warps;
    const Ring ring{shared + args.control_bytes + warp_idx() * args.num_stages * args.slot_bytes,
                    barriers + warp_idx() * kMaxStages, args.num_stages, args.slot_bytes};

    if (moves && lane_idx() == 0) {
        for (uint32_t stage = 0; stage < args.num_stages; ++stage) barrier_init(ring.barriers + stage);
        barrier_init_fence();
    }
    // Rows are on their way while it is counted where they go.
    if (moves)
        for (uint32_t turn = 0; turn < args.num_stages; ++turn) load_row(args, ring, span, turn);

    bool ok;
    if (args.cached) {
        ok = wait_ready(args, epoch);
    } else {
        const bool counts = !span.shared || blockIdx.x == 0;
        if (counts)
            for (uint32_t i = threadIdx.x; i < args.shape.num_experts; i += kThreads) histogram[i] = 0;
        __syncthreads();
        count_span(args.shape, args.topk_indices, span, args.peers.num_ranks, batches, counts ? histogram : nullptr);
        __syncthreads();
        ok = place_span(args, span, batches, epoch);
    }
    if (__syncthreads_and(ok) == 0) {
        if (moves) drop_rows(args, ring, span);
        return;
    }

    if (moves) {
        __syncwarp();  // all lanes see the barriers
        send_rows(args, ring, span, batches);
        movers_meet(args.num_warps * kWarpThreads);
        for (uint32_t peer = threadIdx.x; peer < args.peers.num_ranks; peer += args.num_warps * kWarpThreads)
            add_release(at<uint64_t>(args.peers, peer, args.at.arrived) + args.peers.rank, share_of_block());
    } else if (warp_idx() == kClerk) {
        if (!args.cached) tell_experts(args, histogram, span.shared, epoch);
        if (blockIdx.x == 0) {
            ok = args.cached || keep_books(args, epoch);
            if (ok && args.receives) wait_rows(args.peers, args.at, args.limits, args.waited_ns, epoch);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && last_block(&args.state->dispatch_ticket)) {
        args.state->dispatch_epoch = epoch;
        if (args.receives) args.state->dispatch_finished = epoch;
    }
}

// The receiving half of a dispatch that was sent with receives = 0.
extern "C" __global__ void __launch_bounds__(kWarpThreads)
    epctl_ep_dispatch_finish(const __grid_constant__ FinishArgs args) {
    const uint64_t epoch = args.state->dispatch_finished + 1;
    wait_rows(args.peers, args.at, args.limits, args.waited_ns, epoch);
    __syncwarp();
    if (lane_idx() == 0) args.state->dispatch_finished = epoch;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) epctl_ep_expand(const __grid_constant__ ExpandArgs args) {
    __shared__ uint32_t first[kEpMaxExperts];
    expand(args, first);
}

extern "C" __global__ void __launch_bounds__(kThreads) epctl_ep_stage(const __grid_constant__ StageArgs args) {
    stage_rows(args);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) epctl_ep_combine(const __grid_constant__ CombineArgs args) {
    __shared__ uint64_t offsets[2 * kMaxPeers];
    const uint64_t epoch = args.state->combine_epoch + 1;
    if (args.announces && blockIdx.x == 0) announce(args, epoch);
    if (!args.pulls) return;
    if (__syncthreads_and(wait_announced(args, epoch, offsets)) == 0) return;
    pull_rows(args, offsets);
    __syncthreads();
    if (threadIdx.x < args.peers.num_ranks)
        add_release(at<uint64_t>(args.peers, threadIdx.x, args.at.pulled) + args.peers.rank, share_of_block());
    if (args.waits_until_read && blockIdx.x == 0) wait_pulled(args, epoch);
    __syncthreads();
    if (threadIdx.x == 0 && last_block(&args.state->combine_ticket)) args.state->combine_epoch = epoch;
}
