// The part of Collective that exchanges signals.
#include <unistd.h>

#include "collective.hpp"
#include "context.hpp"

namespace epctl::loopback {
namespace {

constexpr int kMessagesAtOnce = 64;
constexpr double kFarewellS = 1.0;
constexpr unsigned kFarewellPollUs = 200;
enum Kind : std::uint64_t { kSignal = 1, kFarewell = 2, kGaveUp = 3 };

}  // namespace

bool Collective::deliver(int rank, const Signal& signal) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (rank == rank_) {
        arrive(signal, rank);
        return true;
    }
    if (!peer.departed && !peer.closed) {
        const Message message{kSignal, signal};
        const Io sent = try_send(peer.link.signals.get(), &message, sizeof message);
        if (sent == Io::kDone) return true;
        if (sent == Io::kAgain) return false;
        receive_from(rank);  // where its farewell is, if it said one
    }
    if (peer.num_dropped == 0) info(who(rank) + " has left: signals to it are dropped");
    ++peer.num_dropped;
    return true;
}

void Collective::receive() {
    for (int other = 0; other < num_ranks(); ++other)
        if (other != rank_) receive_from(other);
    // Last, because a rank often gives up over another one that is dead: that one is to be named.
    for (int other = 0; other < num_ranks(); ++other)
        if (peers_[static_cast<std::size_t>(other)].gave_up)
            throw Failure(kRemoteError, who(other) + " has given up after an error of its own");
}

void Collective::receive_from(int rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    for (int i = 0; i < kMessagesAtOnce && !peer.closed; ++i) {
        Message message{};
        const Io received = try_receive(peer.link.signals.get(), &message, sizeof message);
        if (received == Io::kAgain) return;
        if (received == Io::kDone) {
            understand(message, rank);
            continue;
        }
        peer.closed = true;
        if (!peer.departed && !peer.gave_up)
            throw Failure(kRemoteError, who(rank) + " has ended without closing its communicator");
    }
}

void Collective::understand(const Message& message, int rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (message.kind == kSignal) {
        arrive(message.signal, rank);
    } else if (message.kind == kFarewell) {
        peer.departed = true;
    } else if (message.kind == kGaveUp) {
        peer.gave_up = true;
    } else {
        throw Failure(kInternalError, who(rank) + " sent a message of kind " + std::to_string(message.kind));
    }
}

void Collective::arrive(const Signal& signal, int rank) {
    if (signal.registration >= registrations_.size())
        throw Failure(kInternalError, who(rank) + " sent a signal to unknown memory");
    Registration* const registration = registrations_[signal.registration].get();
    if (registration->withdrawn) {
        info(who(rank) + " sent a signal to memory that is deregistered: it is dropped");
        return;
    }
    if (signal.offset % sizeof(std::uint64_t) != 0 || !registration->holds(signal.offset, sizeof(std::uint64_t)))
        throw Failure(kInvalidArgument, who(rank) + " sent a signal to byte " + std::to_string(signal.offset) + " of " +
                                            std::to_string(registration->size));
    ++num_signals_;
    // Only with the one before: a signal is not to be seen before one that arrived earlier.
    if (!arrivals_.empty() && arrivals_.back().registration == registration &&
        arrivals_.back().offset == signal.offset) {
        arrivals_.back().value += signal.value;
    } else {
        arrivals_.push_back({registration, signal.offset, signal.value});
    }
}

void Collective::apply() {
    if (arrivals_.empty()) return;
    apply_on_gpu();
    arrivals_.clear();
}

void Collective::apply_on_gpu() {
    SignalBatch batch{};
    const auto launch = [&] {
        if (batch.num_entries != 0) device_->add(batch, signal_stream_);
        batch.num_entries = 0;
    };
    for (const Arrival& arrival : arrivals_) {
        Registration& registration = *arrival.registration;
        const CUdeviceptr address = registration.data + arrival.offset;
        if (registration.plain_host) {
            __atomic_fetch_add(reinterpret_cast<std::uint64_t*>(address), arrival.value, __ATOMIC_RELEASE);
        } else if (registration.counts_signals) {
            launch();
            std::uint64_t& count = registration.counts[arrival.offset / sizeof(std::uint64_t)];
            count += arrival.value;
            device_->set(address, count, signal_stream_);
        } else {
            if (batch.num_entries == kBatchEntries) launch();
            batch.entries[batch.num_entries++] = {reinterpret_cast<unsigned long long*>(address), arrival.value};
        }
    }
    launch();
}

void Collective::farewell() {
    const Deadline deadline(kFarewellS);
    const std::lock_guard<std::mutex> guard(mutex);
    const Message message{failed() == kSuccess ? kFarewell : kGaveUp, {}};
    for (std::size_t other = 0; other < peers_.size(); ++other) {
        Peer& peer = peers_[other];
        if (!peer.link.signals || peer.closed) continue;
        try {
            while (try_send(peer.link.signals.get(), &message, sizeof message) == Io::kAgain && !deadline.over())
                usleep(kFarewellPollUs);
            // What is unread when a socket is closed would reset the connection for the other side.
            Message unread{};
            while (try_receive(peer.link.signals.get(), &unread, sizeof unread) == Io::kDone) continue;
        } catch (const Failure& failure) {
            info("the farewell to " + who(static_cast<int>(other)) + ": " + failure.what());
        }
    }
}

}  // namespace epctl::loopback
