// Arguments of the barrier, for device and host code alike; native/peers.py packs the same bytes.
#pragma once

#include "epctl/comm/peers.h"
#include "epctl/common/wait_record.h"

namespace epctl {

// `flags_offset`: where each rank has one 64-bit flag for each rank, in symmetric memory.
struct BarrierArgs {
    Peers peers;
    uint64_t flags_offset;
    uint64_t round;  // 1 for the first barrier on these flags, then one more each time
    WaitLimits limits;
};

static_assert(sizeof(BarrierArgs) == 624 && offsetof(BarrierArgs, limits) == 600, "native/peers.py packs 624 bytes");

}  // namespace epctl
