// Arguments of the link kernels, for device and host code alike; native/link_args.py packs the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "epctl/common/wait_record.h"

namespace epctl {

// A copy of rows; which of the pointers is a peer's memory makes it a write or a read.
struct LinkArgs {
    void* target;
    const void* source;
    const void* addend;  // pull-and-add only: local rows
    uint64_t num_rows;
    uint32_t* sums;    // read only: one word for each thread of the grid
    uint32_t pattern;  // fill only
    uint32_t reserved;
};

static_assert(sizeof(LinkArgs) == 48 && offsetof(LinkArgs, pattern) == 40, "native/link_args.py packs 48 bytes");

// One side of a ping-pong: it waits for `mine` and stores to `theirs`, in the memory of the peer.
struct PingPongArgs {
    uint64_t* mine;
    uint64_t* theirs;
    uint64_t begin;  // value of both flags before the first round, counted by the host
    uint64_t num_rounds;
    uint64_t* elapsed_ns;
    uint32_t peer;
    uint32_t serves;  // 1 for the side that stores first
    WaitLimits limits;
};

static_assert(sizeof(PingPongArgs) == 72 && offsetof(PingPongArgs, limits) == 48, "native/link_args.py packs 72 bytes");

}  // namespace epctl
