// Messages over sockets that keep their boundaries, with file descriptors and time limits.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "limits.hpp"

namespace epctl::loopback {

class Fd {
  public:
    explicit Fd(int fd = -1) : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        if (this != &other) reset(std::exchange(other.fd_, -1));
        return *this;
    }
    ~Fd() { reset(); }

    int get() const { return fd_; }
    void reset(int fd = -1);
    explicit operator bool() const { return fd_ >= 0; }

  private:
    int fd_;
};

// Waits for poll(2)'s events. Throws Failure that names `who` when the deadline is over.
void wait_for(int fd, short events, const Deadline& deadline, const std::string& who);

// One message with file descriptors, whole. Throws Failure; `who` names the other side.
void send_message(int socket, const void* data, std::size_t size, const std::vector<int>& fds, const Deadline& deadline,
                  const std::string& who);
std::vector<Fd> receive_message(int socket, void* data, std::size_t size, const Deadline& deadline,
                                const std::string& who);

enum class Io { kDone, kAgain, kClosed };

// One message without waiting. kClosed: the other side is gone. Throws Failure for other errors.
Io try_send(int socket, const void* data, std::size_t size);
Io try_receive(int socket, void* data, std::size_t size);

}  // namespace epctl::loopback
