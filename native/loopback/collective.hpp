// The ranks that NCCL connected with each other: their sockets, their registered memory, and the signals that arrive.
//
// Why signals travel as messages: NCCL allocates its signals without a handle that could be shared, so that only their
// owner can write them. The sender waits for its copy and then sends; whoever makes progress at the owner's, adds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "memory.hpp"
#include "report.hpp"
#include "sockets.hpp"

namespace epctl::loopback {

class Context;

// An addition to 64 bits at a place of a registration, whose number all ranks agree on.
struct Signal {
    std::uint64_t registration = 0;
    std::uint64_t offset = 0;
    std::uint64_t value = 0;
};

class Collective {
  public:
    // Connects all ranks. Throws Failure.
    Collective(const Listener& listener, const std::vector<Handle>& handles, int rank);
    ~Collective();
    Collective(const Collective&) = delete;
    Collective& operator=(const Collective&) = delete;

    int rank() const { return rank_; }
    int num_ranks() const { return static_cast<int>(peers_.size()); }
    // "rank 1 of 4 (process 4242)".
    std::string who(int rank) const;
    // The GPU of the first context or registration. There is one when a context is open.
    const Device& device() const { return *device_; }

    // Called by all ranks in the same order. Throws Failure.
    Registration* enroll(CUdeviceptr data, std::uint64_t size, int type, std::uint64_t flags);
    // Waits for what is in flight, for a limited time.
    void withdraw(Registration* registration);
    // Whether it is one of this collective that has not been withdrawn.
    bool owns(const Registration* registration);
    bool owns(const Context* context);

    Context* open_context(int num_contexts);
    void close_context(Context* context);
    // Says farewell, so that the peers do not take it for a death, and releases everything.
    void close();

    // Everything that follows is called with this mutex held.
    std::mutex mutex;
    void progress();
    // True when a call of `progress` is due, for calls that NCCL makes in a loop.
    bool stale() const { return Clock::now() - last_progress_ > kStale; }
    // False: the socket is full, to be tried again. Throws Failure when the peer is dead.
    bool deliver(int rank, const Signal& signal);

    // The first failure stays, and is logged once.
    void fail(const Failure& failure);
    Result failed() const { return failed_.load(); }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::microseconds kStale{5};

    struct Peer {
        Link link;
        bool departed = false;  // has said farewell
        bool gave_up = false;   // has said farewell after a failure of its own
        bool closed = false;    // nothing more to read
        std::uint64_t num_dropped = 0;
    };
    struct Message {
        std::uint64_t kind;
        Signal signal;
    };
    struct Arrival {
        Registration* registration;
        std::uint64_t offset;
        std::uint64_t value;
    };

    void bind_device();
    void learn_from_all(Registration& registration, const Segments& segments);
    void receive();
    void receive_from(int rank);
    void understand(const Message& message, int rank);
    void arrive(const Signal& signal, int rank);
    void apply();
    void apply_on_gpu();
    template <class Condition>
    bool wait_until(Condition met);
    bool signals_written(const Registration* registration);
    void release();
    void look_after();
    bool wait_for_peers();
    void farewell();

    const int rank_;
    std::vector<Peer> peers_;
    std::unique_ptr<Device> device_;
    CUstream signal_stream_ = nullptr;
    std::mutex control_mutex_;  // one registration at a time, and one that sets up the GPU
    std::vector<std::unique_ptr<Registration>> registrations_;  // by id
    std::vector<std::unique_ptr<Context>> contexts_;
    std::vector<Arrival> arrivals_;
    std::atomic<Result> failed_{kSuccess};
    Clock::time_point last_progress_ = Clock::now();
    std::uint64_t num_signals_ = 0;
    bool closed_ = false;

    // NCCL does not call progress for host-side RMA, nor once its last context is gone: then this thread reads.
    std::thread caretaker_;
    Fd stop_;
};

}  // namespace epctl::loopback
