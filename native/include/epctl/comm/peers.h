// The ranks that a kernel reaches by loads and stores, for device and host code alike; native/peers.py packs the same
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace epctl {

// NVL72 is the largest load/store domain that there is.
constexpr uint32_t kMaxPeers = 72;

// Symmetric memory of all ranks of the domain: the same offset means the same thing on each of them.
struct Peers {
    uint8_t* base[kMaxPeers];
    uint32_t num_ranks;
    uint32_t rank;
};

static_assert(sizeof(Peers) == 584 && offsetof(Peers, num_ranks) == 576, "native/peers.py packs 584 bytes");

}  // namespace epctl
