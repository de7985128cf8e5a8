// GIN probes: puts, gets and signals through NCCL's device API, one context for each block. Built once for each type of
// GIN (EPCTL_GIN_TYPE, see native/gin_args.py). A kernel never reads where a signal stands before it waits, since a
// peer may be sending already: the host counts.
#include "epctl/comm/gin.cuh"
#include "epctl/ops/gin_args.h"

namespace {

using namespace epctl;

// How long NCCL's own waits may take in one piece: they count clock cycles, whose rate nobody knows.
constexpr uint64_t kLeastCycles = 1 << 20;
constexpr uint32_t kBarrierThreads = 128;

struct Side {
    const ncclGin& gin;
    const GinArgs& args;
    ncclGin_DescriptorSmem descriptor;

    __device__ __forceinline__ bool is_set(GinFlags flag) const { return (args.flags & flag) != 0; }

    __device__ __forceinline__ uint64_t slot(uint64_t idx) const {
        return (blockIdx.x * args.num_slots + idx % args.num_slots) * args.slot_bytes;
    }

    // All that this context sent to `peer` has left, and all that it fetched from there is here. Never waits without an
    // end: a queue that is full would make the next message wait inside NCCL.
    __device__ __forceinline__ bool drain(uint32_t peer, uint64_t progress) const {
        ncclGinRequest_t request;
        gin.flushAsync(ncclTeamWorld(args.comm), peer, &request);
        const uint64_t begin = now_ns();
        for (;;) {
            const uint64_t waited = now_ns() - begin;
            const uint64_t limit = timeout_ns(args.limits), left = waited < limit ? limit - waited : 0;
            // At most two cycles a nanosecond: a piece ends before its time is over, and the next one takes what is
            // left.
            const uint64_t cycles = left < kLeastCycles ? kLeastCycles : left;
            if (gin.wait(request, ncclCoopThread(), ncclGin_None(), cuda::memory_order_acquire, cycles) == ncclSuccess)
                return true;
            const uint64_t now = now_ns() - begin;
            if (now >= timeout_ns(args.limits)) {
                record_timeout(args.limits.record, args.limits.given_up, args.limits.rank, peer, Stage::kGinFlush, 1,
                               progress, 0, now);
                return false;
            }
            if (has_given_up(args.limits)) return false;
        }
    }

    // The signal of this context has come `count` times since the launch.
    __device__ __forceinline__ bool wait_signals(uint64_t count, Stage stage, uint64_t progress) const {
        const uint64_t step = is_set(kGinAdd) ? args.value : 1;
        const uint64_t expected = args.begin + count * step;
        if (!wait_until(args.limits, expected, args.from, stage, progress,
                        [&] { return gin.readSignal(args.signal, 64, cuda::memory_order_relaxed); }))
            return false;
        gin.readSignal(args.signal, 64, cuda::memory_order_acquire);
        return true;
    }

    __device__ __forceinline__ void put(uint64_t idx) const {
        gin.put(ncclTeamWorld(args.comm), args.to, args.window, args.target_offset + slot(idx), args.window,
                args.source_offset + slot(idx), args.num_bytes, ncclGin_None(), ncclGin_None(), ncclCoopThread(),
                descriptor);
    }

    template <class Action>
    __device__ __forceinline__ void put_with(uint64_t idx, Action action) const {
        gin.put(ncclTeamWorld(args.comm), args.to, args.window, args.target_offset + slot(idx), args.window,
                args.source_offset + slot(idx), args.num_bytes, action, ncclGin_None(), ncclCoopThread(), descriptor);
    }

    template <class Action>
    __device__ __forceinline__ void signal(Action action) const {
        gin.signal(ncclTeamWorld(args.comm), args.to, action, ncclCoopThread(), descriptor);
    }

    __device__ __forceinline__ bool is_dropped(uint64_t idx) const {
        return is_set(kGinDrop) && idx + 1 == args.num_messages;
    }

    // `post(idx)` for all messages, with no more than a batch of them under way.
    template <class Post>
    __device__ __forceinline__ bool post_all(Post post) const {
        uint64_t until = args.batch;
#pragma unroll 1
        for (uint64_t idx = 0; idx < args.num_messages; ++idx) {
            if (idx == until) {
                if (!drain(args.to, idx)) return false;
                until += args.batch;
            }
            post(idx);
        }
        return args.num_messages == 0 || drain(args.to, args.num_messages);
    }
};

}  // namespace

