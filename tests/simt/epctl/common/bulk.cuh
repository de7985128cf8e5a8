// native/include/epctl/common/bulk.cuh for a CPU. A bulk load arrives when it is waited for; a bulk
// store reads its source, and writes, as late as it may.
#pragma once

#include <cstdint>

namespace epctl {

constexpr uint32_t kVectorBytes = 16;
constexpr uint32_t kWarpThreads = 32;

inline uint4 load_vector(const uint4* from) {
    if (reinterpret_cast<uint64_t>(from) % kVectorBytes != 0) simt::fail("a vector is not aligned");
    return *from;
}

inline void store_vector(uint4* to, const uint4& v) {
    if (reinterpret_cast<uint64_t>(to) % kVectorBytes != 0) simt::fail("a vector is not aligned");
    *to = v;
}

// A barrier's word counts the loads that have ended: the phase of that number is over.
inline void barrier_init(uint64_t* barrier) {
    *barrier = 0;
}

inline void barrier_init_fence() {}

inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
    auto& loads = simt::block()->loads;
    for (auto one = loads.begin(); one != loads.end();) {
        if (one->barrier != barrier) {
            ++one;
            continue;
        }
        std::memcpy(one->to, one->from, one->bytes);
        ++*barrier;
        one = loads.erase(one);
    }
    while ((*barrier & 1) == parity) simt::yield();
}

inline void check_bulk(const void* one, const void* other, uint32_t bytes) {
    if (reinterpret_cast<uint64_t>(one) % 16 != 0 || reinterpret_cast<uint64_t>(other) % 16 != 0 || bytes % 16 != 0)
        simt::fail("a bulk copy is not of 16 bytes at 16 bytes");
}

inline void bulk_load(void* to_shared, const void* from, uint32_t bytes, uint64_t* barrier) {
    check_bulk(to_shared, from, bytes);
    for (const simt::PendingLoad& one : simt::block()->loads)
        if (one.barrier == barrier) simt::fail("a load begins while another one of its barrier is under way");
    std::memset(to_shared, 0xA5, bytes);
    simt::block()->loads.push_back({to_shared, from, bytes, barrier});
}

inline void bulk_store(void* to, const void* from_shared, uint32_t bytes) {
    check_bulk(to, from_shared, bytes);
    simt::fiber().stores.push_back({to, from_shared, bytes, {}});
}

template <int kPending>
inline void bulk_stores_read() {
    auto& stores = simt::fiber().stores;
    for (std::size_t i = 0; i + kPending < stores.size(); ++i) {
        const char* const from = static_cast<const char*>(stores[i].from);
        if (stores[i].read.empty()) stores[i].read.assign(from, from + stores[i].bytes);
    }
}

template <int kPending = 0>
inline void bulk_stores_done() {
    bulk_stores_read<kPending>();
    auto& stores = simt::fiber().stores;
    for (; stores.size() > kPending; stores.pop_front())
        std::memcpy(stores.front().to, stores.front().read.data(), stores.front().bytes);
}

}  // namespace epctl
