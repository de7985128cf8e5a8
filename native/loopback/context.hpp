// Requests: copies on streams of the sender, and what follows when a copy is complete.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collective.hpp"

namespace epctl::loopback {

class Context;

struct Request {
    enum class State { kFree, kPending, kDone, kFailed };

    Context* owner = nullptr;
    CUevent event = nullptr;
    State state = State::kFree;
    bool copied = false;   // there is no copy, or it is complete
    bool ordered = false;  // not before all earlier requests of its context to the same peer
    bool weak_stream = false;
    bool has_signal = false;
    Signal signal;
    Registration* used[2] = {nullptr, nullptr};
};

// A part of registered memory.
struct Place {
    Registration* registration = nullptr;
    std::uint64_t offset = 0;
};

// NCCL's contexts of one device communicator.
//
// A signal is strong when it says that all earlier puts of its context to the same peer are settled, and weak when it
// speaks of its own put alone. Weak ones have a stream of their own and overtake others, as they may on a network:
// a program that counts on more than it asked for is found out here.
class Context {
  public:
    Context(Collective& collective, int num_contexts);
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    Collective& collective() const { return collective_; }

    // Called with the collective's mutex held and its GPU current. Throw Failure.
    Request* put(int context_idx, Place source, Place target, std::uint64_t size, std::uint32_t rank,
                 const Place* signal, std::uint64_t value, bool strong);
    Request* get(int context_idx, Place remote, Place local, std::uint64_t size, std::uint32_t rank);
    Request* flush(int context_idx, std::uint32_t rank);

    // Sends the signals whose time has come. After a failure it only waits for the copies.
    void advance();
    void recycle(Request* request);
    bool empty() const { return num_pending_ == 0; }
    // All copies have ended, or the GPU is lost.
    bool idle() const;
    std::uint64_t num_pending(int rank) const;

  private:
    using Lane = std::vector<Request*>;  // requests of a context to one peer, in their order
    struct Streams {
        CUstream ordered = nullptr;
        CUstream weak = nullptr;
    };

    Lane& lane(int context_idx, std::uint32_t rank);
    Request* submit(Lane& lane, Request* request);
    void attach(Request& request, const Place& signal, std::uint64_t value, std::uint32_t rank) const;
    CUdeviceptr remote(const Place& place, std::uint64_t size, std::uint32_t rank) const;
    static CUdeviceptr local(const Place& place, std::uint64_t size);
    Request* take();
    void grow();
    void copy(Request& request, CUdeviceptr target, const Place& target_place, const Place& source, std::uint64_t size,
              CUstream stream);
    void move(CUdeviceptr target, const Place& to, CUdeviceptr source, const Place& from, std::uint64_t size,
              CUstream stream) const;
    void started(Request& request, Registration* one, Registration* other, CUstream stream);
    void advance_lane(Lane& lane, int rank, bool (&busy)[2]);
    bool settle(Request& request, bool (&busy)[2]);
    bool release(Request& request, int rank);

    Collective& collective_;
    const int num_contexts_;
    std::vector<Streams> streams_;
    std::vector<Lane> lanes_;
    std::vector<std::unique_ptr<Request>> requests_;
    std::vector<Request*> free_;
    std::uint64_t num_pending_ = 0;
};

}  // namespace epctl::loopback
