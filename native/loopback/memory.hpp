// Registered memory: what this rank owns, and where the same registration of each peer is mapped here.
//
// NCCL registers in the same order on all ranks, so that a count names a registration everywhere. A range of the GPU
// goes to the peers as file descriptors of its physical segments; nothing is copied.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device.hpp"
#include "messages.hpp"

namespace epctl::loopback {

// Physical segments of a range, in their order.
struct Segments {
    std::uint64_t offset = 0;  // of the range in the first segment
    std::vector<std::uint64_t> sizes;
    std::vector<Fd> fds;
    std::string why_not;  // why there are none; empty when there are
};

// Never throws for memory that cannot be shared: NCCL's signals cannot, and need not.
Segments export_range(CUdeviceptr data, std::uint64_t size);

// A peer's range in this rank's address space.
class Mapping {
  public:
    Mapping() = default;
    // Throws Failure.
    Mapping(const Segments& segments, const Device& device);
    ~Mapping();
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;

    CUdeviceptr data() const { return address_ + offset_; }

  private:
    void map(const Segments& segments, const Device& device);
    void release() noexcept;

    CUdeviceptr address_ = 0;
    std::uint64_t size_ = 0;
    std::uint64_t offset_ = 0;
    std::vector<std::uint64_t> mapped_;  // sizes of the segments from address_ on
};

struct Registration {
    struct Peer {
        CUdeviceptr data = 0;  // 0: not reachable
        std::uint64_t size = 0;
        std::string why_not;
        Mapping mapping;
    };

    std::uint64_t id = 0;
    CUdeviceptr data = 0;
    std::uint64_t size = 0;
    int type = 0;
    bool plain_host = false;  // of the host and not made by the CUDA driver: the CPU adds to signals in it
    // Where device code never resets signals, this side alone writes them: it counts, and needs no addition by an SM.
    bool counts_signals = false;
    std::vector<std::uint64_t> counts;
    std::vector<Peer> peers;
    std::uint64_t num_in_flight = 0;  // copies that read or write it
    // It stays as a name until the collective is closed: NCCL may still have requests with it in its queues.
    bool withdrawn = false;

    bool holds(std::uint64_t offset, std::uint64_t bytes) const { return offset <= size && bytes <= size - offset; }
};

// What a rank tells all others about its side of a registration.
struct Announcement {
    std::uint64_t magic;
    std::uint64_t id;
    std::uint64_t size;
    std::uint64_t offset;
    std::int32_t type;
    std::uint32_t num_segments;
    char why_not[120];
};

void announce(int socket, const Registration& registration, const Segments& segments, const Deadline& deadline,
              const std::string& who);

// The other side's announcement of the same registration, mapped here. Throws Failure when it is of another one.
Registration::Peer learn(int socket, const Registration& registration, const Device* device, const Deadline& deadline,
                         const std::string& who);

}  // namespace epctl::loopback
