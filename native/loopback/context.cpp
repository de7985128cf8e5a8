#include "context.hpp"

#include <cstring>
#include <string>

namespace epctl::loopback {
namespace {

constexpr std::size_t kRequestsAtOnce = 256;
constexpr std::uint64_t kMostValueBytes = 8;

}  // namespace

Context::Context(Collective& collective, int num_contexts) : collective_(collective), num_contexts_(num_contexts) {
    lanes_.resize(static_cast<std::size_t>(num_contexts) * static_cast<std::size_t>(collective.num_ranks()));
    for (int i = 0; i < num_contexts; ++i) {
        streams_.emplace_back();
        streams_.back().ordered = collective.device().new_stream();
        streams_.back().weak = collective.device().new_stream();
    }
    grow();
}

Context::~Context() {
    for (const Streams& streams : streams_) {
        Device::destroy(streams.ordered);
        Device::destroy(streams.weak);
    }
    for (const auto& request : requests_) Device::destroy(request->event);
}

void Context::grow() {
    for (std::size_t i = 0; i < kRequestsAtOnce; ++i) {
        auto request = std::make_unique<Request>();
        request->owner = this;
        request->event = collective_.device().new_event();
        free_.push_back(request.get());
        requests_.push_back(std::move(request));
    }
}

Request* Context::take() {
    if (free_.empty()) grow();
    Request* const request = free_.back();
    free_.pop_back();
    const CUevent event = request->event;
    *request = Request{};
    request->owner = this;
    request->event = event;
    request->copied = true;
    return request;
}

void Context::recycle(Request* request) {
    request->state = Request::State::kFree;
    free_.push_back(request);
}

Context::Lane& Context::lane(int context_idx, std::uint32_t rank) {
    const auto num_ranks = static_cast<std::uint32_t>(collective_.num_ranks());
    if (context_idx < 0 || context_idx >= num_contexts_ || rank >= num_ranks)
        throw Failure(kInvalidArgument, "context " + std::to_string(context_idx) + " of " +
                                            std::to_string(num_contexts_) + ", rank " + std::to_string(rank) + " of " +
                                            std::to_string(num_ranks));
    return lanes_[static_cast<std::size_t>(context_idx) * num_ranks + rank];
}

CUdeviceptr Context::local(const Place& place, std::uint64_t size) {
    if (place.registration == nullptr || place.registration->withdrawn)
        throw Failure(kInvalidArgument, "there is no registered memory of this rank");
    if (!place.registration->holds(place.offset, size))
        throw Failure(kInvalidArgument, std::to_string(size) + " bytes at " + std::to_string(place.offset) +
                                            " are not within the " + std::to_string(place.registration->size) +
                                            " that this rank registered");
    return place.registration->data + place.offset;
}

CUdeviceptr Context::remote(const Place& place, std::uint64_t size, std::uint32_t rank) const {
    const auto who = [&] { return collective_.who(static_cast<int>(rank)); };
    if (place.registration == nullptr || place.registration->withdrawn)
        throw Failure(kInvalidArgument, "there is no registered memory of " + who());
    const Registration::Peer& peer = place.registration->peers[rank];
    if (peer.data == 0) throw Failure(kInvalidUsage, "memory of " + who() + " cannot be reached: " + peer.why_not);
    if (place.offset > peer.size || size > peer.size - place.offset)
        throw Failure(kInvalidArgument, std::to_string(size) + " bytes at " + std::to_string(place.offset) +
                                            " are not within the " + std::to_string(peer.size) + " of " + who());
    return peer.data + place.offset;
}

void Context::attach(Request& request, const Place& signal, std::uint64_t value, std::uint32_t rank) const {
    const auto who = [&] { return collective_.who(static_cast<int>(rank)); };
    if (signal.registration == nullptr || signal.registration->withdrawn)
        throw Failure(kInvalidArgument, "a signal to " + who() + " without its memory");
    const std::uint64_t size = signal.registration->peers[rank].size;
    if (signal.offset % sizeof(std::uint64_t) != 0 || size < sizeof(std::uint64_t) ||
        signal.offset > size - sizeof(std::uint64_t))
        throw Failure(kInvalidArgument, "a signal to byte " + std::to_string(signal.offset) + " of " +
                                            std::to_string(size) + " of " + who());
    request.has_signal = true;
    request.signal = {signal.registration->id, signal.offset, value};
}

Request* Context::submit(Lane& lane, Request* request) {
    request->state = Request::State::kPending;
    lane.push_back(request);
    ++num_pending_;
    return request;
}

void Context::started(Request& request, Registration* one, Registration* other, CUstream stream) {
    collective_.device().record(request.event, stream);
    request.copied = false;
    request.used[0] = one;
    request.used[1] = other;
    for (Registration* const registration : request.used) ++registration->num_in_flight;
}

void Context::move(CUdeviceptr target, const Place& to, CUdeviceptr source, const Place& from, std::uint64_t size,
                   CUstream stream) const {
    if (to.registration->type == kPointerCuda && from.registration->type == kPointerCuda) {
        collective_.device().copy_within_gpus(target, source, size, stream);
    } else {
        collective_.device().copy_any(target, source, size, stream);
    }
}

void Context::copy(Request& request, CUdeviceptr target, const Place& target_place, const Place& source,
                   std::uint64_t size, CUstream stream) {
    const CUdeviceptr from = local(source, size);
    const bool value = source.registration->type == kPointerHost && target_place.registration->type == kPointerCuda &&
                       size <= kMostValueBytes;
    if (value) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, reinterpret_cast<const void*>(from), size);
        collective_.device().put_value(target, bits, size, stream);
    } else {
        move(target, target_place, from, source, size, stream);
    }
    started(request, source.registration, target_place.registration, stream);
}

