// native/include/epctl/common/ptx.cuh for a CPU. Who reads a word in a loop lets others go on.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace epctl {

inline uint64_t now_ns() {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
}

inline uint32_t lanes_below() {
    return (1u << threadIdx.x % simt::kWarpSize) - 1;
}

inline uint64_t load_acquire(const uint64_t* from) {
    simt::yield();
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

inline uint64_t load_relaxed(const uint64_t* from) {
    simt::yield();
    return __atomic_load_n(from, __ATOMIC_RELAXED);
}

inline uint32_t load_relaxed_gpu(const uint32_t* from) {
    return __atomic_load_n(from, __ATOMIC_RELAXED);
}

inline void store_relaxed(uint64_t* to, uint64_t value) {
    __atomic_store_n(to, value, __ATOMIC_RELAXED);
}

inline void store_release(uint64_t* to, uint64_t value) {
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

inline void store_release(uint32_t* to, uint32_t value) {
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

inline void add_release(uint64_t* to, uint64_t value) {
    __atomic_fetch_add(to, value, __ATOMIC_RELEASE);
}

struct Pair {
    uint64_t one, other;
};

// One line is whole; two are not.
inline std::mutex& lines() {
    static std::mutex all;
    return all;
}

constexpr unsigned kLanesOfLine = 8;

inline void store_lines(uint8_t* to_lane, const Pair& words) {
    struct Brought {
        uint8_t* to;
        const Pair* words;
    };
    const Brought mine{to_lane, &words};
    const simt::Met met = simt::meet(simt::Meeting::kStore, reinterpret_cast<uint64_t>(&mine));
    if (met.present != 0xffffffffu) simt::fail("a line is stored by a part of a warp");
    if (met.last) {
        for (unsigned from = simt::kWarpSize; from != 0; from -= kLanesOfLine) {  // the last line first
            const std::lock_guard<std::mutex> whole(lines());
            for (unsigned lane = from - kLanesOfLine; lane < from; ++lane) {
                const Brought& one = *reinterpret_cast<const Brought*>(met.values[lane]);
                if (one.to != reinterpret_cast<const Brought*>(met.values[0])->to + 16 * lane)
                    simt::fail("lanes of a line do not lie side by side");
                std::memcpy(one.to, one.words, 16);
            }
        }
    }
    simt::meet(simt::Meeting::kStore, 0);  // the values lie on the lanes' stacks
}

inline Pair load_lines(const uint8_t* from_lane) {
    simt::yield();
    struct Brought {
        const uint8_t* from;
        Pair words;
    };
    Brought mine{from_lane, {}};
    const simt::Met met = simt::meet(simt::Meeting::kLoad, reinterpret_cast<uint64_t>(&mine));
    if (met.present != 0xffffffffu) simt::fail("a line is loaded by a part of a warp");
    if (met.last) {
        for (unsigned from = 0; from < simt::kWarpSize; from += kLanesOfLine) {
            const std::lock_guard<std::mutex> whole(lines());
            for (unsigned lane = from; lane < from + kLanesOfLine; ++lane) {
                Brought& one = *reinterpret_cast<Brought*>(met.values[lane]);
                std::memcpy(&one.words, one.from, 16);
            }
        }
    }
    simt::meet(simt::Meeting::kLoad, 0);
    return mine.words;
}

template <uint32_t kBarrier, uint32_t kThreads>
inline void meet_in_block() {
    simt::meet_block(kBarrier, kThreads, true);
}

template <uint32_t kBarrier, uint32_t kThreads>
inline void arrive_in_block() {
    simt::meet_block(kBarrier, kThreads, true, false);
}

inline uint8_t* dynamic_shared() {
    const uint64_t begin = reinterpret_cast<uint64_t>(simt::block()->shared.data());
    return reinterpret_cast<uint8_t*>((begin + 127) / 128 * 128);
}

}  // namespace epctl
