// CUDA's execution model on a CPU: each block is a thread of the system, each of its threads a fiber there. Blocks run
// side by side, warps meet in their collective operations, and what does not meet is told. Threads of a block take
// turns where they meet or look at a word that others write, in no order; between two such places nothing interleaves.
// Not seen, therefore: races inside of a block without such a place, the order of memory, masks of collective
// operations, memory outside of what was allocated, shared variables that nobody has set (they are 0), and streams. For
// kernels as they stand in native/: this file is included before them, and epctl/common/{ptx,bulk}.cuh beside it take
// the place of theirs.
#pragma once

#include <execinfo.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __shared__ static thread_local

struct Dim {
    unsigned x, y, z;
};

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    return uint4{x, y, z, w};
}

namespace simt {

constexpr unsigned kWarpSize = 32;
constexpr std::size_t kStackBytes = 64 << 10;
constexpr std::size_t kShuffled = 64;  // threads of a block that are next in any order

// A block pauses after so many turns of its threads, on average, and for so long.
inline std::atomic<uint32_t> pause_one_in{1u << 17}, pause_us{2000};

[[noreturn]] inline void fail(const char* what, const char* more = "") {
    std::fprintf(stderr, "simt: %s%s\n", what, more);
    std::abort();
}

struct Block;

// A bulk store that has been issued. It reads shared memory when its thread waits for that, and writes when its thread
// waits for the end; no sooner.
struct PendingStore {
    void* to;
    const void* from;
    uint32_t bytes;
    std::vector<char> read;
};

// A bulk load that has been issued; it arrives when somebody waits for its barrier.
struct PendingLoad {
    void* to;
    const void* from;
    uint32_t bytes;
    uint64_t* barrier;
};

struct Fiber {
    Block* block = nullptr;
    unsigned idx = 0;
    ucontext_t begin;
    jmp_buf at;
    bool started = false, done = false;
    std::unique_ptr<char[]> stack;
    std::deque<PendingStore> stores;
};

enum class Meeting : int { kSync, kShuffle, kShuffleUp, kBallot, kMatch, kAdd, kStore, kLoad };

// The lanes of a warp that meet, and what each brought.
struct Warp {
    unsigned alive = 0, arrived = 0;
    Meeting what = Meeting::kSync;
    uint64_t turn = 0;
    uint64_t values[2][kWarpSize];
    uint32_t present[2] = {0, 0};
    std::vector<unsigned> waiting;
};

struct Barrier {
    unsigned arrived = 0;
    uint64_t turn = 0;
    bool all[2] = {true, true}, any[2] = {false, false};
    std::vector<unsigned> waiting;
};

struct Block {
    Dim idx, grid, dim;
    std::function<void()> kernel;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Barrier barriers[16];
    std::vector<char> shared;
    std::vector<PendingLoad> loads;
    std::deque<unsigned> ready;
    unsigned alive = 0, current = 0;
    jmp_buf scheduler;
};

inline Block*& block() {
    static thread_local Block* here = nullptr;
    return here;
}

inline Fiber& fiber() {
    return block()->fibers[block()->current];
}

inline void leave() {
    Fiber& mine = fiber();
    if (_setjmp(mine.at) == 0) _longjmp(block()->scheduler, 1);
}

// Others of the block, then other blocks.
inline void yield() {
    block()->ready.push_back(block()->current);
    if (block()->ready.size() == 1) std::this_thread::yield();
    leave();
}

inline void wake(std::vector<unsigned>& waiting) {
    for (const unsigned one : waiting) block()->ready.push_back(one);
    waiting.clear();
}

inline void release(Warp& warp) {
    warp.arrived = 0;
    ++warp.turn;
    warp.present[warp.turn & 1] = 0;
    wake(warp.waiting);
}

inline void release(Barrier& barrier) {
    barrier.arrived = 0;
    ++barrier.turn;
    barrier.all[barrier.turn & 1] = true;
    barrier.any[barrier.turn & 1] = false;
    wake(barrier.waiting);
}

struct Met {
    const uint64_t* values;
    uint32_t present;
    bool last;  // in the lane that came last
};

[[noreturn]] inline void fail_apart(Meeting others, Meeting mine) {
    static const char* const names[] = {"__syncwarp",       "__shfl_sync",       "__shfl_up_sync",   "a vote",
                                        "__match_any_sync", "__reduce_add_sync", "a store of lines", "a load of lines"};
    const Block& here = *block();
    const std::string told = "thread " + std::to_string(here.current) + " of block " + std::to_string(here.idx.x) +
                             " comes to " + names[static_cast<int>(mine)] + ", others of its warp to " +
                             names[static_cast<int>(others)];
    void* frames[12];
    backtrace_symbols_fd(frames, backtrace(frames, 12), 2);
    fail("lanes of one warp meet in different operations: ", told.c_str());
}

// All lanes of the warp that have not ended bring a value.
inline Met meet(Meeting what, uint64_t value) {
    Block& here = *block();
    Warp& warp = here.warps[here.current / kWarpSize];
    if (warp.arrived == 0) warp.what = what;
    if (warp.what != what) fail_apart(warp.what, what);
    const unsigned turn = warp.turn & 1;
    warp.values[turn][here.current % kWarpSize] = value;
    warp.present[turn] |= 1u << here.current % kWarpSize;
    const bool last = ++warp.arrived == warp.alive;
    if (last) {
        release(warp);
    } else {
        warp.waiting.push_back(here.current);
        leave();
    }
    return Met{warp.values[turn], warp.present[turn], last};
}

struct Votes {
    bool all, any;
};

// Of `count` threads; 0: all that have not ended. Who does not wait goes on at once.
inline Votes meet_block(unsigned which, unsigned count, bool value, bool waits = true) {
    Block& here = *block();
    Barrier& barrier = here.barriers[which];
    const unsigned turn = barrier.turn & 1;
    barrier.all[turn] = barrier.all[turn] && value;
    barrier.any[turn] = barrier.any[turn] || value;
    if (++barrier.arrived == (count == 0 ? here.alive : count)) {
        release(barrier);
    } else if (waits) {
        barrier.waiting.push_back(here.current);
        leave();
    }
    return Votes{barrier.all[turn], barrier.any[turn]};
}

inline void start_fiber() {
    Block& here = *block();
    here.kernel();
    Fiber& mine = fiber();
    if (!mine.stores.empty()) fail("a thread ends with bulk stores under way");
    mine.done = true;
    --here.alive;
    Warp& warp = here.warps[here.current / kWarpSize];
    if (--warp.alive != 0 && warp.arrived == warp.alive) release(warp);
    if (here.alive != 0 && here.barriers[0].arrived == here.alive) release(here.barriers[0]);
    _longjmp(here.scheduler, 1);
}

inline void run_block(const std::function<void()>& kernel, Dim idx, Dim grid, Dim dim, unsigned shared_bytes) {
    Block here;
    here.idx = idx;
    here.grid = grid;
    here.dim = dim;
    here.kernel = kernel;
    here.fibers = std::vector<Fiber>(dim.x);
    here.warps = std::vector<Warp>((dim.x + kWarpSize - 1) / kWarpSize);
    here.shared.assign(shared_bytes + 128, static_cast<char>(0xA5));
    here.alive = dim.x;
    block() = &here;
    for (unsigned i = 0; i < dim.x; ++i) {
        Fiber& one = here.fibers[i];
        one.block = &here;
        one.idx = i;
        one.stack.reset(new char[kStackBytes]);
        ++here.warps[i / kWarpSize].alive;
        here.ready.push_back(i);
    }
    static std::atomic<uint32_t> num_blocks{0};
    uint32_t chance = 2463534242u + 40503u * ++num_blocks;
    while (here.alive != 0) {
        if (here.ready.empty()) fail("all threads of a block wait for each other");
        // In no order that a kernel could rely on, and with pauses in which other ranks get ahead.
        if (chance % pause_one_in == 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
        chance ^= chance << 13, chance ^= chance >> 17, chance ^= chance << 5;
        std::swap(here.ready.front(), here.ready[chance % std::min<std::size_t>(here.ready.size(), kShuffled)]);
        here.current = here.ready.front();
        here.ready.pop_front();
        Fiber& next = here.fibers[here.current];
        if (_setjmp(here.scheduler) == 0) {
            if (next.started) _longjmp(next.at, 1);
            next.started = true;
            getcontext(&next.begin);
            next.begin.uc_stack.ss_sp = next.stack.get();
            next.begin.uc_stack.ss_size = kStackBytes;
            next.begin.uc_link = nullptr;
            makecontext(&next.begin, start_fiber, 0);
            setcontext(&next.begin);
        }
    }
    if (!here.loads.empty()) fail("a block ends with bulk loads under way");
    block() = nullptr;
}

// All blocks at once, as kernels that wait for each other need.
inline void launch(const std::function<void()>& kernel, unsigned grid, unsigned threads, unsigned shared_bytes) {
    std::vector<std::thread> blocks;
    for (unsigned i = 0; i < grid; ++i)
        blocks.emplace_back([&, i] { run_block(kernel, {i, 0, 0}, {grid, 1, 1}, {threads, 1, 1}, shared_bytes); });
    for (std::thread& one : blocks) one.join();
}

struct ThreadIdx {
    unsigned x;
};

template <class T>
uint64_t bits_of(T value) {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T>
T of_bits(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace simt

#define threadIdx (simt::ThreadIdx{simt::block()->current})
#define blockIdx (simt::block()->idx)
#define gridDim (simt::block()->grid)
#define blockDim (simt::block()->dim)

// ---- What CUDA brings along.

inline int __popc(uint32_t value) {
    return __builtin_popcount(value);
}
inline int __ffs(int value) {
    return __builtin_ffs(value);
}
inline int __clz(int value) {
    return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value));
}
inline uint32_t __float_as_uint(float value) {
    return static_cast<uint32_t>(simt::bits_of(value));
}
inline float __uint_as_float(uint32_t value) {
    return simt::of_bits<float>(value);
}
inline uint32_t min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}
inline uint32_t max(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

inline void __syncthreads() {
    simt::meet_block(0, 0, true);
}
inline int __syncthreads_and(int value) {
    return simt::meet_block(0, 0, value != 0).all ? 1 : 0;
}
inline int __syncthreads_or(int value) {
    return simt::meet_block(0, 0, value != 0).any ? 1 : 0;
}
inline void __syncwarp() {
    simt::meet(simt::Meeting::kSync, 0);
}

template <class T>
T __shfl_sync(uint32_t, T value, int lane) {
    const simt::Met met = simt::meet(simt::Meeting::kShuffle, simt::bits_of(value));
    const unsigned from = static_cast<unsigned>(lane) % simt::kWarpSize;
    if ((met.present >> from & 1) == 0) simt::fail("a lane that has ended is asked for its value");
    return simt::of_bits<T>(met.values[from]);
}

template <class T>
T __shfl_up_sync(uint32_t, T value, unsigned step) {
    const simt::Met met = simt::meet(simt::Meeting::kShuffleUp, simt::bits_of(value));
    const unsigned lane = threadIdx.x % simt::kWarpSize;
    if (lane >= step && (met.present >> (lane - step) & 1) == 0)
        simt::fail("a lane that has ended is asked for its value");
    return lane < step ? value : simt::of_bits<T>(met.values[lane - step]);
}

inline uint32_t __ballot_sync(uint32_t, int value) {
    const simt::Met met = simt::meet(simt::Meeting::kBallot, value != 0);
    uint32_t found = 0;
    for (unsigned lane = 0; lane < simt::kWarpSize; ++lane)
        if ((met.present >> lane & 1) != 0 && met.values[lane] != 0) found |= 1u << lane;
    return found;
}

inline int __any_sync(uint32_t mask, int value) {
    return __ballot_sync(mask, value) != 0;
}
inline int __all_sync(uint32_t mask, int value) {
    return __ballot_sync(mask, value == 0) == 0;
}

inline uint32_t __match_any_sync(uint32_t, uint32_t value) {
    const simt::Met met = simt::meet(simt::Meeting::kMatch, value);
    uint32_t found = 0;
    for (unsigned lane = 0; lane < simt::kWarpSize; ++lane)
        if ((met.present >> lane & 1) != 0 && met.values[lane] == value) found |= 1u << lane;
    return found;
}

inline uint32_t __reduce_add_sync(uint32_t, uint32_t value) {
    const simt::Met met = simt::meet(simt::Meeting::kAdd, value);
    uint32_t sum = 0;
    for (unsigned lane = 0; lane < simt::kWarpSize; ++lane)
        if ((met.present >> lane & 1) != 0) sum += static_cast<uint32_t>(met.values[lane]);
    return sum;
}

inline void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> value) {
    return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> value) {
    return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}
inline unsigned atomicInc(unsigned* at, unsigned limit) {
    unsigned seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(at, &seen, seen >= limit ? 0 : seen + 1, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
    }
    return seen;
}
