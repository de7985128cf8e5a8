#include "collective.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>

#include "context.hpp"

namespace epctl::loopback {
namespace {

constexpr unsigned kPollUs = 100;
constexpr unsigned kCaretakerUs = 1000;

}  // namespace

Collective::Collective(const Listener& listener, const std::vector<Handle>& handles, int rank)
    : rank_(rank), peers_(handles.size()), stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!stop_) throw system_failure("eventfd", errno);
    std::vector<Link> links = connect_all(listener, handles, rank, Deadline(limit_s()));
    for (std::size_t other = 0; other < links.size(); ++other) peers_[other].link = std::move(links[other]);
    peers_[static_cast<std::size_t>(rank)].link.process = getpid();
    // Signals of the operating system are for the threads of the program.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    caretaker_ = std::thread([this] { look_after(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Collective::~Collective() {
    close();
}

std::string Collective::who(int rank) const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(num_ranks()) + " (process " +
           std::to_string(peers_[static_cast<std::size_t>(rank)].link.process) + ")";
}

void Collective::bind_device() {
    if (device_ != nullptr) return;
    auto device = std::make_unique<Device>();
    CUstream stream = nullptr;
    {
        const Device::Current current(*device);
        stream = device->new_stream();
    }
    const std::lock_guard<std::mutex> guard(mutex);
    device_ = std::move(device);
    signal_stream_ = stream;
}

Registration* Collective::enroll(CUdeviceptr data, std::uint64_t size, int type, std::uint64_t flags) {
    const std::lock_guard<std::mutex> one_at_a_time(control_mutex_);
    if (failed() != kSuccess) throw Failure(failed(), "nothing is registered in a communicator that has failed");
    if (type == kPointerCuda) bind_device();
    Segments segments;
    if (device_ != nullptr) {
        const Device::Current current(*device_);
        segments = export_range(data, size);
    } else {
        segments.why_not = "it is memory of the host, registered before any of a GPU";
    }
    auto made = std::make_unique<Registration>();
    Registration& registration = *made;
    registration.data = data;
    registration.size = size;
    registration.type = type;
    registration.plain_host = type == kPointerHost && !segments.why_not.empty();
    registration.counts_signals = type == kPointerCuda && (flags & kFlagNeverReset) != 0 && device_->can_set();
    if (registration.counts_signals) registration.counts.assign(size / sizeof(std::uint64_t), 0);
    registration.peers.resize(peers_.size());
    {
        // Before it is announced: a peer that knows of it may send a signal to it at once.
        const std::lock_guard<std::mutex> guard(mutex);
        registration.id = registrations_.size();
        registrations_.push_back(std::move(made));
    }
    try {
        learn_from_all(registration, segments);
    } catch (const Failure& failure) {
        const std::lock_guard<std::mutex> guard(mutex);
        fail(failure);
        registration.withdrawn = true;
        throw;
    }
    return &registration;
}

void Collective::learn_from_all(Registration& registration, const Segments& segments) {
    const Deadline deadline(limit_s());
    for (int other = 0; other < num_ranks(); ++other)
        if (other != rank_)
            announce(peers_[static_cast<std::size_t>(other)].link.control.get(), registration, segments, deadline,
                     who(other));
    std::optional<Device::Current> current;
    if (device_ != nullptr) current.emplace(*device_);
    std::vector<Registration::Peer> known(peers_.size());
    for (int other = 0; other < num_ranks(); ++other) {
        Registration::Peer& peer = known[static_cast<std::size_t>(other)];
        if (other == rank_) {
            peer.data = registration.data;
            peer.size = registration.size;
        } else {
            peer = learn(peers_[static_cast<std::size_t>(other)].link.control.get(), registration, device_.get(),
                         deadline, who(other));
        }
    }
    const std::lock_guard<std::mutex> guard(mutex);
    registration.peers = std::move(known);
}

// Makes progress until `met`, and gives up after the limit.
template <class Condition>
bool Collective::wait_until(Condition met) {
    const Deadline deadline(drain_limit_s());
    for (;;) {
        {
            const std::lock_guard<std::mutex> guard(mutex);
            progress();
            std::optional<Device::Current> current;
            if (device_ != nullptr) current.emplace(*device_);
            if (met()) return true;
        }
        if (deadline.over()) return false;
        usleep(kPollUs);
    }
}

bool Collective::owns(const Registration* registration) {
    const std::lock_guard<std::mutex> guard(mutex);
    return std::any_of(registrations_.begin(), registrations_.end(),
                       [&](const auto& one) { return one.get() == registration && !one->withdrawn; });
}

bool Collective::owns(const Context* context) {
    const std::lock_guard<std::mutex> guard(mutex);
    return std::any_of(contexts_.begin(), contexts_.end(), [&](const auto& one) { return one.get() == context; });
}

