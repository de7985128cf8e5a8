// What a wait that ran out of time leaves behind, for device and host code alike. native/waits.py reads the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace epctl {

// The names are those of native/waits.py (STAGES), which turns them into words.
enum class Stage : uint32_t {
    kNone = 0,
    kLinkPing = 1,
    kLinkPong = 2,
    kBarrier = 3,
    kGinBarrier = 4,
    kGinPut = 5,
    kGinGet = 6,
    kGinSignal = 7,
    kGinFlush = 8,
    kDispatchChunk = 16,
    kDispatchReady = 17,
    kDispatchCount = 18,
    kDispatchRows = 19,
    kCombineReady = 20,
    kCombineRows = 21,
    kCombineDone = 22,
};

enum RecordState : uint32_t {
    kRecordFree = 0,  // or being filled in
    kRecordComplete = 1,
};

// In host memory that the device maps, one for each rank: the host must be able to read it while the kernel hangs.
struct WaitRecord {
    uint32_t state;
    uint32_t waiter;
    uint32_t peer;
    uint32_t stage;
    uint64_t expected;
    uint64_t seen;
    uint64_t progress;  // how many rounds, rows or chunks were done, as the stage counts them
    uint64_t waited_ns;
    uint32_t block;
    uint32_t thread;
    uint64_t reserved;
};

static_assert(sizeof(WaitRecord) == 64, "native/waits.py reads 64 bytes");
static_assert(offsetof(WaitRecord, expected) == 16 && offsetof(WaitRecord, block) == 48, "native/waits.py");

// How a kernel waits; part of its arguments.
struct WaitLimits {
    WaitRecord* record;
    // Best in memory of the device. Not 0 as soon as a wait of this rank has given up: what kernels wait for, or were
    // to have written, does not come any more.
    uint32_t* given_up;
    uint32_t rank;
    uint32_t timeout_ms;
};

static_assert(sizeof(WaitLimits) == 24, "native/peers.py packs 24 bytes");

}  // namespace epctl
