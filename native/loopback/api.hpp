// NCCL's RMA plugin interface, version 14, declared here so that the plugin builds without NCCL's private headers.
// Layout and meaning: github.com/NVIDIA/nccl, src/include/plugin/rma/rma_v14.h, net/net_v12.h and nccl_net.h.
//
// Why 14: NCCL 2.30.7 to 2.32 load it. Version 15 adds a hint that more requests follow, so that a NIC's doorbell can
// wait: nothing is batched here. Version 16 adds a property that lets a reader skip a flush after a get: a flush costs
// no transfer here. Neither changes what arrives, and NCCL fills both in for an older plugin.
#pragma once

#include <cstddef>
#include <cstdint>

namespace epctl::loopback {

// ncclResult_t of nccl.h.
enum Result : int {
    kSuccess = 0,
    kCudaError = 1,
    kSystemError = 2,
    kInternalError = 3,
    kInvalidArgument = 4,
    kInvalidUsage = 5,
    kRemoteError = 6,
};

constexpr int kLogWarn = 2;                    // NCCL_LOG_WARN
constexpr int kLogInfo = 3;                    // NCCL_LOG_INFO
constexpr unsigned long kLogAll = ~0ul;        // NCCL_ALL
constexpr unsigned long kLogNet = 0x10;        // NCCL_NET
constexpr int kPointerHost = 1;                // NCCL_PTR_HOST
constexpr int kPointerCuda = 2;                // NCCL_PTR_CUDA
constexpr std::uint64_t kFlagNeverReset = 2;   // NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET
constexpr std::uint32_t kSignalIncrement = 1;  // NCCL_NET_SIGNAL_OP_INC
constexpr std::uint32_t kSignalAdd = 2;        // NCCL_NET_SIGNAL_OP_ADD
constexpr int kNetDeviceGinProxy = 2;          // NCCL_NET_DEVICE_GIN_PROXY
constexpr std::size_t kHandleBytes = 128;      // NCCL_NET_HANDLE_MAXSIZE

using Logger = void (*)(int level, unsigned long subsystems, const char* file, int line, const char* format, ...);

struct VirtualDevices {
    int num_devices;
    int devices[8];
};

struct Properties {
    char* name;
    char* pci_path;
    std::uint64_t guid;
    int pointer_support;
    int registration_is_global;
    int force_flush;
    int speed_mbps;
    int port;
    float latency_us;
    int max_communicators;
    int max_receives;
    int net_device_type;
    int net_device_version;
    VirtualDevices virtual_devices;
    std::size_t max_p2p_bytes;
    std::size_t max_collective_bytes;
    int max_multi_requests;
    std::int16_t rail_id;
    std::int16_t plane_id;
};

// Later versions of NCCL append members; only these are read.
struct ContextConfig {
    int num_contexts;
    int traffic_class;
};

struct Plugin {
    const char* name;
    Result (*init)(void** instance, std::uint64_t communicator_id, Logger logger);
    Result (*devices)(int* num_devices);
    Result (*get_properties)(int device, Properties* properties);
    Result (*listen)(void* instance, int device, void* handle, void** listener);
    Result (*connect)(void* instance, void* handles[], int num_ranks, int rank, void* listener, void** collective);
    Result (*create_context)(void* collective, ContextConfig* config, void** context);
    Result (*register_memory)(void* collective, void* data, std::size_t size, int type, std::uint64_t flags,
                              void** memory);
    Result (*register_dma_buf)(void* collective, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                               std::uint64_t flags, void** memory);
    Result (*deregister_memory)(void* collective, void* memory);
    Result (*destroy_context)(void* context);
    Result (*close_collective)(void* collective);
    Result (*close_listener)(void* listener);
    Result (*put)(void* context, int context_idx, std::uint64_t source_offset, void* source, std::size_t size,
                  std::uint64_t target_offset, void* target, std::uint32_t rank, void** request);
    Result (*put_signal)(void* context, int context_idx, std::uint64_t source_offset, void* source, std::size_t size,
                         std::uint64_t target_offset, void* target, std::uint32_t rank, std::uint64_t signal_offset,
                         void* signal, std::uint64_t value, std::uint32_t operation, bool strong, void** request);
    Result (*get)(void* context, int context_idx, std::uint64_t remote_offset, void* remote, std::size_t size,
                  std::uint64_t local_offset, void* local, std::uint32_t rank, void** request);
    Result (*flush)(void* context, int context_idx, void* memory, std::uint32_t rank, void** request);
    Result (*test)(void* collective, void* request, int* done);
    Result (*progress)(void* context);
    Result (*query_last_error)(void* context, bool* has_error);
    Result (*finalize)(void* instance);
};

}  // namespace epctl::loopback