// Waits for the signals that have arrived, and for the copies of the registration.
bool Collective::signals_written(const Registration* registration) {
    CUevent event = nullptr;
    if (device_ != nullptr) {
        const std::lock_guard<std::mutex> guard(mutex);
        const Device::Current current(*device_);
        event = Device::mark(signal_stream_);
    }
    const bool written = wait_until([&] {
        const bool copied = registration == nullptr || registration->num_in_flight == 0;
        return copied && (event == nullptr || Device::settled(event));
    });
    if (event != nullptr) {
        const Device::Current current(*device_);
        Device::destroy(event);
    }
    return written;
}

void Collective::withdraw(Registration* registration) {
    {
        // From now on nothing more is begun with it.
        const std::lock_guard<std::mutex> guard(mutex);
        registration->withdrawn = true;
    }
    const bool unused = signals_written(registration);
    std::vector<Registration::Peer> gone(peers_.size());
    const std::lock_guard<std::mutex> guard(mutex);
    registration->peers.swap(gone);
    registration->counts = {};
    if (unused) return;
    warn("memory of " + std::to_string(registration->size) + " bytes is deregistered with " +
         std::to_string(registration->num_in_flight) + " copies in flight: it stays mapped");
    // Until the process ends: to unmap what the GPU writes to would be an error of the whole program.
    new std::vector<Registration::Peer>(std::move(gone));
}

Context* Collective::open_context(int num_contexts) {
    {
        const std::lock_guard<std::mutex> one_at_a_time(control_mutex_);
        bind_device();
    }
    const std::lock_guard<std::mutex> guard(mutex);
    const Device::Current current(*device_);
    contexts_.push_back(std::make_unique<Context>(*this, num_contexts));
    return contexts_.back().get();
}

void Collective::close_context(Context* context) {
    if (!wait_until([&] { return context->empty() && context->idle(); })) {
        const std::lock_guard<std::mutex> guard(mutex);
        for (int other = 0; other < num_ranks(); ++other)
            if (const std::uint64_t num = context->num_pending(other); num != 0)
                warn(std::to_string(num) + " requests to " + who(other) + " are cancelled with their context");
    }
    const std::lock_guard<std::mutex> guard(mutex);
    const Device::Current current(*device_);
    const auto found =
        std::find_if(contexts_.begin(), contexts_.end(), [&](const auto& one) { return one.get() == context; });
    contexts_.erase(found);
}

void Collective::close() {
    if (closed_) return;
    closed_ = true;
    const std::uint64_t one = 1;
    if (write(stop_.get(), &one, sizeof one) < 0) warn("eventfd: the thread of the loopback ends late");
    caretaker_.join();
    try {
        release();
    } catch (const Failure& failure) {
        warn(std::string("the end of a communicator: ") + failure.what());
    }
    farewell();
    std::uint64_t num_dropped = 0;
    for (const Peer& peer : peers_) num_dropped += peer.num_dropped;
    info(who(rank_) + " closes: " + std::to_string(num_signals_) + " signals arrived, " + std::to_string(num_dropped) +
         " were for ranks that had left");
}

void Collective::release() {
    while (!contexts_.empty()) close_context(contexts_.back().get());
    if (!signals_written(nullptr)) warn("signals are still on their way to the GPU when their communicator ends");
    const std::lock_guard<std::mutex> guard(mutex);
    if (device_ == nullptr) return;
    const Device::Current current(*device_);
    registrations_.clear();
    Device::destroy(signal_stream_);
    signal_stream_ = nullptr;
}

void Collective::fail(const Failure& failure) {
    if (failed() != kSuccess) return;
    failed_.store(failure.result);
    warn(who(rank_) + " gives up: " + failure.what());
}

void Collective::progress() {
    last_progress_ = Clock::now();
    if (device_ == nullptr && failed() != kSuccess) return;
    try {
        std::optional<Device::Current> current;
        if (device_ != nullptr) current.emplace(*device_);
        for (const auto& context : contexts_) context->advance();
        if (failed() != kSuccess) return;
        receive();
        apply();
    } catch (const Failure& failure) {
        arrivals_.clear();
        fail(failure);
    }
}

bool Collective::wait_for_peers() {
    std::vector<pollfd> waited{{stop_.get(), POLLIN, 0}};
    {
        const std::lock_guard<std::mutex> guard(mutex);
        for (const Peer& peer : peers_)
            if (peer.link.signals && !peer.closed && failed() == kSuccess)
                waited.push_back({peer.link.signals.get(), POLLIN, 0});
    }
    poll(waited.data(), waited.size(), 1000);
    return (waited.front().revents & POLLIN) == 0;
}

void Collective::look_after() {
    while (wait_for_peers()) {
        usleep(kCaretakerUs);  // NCCL's own thread reads within microseconds, where it does
        const std::lock_guard<std::mutex> guard(mutex);
        if (Clock::now() - last_progress_ > std::chrono::microseconds(kCaretakerUs)) progress();
    }
}

}  // namespace epctl::loopback
