// Arguments of the GIN kernels, for device and host code alike; native/gin_args.py packs the same bytes behind those of
// the device communicator, whose size NCCL's version decides.
#pragma once

#include <nccl.h>
#include <nccl_device.h>

#include <cstddef>
#include <cstdint>

#include "epctl/comm/peers.h"
#include "epctl/common/wait_record.h"

namespace epctl {

enum GinFlags : uint32_t {
    kGinStrong = 1,  // the signal follows all puts before it, not just the one that it comes with
    kGinAdd = 2,     // a signal adds `value`, not 1
    kGinServes = 4,  // ping-pong: the side that sends first
    kGinDrop = 8,    // the last signal is not given: the self-test proves with it that a lost signal is seen
};

// What one rank sends and what it waits for. A block is a context of its own, and all blocks do the same.
struct GinArgs {
    ncclDevComm comm;
    ncclWindow_t window;
    uint64_t source_offset;
    uint64_t target_offset;
    uint64_t num_bytes;     // of a message
    uint64_t slot_bytes;    // from one message's place to the next one's
    uint64_t num_slots;     // of a context; message i lies in slot i modulo this
    uint64_t num_messages;  // sent by a context; rounds of a ping-pong
    uint64_t num_expected;  // signals that arrive at a context
    uint64_t begin;         // of the signal that arrives, before this launch; counted by the host
    uint64_t value;         // of a signal with kGinAdd
    uint64_t* elapsed_ns;   // one for each block
    uint32_t to;            // ranks of the world
    uint32_t from;
    uint32_t signal;
    uint32_t flags;
    uint32_t batch;  // messages of a context that may be under way at once
    uint32_t reserved;
    WaitLimits limits;
};

static_assert(sizeof(ncclDevComm) % 8 == 0 && offsetof(GinArgs, window) == sizeof(ncclDevComm), "native/gin_args.py");
static_assert(sizeof(GinArgs) == sizeof(ncclDevComm) + 136,
              "native/gin_args.py packs 136 bytes behind the communicator");
static_assert(offsetof(GinArgs, to) == sizeof(ncclDevComm) + 88, "native/gin_args.py");
static_assert(offsetof(GinArgs, limits) == sizeof(ncclDevComm) + 112, "native/gin_args.py");

// A barrier of all ranks of the world: flags inside the load/store domain, then signals between the ranks that have the
// same place in their domains.
struct GinBarrierArgs {
    ncclDevComm comm;
    Peers peers;
    uint64_t flags_offset;
    uint64_t round;   // of these flags and signals: 1 for the first barrier, then one more each time
    uint32_t signal;  // the first of as many as there are domains
    uint32_t num_domains;
    WaitLimits limits;
};

static_assert(offsetof(GinBarrierArgs, peers) == sizeof(ncclDevComm), "native/gin_args.py");
static_assert(sizeof(GinBarrierArgs) == sizeof(ncclDevComm) + 632, "native/gin_args.py packs 632 bytes");
static_assert(offsetof(GinBarrierArgs, limits) == sizeof(ncclDevComm) + 608, "native/gin_args.py");

// What a device communicator turned out to be: NCCL takes the number of contexts as a hint.
struct GinFound {
    uint32_t num_contexts;
    uint32_t num_connections;  // each over an adapter
    uint32_t types[4];         // ncclNetDeviceType of each connection
    uint32_t num_signals;
    uint32_t connection_stride;
    uint32_t strong_legacy;
    uint32_t reserved;
};

struct GinDescribeArgs {
    ncclDevComm comm;
    GinFound* found;
};

static_assert(sizeof(GinFound) == 40 && NCCL_GIN_MAX_CONNECTIONS == 4, "native/gin_args.py reads 40 bytes");
static_assert(sizeof(GinDescribeArgs) == sizeof(ncclDevComm) + 8, "native/gin_args.py packs 8 bytes");

}  // namespace epctl