#define EPCTL_GIN_KERNEL(name) \
    extern "C" __global__ void __launch_bounds__(32) name(const __grid_constant__ GinArgs args)

// Puts without signals, and one strong signal behind them: when it has come, so have they.
EPCTL_GIN_KERNEL(epctl_gin_put) {
    if (threadIdx.x != 0) return;
    const ncclGin gin(args.comm, blockIdx.x);
    __shared__ ncclGinDescriptorSmem descriptor;
    const Side side{gin, args, {&descriptor}};
    const uint64_t begin_ns = now_ns();
    if (!side.post_all([&](uint64_t idx) { side.put(idx); })) return;
    if (args.num_messages != 0 && !side.is_set(kGinDrop)) {
        side.signal(ncclGin_StrongSignalInc{args.signal});
        if (!side.drain(args.to, args.num_messages)) return;
    }
    if (args.num_expected != 0 && !side.wait_signals(args.num_expected, Stage::kGinPut, 0)) return;
    args.elapsed_ns[blockIdx.x] = now_ns() - begin_ns;
}

// Each put brings a signal.
EPCTL_GIN_KERNEL(epctl_gin_put_signal) {
    if (threadIdx.x != 0) return;
    const ncclGin gin(args.comm, blockIdx.x);
    __shared__ ncclGinDescriptorSmem descriptor;
    const Side side{gin, args, {&descriptor}};
    const uint64_t begin_ns = now_ns();
    auto post = [&](uint64_t idx) {
        if (side.is_dropped(idx))
            side.put(idx);
        else if (side.is_set(kGinStrong))
            side.put_with(idx, ncclGin_StrongSignalInc{args.signal});
        else
            side.put_with(idx, ncclGin_WeakSignalInc{args.signal});
    };
    if (!side.post_all(post)) return;
    if (args.num_expected != 0 && !side.wait_signals(args.num_expected, Stage::kGinPut, args.num_messages)) return;
    args.elapsed_ns[blockIdx.x] = now_ns() - begin_ns;
}

// Fetches from `to`, which does nothing for it.
EPCTL_GIN_KERNEL(epctl_gin_get) {
    if (threadIdx.x != 0) return;
    const ncclGin gin(args.comm, blockIdx.x);
    __shared__ ncclGinDescriptorSmem descriptor;
    const Side side{gin, args, {&descriptor}};
    const uint64_t begin_ns = now_ns();
    auto post = [&](uint64_t idx) {
        gin.get(ncclTeamWorld(args.comm), args.to, args.window, args.source_offset + side.slot(idx), args.window,
                args.target_offset + side.slot(idx), args.num_bytes, ncclCoopThread(), side.descriptor);
    };
    if (!side.post_all(post)) return;
    args.elapsed_ns[blockIdx.x] = now_ns() - begin_ns;
}

// Signals alone, of all kinds. Those that add and those that count up must not share a signal (NCCL's gin.h).
EPCTL_GIN_KERNEL(epctl_gin_signal) {
    if (threadIdx.x != 0) return;
    const ncclGin gin(args.comm, blockIdx.x);
    __shared__ ncclGinDescriptorSmem descriptor;
    const Side side{gin, args, {&descriptor}};
    const uint64_t begin_ns = now_ns();
    auto post = [&](uint64_t idx) {
        if (side.is_dropped(idx)) return;
        const bool strong = side.is_set(kGinStrong);
        if (side.is_set(kGinAdd)) {
            if (strong)
                side.signal(ncclGin_StrongSignalAdd{args.signal, args.value});
            else
                side.signal(ncclGin_WeakSignalAdd{args.signal, args.value});
        } else if (strong) {
            side.signal(ncclGin_StrongSignalInc{args.signal});
        } else {
            side.signal(ncclGin_WeakSignalInc{args.signal});
        }
    };
    if (!side.post_all(post)) return;
    if (args.num_expected != 0 && !side.wait_signals(args.num_expected, Stage::kGinSignal, args.num_messages)) return;
    args.elapsed_ns[blockIdx.x] = now_ns() - begin_ns;
}

