#include "messages.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "report.hpp"

namespace epctl::loopback {

void Fd::reset(int fd) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
}

void wait_for(int fd, short events, const Deadline& deadline, const std::string& who) {
    for (;;) {
        pollfd waited{fd, events, 0};
        const int found = poll(&waited, 1, deadline.left_ms());
        if (found > 0) return;
        if (found < 0 && errno != EINTR) throw system_failure("poll for " + who, errno);
        if (deadline.over()) throw Failure(kSystemError, who + " did not answer in time (EPCTL_LOOPBACK_TIMEOUT_S)");
    }
}

void send_message(int socket, const void* data, std::size_t size, const std::vector<int>& fds, const Deadline& deadline,
                  const std::string& who) {
    iovec part{const_cast<void*>(data), size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const std::size_t fd_bytes = fds.size() * sizeof(int);
    std::vector<char> space(CMSG_SPACE(fd_bytes));
    if (!fds.empty()) {
        message.msg_control = space.data();
        message.msg_controllen = space.size();
        cmsghdr* const head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(fd_bytes);
        std::memcpy(CMSG_DATA(head), fds.data(), fd_bytes);
    }
    while (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        if (errno == EPIPE || errno == ECONNRESET) throw Failure(kRemoteError, who + " has ended");
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            wait_for(socket, POLLOUT, deadline, who);
        } else if (errno != EINTR) {
            throw system_failure("a message to " + who, errno);
        }
    }
}

std::vector<Fd> receive_message(int socket, void* data, std::size_t size, const Deadline& deadline,
                                const std::string& who) {
    constexpr std::size_t kMostFds = 253;  // SCM_MAX_FD of Linux
    alignas(cmsghdr) char space[CMSG_SPACE(kMostFds * sizeof(int))];
    for (;;) {
        wait_for(socket, POLLIN, deadline, who);
        iovec part{data, size};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = space;
        message.msg_controllen = sizeof space;
        const ssize_t received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        // A connection that was reset may still hold messages: the end comes as 0.
        if (received < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET)) continue;
        if (received < 0) throw system_failure("a message of " + who, errno);
        std::vector<Fd> fds;
        for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
            if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
            const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (std::size_t i = 0; i < count; ++i) {
                int fd = -1;
                std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
                fds.emplace_back(fd);
            }
        }
        if (received == 0) throw Failure(kRemoteError, who + " has ended");
        if ((message.msg_flags & MSG_CTRUNC) != 0)
            throw Failure(kSystemError, "too many open files to take those of " + who + " (ulimit -n)");
        if (static_cast<std::size_t>(received) != size || (message.msg_flags & MSG_TRUNC) != 0)
            throw Failure(kInternalError, who + " sent a message of another size");
        return fds;
    }
}

Io try_send(int socket, const void* data, std::size_t size) {
    for (;;) {
        if (send(socket, data, size, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return Io::kDone;
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM) return Io::kAgain;
        if (errno == EPIPE || errno == ECONNRESET) return Io::kClosed;
        if (errno != EINTR) throw system_failure("send", errno);
    }
}

Io try_receive(int socket, void* data, std::size_t size) {
    for (;;) {
        const ssize_t received = recv(socket, data, size, MSG_DONTWAIT);
        if (received == static_cast<ssize_t>(size)) return Io::kDone;
        if (received == 0) return Io::kClosed;
        if (received > 0) throw Failure(kInternalError, "a message of another size");
        if (errno == EAGAIN || errno == EWOULDBLOCK) return Io::kAgain;
        if (errno != EINTR && errno != ECONNRESET) throw system_failure("recv", errno);
    }
}

}  // namespace epctl::loopback
