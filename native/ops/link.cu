// Link probes. Built once for each EPCTL_ROW_BYTES and EPCTL_BLOCK_THREADS (see native/families.py). Pointers may be a
// peer's memory.
#include "epctl/ops/link.cuh"

#if !defined(EPCTL_ROW_BYTES) || !defined(EPCTL_BLOCK_THREADS) || !defined(EPCTL_BULK_SHARED_BYTES)
#error "EPCTL_ROW_BYTES, EPCTL_BLOCK_THREADS and EPCTL_BULK_SHARED_BYTES are given by the variant"
#endif

namespace {

using namespace epctl;
using namespace epctl::link;

constexpr uint32_t kRowBytes = EPCTL_ROW_BYTES;
constexpr uint32_t kBlockThreads = EPCTL_BLOCK_THREADS;
constexpr uint64_t kRowVectors = kRowBytes / kVectorBytes;
constexpr uint32_t kUnroll = 8;
using RowRing = Ring<kRowBytes, kBlockThreads>;
static_assert(RowRing::kBytes == EPCTL_BULK_SHARED_BYTES, "the launcher asks for that much (native/link_args.py)");

struct Vectors {
    uint4 one, other;
};

// Sums in FP32 and rounds once, as the combine of MoE layers is defined here.
__device__ __forceinline__ uint32_t add_bf16x2(uint32_t one, uint32_t other) {
    const float2 a = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&one));
    const float2 b = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&other));
    const __nv_bfloat162 sum = __floats2bfloat162_rn(a.x + b.x, a.y + b.y);
    return *reinterpret_cast<const uint32_t*>(&sum);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlockThreads, 1)
    epctl_link_bulk_copy(const __grid_constant__ LinkArgs args) {
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr uint32_t kStages = RowRing::kStages;
    const uint32_t warp_idx = threadIdx.x / kWarpThreads;
    if (warp_idx >= RowRing::kWarps || threadIdx.x % kWarpThreads != 0) return;

    __shared__ uint64_t all_barriers[RowRing::kWarps * kStages];
    uint64_t* const barriers = all_barriers + warp_idx * kStages;
    uint8_t* const rows = shared + static_cast<size_t>(warp_idx) * kStages * RowRing::kSlotBytes;
    for (uint32_t stage = 0; stage < kStages; ++stage) barrier_init(barriers + stage);
    barrier_init_fence();

    const uint8_t* const source = static_cast<const uint8_t*>(args.source);
    uint8_t* const target = static_cast<uint8_t*>(args.target);
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * RowRing::kWarps;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * RowRing::kWarps + warp_idx;
    if (first < args.num_rows) bulk_load(rows, source + first * kRowBytes, kRowBytes, barriers);

    uint32_t stage = 0, parity = 0;
    for (uint64_t row = first; row < args.num_rows; row += step) {
        const uint32_t next = stage + 1 == kStages ? 0 : stage + 1;
        if (row + step < args.num_rows) {
            bulk_stores_read<kStages - 2>();
            bulk_load(rows + next * RowRing::kSlotBytes, source + (row + step) * kRowBytes, kRowBytes, barriers + next);
        }
        barrier_wait(barriers + stage, parity);
        bulk_store(target + row * kRowBytes, rows + stage * RowRing::kSlotBytes, kRowBytes);
        stage = next;
        if (next == 0) parity ^= 1;
    }
    bulk_stores_done();
}

extern "C" __global__ void __launch_bounds__(kBlockThreads)
    epctl_link_vector_copy(const __grid_constant__ LinkArgs args) {
    const uint4* const source = static_cast<const uint4*>(args.source);
    uint4* const target = static_cast<uint4*>(args.target);
    stream<kUnroll>(
        args.num_rows * kRowVectors, [=](uint64_t idx) { return load_vector(source + idx); },
        [=](uint64_t idx, const uint4& v) { store_vector(target + idx, v); });
}

extern "C" __global__ void __launch_bounds__(kBlockThreads) epctl_link_pull_add(const __grid_constant__ LinkArgs args) {
    const uint4* const remote = static_cast<const uint4*>(args.source);
    const uint4* const local = static_cast<const uint4*>(args.addend);
    uint4* const target = static_cast<uint4*>(args.target);
    stream<kUnroll / 2>(
        args.num_rows * kRowVectors,
        [=](uint64_t idx) { return Vectors{load_vector(remote + idx), load_vector(local + idx)}; },
        [=](uint64_t idx, const Vectors& p) {
            store_vector(target + idx, make_uint4(add_bf16x2(p.one.x, p.other.x), add_bf16x2(p.one.y, p.other.y),
                                                  add_bf16x2(p.one.z, p.other.z), add_bf16x2(p.one.w, p.other.w)));
        });
}

// Loads alone. The sums keep the compiler from dropping them, and tell the host whether the right bytes came.
extern "C" __global__ void __launch_bounds__(kBlockThreads) epctl_link_read(const __grid_constant__ LinkArgs args) {
    const uint4* const source = static_cast<const uint4*>(args.source);
    uint32_t sum = 0;
    stream<kUnroll>(
        args.num_rows * kRowVectors, [=](uint64_t idx) { return load_vector(source + idx); },
        [&](uint64_t, const uint4& v) { sum += v.x + v.y + v.z + v.w; });
    args.sums[grid_thread()] = sum;
}

// Stores alone: vector i holds pattern + 4 i … pattern + 4 i + 3.
extern "C" __global__ void __launch_bounds__(kBlockThreads) epctl_link_write(const __grid_constant__ LinkArgs args) {
    uint4* const target = static_cast<uint4*>(args.target);
    const uint32_t pattern = args.pattern;
    stream<kUnroll>(
        args.num_rows * kRowVectors, [=](uint64_t idx) { return pattern + 4 * static_cast<uint32_t>(idx); },
        [=](uint64_t idx, uint32_t first) {
            store_vector(target + idx, make_uint4(first, first + 1, first + 2, first + 3));
        });
}

// One thread on each side. Round i takes both flags from begin + i to begin + i + 1.
extern "C" __global__ void __launch_bounds__(kWarpThreads)
    epctl_link_ping_pong(const __grid_constant__ PingPongArgs args) {
    if (grid_thread() != 0) return;
    const uint64_t begin_ns = now_ns();
    for (uint64_t round = 0; round < args.num_rounds; ++round) {
        const uint64_t value = args.begin + round + 1;
        if (args.serves) store_release(args.theirs, value);
        const Stage stage = args.serves ? Stage::kLinkPong : Stage::kLinkPing;
        if (!wait_for(args.limits, Awaited{args.mine, value, args.peer, stage, round})) return;
        if (!args.serves) store_release(args.theirs, value);
    }
    *args.elapsed_ns = now_ns() - begin_ns;
}
