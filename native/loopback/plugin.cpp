// The table that NCCL looks for in the library, and what stands between it and the rest: arguments and errors.
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api.hpp"
#include "collective.hpp"
#include "context.hpp"
#include "live.hpp"
#include "report.hpp"
#include "sockets.hpp"

namespace epctl::loopback {
namespace {

char plugin_name[] = "epctl-loopback";
// An emulated link has no rate. NCCL wants one for its choice of paths: that of the NICs that it stands for.
constexpr int kSpeedMbps = 400000;
constexpr int kMaxReceives = 8;  // NCCL allows 32 times as many requests in flight for each context and peer
constexpr std::size_t kUnlimited = std::size_t{1} << 40;
constexpr int kMaxContexts = 1024;

// No exception leaves the library.
template <class Body>
Result guarded(const char* call, Body body) {
    try {
        body();
        return kSuccess;
    } catch (const Failure& failure) {
        warn(std::string(call) + ": " + failure.what());
        return failure.result;
    } catch (const std::exception& error) {
        warn(std::string(call) + ": " + error.what());
        return kSystemError;
    }
}

// A request of the data path. A failure there is one of the whole communicator.
template <class Body>
Result requested(void* context, Body body) {
    Context& used = *static_cast<Context*>(context);
    Collective& collective = used.collective();
    const std::lock_guard<std::mutex> guard(collective.mutex);
    if (collective.failed() != kSuccess) return collective.failed();
    try {
        const Device::Current current(collective.device());
        body(used);
        return kSuccess;
    } catch (const Failure& failure) {
        collective.fail(failure);
    } catch (const std::exception& error) {
        collective.fail(Failure(kSystemError, error.what()));
    }
    return collective.failed();
}

Place place(void* memory, std::uint64_t offset) {
    return {static_cast<Registration*>(memory), offset};
}

Result init(void** instance, std::uint64_t, Logger logger) {
    return guarded("init", [&] {
        set_logger(logger);
        *instance = plugin_name;
        info("EMULATED network between the processes of this machine, waits end after " + std::to_string(limit_s()) +
             " s: its times say nothing about a network");
    });
}

Result devices(int* num_devices) {
    *num_devices = 1;
    return kSuccess;
}

Result get_properties(int device, Properties* properties) {
    return guarded("getProperties", [&] {
        if (device != 0) throw Failure(kInvalidArgument, "device " + std::to_string(device) + " of 1");
        *properties = {};
        properties->name = plugin_name;
        properties->guid = 1;
        properties->pointer_support = kPointerHost | kPointerCuda;
        properties->speed_mbps = kSpeedMbps;
        properties->port = 1;
        properties->latency_us = 1.0f;
        properties->max_communicators = 1 << 16;
        properties->max_receives = kMaxReceives;
        properties->net_device_type = kNetDeviceGinProxy;
        properties->virtual_devices.num_devices = 1;
        properties->max_p2p_bytes = kUnlimited;
        properties->max_collective_bytes = kUnlimited;
        properties->max_multi_requests = 1;
        properties->rail_id = -1;
        properties->plane_id = -1;
    });
}

Result listen(void*, int, void* handle, void** listener) {
    return guarded("listen", [&] {
        auto made = std::make_unique<Listener>();
        std::memset(handle, 0, kHandleBytes);
        std::memcpy(handle, &made->handle(), sizeof(Handle));
        *listener = keep(live().listeners, std::move(made));
    });
}

Result connect(void*, void* handles[], int num_ranks, int rank, void* listener, void** collective) {
    return guarded("connect", [&] {
        if (num_ranks < 1) throw Failure(kInvalidArgument, std::to_string(num_ranks) + " ranks");
        std::vector<Handle> known(static_cast<std::size_t>(num_ranks));
        for (int other = 0; other < num_ranks; ++other)
            std::memcpy(&known[static_cast<std::size_t>(other)], handles[other], sizeof(Handle));
        auto made = std::make_unique<Collective>(*static_cast<Listener*>(listener), known, rank);
        *collective = keep(live().collectives, std::move(made));
    });
}

Result create_context(void* collective, ContextConfig* config, void** context) {
    return guarded("createContext", [&] {
        if (config->num_contexts < 1 || config->num_contexts > kMaxContexts)
            throw Failure(kInvalidArgument, std::to_string(config->num_contexts) + " contexts");
        *context = static_cast<Collective*>(collective)->open_context(config->num_contexts);
    });
}

Result register_memory(void* collective, void* data, std::size_t size, int type, std::uint64_t flags, void** memory) {
    return guarded("regMrSym", [&] {
        if (type != kPointerHost && type != kPointerCuda)
            throw Failure(kInvalidArgument, "memory of type " + std::to_string(type));
        *memory = static_cast<Collective*>(collective)->enroll(reinterpret_cast<CUdeviceptr>(data), size, type, flags);
    });
}

// The DMA-BUF is for NICs; the memory is shared by its own handles.
Result register_dma_buf(void* collective, void* data, std::size_t size, int type, std::uint64_t, int,
                        std::uint64_t flags, void** memory) {
    return register_memory(collective, data, size, type, flags, memory);
}

// These three may come after the collective is closed, which released all of its own.
Result deregister_memory(void* collective, void* memory) {
    return guarded("deregMrSym", [&] {
        auto* const registration = static_cast<Registration*>(memory);
        auto* const used = static_cast<Collective*>(collective);
        if (is_open(collective) && used->owns(registration)) {
            used->withdraw(registration);
        } else {
            info("deregMrSym: the memory went with its communicator");
        }
    });
}

Result destroy_context(void* context) {
    return guarded("destroyContext", [&] {
        auto* const used = static_cast<Context*>(context);
        if (Collective* const owner = owner_of(used)) {
            owner->close_context(used);
        } else {
            info("destroyContext: the context went with its communicator");
        }
    });
}

Result close_collective(void* collective) {
    return guarded("closeColl", [&] {
        const std::unique_ptr<Collective> gone = let_go(live().collectives, collective);
        if (gone == nullptr) throw Failure(kInvalidArgument, "the communicator is closed already");
        gone->close();
    });
}

Result close_listener(void* listener) {
    return guarded("closeListen", [&] {
        if (let_go(live().listeners, listener) == nullptr)
            throw Failure(kInvalidArgument, "the listener is closed already");
    });
}

Result put(void* context, int context_idx, std::uint64_t source_offset, void* source, std::size_t size,
           std::uint64_t target_offset, void* target, std::uint32_t rank, void** request) {
    return requested(context, [&](Context& used) {
        *request = used.put(context_idx, place(source, source_offset), place(target, target_offset), size, rank,
                            nullptr, 0, false);
    });
}

Result put_signal(void* context, int context_idx, std::uint64_t source_offset, void* source, std::size_t size,
                  std::uint64_t target_offset, void* target, std::uint32_t rank, std::uint64_t signal_offset,
                  void* signal, std::uint64_t value, std::uint32_t operation, bool strong, void** request) {
    return requested(context, [&](Context& used) {
        if (operation != kSignalIncrement && operation != kSignalAdd)
            throw Failure(kInvalidArgument, "a signal of operation " + std::to_string(operation));
        const Place raised = place(signal, signal_offset);
        *request = used.put(context_idx, place(source, source_offset), place(target, target_offset), size, rank,
                            &raised, operation == kSignalIncrement ? 1 : value, strong);
    });
}

Result get(void* context, int context_idx, std::uint64_t remote_offset, void* remote, std::size_t size,
           std::uint64_t local_offset, void* local, std::uint32_t rank, void** request) {
    return requested(context, [&](Context& used) {
        *request = used.get(context_idx, place(remote, remote_offset), place(local, local_offset), size, rank);
    });
}

Result flush(void* context, int context_idx, void*, std::uint32_t rank, void** request) {
    return requested(context, [&](Context& used) { *request = used.flush(context_idx, rank); });
}

Result test(void*, void* request, int* done) {
    *done = 1;
    if (request == nullptr) return kSuccess;
    Request& tested = *static_cast<Request*>(request);
    Context& context = *tested.owner;
    Collective& collective = context.collective();
    const std::lock_guard<std::mutex> guard(collective.mutex);
    // Host-side RMA makes no other call while it waits.
    if (tested.state == Request::State::kPending && collective.stale()) collective.progress();
    if (tested.state == Request::State::kDone) {
        context.recycle(&tested);
        return kSuccess;
    }
    *done = 0;
    return collective.failed();
}

Result progress(void* context) {
    Collective& collective = static_cast<Context*>(context)->collective();
    const std::lock_guard<std::mutex> guard(collective.mutex);
    collective.progress();
    return collective.failed();
}

Result query_last_error(void* context, bool* has_error) {
    *has_error = static_cast<Context*>(context)->collective().failed() != kSuccess;
    return kSuccess;
}

Result finalize(void*) {
    return kSuccess;
}

}  // namespace
}  // namespace epctl::loopback

extern "C" __attribute__((visibility("default"))) epctl::loopback::Plugin ncclRmaPlugin_v14;
epctl::loopback::Plugin ncclRmaPlugin_v14 = {
    epctl::loopback::plugin_name,
    epctl::loopback::init,
    epctl::loopback::devices,
    epctl::loopback::get_properties,
    epctl::loopback::listen,
    epctl::loopback::connect,
    epctl::loopback::create_context,
    epctl::loopback::register_memory,
    epctl::loopback::register_dma_buf,
    epctl::loopback::deregister_memory,
    epctl::loopback::destroy_context,
    epctl::loopback::close_collective,
    epctl::loopback::close_listener,
    epctl::loopback::put,
    epctl::loopback::put_signal,
    epctl::loopback::get,
    epctl::loopback::flush,
    epctl::loopback::test,
    epctl::loopback::progress,
    epctl::loopback::query_last_error,
    epctl::loopback::finalize,
};
