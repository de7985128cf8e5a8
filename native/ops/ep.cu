// Expert parallelism over load/store memory: dispatch, expand, stage and combine.
#include "epctl/ops/ep_combine.cuh"
#include "epctl/ops/ep_details.cuh"
#include "epctl/ops/ep_dispatch.cuh"
#include "epctl/ops/ep_expand.cuh"
#include "epctl/ops/ep_pull.cuh"
#include "epctl/ops/ep_small.cuh"
#include "epctl/ops/ep_small_combine.cuh"

using namespace epctl;
using namespace epctl::ep;

extern "C" __global__ void __launch_bounds__(kThreads, 1) epctl_ep_dispatch(const __grid_constant__ DispatchArgs args) {
    uint8_t* const shared = dynamic_shared();
    __shared__ uint64_t barriers[kWarps * kMaxStages];
    __shared__ uint32_t histogram[kEpMaxExperts];
    const uint64_t epoch = args.state->dispatch_epoch + 1;
    const bool stops = has_given_up(args.limits);
    const Span span = span_of_block(args.shape.num_tokens);
    const uint32_t num_batches = (span.end - span.begin + kWarpThreads - 1) / kWarpThreads;
    uint32_t* const goes = reinterpret_cast<uint32_t*>(shared);
    const Batches batches{goes, goes + num_batches * args.peers.num_ranks, num_batches};
    const bool moves = warp_idx() < args.num_warps;
    const Ring ring{shared + args.control_bytes + warp_idx() * args.num_stages * args.slot_bytes,
                    barriers + warp_idx() * kMaxStages, args.num_stages, args.slot_bytes};

    if (moves && lane_idx() == 0) {
        for (uint32_t stage = 0; stage < args.num_stages; ++stage) barrier_init(ring.barriers + stage);
        barrier_init_fence();
    }
    const bool counts = !args.cached && (!span.shared || blockIdx.x == 0);
    if (counts)
        for (uint32_t i = threadIdx.x; i < args.shape.num_experts; i += kThreads) histogram[i] = 0;
    // All of the block, or nothing of it: a kernel in another stream may give up between two warps' looks.
    if (__syncthreads_or(stops)) return;
    const bool counting = counts_call(&args.state->dispatch_ticket, epoch);
    count_span(args.shape, args.topk_indices, span, args.peers.num_ranks, batches, counts ? histogram : nullptr);
    // Rows are on their way while the ranks tell each other what comes.
    if (moves)
        for (uint32_t turn = 0; turn < first_turns(ring); ++turn) load_row(args, ring, span, turn);
    __syncthreads();
    bool ok = true;
    if (args.cached) {
        recall_span(args, span, batches);
        ok = wait_ready(args, epoch);
    } else {
        ok = place_span(args, span, batches, epoch);
    }
    if (__syncthreads_and(ok) == 0) {
        if (moves) drop_rows(args, ring, span);
        return;
    }
    if (warp_idx() != kClerk) {
        if (moves)
            send_rows(args, ring, span, batches);
        else
            send_details(args, span, batches, warp_idx() - args.num_warps, kClerk - args.num_warps);
        meet_in_block<kSendersBarrier, kSenderThreads>();
        if (threadIdx.x < args.peers.num_ranks)
            add_release(at<uint64_t>(args.peers, threadIdx.x, args.at.arrived) + args.peers.rank, share_of_block());
    } else {
        if (!args.cached) tell_experts(args, histogram, span.shared, epoch);
        if (blockIdx.x == 0) {
            ok = args.cached || keep_books(args, epoch);
            if (ok && args.receives) wait_rows(args.peers, args.at, args.limits, args.waited_ns, epoch);
        }
    }
    __syncthreads();
    if (counting) {
        args.state->dispatch_epoch = epoch;
        if (args.receives) args.state->dispatch_finished = epoch;
    }
}

// The receiving half of a dispatch that was sent with receives = 0.
extern "C" __global__ void __launch_bounds__(kWarpThreads)
    epctl_ep_dispatch_finish(const __grid_constant__ FinishArgs args) {
    const uint64_t epoch = args.state->dispatch_finished + 1;
    if (has_given_up(args.limits)) return;
    wait_rows(args.peers, args.at, args.limits, args.waited_ns, epoch);
    __syncwarp();
    if (lane_idx() == 0) args.state->dispatch_finished = epoch;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) epctl_ep_expand(const __grid_constant__ ExpandArgs args) {
    __shared__ uint32_t first[kEpMaxExperts];
    if (__syncthreads_or(has_given_up(args.limits))) return;
    expand(args, first);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) epctl_ep_combine(const __grid_constant__ CombineArgs args) {
    uint8_t* const shared = dynamic_shared();
    __shared__ uint64_t barriers[kWarps * kMaxStages];
    const uint64_t sent = args.state->combine_sent + 1, received = args.state->combine_received + 1;
    const bool stops = has_given_up(args.limits);
    const bool counting = counts_call(&args.state->combine_ticket, sent | received);
    const bool moves = warp_idx() < args.num_warps;
    const Ring ring{shared + warp_idx() * args.num_stages * args.slot_bytes, barriers + warp_idx() * kMaxStages,
                    args.num_stages, args.slot_bytes};
    if (moves && lane_idx() == 0) {
        for (uint32_t stage = 0; stage < args.num_stages; ++stage) barrier_init(ring.barriers + stage);
        barrier_init_fence();
    }
    if (args.sends) {
        tell_table(args, sent);
        if (__syncthreads_and(wait_told(args, sent) && !stops) == 0) return;
        if (moves && args.expanded) push_sums(args, sent);
        if (moves && !args.expanded) push_rows(args, ring, sent);
    }
    if (!moves && args.receives && !stops) add_tokens(args, received);
    __syncthreads();
    if (counting) {
        args.state->combine_next[(received + 1) & 1] = 0;
        if (args.sends) args.state->combine_sent = sent;
        if (args.receives) args.state->combine_received = received;
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) epctl_ep_pull(const __grid_constant__ PullArgs args) {
    __shared__ uint64_t offsets[2 * kMaxPeers];
    const uint64_t epoch = args.state->pull_epoch + 1;
    const bool stops = has_given_up(args.limits);
    if (args.announces && blockIdx.x == 0) announce(args, epoch);
    if (!args.pulls) return;
    if (__syncthreads_and(wait_announced(args, epoch, offsets) && !stops) == 0) return;
    const bool counting = counts_call(&args.state->pull_ticket, epoch);
    pull_rows(args, offsets);
    __syncthreads();
    if (threadIdx.x < args.peers.num_ranks)
        add_release(at<uint64_t>(args.peers, threadIdx.x, args.at.pulled) + args.peers.rank, share_of_block());
    if (blockIdx.x == 0) wait_pulled(args, epoch);
    __syncthreads();
    if (counting) args.state->pull_epoch = epoch;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    epctl_ep_small_dispatch(const __grid_constant__ SmallDispatchArgs args) {
    small_dispatch(args);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    epctl_ep_small_combine(const __grid_constant__ SmallCombineArgs args) {
    small_combine(args);
}
