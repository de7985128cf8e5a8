// A barrier of all ranks of a load/store domain, one launch on each of them.
#include "epctl/common/wait.cuh"
#include "epctl/ops/barrier_args.h"

using namespace epctl;

extern "C" __global__ void __launch_bounds__(128) epctl_barrier(const __grid_constant__ BarrierArgs args) {
    const uint32_t peer = threadIdx.x;
    if (blockIdx.x != 0 || peer >= args.peers.num_ranks) return;
    const uint32_t rank = args.peers.rank;
    auto flags = [&](uint32_t of) { return reinterpret_cast<uint64_t*>(args.peers.base[of] + args.flags_offset); };
    // What the stream did before was made visible at the end of its kernels; the release covers what others saw of it.
    store_release(flags(peer) + rank, args.round);
    wait_for(args.limits, Awaited{flags(rank) + peer, args.round, args.limits.rank - rank + peer, Stage::kBarrier, 0});
}