Request* Context::put(int context_idx, Place source, Place target, std::uint64_t size, std::uint32_t rank,
                      const Place* signal, std::uint64_t value, bool strong) {
    Lane& queue = lane(context_idx, rank);
    const CUdeviceptr to = size != 0 ? remote(target, size, rank) : 0;
    Request* const request = take();
    try {
        if (signal != nullptr) attach(*request, *signal, value, rank);
        request->ordered = signal != nullptr && strong;
        request->weak_stream = signal != nullptr && !strong;
        const Streams& streams = streams_[static_cast<std::size_t>(context_idx)];
        if (size != 0) copy(*request, to, target, source, size, request->weak_stream ? streams.weak : streams.ordered);
    } catch (const Failure&) {
        recycle(request);
        throw;
    }
    return submit(queue, request);
}

Request* Context::get(int context_idx, Place remote_place, Place local_place, std::uint64_t size, std::uint32_t rank) {
    Lane& queue = lane(context_idx, rank);
    const CUdeviceptr from = size != 0 ? remote(remote_place, size, rank) : 0;
    const CUdeviceptr to = size != 0 ? local(local_place, size) : 0;
    Request* const request = take();
    try {
        if (size != 0) {
            const CUstream stream = streams_[static_cast<std::size_t>(context_idx)].ordered;
            move(to, local_place, from, remote_place, size, stream);
            started(*request, remote_place.registration, local_place.registration, stream);
        }
    } catch (const Failure&) {
        recycle(request);
        throw;
    }
    return submit(queue, request);
}

Request* Context::flush(int context_idx, std::uint32_t rank) {
    Lane& queue = lane(context_idx, rank);
    Request* const request = take();
    request->ordered = true;
    return submit(queue, request);
}

void Context::advance() {
    if (num_pending_ == 0) return;
    const int num_ranks = collective_.num_ranks();
    for (int context_idx = 0; context_idx < num_contexts_; ++context_idx) {
        bool busy[2] = {false, false};
        for (int rank = 0; rank < num_ranks; ++rank) {
            Lane& queue = lanes_[static_cast<std::size_t>(context_idx * num_ranks + rank)];
            if (!queue.empty()) advance_lane(queue, rank, busy);
        }
    }
}

void Context::advance_lane(Lane& lane, int rank, bool (&busy)[2]) {
    std::size_t kept = 0;
    std::size_t at = 0;
    // A failure in the middle must not lose requests: those not looked at stay.
    try {
        for (; at < lane.size(); ++at) {
            Request& request = *lane[at];
            const bool may = settle(request, busy) && (!request.ordered || kept == 0);
            if (may && release(request, rank)) {
                --num_pending_;
            } else {
                lane[kept++] = &request;
            }
        }
    } catch (const Failure&) {
        lane.erase(lane.begin() + static_cast<std::ptrdiff_t>(kept), lane.begin() + static_cast<std::ptrdiff_t>(at));
        throw;
    }
    lane.resize(kept);
}

// Whether its copy is complete. On a stream nothing is complete before what was there earlier.
bool Context::settle(Request& request, bool (&busy)[2]) {
    if (request.copied) return true;
    bool& stream_busy = busy[request.weak_stream ? 1 : 0];
    if (stream_busy) return false;
    const bool lost = collective_.failed() != kSuccess;
    if (lost ? !Device::settled(request.event) : !collective_.device().finished(request.event)) {
        stream_busy = true;
        return false;
    }
    request.copied = true;
    for (Registration*& registration : request.used) {
        --registration->num_in_flight;
        registration = nullptr;
    }
    return true;
}

bool Context::release(Request& request, int rank) {
    if (collective_.failed() != kSuccess) {
        request.state = Request::State::kFailed;
        return true;
    }
    if (request.has_signal && !collective_.deliver(rank, request.signal)) return false;
    request.state = Request::State::kDone;
    return true;
}

bool Context::idle() const {
    for (const Streams& streams : streams_)
        if (!Device::settled(streams.ordered) || !Device::settled(streams.weak)) return false;
    return true;
}

std::uint64_t Context::num_pending(int rank) const {
    std::uint64_t num = 0;
    for (int context_idx = 0; context_idx < num_contexts_; ++context_idx)
        num += lanes_[static_cast<std::size_t>(context_idx * collective_.num_ranks() + rank)].size();
    return num;
}

}  // namespace epctl::loopback