// Put and signal forth, put and signal back; without bytes the signal alone. A round ends the one before it, so that no
// more than one message of each side is under way.
EPCTL_GIN_KERNEL(epctl_gin_ping_pong) {
    if (threadIdx.x != 0) return;
    const ncclGin gin(args.comm, blockIdx.x);
    __shared__ ncclGinDescriptorSmem descriptor;
    const Side side{gin, args, {&descriptor}};
    const bool serves = side.is_set(kGinServes);
    const uint64_t begin_ns = now_ns();
#pragma unroll 1
    for (uint64_t step = 0; step < 2 * args.num_messages; ++step) {
        const uint64_t round = step / 2;
        if ((step % 2 == 0) == serves) {
            if (side.is_dropped(round)) continue;
            if (args.num_bytes == 0) {
                side.signal(ncclGin_WeakSignalInc{args.signal});
            } else if (side.is_set(kGinStrong)) {
                side.put_with(round, ncclGin_StrongSignalInc{args.signal});
            } else {
                side.put_with(round, ncclGin_WeakSignalInc{args.signal});
            }
        } else if (!side.wait_signals(round + 1, Stage::kGinSignal, round)) {
            return;
        }
    }
    args.elapsed_ns[blockIdx.x] = now_ns() - begin_ns;
    // Outside of the time: the sources may be written again when the kernel has ended.
    if (args.num_messages != 0) side.drain(args.to, args.num_messages);
}

// Says nothing about puts: who needs those waits for their signals.
extern "C" __global__ void __launch_bounds__(kBarrierThreads)
    epctl_gin_barrier(const __grid_constant__ GinBarrierArgs args) {
    if (blockIdx.x != 0) return;
    const uint32_t lsa_rank = args.peers.rank, lsa_size = args.peers.num_ranks;
    const uint32_t domain = args.limits.rank / lsa_size;
    auto flags = [&](uint32_t of) { return reinterpret_cast<uint64_t*>(args.peers.base[of] + args.flags_offset); };
    bool arrived = true;
    for (uint32_t peer = threadIdx.x; peer < lsa_size; peer += blockDim.x)
        store_release(flags(peer) + lsa_rank, args.round);
    for (uint32_t peer = threadIdx.x; peer < lsa_size && arrived; peer += blockDim.x)
        arrived = wait_for(args.limits,
                           Awaited{flags(lsa_rank) + peer, args.round, domain * lsa_size + peer, Stage::kBarrier, 0});
    // Who signals tells that its whole domain is here.
    if (!__syncthreads_and(arrived)) return;
    const ncclGin gin(args.comm, 0);
    __shared__ ncclGinDescriptorSmem descriptors[kBarrierThreads];
    for (uint32_t other = threadIdx.x; other < args.num_domains; other += blockDim.x)
        if (other != domain)
            gin.signal(ncclTeamWorld(args.comm), static_cast<int>(other * lsa_size + lsa_rank),
                       ncclGin_WeakSignalInc{args.signal + domain}, ncclCoopThread(),
                       ncclGin_DescriptorSmem{descriptors + threadIdx.x});
    for (uint32_t other = threadIdx.x; other < args.num_domains; other += blockDim.x) {
        if (other == domain) continue;
        const uint32_t signal = args.signal + other;
        if (!wait_until(args.limits, args.round, other * lsa_size + lsa_rank, Stage::kGinBarrier, args.round - 1,
                        [&] { return gin.readSignal(signal, 64, cuda::memory_order_relaxed); }))
            return;
        gin.readSignal(signal, 64, cuda::memory_order_acquire);
    }
}

extern "C" __global__ void __launch_bounds__(32) epctl_gin_describe(const __grid_constant__ GinDescribeArgs args) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    GinFound& found = *args.found;
    found.num_contexts = args.comm.ginContextCount;
    found.num_connections = args.comm.ginConnectionCount;
    for (uint32_t i = 0; i < 4; ++i)
        found.types[i] = i < args.comm.ginConnectionCount ? args.comm.ginNetDeviceTypes[i] : 0;
    found.num_signals = static_cast<uint32_t>(args.comm.ginSignalCount);
    found.connection_stride = static_cast<uint32_t>(args.comm.ginConnectionStride);
    found.strong_legacy = args.comm.ginStrongLegacySignals ? 1 : 0;
    found.reserved = 0;
}
