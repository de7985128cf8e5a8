// Sockets between the ranks of one machine: abstract Unix sockets, which leave nothing in the file system.
//
// An abstract name has no permissions. Both sides therefore ask the kernel for the user of the other one, and who
// connects shows a random token that only came to it through NCCL's own exchange of handles.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "api.hpp"
#include "limits.hpp"
#include "messages.hpp"

namespace epctl::loopback {

// What NCCL carries from each rank to all others.
struct Handle {
    std::uint64_t magic;
    std::uint32_t version;
    std::int32_t process;
    std::uint8_t token[16];
    std::uint8_t machine[16];         // boot id: the same in all containers of a machine
    std::uint64_t network_namespace;  // abstract names are seen within one
    char name[48];
};
static_assert(sizeof(Handle) <= kHandleBytes, "NCCL carries no more");

class Listener {
  public:
    // Throws Failure.
    Listener();

    const Handle& handle() const { return handle_; }
    int fd() const { return fd_.get(); }

  private:
    Fd fd_;
    Handle handle_{};
};

// The two sockets to one rank. Registrations, which block, and signals, which do not, never wait for each other.
struct Link {
    Fd control;
    Fd signals;
    pid_t process = 0;
};

// Links to all ranks but `rank`; its own stays empty. Throws Failure that names the rank, at the latest when the
// deadline is over.
std::vector<Link> connect_all(const Listener& listener, const std::vector<Handle>& handles, int rank,
                              const Deadline& deadline);

}  // namespace epctl::loopback
